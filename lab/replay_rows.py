"""Replay many rows of real vLLM: `python -m lab.replay_rows VERSION --rows 5000`.

Drives a server with seeded generations over the range of sampling parameters and over what else
shapes a row, and replays every row. Exit code 1 if a row mismatches, a response is refuted, or
0.5 % of the rows or more cannot be decided. `--drafts` serves with n-gram speculative decoding
(0.32.0 on), verified as named.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from lab.environment import LabError
from lab.server import Server
from lab.tests.rollouts import (
    FEATURES,
    LOGPROBS,
    NGRAM,
    OFTEN_DRAFTED,
    Tally,
    collect,
    generation_requests,
    replayed,
)

TOKENS = 40
# A tenth more than asked for, since a grammar may end a generation early. Half of the rows are
# plain; what else shapes rows shares the rest.
_MARGIN = 1.1
_PLAIN_SHARE = 0.5
# Asked for at a time, so that none waits longer than the gate does.
_BATCH_ROWS = 640
_MOST_UNDECIDABLE = 0.005
_STREAMS_WITH_MASKS = Version("0.32")
# With drafts vLLM refuses these two (`sampling_params.py::_validate_spec_decode`).
_NO_MIN_P = {"min_p": 0.0}
_NOT_WITH_DRAFTS = ("logit bias",)

Group = tuple[str, int, dict[str, Any]]


def groups(version: str, rows: int, *, drafts: bool) -> Iterator[Group]:
    """Give the groups of generations: name, rows, and overriding sampling parameters."""
    features = {
        name: sampling
        for name, sampling in FEATURES.items()
        if not (name == "stream" and Version(version) < _STREAMS_WITH_MASKS)
        and not (drafts and name in _NOT_WITH_DRAFTS)
    }
    if drafts:
        features = {name: sampling | _NO_MIN_P for name, sampling in features.items()}
        features["often drafted"] = OFTEN_DRAFTED
    rows = round(rows * _MARGIN)
    yield "plain", round(rows * _PLAIN_SHARE), _NO_MIN_P if drafts else {}
    for name, sampling in features.items():
        yield name, round(rows * (1 - _PLAIN_SHARE) / len(features)), sampling


def run(version: str, rows: int, method: str | None) -> int:
    """Replay about `rows` rows and say how they ended; gives the exit code."""
    options = ["--max-logprobs", str(LOGPROBS)]
    if method is not None:
        config = {**json.loads(NGRAM), "rejection_sample_method": method}
        options += ["--speculative-config", json.dumps(config)]
    said: dict[str, Any] = {"speculative": method is not None}
    if method is not None:
        said["rejection_sample_method"] = method
        said["num_speculative_tokens"] = json.loads(NGRAM)["num_speculative_tokens"]
    tally, refuted, started = Tally(), 0, time.monotonic()
    ways = {"accepted_drafts": 0, "residual_draws": 0}
    with Server(version, options) as server:
        for variation, (name, wanted, sampling) in enumerate(
            groups(version, rows, drafts=method is not None)
        ):
            generations = -(-wanted // (TOKENS * sampling.get("n", 1)))
            requests = generation_requests(
                generations, variation=100 + variation, tokens=TOKENS, **sampling
            )
            batch = _BATCH_ROWS // (TOKENS * sampling.get("n", 1))
            for start in range(0, len(requests), batch):
                rollouts = collect(server, requests[start : start + batch])
                reports = replayed(server, rollouts, **said)
                tally.add(name, reports)
                for report in reports:
                    if report.verdict == "inconsistent":
                        refuted += 1
                        print(json.dumps(report.as_json()["findings"])[:2000], file=sys.stderr)
                    for choice in report.choices:
                        for way in ways:
                            ways[way] += choice.get(way, 0)
            print(tally.lines()[-1], flush=True)
    total = sum((counts["total"] for counts in tally.groups.values()), 0)
    exact = sum(counts["exact"] for counts in tally.groups.values())
    mismatched = sum(counts["mismatch"] for counts in tally.groups.values())
    undecidable = total - exact - mismatched
    seconds = time.monotonic() - started
    print(
        f"vLLM {version}{f', {method} verification of n-grams' if method else ''}: {total} rows, "
        f"{exact} exact, {mismatched} mismatched, {undecidable} undecidable, {refuted} responses "
        f"refuted ({seconds:.0f} s)"
    )
    if method is not None:
        print(", ".join(f"{count} {way.replace('_', ' ')}" for way, count in ways.items()))
    open_ended = undecidable >= _MOST_UNDECIDABLE * total
    failed = refuted or mismatched or total < rows or open_ended
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.replay_rows", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--drafts", choices=("standard", "block"), help="how drafts are verified")
    parsed = parser.parse_args()
    try:
        return run(parsed.version, parsed.rows, parsed.drafts)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
