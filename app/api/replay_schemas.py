"""The shapes of replay cases and reports, for the OpenAPI document; see `app.api.schemas`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from app.api.problems import ProblemDetails
from app.api.schemas import FindingModel, Model


class ReplayCase(BaseModel):
    """A request and its response, as sent to and received from `/inference/v1/generate`.

    Evidence may come packed instead of as a response; docs/replay.md has every form.
    """

    id: Any = Field(None, description="Given back with the report.")
    vllm_version: str
    request: dict[str, Any]
    response: Any = Field(None, description="The body, a list of chunks, or recorded events.")
    options: dict[str, Any] | None = Field(
        None, description="What only the operator knows, as `use_fp64_gumbel`."
    )


class ReplayRowsModel(Model):
    """Rows (generated tokens) by the outcome of their draw."""

    total: int
    exact: int
    mismatch: int
    undecidable: int
    not_replayed: int = Field(description="Left out by the loss mask.")
    undecidable_reasons: dict[str, int]


class ReplayChoiceModel(Model):
    """A summary of one choice."""

    index: int
    rows: int
    exact: int
    mismatch: int
    undecidable: int
    not_replayed: int
    finish_reason: str | None
    mean_mask_size: float | None
    singleton_rows: int
    covered_rows: int = Field(description="Rows all of whose members have a logprob.")
    smallest_gap: float | None = Field(
        description="Least distance of the two best sums of logprob and noise."
    )
    tolerance: float = Field(description="Gap below which a draw decides nothing.")
    accepted_drafts: int | None = None
    residual_draws: int | None = None


class ReplayCheckModel(Model):
    """Rows or exchanges that one check passed, failed and could not decide."""

    passed: int
    failed: int
    not_checked: int


class TestModel(Model):
    """One statistical test."""

    rows: int
    statistic: float | None
    nominal_p_value: float | None
    p_value: float


class ToldApartModel(Model):
    """Temperatures, as factors, that the tests would have noticed; null for none."""

    below: float | None
    above: float | None


class StatisticsModel(Model):
    """Whether the sampled ids look drawn from their rows, where no seed proves it."""

    tested: bool
    conclusion: str
    false_alarm_rate: float = Field(description="Of all tests of a report together.")
    rows: int
    rows_partly_known: int
    rows_left_out: dict[str, int]
    p_value: float | None
    tests: dict[str, TestModel]
    temperature_told_apart: ToldApartModel | None = None


class StandingModel(Model):
    """Where the sampled sequence lies among fresh draws."""

    sampled: float
    mean: float
    standard_deviation: float
    below: int
    equal: int
    above: int
    p_value: float


class ResampledChoiceModel(Model):
    """Fresh draws of one choice."""

    index: int
    rows: int
    rows_without_distribution: int
    log_likelihood: StandingModel | None
    frequency: list[float | None] = Field(description="Share of draws that give the sampled id.")
    token_ids: list[list[int] | None] | None = Field(None, description="Drawn ids, a list a row.")


class ResampleModel(Model):
    """Fresh draws, as `options.resample` asks for."""

    draws: int
    seed: int
    choices: list[ResampledChoiceModel]


class RatioModel(Model):
    """Raw, unclipped importance ratios trainer / sampler."""

    mean: float
    median: float
    min: float
    max: float
    band: list[float]
    share_outside: float


class LogRatioModel(Model):
    """Their logs."""

    mean: float
    standard_deviation: float
    standard_error: float | None


class RatiosModel(Model):
    """Ratios and the estimates of KL(sampler || trainer) from them; null without tokens."""

    ratio: RatioModel | None
    log_ratio: LogRatioModel | None
    k1: float | None
    k3: float | None


class KeptMassModel(Model):
    """Of the trainer's distribution, what the masks keep."""

    geometric_mean: float
    mean_log: float
    smallest: float


class TrainerModel(RatiosModel):
    """A trainer's logprobs against the sampler's, as `options.trainer_logprobs` asks for."""

    normalisation: Literal["mask", "vocabulary", "unknown"]
    tokens: int
    tokens_without_logprob: int
    tokens_without_probability: int
    mask_exponent: float | None
    diagnosis: str
    explanation: str
    kept_mass: KeptMassModel | None = None
    over_mask: RatiosModel | None = None
    log_kept_mass: list[list[float | None]] | None = None


class ReplayReport(Model):
    """What replaying a response showed; `schema` names this version of it."""

    schema_name: Literal["vllm-admission.replay/1"] = Field(alias="schema")
    id: Any = None
    verdict: Literal["consistent", "inconsistent", "unproven"]
    vllm_version: str
    rows: ReplayRowsModel
    choices: list[ReplayChoiceModel]
    checks: dict[str, ReplayCheckModel]
    findings: list[FindingModel]
    statistics: StatisticsModel
    resample: ResampleModel | None = None
    trainer: TrainerModel | None = None


class ReplayRow(Model):
    """One row, with `detail=rows`."""

    id: Any = None
    line: int | None = Field(None, description="Of the case, in a batch.")
    choice: int
    row: int
    position: int | None = Field(description="P - 1 + row, P the prompt's length.")
    token_id: int
    outcome: Literal["exact", "mismatch", "undecidable", "not_replayed"]
    reason: str | None = Field(description="Why it is undecidable.")
    gap: float | None = Field(
        description="The sampled id's sum of logprob and noise less the best other's."
    )
    tolerance: float
    kept_mass: float | None = Field(
        description="Probability of the mask's members; null where some have no logprob."
    )
    mask_size: int
    failed: list[str] = Field(description="Checks that the row failed.")


class ReplayFailure(Model):
    """A line of a batch that could not be used."""

    id: Any = None
    line: int = Field(description="1-based; blank lines count.")
    error: ProblemDetails


class ReplayBatchLine(RootModel[ReplayReport | ReplayRow | ReplayFailure]):
    """A line of the answer to a batch, or to a case with `detail=rows`."""
