"""Turning decoded choices into arrays, and saying what does not fit where."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.replay.evidence import Candidates, Choice
from app.replay.ragged import Ragged, offsets_of
from app.replay.wire.generate import Candidate, ChoiceBody, Entry, Logprobs
from app.replay.wire.packed import (
    ArrayBody,
    FloatArray,
    FloatTable,
    MaskBody,
    Masks,
    flags,
    float_rows,
    floats,
    integers,
    mask_rows,
    refusal,
)
from app.replay.wire.scan import Scanned

_Named: TypeAlias = Entry | Candidate
_PlaceOf: TypeAlias = Callable[[int], str]

_PREFIX = "token_id:"
_NO_SCANS: Mapping[str, Scanned] = {}
# More than any vocabulary and its padding.
_LARGEST_RANK = 2**31
_rank = attrgetter("rank")
_logprob = attrgetter("logprob")
_token_id = attrgetter("token_id")
_token = attrgetter("token")
_top = attrgetter("top_logprobs")


def choice_of(
    body: ChoiceBody, pointer: str, *, bare: bool = False, scans: Mapping[str, Scanned] = _NO_SCANS
) -> Choice:
    """Turn one decoded choice into arrays.

    Args:
        body: in any of its forms.
        pointer: where it stands in the case.
        bare: whether it came without a response of vLLM around it.
        scans: what `app.replay.wire.scan.cut` took out of the text, by marker.

    Raises:
        InvalidEnvelope: token ids, masks and logprobs differ in length, or a value is none.
    """
    named = "token_ids" if body.token_ids is not None else "tokens"
    token_ids = integers(getattr(body, named) or [], f"{pointer}/{named}").ravel()
    masks = _masks(body, pointer)
    where = f"{pointer}/{_mask_member(body)}"
    if len(masks.rows) != len(token_ids):
        raise refusal(
            "misaligned-mask",
            f"{len(token_ids)} {named} but {len(masks.rows)} rows in {_mask_member(body)}; there "
            "must be one row for each token",
            where,
        )
    ordered, ascending = _ascending(masks.rows)
    return Choice(
        index=body.index,
        pointer=pointer,
        bare=bare,
        token_ids=token_ids,
        masks=ordered,
        masks_ascending=ascending,
        candidates=_logprobs(body, masks, token_ids, pointer, scans),
        finish_reason=body.finish_reason,
        replayed=_replayed(body, len(token_ids), pointer),
    )


def has_masks(body: ChoiceBody) -> bool:
    """Whether a choice has masks in any form."""
    given = (body.sampling_mask, body.ids, body.rows)
    return any(member is not None for member in given)


def _mask_member(body: ChoiceBody) -> str:
    if body.sampling_mask is not None:
        return "sampling_mask"
    return "rows" if body.ids is None and body.rows is not None else "ids"


def _masks(body: ChoiceBody, pointer: str) -> Masks:
    mask = body.sampling_mask
    if mask is None and has_masks(body):
        beside = MaskBody(body.ids, body.counts, body.lengths, body.offsets, body.rows, body.sizes)
        return mask_rows(beside, pointer)
    if isinstance(mask, MaskBody | str):
        return mask_rows(mask, f"{pointer}/sampling_mask")
    try:
        return Masks(Ragged.of(mask or []))
    except OverflowError:
        where = f"{pointer}/sampling_mask"
        raise refusal("no-token-id", "an id does not fit in 64 bits", where) from None


def _replayed(body: ChoiceBody, tokens: int, pointer: str) -> NDArray[np.bool_] | None:
    if body.loss_mask is None:
        return None
    where = f"{pointer}/loss_mask"
    replayed = flags(body.loss_mask, where)
    if len(replayed) != tokens:
        detail = f"{tokens} tokens but {len(replayed)} in the loss mask"
        raise refusal("misaligned-loss-mask", detail, where)
    return None if replayed.all() else replayed


def _logprobs(
    body: ChoiceBody,
    masks: Masks,
    token_ids: NDArray[np.int64],
    pointer: str,
    scans: Mapping[str, Scanned],
) -> Candidates | None:
    """The logprobs in whichever form they came."""
    given = body.logprobs
    where = f"{pointer}/logprobs"
    on_mask: NDArray[np.float64] | None = None
    sampled: NDArray[np.float64] | None = None
    if isinstance(given, Logprobs) and given.content is not None:
        content = given.content
        # A marker is no token's name; `cut` made sure that nobody else wrote it.
        scanned = scans.get(content[0].token or "") if content else None
        return _candidates(
            content if scanned is None else scanned, len(token_ids), f"{where}/content"
        )
    if isinstance(given, Logprobs) and given.data is None:
        if given.on_mask is not None:
            on_mask = _on_mask(given.on_mask, masks, f"{where}/on_mask")
        if given.sampled is not None:
            sampled = _sampled(given.sampled, len(token_ids), f"{where}/sampled")
    elif given is not None:
        on_mask, sampled = _either(_array_of(given), masks, len(token_ids), where)
    if body.sampled_logprobs is not None:
        where = f"{pointer}/sampled_logprobs"
        sampled = _sampled(body.sampled_logprobs, len(token_ids), where)
    if on_mask is None and sampled is None:
        return None
    rows = masks.rows
    if on_mask is None:
        rows = Ragged(np.empty(0, np.int64), np.zeros(len(token_ids) + 1, np.int64))
        on_mask = np.empty(0)
    if sampled is None:
        sampled = np.full(len(token_ids), np.nan)
    return Candidates(named=token_ids, sampled=sampled, ids=rows, logprobs=on_mask, on_mask=True)


def _array_of(given: Logprobs | FloatTable) -> FloatTable:
    if isinstance(given, Logprobs):
        return ArrayBody(given.data or "", given.dtype or "", given.shape)
    return given


def _either(
    given: FloatTable, masks: Masks, tokens: int, pointer: str
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Tell by their number whether logprobs are about the masks' ids or the sampled tokens."""
    ids = len(masks.rows.values)
    on_mask = float_rows(given, masks, pointer)
    if ids == tokens and on_mask is not None and not (masks.rows.counts == 1).all():
        detail = (
            f"there are as many ids in the masks as tokens ({tokens}), so it cannot be told whose "
            'logprobs these are; name them {"on_mask": …} or {"sampled": …}'
        )
        raise refusal("ambiguous-logprobs", detail, pointer)
    if on_mask is not None:
        return on_mask, None
    flat = given if not isinstance(given, list) else [v for v in given if not isinstance(v, list)]
    values = floats(flat, pointer)
    if len(values) != tokens:
        detail = (
            f"{len(values)} logprobs for {ids} ids in the masks and {tokens} tokens; there must "
            "be one for each of either"
        )
        raise refusal("misaligned-logprobs", detail, pointer)
    return None, values


