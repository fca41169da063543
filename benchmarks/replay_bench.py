"""How fast a generate response is decoded and replayed, against the straightforward way.

    python benchmarks/replay_bench.py [--tokens 4096] [--logprobs 50] [--version 0.32.0]

The straightforward way is here: pydantic models and a Python loop that checks each row and
draws it with a scalar generator. All numbers are processor time from one run, best of several.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import simdjson
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.catalogue.semantics import DrawGenerator, semantics_of
from app.replay.draw import gumbel_noise_of_rows
from app.replay.report import replay, report_on
from app.replay.wire.case import read_case
from tests.replay.reference import SCALAR

T = TypeVar("T")


class Candidate(BaseModel):
    """A logprob."""

    token: str | None = None
    token_id: int | None = None
    logprob: float
    rank: int | None = None

    @property
    def id(self) -> int:
        """The token's id."""
        if self.token_id is not None:
            return self.token_id
        return int((self.token or "").removeprefix("token_id:"))


class Entry(Candidate):
    """A token's logprobs."""

    top_logprobs: list[Candidate]


class Logprobs(BaseModel):
    """A choice's logprobs."""

    content: list[Entry]


class Choice(BaseModel):
    """A choice."""

    index: int
    token_ids: list[int]
    sampling_mask: list[list[int]]
    logprobs: Logprobs


class Response(BaseModel):
    """A response."""

    choices: list[Choice]


class Case(BaseModel):
    """A replay case."""

    vllm_version: str
    request: dict[str, Any]
    response: Response


def straightforward(text: bytes) -> int:
    """Check and draw row by row; gives the number of rows that repeat."""
    case = Case.model_validate_json(text)
    generator = semantics_of(case.vllm_version).draw
    params = case.request["sampling_params"]
    prompt = len(case.request["token_ids"])
    exact = 0
    for choice in case.response.choices:
        for i, token in enumerate(choice.token_ids):
            mask = choice.sampling_mask[i]
            entry = choice.logprobs.content[i]
            logprobs = {candidate.id: candidate.logprob for candidate in entry.top_logprobs}
            assert entry.id == token
            assert token in set(mask)
            assert len(set(mask)) == len(mask) <= params["top_k"]
            assert abs(sum(math.exp(logprobs[member]) for member in mask) - 1) < 1e-3
            sums = {
                member: logprobs[member]
                + SCALAR[generator](params["seed"] + choice.index, prompt - 1 + i, member, False)
                for member in mask
            }
            exact += max(sums, key=lambda member: sums[member]) == token
    return exact


def make_case(version: str, tokens: int, logprobs: int, top_k: int) -> bytes:
    """A seeded response whose masks have up to `top_k` ids (a top_p of 0.95 on random rows)."""
    rng = np.random.default_rng(0)
    vocabulary = 150_000
    semantics = semantics_of(version)
    ids = np.stack([rng.choice(vocabulary, logprobs, replace=False) for _ in range(tokens)])
    logits = -np.sort(-rng.normal(0, 3, (tokens, logprobs)).astype(np.float32), axis=1)
    logits[:, top_k:] = -np.inf
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    logits[np.cumsum(shares, axis=1) - shares >= 0.95] = -np.inf
    kept = np.isfinite(logits)
    normaliser = np.log(np.sum(np.exp(logits.astype(np.float64)), axis=1, keepdims=True))
    rows = np.maximum((logits - normaliser).astype(np.float32), np.float32(-9999))
    noise = gumbel_noise_of_rows(
        semantics.draw,
        seed=11,
        positions=np.arange(tokens) + 99,
        token_ids=ids.ravel(),
        offsets=np.arange(0, tokens * logprobs + 1, logprobs),
    ).reshape(tokens, logprobs)
    drawn = np.argmax(np.where(kept, logits + noise, -np.inf), axis=1)

    def named(token: int, logprob: float, rank: int) -> dict[str, Any]:
        if semantics.logprob_entries.value == "token_ids":
            return {"token_id": token, "logprob": logprob, "rank": rank}
        return {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}

    content = []
    for row in range(tokens):
        order = [int(drawn[row]), *(j for j in range(logprobs) if j != drawn[row])]
        top = [named(int(ids[row, j]), float(rows[row, j]), j + 1) for j in order]
        content.append({**top[0], "top_logprobs": top})
    token_ids = [int(ids[row, drawn[row]]) for row in range(tokens)]
    masks = [sorted(ids[row, kept[row]].tolist()) for row in range(tokens)]
    case = {
        "vllm_version": version,
        "request": {
            "token_ids": list(range(1, 101)),
            "sampling_params": {"top_k": top_k, "top_p": 0.95, "logprobs": logprobs, "seed": 11},
        },
        "response": {
            "request_id": "generate-tokens-0",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "length",
                    "token_ids": token_ids,
                    "sampling_mask": masks,
                    "logprobs": {"content": content},
                }
            ],
        },
    }
    return json.dumps(case, separators=(",", ":")).encode()


