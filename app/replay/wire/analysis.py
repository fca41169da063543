"""Reading the part of a case's `options` that asks for analyses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.replay.evidence import Choice
from app.replay.options import (
    DRAWN_AT_MOST,
    FALSE_ALARM_RATE,
    RETURNED_AT_MOST,
    Analysis,
    Normalisation,
    Resampling,
    TrainerLogprobs,
)
from app.replay.ragged import Ragged
from app.replay.wire.packed import FloatArray, floats, refusal

_POINTER = "/options/trainer_logprobs"


class ResampleBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """`options.resample`; see `app.replay.options.Resampling`."""

    draws: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    # Bounds of 64 bits do not fit in msgspec's own checks.
    seed: int = 0
    ids: bool = True


class PackedTrainerBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A trainer's logprobs in any array form: one a token, or one for each id of the masks."""

    sampled: FloatArray | None = None
    on_mask: FloatArray | None = None


TrainerBody: TypeAlias = list[float | list[float | None] | None] | PackedTrainerBody


class AnalysisBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Members of `options` that ask for analyses; see `app.replay.options.Analysis`."""

    statistics: bool | None = None
    false_alarm_rate: Annotated[float, msgspec.Meta(gt=0, le=0.1)] = FALSE_ALARM_RATE
    resample: ResampleBody | None = None
    trainer_logprobs: list[TrainerBody] | None = None
    trainer_normalisation: Normalisation = Normalisation.UNKNOWN
    trainer_band: tuple[float, float] = (0.9, 1.1)


def read_analysis(body: AnalysisBody, choices: Sequence[Choice]) -> Analysis:
    """Read what to do besides checks and draws.

    Raises:
        InvalidEnvelope: a value is out of range, or logprobs do not fit the choices.
    """
    low, high = body.trainer_band
    if not 0 < low < 1 < high < float("inf"):
        raise refusal(
            "out-of-range",
            f"the band is [{low:g}, {high:g}]; it must have 0 < low < 1 < high",
            "/options/trainer_band",
        )
    return Analysis(
        statistics=body.statistics,
        false_alarm_rate=body.false_alarm_rate,
        resample=_resampling(body.resample, sum(map(len, choices))),
        trainer=_trainer(body.trainer_logprobs, choices),
        trainer_normalisation=body.trainer_normalisation,
        trainer_band=(low, high),
    )


def _resampling(body: ResampleBody | None, rows: int) -> Resampling | None:
    if body is None:
        return None
    if not 0 <= body.seed < 2**64:
        detail = f"the seed is {body.seed}; it must be between 0 and 2**64 - 1"
        raise refusal("out-of-range", detail, "/options/resample/seed")
    limit = RETURNED_AT_MOST if body.ids else DRAWN_AT_MOST
    if rows * body.draws > limit:
        detail = (
            f"{body.draws} draws of {rows} rows are {rows * body.draws}, of which at most "
            f"{limit} are {'returned' if body.ids else 'made'}; "
        ) + (
            f'"ids": false allows {DRAWN_AT_MOST}'
            if body.ids
            else f"ask for {max(limit // rows, 1)} draws"
        )
        raise refusal("too-many-draws", detail, "/options/resample/draws")
    return Resampling(draws=body.draws, seed=body.seed, ids=body.ids)


def _trainer(
    bodies: list[TrainerBody] | None, choices: Sequence[Choice]
) -> tuple[TrainerLogprobs, ...]:
    if bodies is None:
        return ()
    if len(bodies) != len(choices):
        detail = f"{len(bodies)} lists for {len(choices)} choices; there must be one for each"
        raise refusal("misaligned-logprobs", detail, _POINTER)
    return tuple(
        _of_choice(body, choice, f"{_POINTER}/{place}")
        for place, (body, choice) in enumerate(zip(bodies, choices, strict=True))
    )


def _of_choice(body: TrainerBody, choice: Choice, pointer: str) -> TrainerLogprobs:
    if isinstance(body, PackedTrainerBody):
        if body.sampled is None and body.on_mask is None:
            detail = 'give "sampled", one a token, or "on_mask", one for each id of the masks'
            raise refusal("missing-member", detail, pointer)
        return TrainerLogprobs(
            sampled=_sampled(body.sampled, choice, f"{pointer}/sampled"),
            on_mask=None
            if body.on_mask is None
            else _on_mask(floats(body.on_mask, f"{pointer}/on_mask"), choice, pointer),
        )
    rows = [row for row in body if isinstance(row, list)]
    if not rows:
        numbers: FloatArray = [row for row in body if not isinstance(row, list)]
        return TrainerLogprobs(sampled=_sampled(numbers, choice, pointer), on_mask=None)
    if len(rows) != len(body):
        first = next(i for i, row in enumerate(body) if not isinstance(row, list))
        detail = "numbers and lists are mixed; give one number a token, or one list a token"
        raise refusal("wrong-type", detail, f"{pointer}/{first}")
    counts = choice.masks.counts
    for place, row in enumerate(rows[: len(counts)]):
        if len(row) != counts[place]:
            detail = f"{len(row)} logprobs for a mask of {counts[place]} ids"
            raise refusal("misaligned-logprobs", detail, f"{pointer}/{place}")
    _require(len(rows), len(counts), "lists", "rows", pointer)
    values = floats(list(chain.from_iterable(rows)), pointer)
    return TrainerLogprobs(
        sampled=np.full(len(counts), np.nan), on_mask=_on_mask(values, choice, pointer)
    )


def _sampled(body: FloatArray | None, choice: Choice, pointer: str) -> NDArray[np.float64]:
    if body is None:
        return np.full(len(choice), np.nan)
    values = floats(body, pointer)
    _require(len(values), len(choice), "logprobs", "tokens", pointer)
    return values


def _on_mask(values: NDArray[np.float64], choice: Choice, pointer: str) -> NDArray[np.float64]:
    """Bring the values from the order of the mask as it came to that of `choice.masks`."""
    _require(len(values), len(choice.masks.values), "logprobs", "ids of the masks", pointer)
    if choice.masks_ascending:
        return values
    candidates = choice.candidates
    if candidates is None or not candidates.on_mask:
        detail = (
            "the masks' ids do not ascend, so it is not known which logprob is about which; "
            "sort the masks, or give the logprobs of the sampled tokens alone"
        )
        raise refusal("unordered-mask", detail, pointer)
    came: Ragged = candidates.ids
    order = np.lexsort((came.values, came.row_of))
    return values[order]


def _require(given: int, needed: int, what: str, of: str, pointer: str) -> None:
    if given != needed:
        detail = f"{given} {what} for {needed} {of}; there must be one for each"
        raise refusal("misaligned-logprobs", detail, pointer)