def _on_mask(given: FloatTable, masks: Masks, pointer: str) -> NDArray[np.float64]:
    values = float_rows(given, masks, pointer)
    if values is None:
        detail = f"there must be one logprob for each of the {len(masks.rows.values)} ids"
        raise refusal("misaligned-logprobs", detail, pointer)
    return values


def _sampled(given: FloatArray, tokens: int, pointer: str) -> NDArray[np.float64]:
    values = floats(given, pointer)
    if len(values) != tokens:
        detail = f"{tokens} token_ids but {len(values)} sampled logprobs"
        raise refusal("misaligned-logprobs", detail, pointer)
    return values


def _candidates(content: list[Entry] | Scanned, tokens: int, pointer: str) -> Candidates:
    if len(content) != tokens:
        raise refusal(
            "misaligned-logprobs",
            f"{tokens} token_ids but {len(content)} logprobs; there must be one entry for "
            "each token",
            pointer,
        )
    if isinstance(content, Scanned):
        return Candidates(
            named=content.named,
            sampled=content.sampled,
            ids=content.ids,
            logprobs=content.logprobs,
            ranks=content.ranks,
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
        ranks=_ranks(flat),
    )


def _ranks(candidates: list[Candidate]) -> NDArray[np.int64] | None:
    """The rank of each candidate, 0 where it has none; None if none has."""
    if not candidates or candidates[0].rank is None:
        return None
    # Ranks out of range are none either: no draw depends on them.
    ranks = [rank if rank and 0 < rank < _LARGEST_RANK else 0 for rank in map(_rank, candidates)]
    return np.array(ranks, np.int64)


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
