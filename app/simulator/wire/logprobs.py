"""Log-probabilities in the three forms of vLLM's routes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from app.simulator.sampler import Candidate
from app.simulator.settings import SimulatorSettings
from app.simulator.wire.answer import FLOOR, decoded

_T = TypeVar("_T")


def _clamped(value: float) -> float:
    """Floor a log-probability; NaN stays, as Python's max leaves it."""
    return max(value, FLOOR)


def _listed(found: Sequence[_T], count: int) -> Sequence[_T]:
    """Give the candidates a client sees: all for -1, else the first `count`."""
    return found if count == -1 else found[:count]


def _named(candidate: Candidate, text: str, *, as_ids: bool, clamp_nan: bool) -> dict[str, Any]:
    name = f"token_id:{candidate.token}" if as_ids else text
    logprob = candidate.logprob
    floor = clamp_nan and math.isnan(logprob)
    return {
        "token": name,
        "logprob": FLOOR if floor else _clamped(logprob),
        "bytes": list(name.encode()),
    }


def by_id(
    candidates: Sequence[Sequence[Candidate]],
    asked: int,
    settings: SimulatorSettings,
) -> dict[str, Any]:
    """Render for `/inference/v1/generate` in tokens mode.

    Up to 0.31 an entry is named `token_id:N`; from 0.32 on it has the id and the rank.
    Source: `entrypoints/scale_out/token_in_token_out/serving.py::_create_tokens_logprobs`.
    """
    semantics = settings.semantics
    named = semantics.logprob_entries == "token_strings"

    def value(candidate: Candidate) -> float:
        if math.isnan(candidate.logprob) and semantics.nan_logprobs_clamped:
            return FLOOR
        return _clamped(candidate.logprob)

    def entry(candidate: Candidate) -> dict[str, Any]:
        if named:
            name = f"token_id:{candidate.token}"
            return {"token": name, "logprob": value(candidate), "bytes": None}
        return {
            "token_id": candidate.token,
            "logprob": value(candidate),
            "rank": candidate.rank or None,
        }

    count = max(asked, 1)
    if asked == -1 and semantics.whole_vocabulary_logprobs:
        count = -1
    elif asked >= 1 and not semantics.logprobs_cut_to_k:
        count = asked + 1
    return {
        "content": [
            {**entry(found[0]), "top_logprobs": [entry(c) for c in _listed(found, count)]}
            for found in candidates
        ]
    }


def by_text(
    tokens: Sequence[int],
    candidates: Sequence[Sequence[Candidate]],
    listed: int,
    *,
    context: Sequence[int],
    as_ids: bool,
    null_bytes: bool = False,
    clamp_nan: bool = False,
    return_all: bool = False,
) -> dict[str, Any]:
    """Render in OpenAI's chat form, with text and UTF-8 bytes.

    Args:
        tokens: generated tokens, (n,).
        candidates: one list a token; the sampled token first.
        listed: how many candidates to list; -1 is all.
        context: tokens generated before these.
        as_ids: whether tokens are named `token_id:N`.
        null_bytes: whether such names come without bytes.
        clamp_nan: whether NaN becomes the floor.
        return_all: whether every candidate is listed whatever `listed` says.
    """
    before = list(context)
    content = []
    for token, found in zip(tokens, candidates, strict=True):
        texts = [decoded(candidate.token, before) for candidate in found]
        entries = [
            _named(candidate, text, as_ids=as_ids, clamp_nan=clamp_nan)
            for candidate, text in zip(found, texts, strict=True)
        ]
        top = entries if return_all else _listed(entries, listed)
        # The sampled token's own bytes are those of its text, however it is named.
        first = {**entries[0], "bytes": list(texts[0].encode())}
        if as_ids and null_bytes:
            first = {**first, "bytes": None}
            top = [{**one, "bytes": None} for one in top]
        content.append({**first, "top_logprobs": list(top)})
        before.append(token)
    return {"content": content}


def by_offset(
    tokens: Sequence[int],
    candidates: Sequence[Sequence[Candidate] | None],
    listed: int,
    *,
    context: Sequence[int],
    as_ids: bool,
    offset: int = 0,
    return_all: bool = False,
) -> dict[str, Any]:
    """Render in the form of OpenAI's completions, with text offsets in characters.

    `candidates` may be None for the first token of an echoed prompt. Source:
    `entrypoints/openai/completion/serving.py::_create_completion_logprobs`.
    """
    before = list(context)
    offsets: list[int] = []
    names: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []

    def name(token: int) -> str:
        return f"token_id:{token}" if as_ids else decoded(token, before)

    for token, found in zip(tokens, candidates, strict=True):
        offsets.append(offset)
        names.append(name(token))
        offset += len(names[-1])
        if found is None:
            values.append(None)
            tops.append(None)
        else:
            values.append(_clamped(found[0].logprob))
            top = found if return_all or listed == -1 else found[: listed + 1]
            tops.append({name(c.token): _clamped(c.logprob) for c in top})
        before.append(token)
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": names,
        "top_logprobs": tops,
    }
