"""Turning decoded choices into arrays, and saying what does not fit where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.replay.evidence import Candidates, Choice
from app.replay.ragged import Ragged, offsets_of
from app.replay.wire.generate import Candidate, ChoiceBody, Entry, Logprobs
from app.replay.wire.packed import MaskBody, floats, integers, mask_rows, refusal

_Named: TypeAlias = Entry | Candidate
_PlaceOf: TypeAlias = Callable[[int], str]

_PREFIX = "token_id:"
_logprob = attrgetter("logprob")
_token_id = attrgetter("token_id")
_token = attrgetter("token")
_top = attrgetter("top_logprobs")


def choice_of(body: ChoiceBody, place: int) -> Choice:
    """Turn one decoded choice into arrays.

    Raises:
        InvalidEnvelope: token ids, masks and logprobs differ in length, or a value is none.
    """
    pointer = f"/response/choices/{place}"
    token_ids = integers(body.token_ids or [], f"{pointer}/token_ids").ravel()
    rows = _masks(body.sampling_mask or [], f"{pointer}/sampling_mask")
    if len(rows) != len(token_ids):
        raise refusal(
            "misaligned-mask",
            f"{len(token_ids)} token_ids but {len(rows)} rows in sampling_mask; there must be "
            "one row for each token",
            f"{pointer}/sampling_mask",
        )
    logprobs = body.logprobs
    candidates: Candidates | None = None
    if logprobs is not None and logprobs.on_mask is not None:
        candidates = _on_mask(logprobs, rows, token_ids, f"{pointer}/logprobs")
    elif logprobs is not None and logprobs.content is not None:
        candidates = _candidates(logprobs.content, len(token_ids), f"{pointer}/logprobs/content")
    masks, ascending = _ascending(rows)
    return Choice(
        index=body.index,
        place=place,
        token_ids=token_ids,
        masks=masks,
        masks_ascending=ascending,
        candidates=candidates,
        finish_reason=body.finish_reason,
    )


def _masks(body: list[list[int]] | MaskBody, pointer: str) -> Ragged:
    if isinstance(body, MaskBody):
        return mask_rows(body, pointer)
    try:
        return Ragged.of(body)
    except OverflowError:
        raise refusal("no-token-id", "an id does not fit in 64 bits", pointer) from None


def _on_mask(
    body: Logprobs, rows: Ragged, token_ids: NDArray[np.int64], pointer: str
) -> Candidates:
    """Logprobs given on the mask itself, with or without those of the sampled tokens."""
    values = floats(body.on_mask if body.on_mask is not None else [], f"{pointer}/on_mask")
    if len(values) != len(rows.values):
        raise refusal(
            "misaligned-logprobs",
            f"{len(rows.values)} ids in the masks but {len(values)} logprobs on them",
            f"{pointer}/on_mask",
        )
    sampled = np.full(len(rows), np.nan)
    if body.sampled is not None:
        sampled = floats(body.sampled, f"{pointer}/sampled")
        if len(sampled) != len(rows):
            raise refusal(
                "misaligned-logprobs",
                f"{len(rows)} token_ids but {len(sampled)} sampled logprobs",
                f"{pointer}/sampled",
            )
    return Candidates(named=token_ids, sampled=sampled, ids=rows, logprobs=values, on_mask=True)


def _candidates(content: list[Entry], tokens: int, pointer: str) -> Candidates:
    if len(content) != tokens:
        raise refusal(
            "misaligned-logprobs",
            f"{tokens} token_ids but {len(content)} logprobs; there must be one entry for "
            "each token",
            pointer,
        )
    tops: list[list[Candidate]] = [top or [] for top in map(_top, content)]
    flat = list(chain.from_iterable(tops))
    offsets = offsets_of(np.fromiter(map(len, tops), np.int64, len(tops)))

    def place_of(index: int) -> str:
        row = int(np.searchsorted(offsets, index, side="right")) - 1
        return f"{pointer}/{row}/top_logprobs/{index - int(offsets[row])}"

    def entry_of(index: int) -> str:
        return f"{pointer}/{index}"

    return Candidates(
        named=_ids(content, entry_of),
        sampled=_numbers(content, entry_of),
        ids=Ragged(_ids(flat, place_of), offsets),
        logprobs=_numbers(flat, place_of),
    )


def _ids(entries: Sequence[_Named], place_of: _PlaceOf) -> NDArray[np.int64]:
    """The token each entry is about, whichever way the version names it."""
    try:
        if entries and entries[0].token_id is None:
            return _parse_ids(list(map(_token, entries)))
        ids = np.fromiter(map(_token_id, entries), np.int64, len(entries))
    except (TypeError, ValueError, OverflowError):
        return np.array([_one_id(e, place_of(i)) for i, e in enumerate(entries)], np.int64)
    return ids


def _parse_ids(tokens: list[str]) -> NDArray[np.int64]:
    """Parse `token_id:N` for all entries at once.

    Raises:
        TypeError, ValueError: some entry is none; the caller finds out which.
    """
    spaced = "".join(tokens).replace(_PREFIX, " ")
    digits = spaced.replace(" ", "")
    if len(spaced) - len(digits) != len(tokens) or not (digits.isascii() and digits.isdigit()):
        raise ValueError
    ids: NDArray[np.int64] = np.fromstring(spaced, np.int64, sep=" ")
    if len(ids) != len(tokens) or not spaced.startswith(" "):
        raise ValueError
    return ids


def _one_id(entry: _Named, pointer: str) -> int:
    value = entry.token_id
    if value is None:
        prefix, _, digits = (entry.token or "").rpartition(_PREFIX)
        if prefix or not (digits.isascii() and digits.isdigit() and entry.token != digits):
            raise refusal(
                "no-token-id",
                f"the logprob names its token {entry.token!r} and not by id, so it cannot be "
                "tied to the mask; ask /inference/v1/generate for tokens (output_mode "
                '"tokens" from 0.32 on), or start the server with '
                "--return-tokens-as-token-ids",
                pointer,
            )
        value = int(digits)
    if not -(2**63) <= value < 2**63:
        raise refusal("no-token-id", f"{value} does not fit in 64 bits", pointer)
    return value


def _numbers(entries: Sequence[_Named], place_of: _PlaceOf) -> NDArray[np.float64]:
    values = list(map(_logprob, entries))
    array = np.array(values, np.float64)
    suspect = np.flatnonzero(~(array < math.inf))
    for index in suspect:
        if values[index] is not None:
            raise refusal(
                "no-number",
                f"the logprob is {values[index]}: the engine's logits were not finite there, "
                "and such a response proves nothing",
                place_of(int(index)) + "/logprob",
            )
    return array


def _ascending(rows: Ragged) -> tuple[Ragged, bool]:
    """Sort the ids within each row, and say whether they were sorted."""
    rising = rows.values[1:] >= rows.values[:-1]
    starts = rows.offsets[1:-1]
    rising[starts[(starts > 0) & (starts < len(rows.values))] - 1] = True
    if rising.all():
        return rows, True
    order = np.lexsort((rows.values, rows.row_of))
    return Ragged(rows.values[order], rows.offsets), False
