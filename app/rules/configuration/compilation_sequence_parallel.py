"""Sequence parallelism as a compilation pass, which needs tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

PASSES: Final = "compilation_config.pass_config"
_ASKED: Final = ("fuse_gemm_comms", "enable_sp")


@rule(
    id="compilation-sequence-parallel-alone",
    title="Sequence parallelism without tensor parallelism is turned off",
    explanation="`enable_sp`, and `fuse_gemm_comms` that builds on it, split work over the ranks "
    "of tensor parallelism. With one rank vLLM turns both off.",
    remedy="Leave them out, or raise `--tensor-parallel-size`.",
    severity=Severity.WARNING,
    area="compilation",
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    versions="<0.32",
    bad=(
        Example("vllm serve m -cc.pass_config.fuse_gemm_comms=true"),
        Example("vllm serve m -cc.pass_config.enable_sp=true"),
    ),
    good=(
        Example("vllm serve m -cc.pass_config.enable_sp=true -tp 2"),
        Example("vllm serve m -cc.pass_config.fuse_gemm_comms=false"),
    ),
)
def alone(config: ServeConfig) -> Iterator[Finding]:
    """Look for the passes on a single rank."""
    asked = [name for name in _ASKED if config[f"{PASSES}.{name}"] is True]
    if not asked or config["tensor_parallel_size"] != 1:
        return
    yield alone.finding(
        f"{asked[0]} is asked for, but vLLM will turn it off, because --tensor-parallel-size is 1",
        location=config.place(PASSES),
        fix=Fix(f"drop {asked[0]}", (RemoveFlag(f"{PASSES}.{asked[0]}"),), safe=True),
        evidence={"dest": f"{PASSES}.{asked[0]}", "asked": True, "effective": False},
    )
