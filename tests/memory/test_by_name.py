"""What the names of models say, and what is made of it."""

from __future__ import annotations

import shlex

import pytest

from app.catalogue import CatalogueLibrary
from app.memory.by_name import NamedWeights, named_weights, says_hybrid
from app.proposal.envelope import read_envelope
from app.proposal.shell import parse_command
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig
from app.validation import judge
from app.verdict.finding import Finding

LIBRARY = CatalogueLibrary()
RULE = "mamba-blocks-by-name"


def serving(*args: str, version: str = "0.33.0") -> ServeConfig:
    proposal = parse_command(shlex.join(["vllm", "serve", *args]))
    config = resolve(proposal, LIBRARY.get(version)).config
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Qwen/Qwen3.5-35B-A3B", "Qwen3.5"),
        ("/models/qwen3_5-9b", "qwen3_5"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next"),
        ("tiiuae/Falcon-H1-34B-Instruct", "Falcon-H1"),
        ("nvidia/Nemotron-H-47B-Base-8K", "Nemotron-H"),
        ("ai21labs/AI21-Jamba-Large-1.7", "Jamba"),
        ("Zyphra/Zamba2-7B", "Zamba2"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "Kimi-Linear"),
        ("allenai/Olmo-Hybrid-7B", "Olmo-Hybrid"),
        ("mistralai/Mamba-Codestral-7B-v0.1", "Mamba"),
        ("org/hybrid-35b-a3b", "hybrid"),
        ("Qwen/Qwen3-5B", None),
        ("Qwen/Qwen3.50-5B", None),
        ("Qwen/Qwen3-30B-A3B", None),
        ("nvidia/Nemotron-Hindi-4B", None),
        ("org/D3-70b", None),
        ("org/hybrids-7b", None),
        ("meta-llama/Llama-3.1-70B", None),
    ],
)
def test_names_of_hybrids(name: str, said: str | None) -> None:
    assert says_hybrid(serving(name)) == said


@pytest.mark.parametrize("version", LIBRARY.versions)
def test_the_families_are_those_of_the_version(version: str) -> None:
    """Qwen4's first class came with 0.33."""
    known = "Qwen4ExpForCausalLM" in LIBRARY.get(version).model_abilities["is_hybrid"]
    assert (says_hybrid(serving("org/Qwen4-Exp-7B", version=version)) is not None) is known
    assert says_hybrid(serving("org/Qwen3.5-7B", version=version)) == "Qwen3.5"


@pytest.mark.parametrize(
    ("args", "parameters", "size"),
    [
        (("org/m-70b",), 70e9, 140e9),
        (("org/m-8x7B-Instruct",), 56e9, 112e9),
        (("org/m-1.5B",), 1.5e9, 3e9),
        (("org/m-70B-FP8",), 70e9, 70e9),
        (("org/m-70B-AWQ",), 70e9, 35e9),
        (("org/m-70B", "--quantization", "fp8"), 70e9, 70e9),
        (("org/m-70B", "--quantization", "bitsandbytes"), 70e9, 35e9),
    ],
)
def test_sizes_in_names(args: tuple[str, ...], parameters: float, size: float) -> None:
    assert named_weights(serving(*args)) == NamedWeights(args[0], parameters, size)


@pytest.mark.parametrize("name", ["org/model", "org/v1.5b2", "org/m-a3b", "org/70bit"])
def test_names_without_a_size(name: str) -> None:
    assert named_weights(serving(name)) is None


def told(*args: str, gpu: str | None = "H100-80GB", count: int | None = None) -> list[Finding]:
    data = {"args": list(args), "hardware": {"gpu": gpu, "count": count}}
    [verdict] = judge(read_envelope(data), LIBRARY, "0.32.0")
    assert not any(f.rule == "internal-rule-error" for f in verdict.findings)
    return [f for f in verdict.findings if f.rule == RULE]


def test_what_is_reckoned() -> None:
    [found] = told("org/hybrid-35b")
    assert found.evidence == {
        "estimate": True,
        "name": "org/hybrid-35b",
        "parameters": 35_000_000_000,
        "weights_gib": 65.19,
        "allowed_gib": 73.6,
        "blocks": 225,
        "sequences": 1024,
    }
    assert "1024, the default here" in found.message
    assert found.fix is not None
    assert found.fix.safe is False
    assert "--max-num-seqs 128" in found.fix.description


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), 1),
        (("--max-num-seqs", "225"), 0),
        (("--max-num-seqs", "226"), 1),
        (("--tensor-parallel-size", "2"), 0),
        (("--tensor-parallel-size", "2", "--max-num-seqs", "9000"), 1),
        (("--gpu-memory-utilization", "0.8"), 1),
        (("--num-gpu-blocks-override", "300"), 0),
        (("--kv-cache-memory-bytes", "8G"), 0),
        (("--cpu-offload-gb", "20"), 0),
        (("-cc.cudagraph_mode=PIECEWISE",), 0),
        (("-cc.cudagraph_mode=FULL",), 1),
    ],
)
def test_what_decides(args: tuple[str, ...], expected: int) -> None:
    assert len(told("org/hybrid-35b", *args)) == expected


def test_weights_that_fill_a_known_gpu_leave_nothing() -> None:
    [found] = told("org/hybrid-70b")
    assert found.evidence["blocks"] == 0
    assert found.fix is None


def test_weights_larger_than_a_presumed_gpu_are_an_open_question() -> None:
    assert told("org/hybrid-70b", gpu=None) == []
    envelope = read_envelope({"args": ["org/hybrid-70b"]})
    [verdict] = judge(envelope, LIBRARY, "0.32.0")
    [skipped] = [s for s in verdict.not_checked if s.rule == RULE]
    assert "GPU" in skipped.needs


def test_experts_shared_out_over_ranks_are_an_open_question() -> None:
    args = ("org/hybrid-35b-a3b", "--enable-expert-parallel", "--data-parallel-size", "2")
    assert told(*args, count=2) == []


def test_no_graphs_on_a_cpu() -> None:
    assert told("org/hybrid-35b", gpu="cpu") == []
