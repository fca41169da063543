"""Throw generated and mutated proposals at the parser for a while, within bounded memory.

    python -m tests.tools.fuzz_parser --seconds 600 --memory-gib 2 --seed 1

Proposals are those of `lab.proposals`, with words cut, doubled and sprinkled. Each is judged
for one version; what is read must have the same settings when it is read from its rendering. An
exception, an input that takes longer than `--slowest` seconds of CPU time, and settings that differ
end the run with the input.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from app.catalogue import Catalogue, CatalogueLibrary
from app.errors import AdmissionError
from app.proposal.envelope import read_envelope
from app.proposal.render import render
from app.rules.evaluate import judge_only
from app.serve_config.resolve import Resolution, resolve
from lab.parser_agreement import envelope_of
from lab.proposals import proposals

_PIECES = (
    *("=", ".", "-", "--", "_", "+", " ", "\n", "\0", "\t", '"', "'", "{", "}", "[", "]", ",", ":"),
    *("é", "\u2013", "\u202e", "²", "9" * 5000, "{" * 2000, "[" * 2000, "None", "true", "1e999"),
    *("--config", "--model", "--omni", "-O", "-cc.", "--help", "null", "\ud800", "\x85", "-" * 300),
)
_MANY = 400


def mutated(words: list[str], chance: random.Random) -> list[str]:
    """Give the words with a few random edits."""
    words = list(words)
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(words) + 1)
        if at == len(words) or chance.random() < 0.2:
            words.insert(at, chance.choice(_PIECES))
            continue
        word = words[at]
        cut = chance.randrange(len(word) + 1)
        words[at] = chance.choice(
            [
                word[:cut] + chance.choice(_PIECES) + word[cut:],
                word[:cut],
                word[cut:],
                word * chance.choice([2, 50]),
                word.swapcase(),
            ]
        )
        if chance.random() < 0.02:
            words = (words * _MANY)[: 4 * _MANY]
    return words


def check(envelope: dict[str, Any], catalogue: Catalogue) -> str:
    """Judge one envelope and read it back from its rendering; give what came of it."""
    try:
        proposal = read_envelope(json.loads(json.dumps(envelope))).proposal
    except AdmissionError as error:
        return type(error).__name__
    outcome = judge_only(proposal, catalogue).outcome
    first = resolve(proposal, catalogue)
    again = resolve(read_envelope(json.loads(json.dumps(render(proposal)))).proposal, catalogue)
    if _values(first) != _values(again):
        raise AssertionError("the rendering has other settings")
    return outcome.value


def _values(resolution: Resolution) -> str | None:
    config = resolution.config
    if config is None:
        return None
    return repr({dest: setting.value for dest, setting in config.settings.items()})


def run(seconds: float, seed: int, slowest: float, say: Callable[[str], None]) -> int:
    """Run until the time is over; 1 if an input ended it."""
    library = CatalogueLibrary()
    counts: Counter[str] = Counter()
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    until, longest = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        catalogue = library.get(chance.choice(library.versions))
        for question in proposals(catalogue, chance.randrange(1 << 30), 900)[400:]:
            if "args" in question:
                question["args"] = mutated(question["args"], chance)
            envelope = envelope_of(question)
            began = time.process_time()
            try:
                counts[check(envelope, catalogue)] += 1
            except Exception:
                say(f"{catalogue.vllm_version}: {envelope!r:.2000}\n{traceback.format_exc()}")
                return 1
            took = time.process_time() - began
            longest = max(longest, took)
            if took > slowest:
                say(f"{took:.1f} s: {catalogue.vllm_version}: {envelope!r:.2000}")
                return 1
            if time.monotonic() > until:
                break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    said = f"{sum(counts.values())} proposals, slowest {longest:.2f} s, {peak:.0f} MiB at most"
    say(f"{said}: {dict(counts)}")
    return 0


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz_parser", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slowest", type=float, default=5, metavar="SECONDS")
    parser.add_argument("--memory-gib", type=float, default=2)
    options = parser.parse_args()
    limit = int(options.memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return run(options.seconds, options.seed, options.slowest, print)


if __name__ == "__main__":
    sys.exit(main())
