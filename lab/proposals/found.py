"""Proposals about which we and vLLM once differed; asked of every version, and kept as fixtures."""

from __future__ import annotations

import json
from typing import Any, Final

from lab.parser_oracle import Question

_QUANTISATIONS: Final[tuple[dict[str, Any], ...]] = (
    {"linear": True},
    {"linear": []},
    {"linear": "x"},
    {"linear": {"x": 1}},
    {"linear": "fp8_per_tensor", "moe": {"weight": "mxfp8", "activation": None}},
    {"moe": {"weight": True}},
    {"moe": {"weight": "x"}},
    {"moe": {"activation": 1}},
    {"ignore": "x"},
)
_KWARGS: Final[tuple[dict[str, Any], ...]] = (
    {"max_logprobs": None},
    {"max_logprobs": "5"},
    {"compilation_config": "1"},
    {"compilation_config": {"mode": 3, "debug_dump_path": "x"}},
    {"compilation_config": {"debug_dump_path": 0}},
    {"mamba_config": {"backends": "1.0"}},
    {"ec_manager_config": 0},
    {"kv_events_config": {"endpoint": -1}},
    {"attention_config": {"backend_per_kind": {"a": "FLASH_ATTN"}}},
    {"attention_config": {"backend_per_kind": "1.0"}},
    {"ir_op_priority": {"rms_norm": "a, b"}},
    {"reasoning_config": {"_reasoning_start_token_ids": []}},
)


def found() -> list[Question]:
    """Give them."""
    words = [
        ["MODEL", "--max-logprobs=--"],
        ["MODEL", "-as=2"],
        ["MODEL", "-asc=2"],
        ["MODEL", "--lora-modules=a=b=c"],
        ["MODEL", "--lora-modules", "a=b,c=d"],
        ["--enforce-eager", "true"],
        ["--enforce-eager", "False", "MODEL"],
        ["--model", "--no-enable-dbo", "true"],
        ["MODEL", "--attention-config.backend", "true"],
        ["MODEL", "--attention-config", '{"backend": 3}'],
        ["MODEL", "--attention-config", '{"backend": "auto"}'],
        ["MODEL", "--compilation-config", '{"inductor_compile_config": {}}'],
        ["MODEL", "--kv-transfer-config", '{"engine_id": null}'],
        ["MODEL", "--diffusion-config.max-denoising-steps", "1.0"],
        ["MODEL", "--speculative-config.num-speculative-tokens", "3"],
        ["MODEL", "--cpu-offload-gb", "0"],
        ["MODEL", "--omni"],
        ["MODEL", "--optimization-level", "4"],
        ["MODEL", "--compilation-config", '{"cudagraph_capture_sizes": ["1", 2.0]}'],
    ]
    words += [["MODEL", "--quantization-config", json.dumps(q)] for q in _QUANTISATIONS]
    in_file = ("model: MODEL\nenforce-eager: 'true'\n", "lora-modules: ['a=b']\n")
    return [
        *({"args": args} for args in words),
        *({"args": ["--config", "c.yaml"], "files": {"c.yaml": text}} for text in in_file),
        *({"kwargs": {"model": ".", **kwargs}} for kwargs in _KWARGS),
        {"variables": {"VLLM_HUMMING_INPUT_QUANT_CONFIG": "nan"}},
        {"variables": {"VLLM_PORT": "tcp://10.0.0.1:80", "VLLM_SERVICE_HOST": "10.0.0.1"}},
        {"variables": {"NO_COLOR": "false", "VLLM_ROCM_USE_AITER": "yes"}},
    ]
