"""Conflicts between what was asked for and what the model runner can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.sampling_mask import wants_mask
from app.rules.declaration import Example
from app.rules.facts import MachineKind, machine_of, world_size
from app.rules.registry import rule
from app.rules.runner import Reason, Runner, RunnerDecision, decide_runner, runner_variable
from app.rules.runner_features import RUNNER_VARIABLE, Moment, Unsupported, support_of
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetEnvironment, UnsetEnvironment
from app.verdict.location import Location

_AREA: Final = "model-runner"
_CLASS: Final = "vllm/config/vllm.py::VllmConfig"
_UNSET: Final = Fix(
    f"unset {RUNNER_VARIABLE} and let vLLM choose",
    (UnsetEnvironment(RUNNER_VARIABLE),),
    safe=False,
)


@rule(
    id="model-runner-v2-unsupported",
    title="Model Runner V2 was asked for and lacks a feature",
    explanation="Without `VLLM_USE_V2_MODEL_RUNNER` vLLM falls back to Model Runner V1 when a "
    "feature needs it. With the variable set to 1 (or HiSparse, watermarking and the like, which "
    "exist only on V2) there is no fallback and the start fails.",
    remedy="Drop the feature, or unset `VLLM_USE_V2_MODEL_RUNNER`.",
    severity=Severity.ERROR,
    area=_AREA,
    source=f"{_CLASS}._validate_v2_model_runner",
    versions=">=0.28",
    covers=("v2-forced-unsupported",),
    bad=(
        Example(
            f"{RUNNER_VARIABLE}=1 vllm serve m -pp 2 "
            "--distributed-executor-backend external_launcher"
        ),
        Example(f"{RUNNER_VARIABLE}=1 vllm serve m --enable-dbo", versions="<0.30"),
        Example(f"{RUNNER_VARIABLE}=1 vllm serve m --enable-dbo --enable-lora", versions=">=0.30"),
    ),
    good=(
        Example(
            f"{RUNNER_VARIABLE}=1 vllm serve m -pp 2 --distributed-executor-backend mp",
        ),
        Example("vllm serve m --enable-dbo", note="falls back to V1"),
    ),
)
def v2_unsupported(config: ServeConfig) -> Iterator[Finding]:
    """List what V2 lacks where there is no way back to V1."""
    decision = decide_runner(config, Moment.LAST_CHECK)
    if not decision.forced:
        return
    support = support_of(config, "v2", Moment.LAST_CHECK)
    if support.unsupported:
        labels = _labels(support.unsupported)
        yield v2_unsupported.finding(
            f"Model Runner V2 is asked for ({decision.because}), but does not support {labels} "
            f"in vLLM {config.catalogue.vllm_version}",
            location=decision.place,
            related=_places(config, support.unsupported),
            fix=_without(support.unsupported, decision, config),
            engine_message=config.catalogue.engine_message("v2_unsupported", unsupported=labels),
        )
    elif support.unknown:
        raise Abstain("; ".join(support.unknown))


@rule(
    id="model-runner-v2-triton",
    title="Model Runner V2 was asked for on a machine without Triton",
    explanation="Model Runner V2 samples with Triton kernels. The CPU wheels of vLLM have no "
    "Triton driver; with the variable unset vLLM would take Model Runner V1.",
    remedy="Unset `VLLM_USE_V2_MODEL_RUNNER` (which gives up sampling masks), or use a GPU.",
    severity=Severity.ERROR,
    area=_AREA,
    source=f"{_CLASS}._validate_v2_model_runner",
    versions=">=0.28,<0.33",
    covers=("v2-forced-no-triton",),
    bad=(Example(f"{RUNNER_VARIABLE}=1 vllm serve m", gpu="cpu"),),
    good=(
        Example(f"{RUNNER_VARIABLE}=1 vllm serve m", gpu="NVIDIA H100"),
        Example("vllm serve m", gpu="cpu"),
    ),
)
def v2_triton(config: ServeConfig) -> Iterator[Finding]:
    """Refuse a forced V2 without Triton."""
    decision = decide_runner(config, Moment.LAST_CHECK)
    if decision.forced and not machine_of(config).has_triton:
        yield v2_triton.finding(
            f"Model Runner V2 is asked for ({decision.because}), but Triton has no driver on a CPU",
            location=decision.place,
            fix=_UNSET if decision.reason is Reason.ENVIRONMENT else None,
            engine_message=config.catalogue.engine_message("v2_needs_triton"),
        )


@rule(
    id="model-runner-v2-triton-worker",
    title="Model Runner V2 fails in the worker without Triton",
    explanation="From 0.33 the configuration no longer asks for Triton where Model Runner V2 was "
    "asked for; the worker does, once it starts.",
    remedy="Unset `VLLM_USE_V2_MODEL_RUNNER`, or use a GPU.",
    severity=Severity.WARNING,
    area=_AREA,
    source="vllm/v1/worker/gpu_worker.py::Worker.init_device",
    versions=">=0.33",
    bad=(Example(f"{RUNNER_VARIABLE}=1 vllm serve m", gpu="cpu"),),
    good=(Example(f"{RUNNER_VARIABLE}=1 vllm serve m", gpu="NVIDIA H100"),),
)
def v2_triton_worker(config: ServeConfig) -> Iterator[Finding]:
    """Foretell the worker's failure."""
    decision = decide_runner(config, Moment.LAST_CHECK)
    if decision.forced and machine_of(config).kind is MachineKind.CPU:
        yield v2_triton_worker.finding(
            f"the configuration passes with Model Runner V2 ({decision.because}), but the "
            "worker needs Triton, which has no driver on a CPU",
            location=decision.place,
            fix=_UNSET if decision.reason is Reason.ENVIRONMENT else None,
        )


