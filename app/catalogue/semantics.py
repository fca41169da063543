"""How each vLLM version behaves on the wire and draws its tokens.

These facts live in function bodies, so no extractor reads them; each was established by
running that version or its kernels. A fork or nightly behaves like the release it is based on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from packaging.version import Version


class DrawGenerator(StrEnum):
    """The counter-based generator behind the engine's Gumbel-max draw.

    Source: `v1/worker/gpu/sample/gumbel.py`.
    """

    PHILOX = "philox"
    MURMUR3 = "murmur3"


class LogprobEntries(StrEnum):
    """How `/inference/v1/generate` names the token of a logprob.

    Source: `entrypoints/scale_out/token_in_token_out/serving.py::_create_tokens_logprobs`.
    """

    TOKEN_STRINGS = "token_strings"  # noqa: S105 - {"token": "token_id:42"}
    TOKEN_IDS = "token_ids"  # noqa: S105 - {"token_id": 42, "rank": 1}


@dataclass(frozen=True, slots=True)
class EngineSemantics:
    """What differs between versions on `/inference/v1/generate`.

    Attributes:
        draw: generator of the seeded draw.
        logprob_entries: how a logprob names its token.
        masks_in_streams: whether stream chunks carry `sampling_mask` (else null).
        generate_needs_scale_out: whether the route needs `--enable-scale-out`/`--tokens-only`.
        generate_disabled_status: HTTP status of the route where it is not enabled.
        whole_vocabulary_logprobs: whether `logprobs: -1` returns every entry (else only one).
        logprobs_cut_to_k: whether an unranked sampled token displaces the k-th candidate.
        nan_logprobs_clamped: whether NaN is sent as -9999.0 (else the response breaks).
        keeps_all_choices: whether n > 1 without streaming returns every choice.
        speculative_replay: whether masks and speculative decoding go together.
    """

    draw: DrawGenerator
    logprob_entries: LogprobEntries
    masks_in_streams: bool
    generate_needs_scale_out: bool
    generate_disabled_status: int
    whole_vocabulary_logprobs: bool
    logprobs_cut_to_k: bool
    nan_logprobs_clamped: bool
    keeps_all_choices: bool
    speculative_replay: bool


def semantics_of(version: str | Version) -> EngineSemantics:
    """Give the behaviour of `version`; of anything newer than known, the newest known."""
    release = Version(Version(str(version)).base_version)

    def since(first: str) -> bool:
        return release >= Version(first)

    return EngineSemantics(
        draw=DrawGenerator.MURMUR3 if since("0.31") else DrawGenerator.PHILOX,
        logprob_entries=(
            LogprobEntries.TOKEN_IDS if since("0.32") else LogprobEntries.TOKEN_STRINGS
        ),
        masks_in_streams=since("0.32"),
        generate_needs_scale_out=since("0.30"),
        generate_disabled_status=403 if since("0.32") else 404,
        whole_vocabulary_logprobs=since("0.31"),
        logprobs_cut_to_k=not since("0.33"),
        nan_logprobs_clamped=since("0.32"),
        keeps_all_choices=since("0.29"),
        speculative_replay=since("0.32"),
    )
