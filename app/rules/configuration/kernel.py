"""Kernel settings that are said twice, and kernels that belong to another platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

AREA: Final = "kernel"
_ARGUMENTS: Final = "vllm/engine/arg_utils.py::EngineArgs.create_engine_config"
_CONFIG: Final = "kernel_config"
_AUTOTUNE: Final = "enable_flashinfer_autotune"
_PRIORITY: Final = "ir_op_priority"
_KDA: Final = "kda_prefill_backend"
_BACKENDS: Final = ("moe_backend", "linear_backend", "sparse_indexer_topk_backend")


@rule(
    id="kernel-autotune-twice",
    title="FlashInfer autotuning is said twice",
    explanation="`--enable-flashinfer-autotune` (or its negative) and the same key of "
    "`--kernel-config` exclude each other, even where they agree.",
    remedy="Keep one of them.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ARGUMENTS,
    bad=(
        Example(
            f"vllm serve m --enable-flashinfer-autotune --kernel-config '{{\"{_AUTOTUNE}\": true}}'"
        ),
        Example(f"vllm serve m --no-enable-flashinfer-autotune --kernel-config.{_AUTOTUNE} false"),
    ),
    good=(
        Example("vllm serve m --enable-flashinfer-autotune"),
        Example(f"vllm serve m --kernel-config '{{\"{_AUTOTUNE}\": true}}'"),
    ),
    covers=("flashinfer-autotune-twice",),
)
def autotune(config: ServeConfig) -> Iterator[Finding]:
    """Look for both."""
    flag, key = config[_AUTOTUNE], config[f"{_CONFIG}.{_AUTOTUNE}"]
    if flag is None or key is None:
        return
    drop = RemoveFlag(f"{_CONFIG}.{_AUTOTUNE}")
    yield autotune.finding(
        f"{_AUTOTUNE} is {flag} by its option and {key} in --kernel-config",
        location=config.place(_AUTOTUNE),
        related=tuple(p for p in (config.place(_CONFIG),) if p is not None),
        fix=Fix("keep the option", (drop,), safe=flag == key),
        engine_message="enable_flashinfer_autotune and kernel_config.enable_flashinfer_autotune "
        "are mutually exclusive",
    )


@rule(
    id="kernel-priority-twice",
    title="The priority of an operation is said twice",
    explanation="Each operation's list of implementations comes from `--ir-op-priority` or from "
    "`--kernel-config`, not both.",
    remedy="Keep one of them.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ARGUMENTS,
    bad=(
        Example(
            """vllm serve m --ir-op-priority '{"rms_norm": ["native"]}' """
            """--kernel-config '{"ir_op_priority": {"rms_norm": ["native"]}}'"""
        ),
        Example(
            "vllm serve m --ir-op-priority.rms_norm native "
            "--kernel-config.ir_op_priority.rms_norm native"
        ),
    ),
    good=(
        Example(
            """vllm serve m --ir-op-priority '{"rms_norm": ["native"]}' """
            """--kernel-config '{"ir_op_priority": {"fused_add_rms_norm": ["native"]}}'"""
        ),
    ),
    covers=("ir-op-priority-twice",),
)
def priority(config: ServeConfig) -> Iterator[Finding]:
    """Compare operation by operation."""
    flag, key = config[_PRIORITY], config[f"{_CONFIG}.{_PRIORITY}"]
    if not isinstance(flag, Mapping) or not isinstance(key, Mapping):
        return
    for name in flag:
        if _is_set(flag[name]) and _is_set(key.get(name)):
            yield priority.finding(
                f"the priority of {name} is given by --ir-op-priority and in --kernel-config",
                location=config.place(_PRIORITY),
                related=tuple(p for p in (config.place(_CONFIG),) if p is not None),
                fix=Fix(
                    "keep --ir-op-priority",
                    (RemoveFlag(f"{_CONFIG}.{_PRIORITY}.{name}"),),
                    safe=flag[name] == key[name],
                ),
                engine_message=f"Op priority for {name} specified via both ir_op_priority and "
                "KernelConfig.ir_op_priority, only one allowed at a time.",
            )


def _is_set(value: Any) -> bool:
    # A text is split at commas, so even the empty one gives a list with an entry.
    return isinstance(value, str) or bool(value)


@rule(
    id="kernel-backend-replaced",
    title="An option replaces the backend in --kernel-config",
    explanation="`--moe-backend`, `--linear-backend` and `--sparse-indexer-topk-backend` win over "
    "the same keys of `--kernel-config`, without a word.",
    remedy="Say the backend once.",
    severity=Severity.WARNING,
    area=AREA,
    source=_ARGUMENTS,
    bad=(
        Example(
            """vllm serve m --moe-backend triton --kernel-config '{"moe_backend": "marlin"}'"""
        ),
        Example("vllm serve m --linear-backend cutlass --kernel-config.linear_backend marlin"),
    ),
    good=(
        Example("""vllm serve m --moe-backend auto --kernel-config '{"moe_backend": "marlin"}'"""),
        Example("vllm serve m --moe-backend triton"),
    ),
    covers=("kernel-flag-overrides-json",),
)
def backend_replaced(config: ServeConfig) -> Iterator[Finding]:
    """Compare each pair."""
    if not config.given(_CONFIG):
        return
    for dest in _BACKENDS:
        flag, key = config[dest], config[f"{_CONFIG}.{dest}"]
        if flag in (None, "auto") or key in (None, "auto"):
            continue
        if str(key).lower().replace("-", "_") != flag:
            yield backend_replaced.finding(
                f"vLLM will use {dest} {flag}, not {key}, because the option wins over "
                "--kernel-config",
                location=config.place(dest),
                related=tuple(p for p in (config.place(_CONFIG),) if p is not None),
                evidence={"asked": key, "effective": flag, "dest": f"{_CONFIG}.{dest}"},
            )


@rule(
    id="kernel-delta-attention-platform",
    title="The kernel for Kimi delta attention belongs to another platform",
    explanation="`flashkda` exists on CUDA, `fused` on ROCm.",
    remedy="Use another `--kda-prefill-backend`, or leave it out.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ARGUMENTS,
    versions=">=0.30",
    bad=(Example("vllm serve m --kda-prefill-backend fused"),),
    good=(Example("vllm serve m --kda-prefill-backend flashkda"),),
)
def delta_attention(config: ServeConfig) -> Iterator[Finding]:
    """Compare kernel and platform."""
    backend = config[_KDA]
    if backend not in {"flashkda", "fused"}:
        return
    machine = machine_of(config)
    platform = "CUDA" if backend == "flashkda" else "ROCm"
    if machine.is_cuda if backend == "flashkda" else machine.is_rocm:
        return
    yield delta_attention.finding(
        f"--kda-prefill-backend {backend} exists on {platform} only",
        location=config.place(_KDA),
        fix=Fix("let vLLM choose", (RemoveFlag(_KDA),), safe=False),
        engine_message=f"--kda-prefill-backend={backend} is only available on {platform}.",
    )
