"""What is told about the model and the machine, and what is not guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.proposal import Hardware
from app.proposal.shell import parse_command
from app.rules.facts import (
    MachineKind,
    architectures,
    has_ability,
    is_mixture_of_experts,
    machine_of,
    runs_generate,
)
from app.rules.speculation import speculation_of
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig

CATALOGUE = CatalogueLibrary().get("0.32.0")


def config_of(
    command: str = "vllm serve m", model: dict[str, Any] | None = None, gpu: str | None = None
) -> ServeConfig:
    hardware = None if gpu is None else Hardware(gpu)
    proposal = replace(parse_command(command), model_config=model, hardware=hardware)
    config = resolve(proposal, CATALOGUE).config
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("gpu", "kind"),
    [
        ("cpu", MachineKind.CPU),
        (" CPU ", MachineKind.CPU),
        ("NVIDIA H100 80GB HBM3", MachineKind.CUDA),
        ("H100-80GB", MachineKind.CUDA),
        ("A100-SXM4-80GB", MachineKind.CUDA),
        ("GB200", MachineKind.CUDA),
        ("Instinct MI300X", MachineKind.ROCM),
        ("MI355X", MachineKind.ROCM),
        ("gfx942", MachineKind.ROCM),
        ("AMD Radeon PRO W7900", MachineKind.ROCM),
        ("Ascend910B", MachineKind.OTHER),
        ("TPU v6e", MachineKind.OTHER),
        ("Intel Gaudi3", MachineKind.OTHER),
    ],
)
def test_the_platform_is_told_from_the_name(gpu: str, kind: MachineKind) -> None:
    machine = machine_of(config_of(gpu=gpu))
    assert (machine.kind, machine.assumed) == (kind, False)


def test_without_a_name_a_cuda_gpu_is_assumed() -> None:
    machine = machine_of(config_of())
    assert machine.assumed
    assert machine.has_triton


def test_whether_other_platforms_have_triton_is_not_guessed() -> None:
    with pytest.raises(Abstain, match="Triton"):
        _ = machine_of(config_of(gpu="Gaudi3")).has_triton


@pytest.mark.parametrize("names", [None, [], "Qwen3ForCausalLM", [1]])
def test_architectures_that_are_no_list_of_names_are_missing(names: object) -> None:
    with pytest.raises(Abstain, match="architectures"):
        architectures(config_of(model={"architectures": names}))


def test_the_abilities_of_an_unknown_class_are_not_guessed() -> None:
    with pytest.raises(Abstain, match="OurOwnForCausalLM"):
        has_ability(config_of(model={"architectures": ["OurOwnForCausalLM"]}), "is_hybrid")


@pytest.mark.parametrize(
    ("options", "model", "generates"),
    [
        ("", ["Qwen3ForCausalLM"], True),
        ("", ["BertModel"], False),
        ("", ["OurOwnForCausalLM"], True),
        ("", ["OurOwnEmbeddingModel"], False),
        ("", ["OurOwn"], True),
        ("--runner pooling", ["Qwen3ForCausalLM"], False),
        ("--runner generate", ["BertModel"], True),
        ("--convert embed", ["Qwen3ForCausalLM"], False),
    ],
)
def test_whether_a_model_generates_follows_options_then_class(
    options: str, model: list[str], generates: bool
) -> None:
    config = config_of(f"vllm serve m {options}", {"architectures": model})
    assert runs_generate(config) is generates


@pytest.mark.parametrize(
    ("model", "experts"),
    [
        ({"num_local_experts": 8}, True),
        ({"n_routed_experts": 0}, False),
        ({"text_config": {"num_experts": 4}}, True),
        ({}, False),
    ],
)
def test_experts_are_counted_where_vllm_counts_them(model: dict[str, Any], experts: bool) -> None:
    config = config_of(model={"architectures": ["Qwen3ForCausalLM"], **model})
    assert is_mixture_of_experts(config) is experts


def test_experts_of_single_layers_are_not_counted() -> None:
    model = {"architectures": ["NemotronHForCausalLM"], "block_configs": [{"n": 1}]}
    with pytest.raises(Abstain, match="experts"):
        is_mixture_of_experts(config_of(model=model))


@pytest.mark.parametrize(
    ("keys", "method"),
    [
        ('{"method": "ngram"}', "ngram"),
        ('{"method": "[ngram]"}', "ngram"),
        ('{"model": "[ngram]"}', "ngram"),
        ('{"model": "ngram"}', "ngram"),
        ('{"method": "deepseek_mtp"}', "mtp"),
        ('{"method": "medusa", "model": "org/x"}', "medusa"),
        ('{"model": "pkg.module.Proposer"}', "custom_class"),
        ('{"model": "org/EAGLE3-LLaMA3.1-Instruct-8B"}', "eagle3"),
        ('{"model": "org/EAGLE-LLaMA3-Instruct-8B"}', "eagle"),
        ('{"model": "org/dspark_qwen3_8b", "method": "draft_model"}', "dspark"),
        ('{"method": "eagle", "model": "org/dflash"}', "eagle"),
    ],
)
def test_the_speculative_method_is_the_one_vllm_settles_on(keys: str, method: str) -> None:
    speculation = speculation_of(config_of(f"vllm serve m --speculative-config '{keys}'"))
    assert speculation is not None
    assert speculation.method == method


def test_a_method_that_hangs_on_the_draft_is_not_guessed() -> None:
    keys = '{"model": "org/draft"}'
    speculation = speculation_of(config_of(f"vllm serve m --speculative-config '{keys}'"))
    assert speculation is not None
    with pytest.raises(Abstain, match="draft"):
        _ = speculation.method


def test_shorthands_make_a_speculative_configuration() -> None:
    speculation = speculation_of(config_of("vllm serve m --spec-method suffix --spec-tokens 4"))
    assert speculation is not None
    assert speculation.method == "suffix"
    assert speculation.dests == ("spec_method", "spec_tokens")
    assert speculation_of(config_of()) is None
