"""The whole verdict beside real vLLM's on generated proposals, and the values it derives.

`engine_answers/VERSION.jsonl` was recorded by `python -m lab.engine_record`: proposals of one to
three ingredients for models of every family, with what that vLLM said up to its finished engine
configuration. A row that it refuses and we did not at the time is marked `missed`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.derived import compilation, cuda_graphs, model, scheduler
from app.rules.evaluate import judge_only
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Severity

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = sorted(Path(__file__).with_name("engine_answers").glob("*.jsonl"))
GPUS = {"cuda-h100": "NVIDIA H100 80GB HBM3", "cuda-a100": "NVIDIA A100-SXM4-80GB", "cpu": "cpu"}
LIBRARY = CatalogueLibrary()
# Checks that vLLM makes after its engine configuration, where the recording ends.
LATER = {"lora-runtime-updating"}


def runs_on_v2(config: ServeConfig) -> bool:
    version = decide_runner(config, Moment.LAST_CHECK).version
    if version is None:
        raise Abstain("which model runner")
    return version is Runner.V2


VALUES: Final[Mapping[str, Callable[[ServeConfig], Any]]] = {
    "max_model_len": model.max_model_len,
    "dtype": model.model_dtype,
    "quantization": model.quantization_method,
    "runner_type": model.runner_type,
    "convert_type": model.convert_type,
    "is_hybrid": model.is_hybrid,
    "is_attention_free": model.is_attention_free,
    "is_moe": model.is_moe,
    "use_mla": model.uses_mla,
    "max_num_seqs": scheduler.max_num_seqs,
    "distributed_executor_backend": scheduler.executor_backend,
    "async_scheduling": scheduler.async_scheduling,
    "use_v2_model_runner": runs_on_v2,
    "compilation_mode": compilation.compilation_mode,
    "cudagraph_mode": cuda_graphs.graph_mode,
}


@cache
def models() -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = json.loads((ROOT / "lab/model_configs.json").read_text())
    return read


def envelope_of(row: dict[str, Any]) -> dict[str, Any]:
    envelope = {
        "args": [row["model"], *row["args"]],
        "env": row.get("env", {}),
        "hardware": {"gpu": GPUS[row["platform"]], "count": row["gpus"]},
        "model_config": models()[row["model"]]["config.json"],
    }
    if "draft" in row:
        envelope["draft_model_config"] = models()[row["draft"]]["config.json"]
    return envelope


def rows_of(answers: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answers.read_text().splitlines()]


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda path: path.stem)
def test_what_vllm_takes_is_taken_and_what_it_refuses_refused(answers: Path) -> None:
    catalogue = LIBRARY.get(answers.stem)
    false_rejections, missed = [], []
    for row in rows_of(answers):
        verdict = judge_only(read_envelope(envelope_of(row)).proposal, catalogue)
        errors = {f.rule for f in verdict.findings if f.severity is Severity.ERROR}
        if "refuses" not in row and not verdict.accepted and not errors <= LATER:
            false_rejections.append((row["args"], row["model"], sorted(errors)))
        if "refuses" in row and verdict.accepted and "missed" not in row:
            missed.append((row["args"], row["model"], row["refuses"]))
    assert false_rejections == []
    assert missed == []


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda path: path.stem)
def test_derived_values_are_vllms(answers: Path) -> None:
    catalogue = LIBRARY.get(answers.stem)
    others = []
    for row in rows_of(answers):
        if "values" not in row:
            continue
        config = resolve(read_envelope(envelope_of(row)).proposal, catalogue).config
        assert config is not None
        for name, derive in VALUES.items():
            if name not in row["values"]:
                continue
            try:
                value = derive(config)
            except Abstain:
                continue
            if value != row["values"][name]:
                others.append((name, value, row["values"][name], row["model"], row["args"]))
    assert others == []


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda path: path.stem)
def test_answers_of_both_kinds_are_kept_of_every_machine(answers: Path) -> None:
    rows = rows_of(answers)
    assert {row["platform"] for row in rows} == set(GPUS)
    assert min(sum("refuses" in r for r in rows), sum("values" in r for r in rows)) >= 50
    assert len({row["model"] for row in rows}) >= 25
