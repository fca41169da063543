"""Checks of ids: alignment, range, and the mask as a set that holds the sampled one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.replay import declarations
from app.replay.checks.result import Result, Subject
from app.replay.evidence import Choice
from app.replay.ragged import Ragged, reduce_rows
from app.replay.tolerances import TIE
from app.verdict.finding import Severity

# Ids of a mask that a finding shows.
_SHOWN_IDS = 8
_INT32_END = 2**31
# Fewer rows than this say nothing about what most rows are like.
_ENOUGH_ROWS = 4
# Biases of this size leave fp32 no room for the search that finds the k-th logit.
_OVERWHELMING_BIAS = 1e6


def check_ids(subject: Subject) -> Iterator[Result]:
    """Check ids, without regard to probabilities."""
    yield from _alignment(subject)
    yield from _range(subject)
    yield from _mask_as_set(subject)
    yield _sampled_in_mask(subject)
    if subject.evidence.sampling.top_k > 0:
        yield from _mask_size(subject)


def shown_mask(subject: Subject, row: int) -> dict[str, Any]:
    """The size of a row's mask and its first ids."""
    mask = subject.choice.masks.row(row)
    return {"mask_size": len(mask), "mask": mask[:_SHOWN_IDS].tolist()}


def _alignment(subject: Subject) -> Iterator[Result]:
    candidates = subject.choice.candidates
    if candidates is None:
        return
    named, sampled = candidates.named, subject.choice.token_ids
    failed = named != sampled
    message = "the logprob entry is about another token"
    evidence: dict[str, Any] = {}
    for shift in (1, -1):
        if failed.any() and _agree(named, sampled, shift):
            message += f"; the entries fit when moved by {shift:+d} row"
            evidence["fits_moved_by"] = shift
    yield Result(
        check=declarations.ALIGNMENT,
        failed=failed,
        message=message,
        member="logprobs/content",
        show=lambda row: {"logprob_token_id": int(named[row])},
        evidence=evidence,
    )


def _range(subject: Subject) -> Iterator[Result]:
    options, choice = subject.evidence.options, subject.choice
    end = options.vocab_size or _INT32_END
    failed = _beyond(choice, end)
    message = f"an id is not in [0, {end})"
    if subject.rows >= _ENOUGH_ROWS and np.count_nonzero(failed) * 2 > subject.rows:
        message += ", and so in most rows: they are ids of another tokenizer or model"
    yield Result(
        check=declarations.IDS,
        failed=failed,
        message=message,
        show=lambda row: {"mask_ids_outside": _shown_outside(choice.masks.row(row), end)},
    )
    known = options.tokenizer_size
    if known is None:
        return
    yield Result(
        check=declarations.IDS,
        failed=_beyond(choice, known) & ~failed,
        message=f"an id is not among the {known} that the tokenizer knows: the LM head is padded",
        show=lambda row: {"mask_ids_outside": _shown_outside(choice.masks.row(row), known)},
        severity=Severity.WARNING,
    )


def _beyond(choice: Choice, end: int) -> NDArray[np.bool_]:
    """Rows with an id outside [0, end) anywhere, (n,)."""
    failed = _outside(choice.token_ids, end) | _any_outside(choice.masks, end)
    if choice.candidates is not None:
        failed |= _any_outside(choice.candidates.ids, end)
    return failed


def _mask_as_set(subject: Subject) -> Iterator[Result]:
    masks = subject.choice.masks
    repeated = subject.none()
    same = np.flatnonzero(masks.values[1:] == masks.values[:-1]) + 1
    if len(same):
        rows = masks.row_of
        repeated[rows[same][rows[same] == rows[same - 1]]] = True
    yield Result(
        check=declarations.MASK_UNIQUE,
        failed=repeated,
        message="the mask names an id twice",
        member="sampling_mask",
        show=lambda row: shown_mask(subject, row),
    )
    yield Result(
        check=declarations.MASK_EMPTY,
        failed=masks.counts == 0,
        message="the mask is empty, so nothing could have been drawn",
        member="sampling_mask",
    )


