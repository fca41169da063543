"""The seed cases: configurations around sampling masks whose verdict every version must share.

Each is asked for on a fake machine of eight H100 and on this CPU, where no Triton means that
Model Runner V2 is not to be had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from lab.environment import CHECKOUT
from lab.oracle import MODELS, Case

PLATFORMS = ("cuda-h100", "cpu")
CONFIGS = CHECKOUT / "lab" / "model_configs.json"

MASK = ("--return-sampling-mask",)
REPLAY = (*MASK, "--logprobs-mode", "processed_logprobs")
PROCESSORS = (*REPLAY, "--logits-processors", "a.b:C")
MULTI_PORT = (
    *("-dp", "2", "--data-parallel-size-local", "2"),
    "--data-parallel-multi-port-external-lb",
)
V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def _speculative(**config: object) -> tuple[str, ...]:
    return (*REPLAY, "--speculative-config", json.dumps(config))


def _on(
    name: str,
    *args: str,
    model: str = "qwen3-0.6b",
    env: dict[str, str | None] | None = None,
    gpus: int = 8,
    files: dict[str, str] | None = None,
) -> Iterator[Case]:
    for platform in PLATFORMS:
        yield Case(
            id=f"{name} on {platform}",
            args=(f"{MODELS}/{model}", *args),
            env=env or {},
            platform=platform,
            gpus=gpus,
            files=files or {},
        )


def seed_cases() -> Iterator[Case]:
    """Give every seed case, on both platforms."""
    yield from _on("no options")
    for mode in ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits", "x"):
        yield from _on(f"mask, {mode}", *MASK, "--logprobs-mode", mode)
    yield from _on("mask, default logprobs mode", *MASK)
    yield from _on("replay, no mask after all", *REPLAY, "--no-return-sampling-mask")
    yield from _on("custom logits processor", *PROCESSORS)
    yield from _on("custom logits processor, V2 forced", *PROCESSORS, env={**V2})
    yield from _on("V1 forced", *REPLAY, env={**V1})
    yield from _on("V2 forced", *REPLAY, env={**V2})
    ngram = {"num_speculative_tokens": 3, "prompt_lookup_max": 4}
    yield from _on("ngram", *_speculative(method="ngram", **ngram))
    yield from _on("ngram_gpu", *_speculative(method="ngram_gpu", **ngram))
    yield from _on("suffix", *_speculative(method="suffix", num_speculative_tokens=8))
    draft = _speculative(model=f"{MODELS}/qwen2.5-7b", num_speculative_tokens=3)
    yield from _on("draft model", *draft, model="qwen2.5-7b")
    mtp = (*_speculative(method="mtp", num_speculative_tokens=1), "-tp", "8")
    yield from _on("mtp", *mtp, model="deepseek-v3")
    yield from _on("mtp, V2 forced", *mtp, model="deepseek-v3", env={**V2})
    for number in ("-2", "-1", "0"):
        yield from _on(f"max_logprobs {number}", *REPLAY, "--max-logprobs", number)
    yield from _on("scale-out", *REPLAY, "--enable-scale-out")
    yield from _on("tokens only", *REPLAY, "--tokens-only")
    yield from _on("batch-sharded", *REPLAY, "-tp", "2", "--enable-batch-sharded-sampling")
    yield from _on("no async scheduling", *REPLAY, "--no-async-scheduling")
    for flag in ("-tp", "-pp", "-dp"):
        yield from _on(f"{flag} 2", *REPLAY, flag, "2")
    yield from _on("-tp 2 on one GPU", *REPLAY, "-tp", "2", gpus=1)
    yield from _on("multi-port, dense", *REPLAY, *MULTI_PORT)
    yield from _on("multi-port, MoE", *REPLAY, *MULTI_PORT, model="mixtral-8x7b", env={**V2})
    for model in ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "mamba2-2.7b", "granite4-tiny"):
        yield from _on(f"replay, {model}", *REPLAY, model=model)
    yield from _on("replay, deepseek-v3", *REPLAY, "-tp", "8", model="deepseek-v3")
    yield from _on("replay, pooling model", *REPLAY, model="bge-base")
    yield from _on("replay, pooling runner", *REPLAY, "--runner", "pooling")
    file = "return-sampling-mask: true\nlogprobs-mode: processed_logprobs\n"
    yield from _on("replay from a file", "--config", "c.yaml", files={"c.yaml": file})
    raw = file.replace("processed", "raw")
    yield from _on("raw in the file", "--config", "c.yaml", files={"c.yaml": raw})
    yield from _on("the line wins", "--config", "c.yaml", *REPLAY[1:], files={"c.yaml": raw})
    yield from _on("context too long", "--max-model-len", "99999999")
    yield from _on("fp8 cache", "--kv-cache-dtype", "fp8")
    yield from _on("sleep mode", "--enable-sleep-mode")
    yield from _on("fp8 weights", "--quantization", "fp8", model="llama3-8b")
    yield from _on("unknown flag", "--no-such-option")
