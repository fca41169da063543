"""What examining a request costs: microseconds of CPU, and beside reading it with Python's json.

    python benchmarks/request_rules_bench.py [--seconds 0.5]

All rules are on, against a server whose configuration and config.json are known. The ratio is
examination to `json.loads` of the same body, both in this run.

Then, for heavy bodies, the longest time that an event loop stands still: while `json.loads` reads
the body on it, while the body is examined on it, and while the body is examined as the gate does,
in another process. The ratios are to `json.loads`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import timeit
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.relay.examining import ExaminationProcess
from app.request_rules.checker import RequestChecker
from app.request_rules.counting import Counts
from app.request_rules.policy import Policy
from app.request_rules.served import served_by
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig

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


def _heavy_cases() -> dict[str, tuple[str, dict[str, Any]]]:
    ids = [(i * 7919) % 150_000 for i in range(1_000_000)]
    biases = {str(i): 1.5 for i in range(300_000)}
    sampling = {**_SAMPLING, "allowed_token_ids": [str(i) for i in ids[:500_000]]}
    return {
        "generate, 1,000,000 ids": (
            "/inference/v1/generate",
            {"token_ids": ids, "sampling_params": _SAMPLING},
        ),
        "completions, 300,000 biases": (
            "/v1/completions",
            {"prompt": "a", "logit_bias": biases, **_SAMPLING},
        ),
        "generate, 500,000 allowed": (
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": sampling},
        ),
        "chat, 5 MB of text": (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "word, " * 800_000}], **_SAMPLING},
        ),
    }


class _NoCounter:
    """Heavy bodies here have no words to count."""

    async def count(self, texts: Sequence[str], model: str | None) -> Counts:
        raise AssertionError(f"asked to count {len(texts)} texts of {model}")


class _Ticker:
    """A timer of 1 ms, and the longest that it had to wait, in seconds."""

    def __init__(self) -> None:
        self.worst = 0.0
        self.running = True

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while self.running:
            due = clock() + 0.001
            await asyncio.sleep(0.001)
            self.worst = max(self.worst, clock() - due)


async def _longest_stall(action: Callable[[], Awaitable[object]], repeats: int = 7) -> float:
    """Give the median of the longest wait, in seconds."""
    longest = []
    for _ in range(repeats):
        ticker = _Ticker()
        ticking = asyncio.create_task(ticker.run())
        await asyncio.sleep(0.01)
        await action()
        await asyncio.sleep(0.005)
        ticker.running = False
        await ticking
        longest.append(ticker.worst)
    return statistics.median(longest)


async def _stalls(checker: RequestChecker, apart: RequestChecker) -> None:
    print(f"\n{'longest stall of the loop':30}{'json.loads':>12}{'here':>18}{'as the gate':>18}")
    for name, (route, body) in _heavy_cases().items():
        raw = json.dumps(body).encode()

        async def read(raw: bytes = raw) -> None:
            json.loads(raw)

        async def here(route: str = route, raw: bytes = raw) -> None:
            checker.examine(route, raw)

        async def as_the_gate(route: str = route, raw: bytes = raw) -> None:
            settle = apart.examine(route, raw).settle
            if settle is not None:
                await settle(_NoCounter())

        await as_the_gate()  # starts the process
        base, own, gate = [await _longest_stall(f) for f in (read, here, as_the_gate)]
        print(
            f"{name:30}{base * 1e3:9.1f} ms{own * 1e3:9.1f} ms{own / base:6.2f}"
            f"{gate * 1e3:9.1f} ms{gate / base:6.2f}"
        )


async def _compare_stalls(config: ServeConfig) -> None:
    served = served_by(config)
    process = ExaminationProcess(served, Policy(), inject_seeds=False)
    try:
        await _stalls(RequestChecker(served), RequestChecker(served, apart=process))
    finally:
        await process.aclose()


def main() -> None:
    """Print a line for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    seconds = parser.parse_args().seconds
    config = resolve(parse_command(COMMAND), CatalogueLibrary().get("0.32.0")).config
    assert config is not None
    config = replace(config, model_config=MODEL, memo={})
    checker = RequestChecker(served_by(config))
    print(f"{'request':24}{'bytes':>9}{'json.loads':>12}{'examine':>10}{'ratio':>8}")
    for name, (route, body) in _cases().items():
        raw = json.dumps(body).encode()
        assert checker.examine(route, raw).refusal is None
        read = _microseconds(partial(json.loads, raw), seconds)
        examined = _microseconds(partial(checker.examine, route, raw), seconds)
        print(f"{name:24}{len(raw):9}{read:9.1f} us{examined:7.1f} us{examined / read:8.2f}")
    asyncio.run(_compare_stalls(config))


if __name__ == "__main__":
    main()