@rule(
    id="model-runner-hisparse",
    title="HiSparse needs Model Runner V2",
    explanation="HiSparse exists only on Model Runner V2 and does not let "
    "`VLLM_USE_V2_MODEL_RUNNER=0` overrule that.",
    remedy="Remove `VLLM_USE_V2_MODEL_RUNNER=0`.",
    severity=Severity.ERROR,
    area=_AREA,
    source=f"{_CLASS}.use_v2_model_runner",
    versions=">=0.30",
    bad=(
        Example(
            f"{RUNNER_VARIABLE}=0 vllm serve m --attention-config '{{\"hisparse_config\": {{}}}}'"
        ),
    ),
    good=(Example("vllm serve m --attention-config '{\"hisparse_config\": {}}'"),),
)
def hisparse(config: ServeConfig) -> Iterator[Finding]:
    """Refuse V1 where HiSparse is configured."""
    if config["attention_config.hisparse_config"] is None or runner_variable(config) is not False:
        return
    variable = config.variable(RUNNER_VARIABLE)
    yield hisparse.finding(
        f"HiSparse needs Model Runner V2, but {RUNNER_VARIABLE}=0 asks for V1",
        location=None if variable is None else variable.location,
        fix=_UNSET,
        engine_message=config.catalogue.engine_message("choice_hisparse"),
    )


