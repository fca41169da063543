"""Asynchronous scheduling, and schedulers of somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from app.rules.configuration.parallel_models import DENSE
from app.rules.configuration.scheduler_limits import AREA
from app.rules.configuration.speculative_method import NGRAM
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import is_pooling
from app.rules.derived.scheduler import (
    async_obstacle,
    executor_backend,
    executor_is_asynchronous,
)
from app.rules.registry import rule
from app.rules.runner_features import RUNNER_VARIABLE
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

ASYNC: Final = "async_scheduling"
_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_EXECUTOR: Final = "distributed_executor_backend"
_CLASS: Final = "scheduler_cls"
_OLD_RAY: Final = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
_V0_31: Final = Version("0.31.0.dev0")
_V0_33: Final = Version("0.33.0.dev0")
_PADDED: Final = (
    '--speculative-config \'{"method": "ngram_gpu", "num_speculative_tokens": 2, '
    '"prompt_lookup_max": 3, "disable_padded_drafter_batch": true}\''
)


@rule(
    id="scheduler-async-refused",
    title="Asynchronous scheduling does not go with this way of drafting",
    explanation="Up to 0.32 `--async-scheduling` goes with drafts of EAGLE, MTP, a draft model, "
    "n-grams on the GPU, DSpark and (from 0.31) DFlash, and not with "
    "`disable_padded_drafter_batch`. From 0.33 that, and pipeline parallelism, is refused on Model "
    "Runner V1 only. Left out, asynchronous scheduling is switched off instead.",
    remedy="Leave `--async-scheduling` out, or draft in another way.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example(f"vllm serve m --async-scheduling {NGRAM}", versions="<0.33"),
        Example(f"vllm serve m --async-scheduling {_PADDED}", versions="<0.33"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m --async-scheduling {NGRAM}", versions=">=0.33"),
        Example(
            f"{RUNNER_VARIABLE}=0 vllm serve m --async-scheduling -pp 2",
            model_config=DENSE,
            versions=">=0.33",
        ),
    ),
    good=(
        Example(f"vllm serve m {NGRAM}"),
        Example("vllm serve m --async-scheduling"),
        Example(
            f"{RUNNER_VARIABLE}=0 vllm serve m --async-scheduling -pp 2",
            model_config=DENSE,
            versions="<0.33",
        ),
    ),
    covers=("async-spec-method", "async-padded-drafter"),
)
def refused(config: ServeConfig) -> Iterator[Finding]:
    """Look for what stands against it."""
    if config[ASYNC] is not True:
        return
    v1_only = config.catalogue.version >= _V0_33
    if not v1_only and speculation_of(config) is None:
        return
    obstacle = async_obstacle(config)
    if obstacle is None or (obstacle.kind == "pipeline" and not v1_only):
        return
    yield refused.finding(
        f"--async-scheduling is refused because {obstacle.because}"
        + (" and Model Runner V1 is used" if v1_only and obstacle.kind != "pipeline" else ""),
        location=config.place(ASYNC),
        related=tuple(p for p in (config.place("speculative_config"),) if p is not None),
        fix=Fix("leave --async-scheduling out", (RemoveFlag(ASYNC),), safe=False),
        engine_message=_message(obstacle.kind, v1_only=v1_only),
    )


def _message(kind: str, *, v1_only: bool) -> str:
    if v1_only:
        return "Async scheduling is not supported by the V1 model runner with"
    if kind == "padded":
        return "Async scheduling is not compatible with disable_padded_drafter_batch=True."
    return "Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU/"


@rule(
    id="scheduler-async-executor",
    title="The executor cannot schedule asynchronously",
    explanation="The older Ray executor (`VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0`, gone in 0.33) "
    "cannot, and vLLM refuses `--async-scheduling` with it.",
    remedy="Take the newer Ray executor, or leave `--async-scheduling` out.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    versions="<0.33",
    bad=(
        Example(
            f"{_OLD_RAY}=0 vllm serve m --async-scheduling --distributed-executor-backend ray",
            model_config=DENSE,
        ),
    ),
    good=(
        Example(
            "vllm serve m --async-scheduling --distributed-executor-backend mp",
            model_config=DENSE,
        ),
    ),
    covers=("async-executor",),
)
def executor(config: ServeConfig) -> Iterator[Finding]:
    """Ask the executor."""
    if config[ASYNC] is not True or executor_backend(config) in {"uni", "mp"}:
        return
    if not executor_is_asynchronous(config):
        backend = executor_backend(config)
        yield executor.finding(
            f"the executor {backend} does not schedule asynchronously with {_OLD_RAY}=0",
            location=config.place(ASYNC),
            fix=Fix("leave --async-scheduling out", (RemoveFlag(ASYNC),), safe=False),
            engine_message=f"`{backend}` does not support async scheduling yet.",
        )


@rule(
    id="scheduler-async-off",
    title="Asynchronous scheduling is switched off",
    explanation="Scheduling the next step while the GPU works on this one is the default and "
    "worth several percent of throughput. vLLM switches it off with drafts of n-grams, suffixes, "
    "Medusa and the like, with `disable_padded_drafter_batch`, with the older Ray executor, and "
    "(from 0.31) with pipeline parallelism on Model Runner V1. From 0.33 Model Runner V2 keeps it "
    "in all these cases but the executor.",
    remedy="Nothing, if it is known. Say `--no-async-scheduling` to make it so by intent.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example(f"vllm serve m {NGRAM}", versions="<0.33"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m {NGRAM}"),
        Example(f"vllm serve m {_PADDED}", versions="<0.33"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m -pp 2", model_config=DENSE, versions=">=0.31"),
    ),
    good=(
        Example("vllm serve m"),
        Example(f"vllm serve m --no-async-scheduling {NGRAM}"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m -pp 2", model_config=DENSE, versions="<0.31"),
    ),
    covers=("async-spec-off", "async-padded-off", "async-executor-off", "async-pp-v1-off"),
)
def switched_off(config: ServeConfig) -> Iterator[Finding]:
    """Look for what stands against the default."""
    if config[ASYNC] is not None or machine_of(config).is_cpu:
        return
    if executor_backend(config) == "ray" and not executor_is_asynchronous(config):
        because = f"the older Ray executor ({_OLD_RAY}=0) cannot"
    else:
        stages = config["pipeline_parallel_size"]
        several = isinstance(stages, int) and stages > 1
        if speculation_of(config) is None and not several:
            return
        obstacle = async_obstacle(config)
        if obstacle is None:
            return
        because = obstacle.because
    if config.model_config is not None and is_pooling(config):
        return
    yield switched_off.finding(
        f"asynchronous scheduling, the default, will be off because {because}",
        location=config.place("speculative_config")
        or config.place("pipeline_parallel_size")
        or config.place(_EXECUTOR)
        or config.place("model"),
        fix=Fix("say --no-async-scheduling", (SetFlag(ASYNC, value=False),), safe=True),
        evidence={"asked": None, "effective": False, "dest": ASYNC},
    )


@rule(
    id="scheduler-custom-class",
    title="The scheduler is a class of somebody else",
    explanation="The interface of schedulers is not public and may change with each release. A "
    "class derived from `Scheduler` instead of `AsyncScheduler` loses asynchronous scheduling.",
    remedy="Pin the version of vLLM, and derive from `AsyncScheduler`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/scheduler.py::SchedulerConfig.get_scheduler_cls",
    bad=(Example("vllm serve m --scheduler-cls pkg.module.Scheduler"),),
    good=(
        Example("vllm serve m"),
        Example(
            "vllm serve m --scheduler-cls vllm.v1.core.sched.scheduler.Scheduler",
            versions=">=0.31",
            note="vLLM's own, which older releases warn of as well",
        ),
    ),
    covers=("custom-scheduler",),
)
def custom_class(config: ServeConfig) -> Iterator[Finding]:
    """Look for a class outside vLLM."""
    name = config[_CLASS]
    if not isinstance(name, str) or not name:
        return
    if name.startswith("vllm.") and config.catalogue.version >= _V0_31:
        return
    yield custom_class.finding(
        f"--scheduler-cls {name}: vLLM warns that the interface is not public",
        location=config.place(_CLASS),
        evidence={_CLASS: name},
    )
