"""Batch limits and what is on by default, as vLLM settles them."""

from __future__ import annotations

from typing import Any

import pytest

from app.proposal.proposal import Hardware
from app.rules.derived.scheduler import (
    async_scheduling,
    enable_chunked_prefill,
    enable_prefix_caching,
    executor_backend,
    max_num_batched_tokens,
    max_num_seqs,
)
from app.serve_config.serve_config import Abstain
from tests.rules.derived.deriving import H100, LLAMA, config_of

WHISPER = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
BERT = {"architectures": ["BertModel"], "model_type": "bert"}
MAMBA = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}
OLD_RAY = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0"
NGRAM = '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 2}\''


@pytest.mark.parametrize(
    ("options", "gpu", "limits"),
    [
        ("", "H100", (8192, 1024)),
        ("", "A100-SXM4-80GB", (2048, 256)),
        ("", "B200", (16384, 1024)),
        ("", "L4", (2048, 256)),
        ("", "cpu", (2048, 128)),
        ("-tp 2", "cpu", (4096, 256)),
        ("--performance-mode throughput", "H100", (16384, 2048)),
        ("--max-num-seqs 4 --max-model-len 512", "H100", (2048, 4)),
        ("--max-num-batched-tokens 64", "H100", (64, 64)),
        ("--no-enable-chunked-prefill --max-model-len 8000", "L4", (8000, 256)),
        ("--enable-expert-parallel -dp 2 --all2all-backend nixl_ep", "H100", (256, 256)),
    ],
)
def test_batch_limits_follow_the_machine(options: str, gpu: str, limits: tuple[int, int]) -> None:
    config = config_of(options, LLAMA, Hardware(gpu))
    assert (max_num_batched_tokens(config), max_num_seqs(config)) == limits


def test_defaults_of_an_unknown_machine_are_not_guessed() -> None:
    with pytest.raises(Abstain):
        max_num_batched_tokens(config_of("", LLAMA))
    assert max_num_batched_tokens(config_of("--max-num-batched-tokens 9")) == 9


@pytest.mark.parametrize(
    ("options", "model", "chunked", "cached"),
    [
        ("", LLAMA, True, True),
        ("--no-enable-chunked-prefill --no-enable-prefix-caching", LLAMA, False, False),
        ("", WHISPER, False, False),
        ("--enable-chunked-prefill", WHISPER, False, False),
        ("", BERT, False, False),
        ("--runner pooling", LLAMA, True, True),
        ('--runner pooling --pooler-config \'{"pooling_type": "MEAN"}\'', LLAMA, False, False),
        ("", MAMBA, True, False),
    ],
)
def test_chunking_and_caching_follow_the_model(
    options: str, model: dict[str, Any], chunked: bool, cached: bool
) -> None:
    config = config_of(options, model)
    assert (enable_chunked_prefill(config), enable_prefix_caching(config)) == (chunked, cached)


@pytest.mark.parametrize(
    ("options", "version", "expected"),
    [
        ("", "0.32.0", True),
        ("--no-async-scheduling", "0.32.0", False),
        ("--runner pooling", "0.32.0", False),
        ("--distributed-executor-backend ray", "0.32.0", True),
        (f"{OLD_RAY} --distributed-executor-backend ray", "0.32.0", False),
        (f"{OLD_RAY} --distributed-executor-backend ray", "0.33.0", True),
        (NGRAM, "0.32.0", False),
        (NGRAM, "0.33.0", True),
        ("VLLM_USE_V2_MODEL_RUNNER=0 " + NGRAM, "0.33.0", False),
        ("-pp 2", "0.32.0", True),
        ("VLLM_USE_V2_MODEL_RUNNER=0 -pp 2", "0.32.0", False),
        ("VLLM_USE_V2_MODEL_RUNNER=0 -pp 2", "0.30.0", True),
    ],
)
def test_asynchronous_scheduling_is_on_unless_something_cannot(
    options: str, version: str, expected: bool
) -> None:
    assert async_scheduling(config_of(options, LLAMA, H100, version)) is expected


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ("", "uni"),
        ("-tp 2", "mp"),
        ("-dp 2", "mp"),
        ("-dp 2 --data-parallel-backend ray", "ray"),
        ("-tp 2 --distributed-executor-backend external_launcher", "external_launcher"),
    ],
)
def test_the_executor_follows_the_world(options: str, backend: str) -> None:
    assert executor_backend(config_of(options, hardware=H100)) == backend
