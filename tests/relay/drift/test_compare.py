"""What differs and what does not, given what a backend tells."""

from __future__ import annotations

from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.relay.drift.compare import Difference, Running, cache_labels, differences, models_of
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig

VERSION = "0.32.0"
# As vLLM 0.32.0 writes it, one line for each engine.
EXPOSITION = (
    "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",'
    'engine="0",gpu_memory_utilization="0.9",num_gpu_blocks_override="None"} 1.0\n'
    'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
)
CARDS = {
    "object": "list",
    "data": [
        {"id": "m", "parent": None, "max_model_len": 4096},
        {"id": "adapter", "parent": "m", "max_model_len": None},
    ],
}


def declared(command: str) -> ServeConfig:
    config = resolve(parse_command(command), CatalogueLibrary().get(VERSION)).config
    assert config is not None
    return config


def running(**changes: Any) -> Running:
    given: dict[str, Any] = {
        "version": VERSION,
        "models": models_of(CARDS),
        "cache": cache_labels(EXPOSITION),
        **changes,
    }
    return Running(**given)


def fields(command: str, told: Running) -> dict[str, tuple[str, str]]:
    found = differences(declared(command), VERSION, told)
    return {d.field: (d.declared, d.running) for d in found}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("vllm serve m", {}),
        ("vllm serve m --max-model-len 4096 --gpu-memory-utilization 0.90", {}),
        ("vllm serve m --max-model-len 4k", {"max_model_len": ("4000", "4096")}),
        ("vllm serve m --max-model-len auto", {}),
        ("vllm serve other --served-model-name m", {}),
        ("vllm serve other", {"served_model_name": ("other", "m")}),
        ("vllm serve x --served-model-name m n", {"served_model_name": ("m, n", "m")}),
        ("vllm serve m --gpu-memory-utilization 0.5", {"gpu_memory_utilization": ("0.5", "0.9")}),
        ("vllm serve m --no-enable-prefix-caching", {"enable_prefix_caching": ("False", "True")}),
        ("vllm serve m --kv-cache-dtype auto", {}),
        ("vllm serve m --kv-cache-dtype fp8", {"kv_cache_dtype": ("fp8", "auto")}),
        ("vllm serve m --max-model-len $LENGTH", {}),
    ],
)
def test_only_what_was_given_is_compared(command: str, found: dict[str, tuple[str, str]]) -> None:
    assert fields(command, running()) == found


@pytest.mark.parametrize(
    ("told", "differs"),
    [("0.32.0", False), ("0.32.0+cu129", False), ("0.31.0", True), ("dev", True), (None, False)],
)
def test_a_version_differs_by_its_release(told: str | None, differs: bool) -> None:
    found = list(differences(None, VERSION, running(version=told)))
    assert found == ([Difference("vllm_version", VERSION, told or "")] if differs else [])


def test_server_info_tells_what_one_section_alone_has() -> None:
    info = {
        "model_config": {"max_logprobs": 20, "dtype": "torch.bfloat16", "seed": 0},
        "scheduler_config": {"max_num_seqs": 128, "policy": "fcfs"},
        "parallel_config": {"tensor_parallel_size": 2, "seed": 7},
        "load_config": {"max_model_len": 9, "hf_token": "theirs"},
        "additional": None,
    }
    told = running(info=info)
    command = (
        "vllm serve m --max-logprobs 64 --dtype bfloat16 --max-num-seqs 128 --seed 3 "
        "--tensor-parallel-size 4 --hf-token mine --max-model-len -1"
    )
    assert fields(command, told) == {
        "max_logprobs": ("64", "20"),
        "tensor_parallel_size": ("4", "2"),
    }


def test_two_words_for_one_type_are_the_same() -> None:
    told = running(info={"model_config": {"dtype": "torch.float16"}})
    assert fields("vllm serve m --dtype half", told) == {}


def test_engines_that_disagree_are_no_evidence() -> None:
    both = cache_labels(EXPOSITION + EXPOSITION.replace('"0.9"', '"0.8"'))
    assert len(both) == 2
    assert fields("vllm serve m --gpu-memory-utilization 0.5", running(cache=both)) == {}


@pytest.mark.parametrize("document", [None, [], {}, {"data": 3}, {"data": [1, {"id": "m"}]}])
def test_other_documents_are_no_models(document: Any) -> None:
    assert models_of(document) in (None, {"m": None})


def test_a_difference_says_both_sides() -> None:
    text = str(Difference("max_model_len", "8192", "4096"))
    assert text == "max_model_len is 4096, declared is 8192"