def _sampled_in_mask(subject: Subject) -> Result:
    sampling, choice = subject.evidence.sampling, subject.choice
    failed = (subject.support.sampled_at < 0) & (choice.masks.counts > 0)
    message = "the sampled id is not in its mask"
    evidence: dict[str, Any] = {}
    if failed.any() and len(choice) > 1:
        for shift in (1, -1):
            if _fits_moved(choice.token_ids, choice.masks, shift):
                message += f"; the masks fit when moved by {shift:+d} row"
                evidence["fits_moved_by"] = shift
    severity = None
    if sampling.forced_tokens:
        message += "; trace_decode_token_ids forced it"
        severity = Severity.WARNING
    elif sampling.infinite_bias:
        message += "; an infinite logit bias put it there"
    elif subject.evidence.speculated and (
        subject.evidence.options.rejection_sample_method == "synthetic"
    ):
        message += "; synthetic acceptance takes drafts regardless of the row"
    return Result(
        check=declarations.SAMPLED_IN_MASK,
        failed=failed,
        message=message,
        member="sampling_mask",
        show=lambda row: shown_mask(subject, row),
        severity=severity,
        evidence=evidence,
    )


def _mask_size(subject: Subject) -> Iterator[Result]:
    sampling, support = subject.evidence.sampling, subject.support
    top_k = sampling.top_k
    counts = support.masks.counts
    over = counts > top_k
    if not over.any():
        yield Result(check=declarations.MASK_SIZE, failed=over, message="")
        return
    least = np.repeat(support.least, counts)
    above = (support.logprobs > least + TIE).astype(np.float64)
    tied = over & support.covered & (reduce_rows(np.add, above, support.masks.offsets, 0.0) < top_k)
    unknown = over & ~support.covered

    def show(row: int) -> dict[str, Any]:
        return {**shown_mask(subject, row), "top_k": top_k}

    broken = over & ~tied & ~unknown
    reason = ""
    severity: Severity | None = None
    if sampling.thinking_budget or sampling.largest_bias >= _OVERWHELMING_BIAS:
        severity = Severity.WARNING
        reason = ", which a thinking budget or an overwhelming logit bias does"
    yield Result(
        check=declarations.MASK_SIZE,
        failed=broken,
        undecided=unknown,
        message=f"the mask has more than top_k = {top_k} ids and the k-th and the last do not "
        f"tie{reason}",
        member="sampling_mask",
        show=show,
        severity=severity,
    )
    yield Result(
        check=declarations.MASK_SIZE,
        failed=tied,
        message=f"the mask has more than top_k = {top_k} ids because all from the k-th on tie",
        member="sampling_mask",
        show=show,
        severity=Severity.INFO,
    )
    yield Result(
        check=declarations.MASK_SIZE,
        failed=unknown,
        message=f"the mask has more than top_k = {top_k} ids; whether they tie cannot be told "
        "without the logprobs of all",
        member="sampling_mask",
        show=show,
        severity=Severity.WARNING,
    )


def _outside(values: NDArray[np.int64], end: int) -> NDArray[np.bool_]:
    outside: NDArray[np.bool_] = (values < 0) | (values >= end)
    return outside


def _shown_outside(ids: NDArray[np.int64], end: int) -> list[int]:
    shown: list[int] = ids[_outside(ids, end)][:_SHOWN_IDS].tolist()
    return shown


def _any_outside(rows: Ragged, end: int) -> NDArray[np.bool_]:
    outside = _outside(rows.values, end)
    failed = np.zeros(len(rows), np.bool_)
    if outside.any():
        failed[rows.row_of[outside]] = True
    return failed


def _agree(named: NDArray[np.int64], sampled: NDArray[np.int64], shift: int) -> bool:
    """Whether entry i + shift is about token i, for all i that have one."""
    if len(named) < 3:
        return False
    left, right = (
        (named[shift:], sampled[:-shift]) if shift > 0 else (named[:shift], sampled[-shift:])
    )
    return bool(np.array_equal(left, right))


def _fits_moved(sampled: NDArray[np.int64], masks: Ragged, shift: int) -> bool:
    """Whether mask i + shift holds token i, for all i that have one."""
    rows = range(max(0, -shift), len(sampled) - max(0, shift))
    return all(bool(np.any(masks.row(i + shift) == sampled[i])) for i in rows)
