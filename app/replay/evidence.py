"""What a request and its response say, as arrays: the input of every check.

Logprobs follow one rule. A number at or below -9999 (-inf among them) means "no more than
that": vLLM sends -9999.0 for -inf and for anything smaller. null, or a missing entry, means
"not given". NaN and +inf are no logprobs, and such input is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from app.catalogue.semantics import EngineSemantics
from app.replay.options import Analysis
from app.replay.ragged import Ragged
from app.replay.wire.sampling_params import SamplingRequest

# vLLM's stand-in for -inf and its floor for finite logprobs
# (`serving.py::_clamp_logprob`, `entrypoints/openai`: `max(logprob, -9999.0)`).
LOGPROB_FLOOR = -9999.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What only the server's operator knows.

    Attributes:
        use_fp64_gumbel: the server runs with `--use-fp64-gumbel`.
        watermark: it runs with a `--watermark-config`.
        speculative: it speculates; `None` when not said.
        rejection_sample_method: of its speculative config.
        draft_sample_method: of its speculative config; `probabilistic` or one-hot drafts.
        num_speculative_tokens: of its speculative config; without it blocks cannot be told.
        vocab_size: of the model (rows of the LM head), for range checks.
        tokenizer_size: ids that the tokenizer knows, which may be fewer.
    """

    use_fp64_gumbel: bool = False
    watermark: bool = False
    speculative: bool | None = None
    rejection_sample_method: str = "standard"
    draft_sample_method: str = "greedy"
    num_speculative_tokens: int | None = None
    vocab_size: int | None = None
    tokenizer_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Logprobs that came with each row.

    Attributes:
        named: the token each entry is about, (n,) int64.
        sampled: its logprob, (n,) float64; NaN where not given.
        ids: candidates of each row.
        logprobs: of `ids.values`, (m,) float64; NaN where not given.
        on_mask: whether they are the mask's own ids and not the most likely tokens.
        ranks: of `ids.values`, (m,) int64; 0 where not given, None where none is.
    """

    named: NDArray[np.int64]
    sampled: NDArray[np.float64]
    ids: Ragged
    logprobs: NDArray[np.float64]
    on_mask: bool = False
    ranks: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """The rows of one choice, aligned.

    Attributes:
        index: the choice's own index.
        pointer: where it stands in the case, `/response/choices/0` or another place.
        bare: whether it came packed, without a response of vLLM around it.
        token_ids: sampled ids, (n,) int64.
        masks: the sampling mask of each row, ids ascending.
        masks_ascending: whether each came ascending.
        candidates: logprobs, or None where the response has none.
        finish_reason: null while the choice is unfinished.
        replayed: rows whose token the engine sampled, (n,); None for all. The others (tool
            output, forced tokens) keep their positions, and no check or draw is about them.
    """

    index: int
    pointer: str
    token_ids: NDArray[np.int64]
    masks: Ragged
    masks_ascending: bool
    candidates: Candidates | None
    finish_reason: str | None
    replayed: NDArray[np.bool_] | None = None
    bare: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """One request, its response, and the version that answered.

    Attributes:
        id: the caller's, any JSON value.
        version: of vLLM.
        semantics: how that version behaves.
        sampling: the request's parameters, normalised.
        prompt_length: P, so that row i was drawn at position P - 1 + i; None if unknown.
        choices: at least one.
        options: what the operator said.
        speculated: whether the server speculated, as far as known.
        repeating: choices whose chunks look cumulative, and how many chunks did.
        uneven: choices whose chunks have masks or logprobs of other tokens than their own.
        usage: token counts the response claims, `(prompt, completion)`.
        analysis: what to do besides checks and draws.
    """

    id: Any
    version: Version
    semantics: EngineSemantics
    sampling: SamplingRequest
    prompt_length: int | None
    choices: tuple[Choice, ...]
    options: ReplayOptions
    speculated: bool | None
    repeating: Mapping[int, int]
    uneven: tuple[int, ...]
    usage: tuple[int | None, int | None]
    analysis: Analysis = field(default_factory=Analysis)
