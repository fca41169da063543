"""How fast a whole verdict is: all rules, with the model's config.json and the machine.

    python benchmarks/verdict_bench.py [--seconds 4] [--version 0.32.0]

The proposals are those of the agreement with real vLLM (`lab.engine_cases`): models of every
family, one to three ingredients each. Ours is reading the JSON envelope and judging it, on one
core, in CPU time; with the corrected proposal too for those that are refused. vLLM's is its own
`create_engine_config` and what comes before it on some of the same proposals, in a process that
has imported vLLM already, where the lab has that version. Exit code 1 below the goal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.evaluate import judge_only, validate
from lab.engine_cases import EngineCase, engine_cases
from lab.environment import LabError
from lab.oracle import ask

GOAL = 150
PROPOSALS = 300
ASKED = 40


def per_second(work: Callable[[bytes], Any], bodies: Sequence[bytes], seconds: float) -> float:
    """Say how many bodies are worked on in a second of CPU time; a first round does not count."""
    for body in bodies[:20]:
        work(body)
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        work(bodies[done % len(bodies)])
        done += 1
    return done / (time.process_time() - began)


def vllms(version: str, cases: Sequence[EngineCase]) -> float | None:
    """Say how many vLLM finishes or refuses in a second; None without the lab."""
    try:
        answers = ask(version, [case.case for case in cases])
    except LabError:
        return None
    return 1 / statistics.median(answer.seconds for answer in answers)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--version", default="0.32.0")
    options = parser.parse_args()
    catalogue = CatalogueLibrary().get(options.version)
    cases = engine_cases(options.version, PROPOSALS)
    bodies = [json.dumps(case.envelope()).encode() for case in cases]

    def judged(body: bytes) -> Any:
        return judge_only(read_envelope(json.loads(body)).proposal, catalogue)

    def corrected(body: bytes) -> Any:
        return validate(read_envelope(json.loads(body)).proposal, catalogue)

    refused = sum(not judged(body).accepted for body in bodies)
    speed = per_second(judged, bodies, options.seconds)
    print(f"vLLM {options.version}, {len(bodies)} proposals, {refused} refused by us")
    print(f"verdicts:                      {speed:8.0f} a second a core (goal {GOAL})")
    mended = per_second(corrected, bodies, options.seconds)
    print(f"verdicts and corrections:      {mended:8.0f} a second a core")
    theirs = vllms(options.version, cases[:ASKED])
    if theirs is None:
        print("vLLM's own engine configuration: no lab with that version")
    else:
        print(
            f"vLLM's own engine configuration: {theirs:6.1f} a second (ours {speed / theirs:.0f}x)"
        )
    return int(speed < GOAL)


if __name__ == "__main__":
    sys.exit(main())
