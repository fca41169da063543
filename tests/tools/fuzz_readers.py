"""Throw mutated proposals at every reader for a while, within bounded memory.

    python -m tests.tools.fuzz_readers --seconds 600 --memory-gib 2 --seed 1

Each input is a known proposal, cut, spliced and sprinkled with what its form makes much of. It is
read, judged for one version and rendered; what is read must read the same again from its
rendering. Anything but an answer or an `AdmissionError` ends the run with the input, as does an
input that takes longer than `--slowest` seconds.
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
from pathlib import Path

from app.catalogue import CatalogueLibrary
from app.errors import AdmissionError
from app.proposal.envelope import Envelope, read_envelope
from app.proposal.read import read_text
from app.proposal.render import render
from app.validation import judge

SEEDS = Path(__file__).parents[1] / "proposal" / "forms"
_TOKENS = (
    *("'", '"', "\\", "\n", "$", "${A:-b}", "$(", "`", "<<EOF\n", "EOF\n", "|", ">", "&&", ";"),
    *("#", "{", "}", "[", "]", ":", ": ", "- ", "&a", "*a", "<<: *a", "!!int ", "%", "\t", "\0"),
    *("--", "-e", "=", ",", "(", ")", "**", "LLM(", "A=(", "+=", "\u2028", "\ufeff", "é", "\x85"),
    *("vllm serve", "docker run", "bash -c", "services:", "command:", "9" * 30, "1:30:00"),
)


def mutated(text: str, other: str, chance: random.Random) -> str:
    """Give the text with a few random edits."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(text))
        end = min(len(text), at + chance.choice((0, 1, 1, 3, 10, 60)))
        start = chance.randint(0, len(other))
        piece = chance.choice(
            (
                chance.choice(_TOKENS),
                "",
                other[start : start + chance.randint(1, 60)],
                text[at:end] * chance.choice((2, 2, 3, 40)),
                chr(chance.randint(1, 0x2FF)),
            )
        )
        text = text[:at] + piece + text[end:]
    return text


def check(text: str, library: CatalogueLibrary, version: str) -> str:
    """Read, judge and render one input; give what came of it."""
    try:
        envelope: Envelope = read_text(text, source="fuzz")
        for proposal in envelope.proposals:
            body = json.loads(json.dumps(render(proposal)))
            for again in read_envelope(body).proposals:
                if again.subject == proposal.subject and (
                    [w.text for w in again.words] != [w.text for w in proposal.words]
                    or again.kwargs != proposal.kwargs
                    or again.environment.keys() != proposal.environment.keys()
                ):
                    raise AssertionError("the rendering reads differently")
        verdicts = judge(envelope, library, version)
    except AdmissionError as error:
        return type(error).__name__
    return verdicts[0].outcome.value


def run(
    seconds: float, seed: int, slowest: float, say: Callable[[str], None], seeds: Path = SEEDS
) -> int:
    """Run until the time is up; give the exit code."""
    chance = random.Random(seed)  # noqa: S311 - to be repeatable, not secret
    library = CatalogueLibrary()
    texts = [path.read_text() for path in sorted(seeds.iterdir())]
    counts: Counter[str] = Counter()
    worst = (0.0, "")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = mutated(chance.choice(texts), chance.choice(texts), chance)
        start = time.monotonic()
        try:
            outcome = check(text, library, "0.32.0")
        except Exception:
            say(f"{traceback.format_exc()}\ninput: {text!r}")
            return 1
        took = time.monotonic() - start
        worst = max(worst, (took, text))
        counts[outcome] += 1
        if took > slowest:
            say(f"took {took:.1f} s\ninput: {text!r}")
            return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    say(f"{counts.total()} inputs, seed {seed}: {dict(counts.most_common())}")
    say(f"slowest {worst[0]:.2f} s, peak memory {peak:.0f} MiB; the slowest input: {worst[1]!r}")
    return 0


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slowest", type=float, default=10)
    parser.add_argument("--memory-gib", type=float, default=2)
    options = parser.parse_args()
    limit = int(options.memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return run(options.seconds, options.seed, options.slowest, print)


if __name__ == "__main__":
    sys.exit(main())