@rule(
    id="model-runner-v1-unsupported",
    title="Model Runner V1 lacks a feature",
    explanation="Some features exist only on Model Runner V2. Where V1 was asked for, or V2 "
    "turned down, the start fails.",
    remedy="Remove `VLLM_USE_V2_MODEL_RUNNER=0`, or what keeps vLLM from using V2.",
    severity=Severity.ERROR,
    area=_AREA,
    source=f"{_CLASS}._validate_v1_model_runner",
    versions=">=0.29",
    covers=("v1-runner-unsupported",),
    bad=(Example(f"{RUNNER_VARIABLE}=0 vllm serve m -tp 2 --enable-batch-sharded-sampling"),),
    good=(
        Example("vllm serve m -tp 2 --enable-batch-sharded-sampling"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m -tp 2"),
    ),
)
def v1_unsupported(config: ServeConfig) -> Iterator[Finding]:
    """List what V1 lacks."""
    decision = decide_runner(config, Moment.LAST_CHECK)
    if decision.version is not Runner.V1:
        return
    support = support_of(config, "v1", Moment.LAST_CHECK)
    if not support.unsupported:
        return
    labels = _labels(support.unsupported)
    by_variable = decision.reason is Reason.ENVIRONMENT
    yield v1_unsupported.finding(
        f"vLLM {config.catalogue.vllm_version} takes Model Runner V1 ({decision.because}), "
        f"which does not support {labels}",
        location=decision.place,
        related=_places(config, support.unsupported),
        fix=Fix(f"set {RUNNER_VARIABLE}=1", (SetEnvironment(RUNNER_VARIABLE, "1"),), safe=False)
        if by_variable
        else None,
        engine_message=config.catalogue.engine_message("v1_unsupported", unsupported=labels),
    )


@rule(
    id="model-runner-context-parallelism",
    title="Prefill context parallelism needs Model Runner V2",
    explanation="In 0.28 prefill context parallelism makes vLLM take Model Runner V2, which alone "
    "implements it, unless `VLLM_USE_V2_MODEL_RUNNER=0` forbids it. Later releases name it among "
    "what V1 does not support.",
    remedy="Remove `VLLM_USE_V2_MODEL_RUNNER=0`.",
    severity=Severity.ERROR,
    area=_AREA,
    source=f"{_CLASS}.__post_init__",
    versions=">=0.28,<0.29",
    bad=(Example(f"{RUNNER_VARIABLE}=0 vllm serve m --prefill-context-parallel-size 2"),),
    good=(Example("vllm serve m --prefill-context-parallel-size 2"),),
)
def context_parallelism(config: ServeConfig) -> Iterator[Finding]:
    """Refuse V1."""
    if world_size(config, "prefill_context_parallel_size") < 2:
        return
    decision = decide_runner(config, Moment.LAST_CHECK)
    if decision.reason is Reason.ENVIRONMENT and decision.version is Runner.V1:
        yield context_parallelism.finding(
            f"prefill context parallelism needs Model Runner V2, but {decision.because}",
            location=decision.place,
            fix=_UNSET,
            engine_message="Prefill context parallelism requires Model Runner V2. "
            "Remove VLLM_USE_V2_MODEL_RUNNER=0.",
        )


@rule(
    id="model-runner-fallback",
    title="vLLM falls back to Model Runner V1",
    explanation="A feature that Model Runner V2 lacks makes vLLM take V1, with a line in the log "
    "only. Sampling masks, batch-sharded sampling and trace replay are then unavailable, and "
    "seeded draws differ from those of V2.",
    remedy="Nothing, if V1 is fine; set `VLLM_USE_V2_MODEL_RUNNER=0` to say so. Otherwise drop "
    "the feature.",
    severity=Severity.WARNING,
    area=_AREA,
    source=f"{_CLASS}.use_v2_model_runner",
    versions=">=0.28",
    covers=("v2-unsupported-fallback",),
    bad=(
        Example("vllm serve m --enable-dbo", model_config={"architectures": ["Qwen3ForCausalLM"]}),
        Example("vllm serve m --logits-processors p.m:P", versions=">=0.29,<0.31"),
    ),
    good=(
        Example("vllm serve m"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m --enable-dbo", note="asked for"),
    ),
)
def fallback(config: ServeConfig) -> Iterator[Finding]:
    """Tell of a silent V1; with masks it is an error of its own."""
    if wants_mask(config):
        return
    decision = decide_runner(config, Moment.LAST_CHECK)
    if decision.reason is Reason.FEATURES:
        labels = _labels(decision.unsupported)
        yield fallback.finding(
            f"vLLM will use Model Runner V1, because V2 does not support {labels} in "
            f"{config.catalogue.vllm_version}",
            location=decision.place,
            engine_message=config.catalogue.engine_message(
                "choice_unsupported", unsupported=labels
            ),
        )


@rule(
    id="trace-replay-runner",
    title="Trace replay needs Model Runner V2",
    explanation="Replaying given tokens (`--enable-trace-replay`) is implemented in Model Runner "
    "V2 only.",
    remedy="Set `VLLM_USE_V2_MODEL_RUNNER=1`, and drop what V2 does not support.",
    severity=Severity.ERROR,
    area="trace-replay",
    source=f"{_CLASS}._verify_trace_replay_config",
    versions=">=0.29",
    covers=("trace-replay-v2",),
    bad=(Example(f"{RUNNER_VARIABLE}=0 vllm serve m --enable-trace-replay"),),
    good=(Example("vllm serve m --enable-trace-replay"),),
)
def trace_replay(config: ServeConfig) -> Iterator[Finding]:
    """Refuse V1."""
    if not config["enable_trace_replay"]:
        return
    decision = decide_runner(config)
    if decision.version is Runner.V1:
        yield trace_replay.finding(
            f"--enable-trace-replay needs Model Runner V2, but vLLM "
            f"{config.catalogue.vllm_version} starts with V1: {decision.because}",
            location=decision.place or config.place("enable_trace_replay"),
            fix=Fix("drop --enable-trace-replay", (RemoveFlag("enable_trace_replay"),), safe=False)
            if decision.reason is not Reason.ENVIRONMENT
            else _UNSET,
            engine_message=config.catalogue.engine_message("trace_needs_v2_runner"),
        )


def _labels(features: tuple[Unsupported, ...]) -> str:
    return ", ".join(feature.label for feature in features)


def _places(config: ServeConfig, features: tuple[Unsupported, ...]) -> tuple[Location, ...]:
    places = (config.place(dest) for feature in features for dest in feature.dests)
    return tuple(dict.fromkeys(place for place in places if place is not None))


def _without(
    features: tuple[Unsupported, ...], decision: RunnerDecision, config: ServeConfig
) -> Fix | None:
    if decision.reason is Reason.ENVIRONMENT and not wants_mask(config):
        return _UNSET
    edits = tuple(RemoveFlag(dest) for feature in features for dest in feature.dests)
    return Fix(f"drop {_labels(features)}", edits, safe=False) if edits else None
