"""Published mistakes (and one thing that is none), told as what they are."""

from __future__ import annotations

import pytest

from app.verdict.finding import Severity
from tests.serve_config.reading import errors, read, read_members, rules


@pytest.mark.parametrize(
    ("version", "command", "rule"),
    [
        ("0.28.0", "vllm serve m --return-sampling-mask-logprobs", "cli-unknown-flag"),
        ("0.33.0", "vllm serve m --swap-space 8", "cli-unknown-flag"),
        ("0.33.0", "vllm serve m --task embed", "cli-unknown-flag"),
        ("0.32.0", "vllm serve m --enable-reasoning", "cli-unknown-flag"),
        ("0.33.0", "vllm serve m --max-num-partial-prefills 2", "cli-unknown-flag"),
        ("0.32.0", "vllm serve m --max-num-batched-tokens 0", "value-out-of-range"),
        ("0.32.0", "vllm serve m --max-num-seqs 1k", "cli-invalid-value"),
        (
            "0.32.0",
            'vllm serve m --speculative-config "{method: mtp, num_speculative_tokens: 1}"',
            "cli-invalid-value",
        ),
        (
            "0.32.0",
            'vllm serve m --speculative-config \'{{"method":"mtp"}}\'',
            "cli-invalid-value",
        ),
        (
            "0.32.0",
            'vllm serve m --compilation-config \'{"pass_config":{"fuse_gemm_comms":true}}\'',
            "unknown-key",
        ),
        (
            "0.32.0",
            'vllm serve m --speculative-config \'{"method":"mtp","num_speculative_tokrns":1}\'',
            "unknown-key",
        ),
        (
            "0.32.0",
            "vllm serve m --enable-auto-tool-choice --tool-call-parser kimi_k9",
            "serve-tool-parser",
        ),
        ("0.32.0", "VLLM_USE_DEEP_GEMM=true vllm serve m", "env-invalid-value"),
        ("0.32.0", "VLLM_ENGINE_READY_TIMEOUT_S= vllm serve m", "env-invalid-value"),
        ("0.32.0", "VLLM_PORT=tcp://10.96.1.4:8000 vllm serve m", "env-invalid-value"),
        (
            "0.32.0",
            "VLLM_SERVICE_HOST=10.96.1.4 vllm serve m --fail-on-environ-validation",
            "env-unknown-refused",
        ),
        ("0.32.0", "vllm serve m --enable-prefix-caching true", "cli-unexpected-value"),
        ("0.32.0", "vllm serve m --kv-cache-dtype bf16", "cli-invalid-choice"),
    ],
)
def test_a_mistake_that_vllm_refuses_is_refused(version: str, command: str, rule: str) -> None:
    assert rule in {f.rule for f in errors(read(command, version))}


@pytest.mark.parametrize(
    ("version", "command", "rule"),
    [
        ("0.28.0", "vllm serve --config=serve.yaml --port 9000", "cli-config-equals"),
        ("0.33.0", "vllm serve --config=serve.yaml --port 9000", "cli-no-model"),
        ("0.32.0", "vllm serve m --max-model-len 8192 --max-model-len 32768", "cli-repeated-flag"),
        ("0.32.0", "vllm serve --model m --port 8000", "cli-model-flag"),
        ("0.32.0", "vllm serve --api-key a m", "cli-no-model"),
        ("0.32.0", "vllm serve m --max-model-len 32k", "cli-decimal-suffix"),
        ("0.32.0", "VLLM_FLASHINFER_MOE_BACKEND=latency vllm serve m", "env-unknown"),
        ("0.32.0", "VLLM_MODEL=m VLLM_SERVE_ARGS=--x vllm serve m", "env-unknown"),
        ("0.32.0", "VLLM_ATTENTION_BACKEND=FLASH_ATTN vllm serve m", "env-unknown"),
        ("0.32.0", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=yes vllm serve m", "env-ignored-value"),
    ],
)
def test_a_mistake_that_vllm_takes_is_warned_of(version: str, command: str, rule: str) -> None:
    resolution = read(command, version)
    assert errors(resolution) == []
    assert rule in {f.rule for f in resolution.findings if f.severity is Severity.WARNING}


@pytest.mark.parametrize("key", ["enable-prefix-caching", "enable_prefix_caching"])
def test_a_false_in_a_file_is_warned_of_in_either_spelling(key: str) -> None:
    text = f"model: org/model\n{key}: false\n"
    assert rules(read_members(config_yaml=text)) == {"yaml-false-ignored"}


@pytest.mark.parametrize(
    ("version", "command"),
    [
        (
            "0.32.0",
            "vllm serve m --speculative_config.method eagle --max_num_seqs 128",
        ),
        ("0.32.0", "vllm serve m --enable-auto-tool-choice --tool-call-parser openai"),
        ("0.33.0", "vllm serve m --reasoning-parser None"),
        (
            "0.28.0",
            'vllm serve m --compilation-config \'{"pass_config":{"fuse_gemm_comms":true}}\'',
        ),
        ("0.32.0", "VLLM_PORT=8000 vllm serve m"),
    ],
)
def test_what_is_right_has_no_finding(version: str, command: str) -> None:
    assert read(command, version).findings == ()
