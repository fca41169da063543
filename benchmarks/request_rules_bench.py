"""What examining a request costs: microseconds of CPU, and beside reading it with Python's json.

    python benchmarks/request_rules_bench.py [--seconds 0.5]

All rules are on, against a server whose configuration and config.json are known. The ratio is
examination to `json.loads` of the same body, both in this run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.request_rules.checker import RequestChecker
from app.request_rules.served import served_by
from app.serve_config.resolve import resolve

COMMAND = (
    "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs "
    "--max-model-len 131072 --max-logprobs 64 --generation-config vllm"
)
MODEL = {"vocab_size": 152064, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
_SAMPLING = {"temperature": 1.0, "top_k": 20, "max_tokens": 256, "seed": 7}


def _cases() -> dict[str, tuple[str, dict[str, Any]]]:
    def chat(size: int) -> tuple[str, dict[str, Any]]:
        message = {"role": "user", "content": "word " * (size // 5)}
        return "/v1/chat/completions", {"model": "m", "messages": [message], **_SAMPLING}

    def generate(count: int) -> tuple[str, dict[str, Any]]:
        ids = [(i * 7919) % 150_000 for i in range(count)]
        sampling = {**_SAMPLING, "logprobs": 20}
        return "/inference/v1/generate", {"token_ids": ids, "sampling_params": sampling}

    return {
        "chat, 1 KB": chat(1_000),
        "chat, 64 KB": chat(64_000),
        "generate, 100 ids": generate(100),
        "generate, 8,000 ids": generate(8_000),
        "generate, 100,000 ids": generate(100_000),
    }


def _microseconds(action: Callable[[], object], seconds: float) -> float:
    timer = timeit.Timer(action, timer=time.process_time)  # other processes do not count
    number = max(1, int(seconds / 5 / max(timer.timeit(1), 1e-6)))
    return min(timer.repeat(5, number)) / number * 1e6


def main() -> None:
    """Print a line for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    seconds = parser.parse_args().seconds
    config = resolve(parse_command(COMMAND), CatalogueLibrary().get("0.32.0")).config
    assert config is not None
    checker = RequestChecker(served_by(replace(config, model_config=MODEL, memo={})))
    print(f"{'request':24}{'bytes':>9}{'json.loads':>12}{'examine':>10}{'ratio':>8}")
    for name, (route, body) in _cases().items():
        raw = json.dumps(body).encode()
        assert checker.examine(route, raw).refusal is None
        read = _microseconds(partial(json.loads, raw), seconds)
        examined = _microseconds(partial(checker.examine, route, raw), seconds)
        print(f"{name:24}{len(raw):9}{read:9.1f} us{examined:7.1f} us{examined / read:8.2f}")


if __name__ == "__main__":
    main()
