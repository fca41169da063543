"""How fast a command of forty flags is judged, beside real vLLM's parse of the same.

    python benchmarks/validate_bench.py [--seconds 4]

Ours is the whole work of `POST /validate` for one version: reading the JSON body, the verdict with
all findings and positions, and the JSON answer. vLLM's is its own parser, where the lab has that
version: what `vllm serve` does up to its validated arguments. Both in CPU time, on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.evaluate import judge_only, validate
from lab.environment import Lab, LabError
from lab.parser_oracle import ask_parser

VERSION = "0.32.0"
GOAL = 200
PARSES = 400
RIGHT: tuple[str, ...] = (
    *("org/model", "--host", "0.0.0.0", "--port", "8000", "--tensor-parallel-size", "4"),  # noqa: S104 - an argument
    *("--pipeline-parallel-size", "1", "--data-parallel-size", "1", "--max-model-len", "32K"),
    *("--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--dtype", "bfloat16"),
    *("--gpu-memory-utilization", "0.9", "--kv-cache-dtype", "auto", "--block-size", "16"),
    *("--seed", "7", "--served-model-name", "a", "b", "--trust-remote-code"),
    *("--enable-prefix-caching", "--enable-chunked-prefill", "--load-format", "auto"),
    *("--tokenizer-mode", "auto", "--revision", "main", "--max-logprobs", "20"),
    *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    *("--limit-mm-per-prompt", '{"image": 2}', "--compilation-config.mode=3"),
    *("--compilation-config.cudagraph_mode", "FULL", "--api-server-count", "2"),
    "--compilation-config.pass_config.fuse_norm_quant=true",
    *("--enable-lora", "--max-loras", "4", "--max-lora-rank", "16", "--lora-modules", "a=b"),
    *("--uvicorn-log-level", "info", "--enable-log-requests", "--async-scheduling"),
    *("--max-log-len", "100", "--enable-prompt-tokens-details", "--root-path", "/v"),
)
MISSPELT = (*RIGHT, "--max-modle-len", "4096")
WRONG = (*RIGHT, "--max-modle-len", "4096", "--swap-space", "8", "--port", "80000")


def per_second(work: Callable[[], Any], seconds: float) -> float:
    """Say how often the work is done in a second of CPU time; the first time does not count."""
    work()
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        work()
        done += 1
    return done / (time.process_time() - began)


def verdict_of(words: tuple[str, ...], *, correct: bool = True) -> Callable[[], bytes]:
    catalogue = CatalogueLibrary().get(VERSION)
    body = json.dumps({"args": words, "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}})

    def judge() -> bytes:
        proposal = read_envelope(json.loads(body)).proposal
        give = validate if correct else judge_only
        return json.dumps(give(proposal, catalogue).as_json()).encode()

    return judge


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    right = per_second(verdict_of(RIGHT), options.seconds)
    judged = per_second(verdict_of(WRONG, correct=False), options.seconds)
    mended = per_second(verdict_of(MISSPELT), options.seconds)
    flags = sum(word.startswith("--") for word in RIGHT)
    print(f"{flags} flags, vLLM {VERSION}, one core:")
    print(f"  accepted: {right:6.0f} verdicts/s, {1000 / right:5.1f} ms each")
    print(f"  rejected: {judged:6.0f} verdicts/s, {1000 / judged:5.1f} ms each")
    print(f"  mended:   {mended:6.0f} verdicts/s, {1000 / mended:5.1f} ms each, corrected")
    try:
        Lab.default().require(VERSION)
    except LabError as error:
        print(f"  vLLM's own parse is not timed: {error}")
        return int(min(right, judged) < GOAL)
    (answer,) = ask_parser(VERSION, [{"args": list(RIGHT), "timed": PARSES}])
    parse, start = answer["values"]["parse"], answer["values"]["start"]
    print(f"  vLLM's parse: {1000 * parse:.1f} ms each in a process that has imported it")
    print(f"  vLLM's parse: {start + parse:.1f} s each in a process of its own")
    print(f"  a verdict takes {1 / right / parse:.1f} parses, 1/{start * right:.0f} of a start")
    return int(min(right, judged) < GOAL)


if __name__ == "__main__":
    sys.exit(main())
