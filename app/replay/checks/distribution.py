"""Checks of the probabilities over each mask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from app.replay import declarations
from app.replay.checks.ranks import check_ranks
from app.replay.checks.result import SHOWN_ROWS, Result, Subject
from app.replay.evidence import LOGPROB_FLOOR, Candidates
from app.replay.ragged import reduce_rows
from app.replay.tolerances import (
    SAME_LOGPROB,
    TIE,
    draw_tolerance,
    logit_scale,
    normalisation_tolerance,
)
from app.verdict.finding import Severity

# Rows of exactly top_k ids from which on top_p is judged, by what most of them say.
_TOP_P_ROWS = 8
# Fewer rows than this say nothing about what most rows are like.
_ENOUGH_ROWS = 4


def check_distribution(subject: Subject) -> Iterator[Result]:
    """Check logprobs; nothing to check where the response has none."""
    candidates = subject.choice.candidates
    if candidates is None:
        return
    yield _outside_mask(subject, candidates)
    yield _mask_finite(subject)
    yield _normalisation(subject)
    yield _range(subject, candidates)
    yield _sampled_logprob(subject, candidates)
    if not candidates.on_mask:
        yield from _candidates(subject, candidates)
        yield from check_ranks(subject, candidates)
    if subject.evidence.sampling.min_p > 0:
        yield _min_p(subject)
    if subject.evidence.sampling.top_p < 1 and subject.evidence.sampling.top_k > 0:
        yield _top_p(subject)


def _outside_mask(subject: Subject, candidates: Candidates) -> Result:
    failed = subject.none()
    outside = (subject.support.candidate_at < 0) & (candidates.logprobs > LOGPROB_FLOOR)
    if outside.any():
        failed[candidates.ids.row_of[outside]] = True

    def show(row: int) -> dict[str, Any]:
        part = slice(candidates.ids.offsets[row], candidates.ids.offsets[row + 1])
        first = int(np.flatnonzero(outside[part])[0])
        return {
            "outside_id": int(candidates.ids.row(row)[first]),
            "logprob": float(candidates.logprobs[part][first]),
        }

    message = (
        "an id outside the mask has a finite logprob: the logprobs are raw, or the mask is not "
        "this row's or lost the id"
    )
    common = (subject.support.candidate_at >= 0) & (candidates.logprobs > LOGPROB_FLOOR)
    shared = reduce_rows(np.add, common.astype(np.float64), candidates.ids.offsets, 0.0)
    apart = failed & (shared == 0)
    if subject.rows >= _ENOUGH_ROWS and np.count_nonzero(apart) * 2 > subject.rows:
        message += "; most rows have no candidate in common with their mask, as if they were ids "
        message += "of different tokenizers"
    return Result(
        check=declarations.OUTSIDE_MASK,
        failed=failed,
        message=message,
        member="logprobs/content",
        show=show,
    )


def _mask_finite(subject: Subject) -> Result:
    sampling, support = subject.evidence.sampling, subject.support
    low = support.upper <= LOGPROB_FLOOR
    failed = subject.none()
    if low.any():
        failed[support.masks.row_of[low]] = True
    # Logits may honestly lie this far apart when one is forced or the temperature is tiny.
    spread = 2.0 * logit_scale(sampling, subject.rows)
    honest = sampling.thinking_budget or sampling.infinite_bias or spread >= -LOGPROB_FLOOR

    def show(row: int) -> dict[str, Any]:
        part = slice(support.masks.offsets[row], support.masks.offsets[row + 1])
        return {"without_probability": support.masks.row(row)[low[part]][:SHOWN_ROWS].tolist()}

    return Result(
        check=declarations.MASK_FINITE,
        failed=failed,
        message="a member of the mask has a logprob of -9999 or less: the engine had not kept it",
        member="sampling_mask",
        show=show,
        severity=Severity.INFO if honest else None,
    )


def _normalisation(subject: Subject) -> Result:
    support = subject.support
    tolerance = normalisation_tolerance(subject.evidence.sampling, subject.rows)
    excess = support.mass - 1.0
    failed = (excess > tolerance) | (support.covered & (excess < -tolerance))
    message = f"the probabilities over the mask do not sum to one within {tolerance:.1g}"
    evidence: dict[str, Any] = {"tolerance": tolerance}
    short = failed & (excess < 0)
    if short.any():
        kept = float(np.exp(np.mean(np.log(np.maximum(support.mass[short], 1e-300)))))
        message += f" but to {kept:.4g} on (geometric) average: "
        if np.count_nonzero(short) * 2 > np.count_nonzero(support.covered):
            evidence["kept_mass"] = kept
            message += (
                "raw logprobs, of whose distribution the mask keeps that much; the server needs "
                "--logprobs-mode processed_logprobs"
            )
        else:
            message += "the mask lost an id or is another row's"
    elif failed.any():
        message += " but to more: not the logprobs of this mask"
    return Result(
        check=declarations.NORMALISATION,
        failed=failed,
        undecided=~support.covered & ~failed,
        message=message,
        member="logprobs/content",
        show=lambda row: {"mass": float(support.mass[row])},
        evidence=evidence,
    )


def _range(subject: Subject, candidates: Candidates) -> Result:
    tolerance = normalisation_tolerance(subject.evidence.sampling, subject.rows)
    best = reduce_rows(
        np.maximum,
        np.where(np.isnan(candidates.logprobs), -np.inf, candidates.logprobs),
        candidates.ids.offsets,
        -np.inf,
    )
    best = np.fmax(best, candidates.sampled)
    return Result(
        check=declarations.LOGPROB_RANGE,
        failed=best > tolerance,
        message="a logprob is above zero",
        member="logprobs/content",
        show=lambda row: {"logprob": float(best[row])},
    )


def _sampled_logprob(subject: Subject, candidates: Candidates) -> Result:
    ids = candidates.ids
    own = ids.values == np.repeat(candidates.named, ids.counts)
    listed = np.full(subject.rows, np.nan)
    listed[ids.row_of[own]] = candidates.logprobs[own]
    differs = np.abs(listed - candidates.sampled) > SAME_LOGPROB
    floored = candidates.sampled <= LOGPROB_FLOOR
    forced = subject.evidence.sampling.forced_tokens
    return Result(
        check=declarations.SAMPLED_LOGPROB,
        failed=differs | floored,
        undecided=np.isnan(candidates.sampled),
        message="the sampled token's logprob is -9999 or differs between entry and candidates",
        member="logprobs/content",
        show=lambda row: {
            "logprob": float(candidates.sampled[row]),
            "among_candidates": None if np.isnan(listed[row]) else float(listed[row]),
        },
        severity=Severity.WARNING if forced else None,
    )


def _candidates(subject: Subject, candidates: Candidates) -> Iterator[Result]:
    ids, logprobs = candidates.ids, candidates.logprobs
    order = subject.support.candidate_order
    keys = ids.keys[order]
    same = keys[1:] == keys[:-1]
    conflict = subject.none()
    if same.any():
        apart = np.abs(logprobs[order][1:] - logprobs[order][:-1]) > SAME_LOGPROB
        conflict[ids.row_of[order[1:][same & apart]]] = True
    yield Result(
        check=declarations.CANDIDATES,
        failed=conflict,
        message="a candidate is listed with two different logprobs",
        member="logprobs/content",
    )
    if not subject.support.ranked:
        return
    rising = np.zeros(len(logprobs), np.bool_)
    rising[1:] = logprobs[1:] > logprobs[:-1] + TIE
    # The first of each row is the sampled token, so order begins with the second.
    for skipped in (0, 1):
        starts = ids.offsets[:-1] + skipped
        rising[starts[starts < ids.offsets[1:]]] = False
    unordered = subject.none()
    if rising.any():
        unordered[ids.row_of[rising]] = True
        yield Result(
            check=declarations.CANDIDATES,
            failed=unordered,
            message="the candidates after the sampled token do not fall in logprob",
            member="logprobs/content",
            severity=Severity.INFO,
        )


def _min_p(subject: Subject) -> Result:
    support, min_p = subject.support, subject.evidence.sampling.min_p
    # Candidates that were not given can only raise the largest, so the law is never too strict.
    floor = support.best + np.log(min_p) - draw_tolerance(subject.evidence.sampling, subject.rows)
    return Result(
        check=declarations.MIN_P,
        failed=(support.least < floor) & np.isfinite(support.best),
        undecided=~support.covered & ~(support.least < floor),
        message=f"a member of the mask is below min_p = {min_p:g} times the largest probability",
        member="sampling_mask",
        show=lambda row: {
            "least_logprob": float(support.least[row]),
            "largest_logprob": float(support.best[row]),
        },
    )


def _top_p(subject: Subject) -> Result:
    support, sampling = subject.support, subject.evidence.sampling
    tolerance = normalisation_tolerance(sampling, subject.rows)
    full = support.covered & (support.masks.counts == sampling.top_k)
    least = np.exp(np.where(full, support.least, 0.0))
    broken = full & (least <= 1.0 - sampling.top_p - tolerance)
    # Where top_p is not applied, most rows are full. Where few are, ties with the k-th may be why.
    judged = np.count_nonzero(full) >= max(_TOP_P_ROWS, subject.rows / 2)
    if not judged or np.count_nonzero(broken) * 2 <= np.count_nonzero(full):
        broken = subject.none()
    return Result(
        check=declarations.TOP_P,
        failed=broken,
        undecided=~full if judged else ~subject.none(),
        message=f"all top_k = {sampling.top_k} ids survived although the least likely was not "
        f"needed to reach top_p = {sampling.top_p:g}: top_p was not applied",
        member="sampling_mask",
        show=lambda row: {"least_probability": float(least[row])},
    )