def best(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Processor seconds of the fastest of several runs, and what it gave."""
    seconds, result = math.inf, work()
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        seconds = min(seconds, time.process_time() - start)
    return seconds, result


def in_turn(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Processor seconds of the fastest run of each, run in turn so that all see the same load."""
    seconds = dict.fromkeys(works, math.inf)
    for _ in range(repeats):
        for name, work in works.items():
            seconds[name] = min(seconds[name], best(work, 1)[0])
    return seconds


def parse_only(parser: simdjson.Parser, text: bytes) -> None:
    """Let simdjson parse a text, making no Python objects of it."""
    document = parser.parse(text)
    del document


def measure(text: bytes, tokens: int) -> None:
    """Print one version's numbers."""
    parsing, _ = best(lambda: json.loads(text), 2)
    evidence = read_case(text)
    report = report_on(evidence)
    seconds = in_turn(
        {
            "simdjson": partial(parse_only, simdjson.Parser(), text),
            "decode": lambda: read_case(text),
            "report": lambda: report_on(evidence),
            "replay": lambda: replay(text),
        },
        15,
    )
    parsed, decoding = seconds["simdjson"], seconds["decode"]
    replaying, together = seconds["report"], seconds["replay"]
    simple, exact = best(lambda: straightforward(text), 1)
    assert report.verdict == "consistent", report.findings
    assert exact >= tokens - 2
    mean = report.choices[0]["mean_mask_size"]
    print(f"  {len(text) / 1e6:.1f} MB, mean mask size {mean:.1f}")
    print(f"  json.loads only           {parsing * 1e3:8.1f} ms")
    print(f"  simdjson parses only      {parsed * 1e3:8.1f} ms")
    print(f"  decode to arrays          {decoding * 1e3:8.1f} ms")
    print(f"  checks and draws          {replaying * 1e3:8.1f} ms")
    print(f"  decode and replay         {together * 1e3:8.1f} ms   {tokens / together:,.0f} rows/s")
    print(f"  pydantic and Python loop  {simple * 1e3:8.1f} ms   {tokens / simple:,.0f} rows/s")
    print(f"  times as fast as pydantic {simple / together:8.1f}   (goal: 15 or more)")
    print(f"  times simdjson's time     {together / parsed:8.1f}   (goal: 4 or less)")


def measure_draws() -> None:
    """Print draws a second of each generator, rows of eight."""
    pairs = 4_000_000
    ids = np.random.default_rng(0).integers(0, 150_000, pairs)
    offsets = np.arange(0, pairs + 1, 8)
    for generator in DrawGenerator:
        for fp64 in (False, True):
            work = partial(
                gumbel_noise_of_rows,
                generator,
                seed=3,
                positions=np.arange(pairs // 8),
                token_ids=ids,
                offsets=offsets,
                fp64=fp64,
            )
            seconds, _ = best(work, 3)
            name = f"{generator.value} {'fp64' if fp64 else 'fp32'}"
            print(f"  {name:14} {pairs / seconds / 1e6:6.1f} million draws/s")


def packed_case(rows: int) -> bytes:
    """A seeded response as base64 arrays, masks of 1 to 15 ids."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 16, rows)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    steps = rng.integers(1, 9000, offsets[-1])
    ids = np.cumsum(steps) - np.repeat(np.cumsum(steps)[offsets[:-1]], counts)
    logits = rng.normal(0, 2, len(ids)).astype(np.float32)
    normaliser = np.log(np.add.reduceat(np.exp(logits.astype(np.float64)), offsets[:-1]))
    logprobs = (logits - np.repeat(normaliser, counts)).astype(np.float32)
    noise = gumbel_noise_of_rows(
        DrawGenerator.MURMUR3,
        seed=3,
        positions=np.arange(rows) + 9,
        token_ids=ids,
        offsets=offsets,
    )
    sums = logprobs + noise
    best_sums = np.repeat(np.maximum.reduceat(sums, offsets[:-1]), counts)
    winners = np.flatnonzero(sums == best_sums)
    first = np.unique(np.searchsorted(offsets, winners, side="right"), return_index=True)[1]

    def packed(values: Any, dtype: str) -> dict[str, str]:
        return {"data": b64encode(np.asarray(values, dtype).tobytes()).decode(), "dtype": dtype}

    choice = {
        "index": 0,
        "finish_reason": "stop",
        "token_ids": packed(ids[winners[first]], "int32"),
        "sampling_mask": {"ids": packed(ids, "int32"), "counts": packed(counts, "int32")},
        "logprobs": {"on_mask": packed(logprobs, "float32")},
    }
    request = {"token_ids": list(range(10)), "sampling_params": {"top_k": 16, "seed": 3}}
    case = {"vllm_version": "0.32.0", "request": request, "response": {"choices": [choice]}}
    return json.dumps(case).encode()


def measure_packed() -> None:
    """Print rows a second of packed evidence."""
    rows = 300_000
    text = packed_case(rows)
    decoding, evidence = best(lambda: read_case(text), 5)
    replaying, report = best(lambda: report_on(evidence), 5)
    assert report.verdict == "consistent", report.findings
    print(f"  {len(text) / 1e6:.1f} MB, decode {decoding * 1e3:.0f} ms", end=", ")
    print(f"checks and draws {replaying * 1e3:.0f} ms", end=", ")
    print(f"{rows / (decoding + replaying) / 1e6:.2f} million rows/s")


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--logprobs", type=int, default=50)
    parser.add_argument("--version", action="append")
    arguments = parser.parse_args()
    print("the draw alone")
    measure_draws()
    print("packed evidence, mean mask size 8")
    measure_packed()
    for version in arguments.version or ["0.30.0", "0.32.0"]:
        print(f"{arguments.tokens} tokens with {arguments.logprobs} logprobs, vLLM {version}")
        text = make_case(version, arguments.tokens, arguments.logprobs, arguments.logprobs)
        measure(text, arguments.tokens)


if __name__ == "__main__":
    main()
