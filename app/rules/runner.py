"""Which model runner a configuration gets, and why.

Source: `config/vllm.py::VllmConfig.use_v2_model_runner`. The order of the steps differs between
versions and comes from the catalogue; what a step asks is here. Only Model Runner V2 makes
sampling masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from app.catalogue import RunnerStep
from app.rules.facts import (
    MachineKind,
    architectures,
    has_ability,
    is_diffusion,
    is_hybrid,
    is_mixture_of_experts,
    machine_of,
    runs_generate,
    world_size,
)
from app.rules.runner_features import (
    RUNNER_VARIABLE,
    Moment,
    Unsupported,
    support_of,
)
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.location import Location


class Runner(StrEnum):
    """The model runner's generation."""

    V1 = "V1"
    V2 = "V2"


class Reason(StrEnum):
    """What decided."""

    ENVIRONMENT = "environment"
    HISPARSE = "hisparse"
    WATERMARK = "watermark"
    CONTEXT_PARALLELISM = "prefill context parallelism"
    SPECULATION = "speculative method"
    DIFFUSION = "diffusion model"
    ARCHITECTURE = "architecture"
    TRITON = "no Triton"
    FEATURES = "unsupported features"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class RunnerDecision:
    """The runner, what decided, and what that rests on.

    Attributes:
        version: V1, V2, or None where an open question decides.
        reason, because: what decided, and the same as a sentence for people.
        place: where it was asked for.
        forced: V2 was chosen without asking what it supports.
        unsupported: the features for which V2 was turned down.
        open_questions: facts without which nobody can say (`version` is None).
        presumes: facts taken for granted because nobody gave them.
    """

    version: Runner | None
    reason: Reason
    because: str
    place: Location | None = None
    forced: bool = False
    unsupported: tuple[Unsupported, ...] = ()
    open_questions: tuple[str, ...] = ()
    presumes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Render for `settings` of a verdict."""
        body: dict[str, Any] = {
            "version": None if self.version is None else self.version.value,
            "because": self.because,
        }
        if self.open_questions:
            body["needs"] = list(self.open_questions)
        if self.presumes:
            body["presumes"] = list(self.presumes)
        return body


class _OpenQuestion(Abstain):
    """A step that may well give V1, where other unknowns are only unlikely to matter."""


_Step: TypeAlias = Callable[[ServeConfig, RunnerStep, Moment], RunnerDecision | None]


def decide_runner(config: ServeConfig, moment: Moment = Moment.REPLAY_CHECK) -> RunnerDecision:
    """Walk through the version's steps as vLLM does.

    Raises:
        UnresolvedValue: a setting or variable that a step reads is left open.
    """
    presumes: list[str] = []
    asked: list[str] = []
    for step in config.catalogue.runner.decision:
        ask = next((_STEPS[read] for read in step.reads if read in _STEPS), None)
        if ask is None:
            if step.reads:
                presumes.append(f"what this version does with {', '.join(step.reads)}")
                continue
            ask = _default
        try:
            decision = ask(config, step, moment)
        except _OpenQuestion as question:
            asked.append(question.needs)
            continue
        except Abstain as missing:
            if type(missing) is not Abstain:
                raise
            presumes.append(missing.needs)
            continue
        if decision is None:
            continue
        if asked and decision.version is not Runner.V1:
            # The open step would have given V1, so it matters only where the rest gives V2.
            return RunnerDecision(
                None,
                Reason.ARCHITECTURE,
                f"which runner {config.catalogue.vllm_version} takes depends on {asked[0]}",
                open_questions=tuple(asked),
            )
        return _presuming(decision, presumes, config)
    return RunnerDecision(
        None,
        Reason.DEFAULT,
        f"the catalogue of vLLM {config.catalogue.vllm_version} does not say how it decides",
        open_questions=("how this vLLM chooses its model runner",),
    )


def runner_variable(config: ServeConfig) -> bool | None:
    """Read VLLM_USE_V2_MODEL_RUNNER as vLLM does: `bool(int(text))`, None if unset.

    Raises:
        Abstain: the text is not a number, with which vLLM does not start at all.
    """
    variable = config.variable(RUNNER_VARIABLE)
    if variable is None:
        return None
    try:
        return bool(int(variable.value))
    except ValueError:
        raise Abstain(f"{RUNNER_VARIABLE} as a number") from None


def default_architecture(config: ServeConfig) -> bool:
    """Whether 0.28 defaults to V2 for the model (`_is_default_v2_model_runner_model`).

    Raises:
        Abstain: the model's config.json is needed.
    """
    if not runs_generate(config):
        return False
    listed = set(config.catalogue.runner.default_v2_architectures)
    if machine_of(config).kind is MachineKind.ROCM:
        listed -= set(config.catalogue.runner.rocm_v1_architectures)
    is_listed = any(name in listed for name in architectures(config))
    if is_hybrid(config) and not is_listed:
        return False
    if has_ability(config, "is_attention_free"):
        return False
    return is_listed or not is_mixture_of_experts(config)


def _hisparse(config: ServeConfig, _step: RunnerStep, _moment: Moment) -> RunnerDecision | None:
    if config["attention_config.hisparse_config"] is None:
        return None
    place = config.place("attention_config")
    return RunnerDecision(
        Runner.V2, Reason.HISPARSE, "HiSparse exists only on V2", place, forced=True
    )


def _watermark(config: ServeConfig, _step: RunnerStep, _moment: Moment) -> RunnerDecision | None:
    if config["watermark_config"] is None:
        return None
    place = config.place("watermark_config")
    because = "watermarking exists only on V2 and overrides the environment"
    return RunnerDecision(Runner.V2, Reason.WATERMARK, because, place, forced=True)


def _environment(config: ServeConfig, _step: RunnerStep, _moment: Moment) -> RunnerDecision | None:
    wanted = runner_variable(config)
    if wanted is None:
        return None
    variable = config.variable(RUNNER_VARIABLE)
    return RunnerDecision(
        Runner.V2 if wanted else Runner.V1,
        Reason.ENVIRONMENT,
        f"{RUNNER_VARIABLE}={variable.value if variable else ''} asks for it",
        variable.location if variable else None,
        forced=wanted,
    )


def _prefill_context(
    config: ServeConfig, _step: RunnerStep, _moment: Moment
) -> RunnerDecision | None:
    if world_size(config, "prefill_context_parallel_size") <= 1:
        return None
    return RunnerDecision(
        Runner.V2,
        Reason.CONTEXT_PARALLELISM,
        "prefill context parallelism exists only on V2",
        config.place("prefill_context_parallel_size"),
        forced=True,
    )


def _speculative_method(
    config: ServeConfig, step: RunnerStep, _moment: Moment
) -> RunnerDecision | None:
    speculation = speculation_of(config)
    wanted = step.compared.get("speculative_config.method", {}).get("in", ())
    if speculation is None or speculation.method not in wanted:
        return None
    because = f"speculative method {speculation.method} exists only on V2"
    return RunnerDecision(Runner.V2, Reason.SPECULATION, because, speculation.place, forced=True)


def _dflash_draft(config: ServeConfig, _step: RunnerStep, _moment: Moment) -> RunnerDecision | None:
    speculation = speculation_of(config)
    if speculation is not None and speculation.method == "dflash":
        raise Abstain("the draft model's config.json")
    return None


def _diffusion(config: ServeConfig, _step: RunnerStep, _moment: Moment) -> RunnerDecision | None:
    if not is_diffusion(config):
        return None
    because = "diffusion models run only on V2"
    return RunnerDecision(Runner.V2, Reason.DIFFUSION, because, forced=True)


def _default_model(
    config: ServeConfig, _step: RunnerStep, _moment: Moment
) -> RunnerDecision | None:
    try:
        if default_architecture(config):
            return None
    except Abstain as missing:
        if type(missing) is not Abstain:
            raise
        raise _OpenQuestion(missing.needs) from None
    because = f"{config.catalogue.vllm_version} runs this model on V1 unless told otherwise"
    try:
        names = ", ".join(architectures(config))
        because = (
            f"{names} is not among the models that {config.catalogue.vllm_version} runs on V2 "
            "unless told (it takes dense models that generate, and a short list)"
        )
    except Abstain:
        pass
    return RunnerDecision(Runner.V1, Reason.ARCHITECTURE, because)


def _rocm_default(config: ServeConfig, step: RunnerStep, moment: Moment) -> RunnerDecision | None:
    if machine_of(config).kind is not MachineKind.ROCM:
        return None
    listed = config.catalogue.runner.rocm_v1_architectures
    if not any(name in listed for name in architectures(config)):
        return None
    if "_get_v1_model_runner_unsupported_features" in step.reads:
        support = support_of(config, "v1", moment)
        if support.unsupported:
            return None
    because = f"{', '.join(architectures(config))} runs on V1 by default on ROCm"
    return RunnerDecision(Runner.V1, Reason.ARCHITECTURE, because)


def _triton(config: ServeConfig, _step: RunnerStep, _moment: Moment) -> RunnerDecision | None:
    if machine_of(config).has_triton:
        return None
    because = "V2 needs Triton, which has no driver on this machine"
    return RunnerDecision(Runner.V1, Reason.TRITON, because)


def _features(config: ServeConfig, _step: RunnerStep, moment: Moment) -> RunnerDecision | None:
    support = support_of(config, "v2", moment)
    if support.unsupported:
        labels = ", ".join(feature.label for feature in support.unsupported)
        place = next((config.place(dest) for f in support.unsupported for dest in f.dests), None)
        return RunnerDecision(
            Runner.V1,
            Reason.FEATURES,
            f"V2 does not support {labels} in {config.catalogue.vllm_version}",
            place,
            unsupported=support.unsupported,
        )
    if support.unknown:
        raise Abstain("; ".join(support.unknown))
    return None


def _default(config: ServeConfig, _step: RunnerStep, _moment: Moment) -> RunnerDecision | None:
    because = f"V2 is the default of {config.catalogue.vllm_version} and nothing speaks against it"
    return RunnerDecision(Runner.V2, Reason.DEFAULT, because)


# By what the step reads, as the catalogue names it.
_STEPS: Final[Mapping[str, _Step]] = {
    "attention_config.hisparse_config": _hisparse,
    "watermark_config": _watermark,
    f"envs.{RUNNER_VARIABLE}": _environment,
    "parallel_config.prefill_context_parallel_size": _prefill_context,
    "speculative_config.method": _speculative_method,
    "_dflash_needs_multi_kv_group": _dflash_draft,
    "_is_dflash2_draft": _dflash_draft,
    "model_config.is_diffusion": _diffusion,
    "_is_default_v2_model_runner_model": _default_model,
    "current_platform.is_rocm": _rocm_default,
    "HAS_TRITON": _triton,
    "_get_v2_model_runner_unsupported_features": _features,
}


def _presuming(
    decision: RunnerDecision, presumes: list[str], config: ServeConfig
) -> RunnerDecision:
    # Only what was asked before the deciding step matters, and V1 by Triton asks the machine.
    asked_machine = decision.reason not in {Reason.ENVIRONMENT, Reason.HISPARSE, Reason.WATERMARK}
    if asked_machine and machine_of(config).assumed:
        presumes = ["a GPU on which Triton works, as no `hardware` is given", *presumes]
    if not presumes:
        return decision
    return RunnerDecision(
        decision.version,
        decision.reason,
        decision.because,
        decision.place,
        decision.forced,
        decision.unsupported,
        presumes=tuple(dict.fromkeys(presumes)),
    )
