"""How often the statistical tests refute honest draws, and draws that are wrong in stated ways.

    python benchmarks/statistics_bench.py [power] [false-alarms] [rounding] [speed] [--reports 200]

Rows are those of a toy model whose masks are as wide as published ones (top_p 0.95: about half
hold one token, median 2, mean 6, 99th percentile near 100). A report of n rows picks n of them.
Seeds are fixed: every run gives the same tables.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.replay.options import FALSE_ALARM_RATE
from app.replay.ragged import offsets_of, reduce_rows
from app.replay.statistics.known_rows import KnownRows
from app.replay.statistics.likelihood import likelihood_test
from app.replay.statistics.pit import pit_test
from app.replay.statistics.ranks import rank_test

Floats = NDArray[np.float64]
# How to draw: from probabilities of rows, flat, and their offsets, the weights to draw with.
Weights = Callable[[Floats, NDArray[np.int64], np.random.Generator], Floats]

TESTS = ("pit", "likelihood", "ranks")
SIZES = (32, 256, 1_024, 8_192, 32_768)


@dataclass(frozen=True, eq=False)
class Pool:
    """Rows to pick from: probabilities, the most likely first, flat; and the kept mass of each."""

    probabilities: Floats
    offsets: NDArray[np.int64]
    kept: Floats

    def pick(self, rows: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        """Give the probabilities of these rows, and their offsets."""
        counts = np.diff(self.offsets)[rows]
        offsets = offsets_of(counts)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        return self.probabilities[np.repeat(self.offsets[:-1][rows], counts) + within], offsets


def model(rng: np.random.Generator, top_p: float, top_k: int = 512, rows: int = 20_000) -> Pool:
    """Normal logits over 2,000 tokens with a scale that varies between rows."""
    sizes, masks, kept = [], [], []
    for _ in range(0, rows, 1_000):
        scale = 16.0 * np.exp(0.68 * rng.normal(size=(1_000, 1)))
        logits = -np.sort(-scale * rng.normal(size=(1_000, 2_000)), axis=1)[:, :top_k]
        p = np.exp(logits - logits[:, :1])
        p /= p.sum(axis=1, keepdims=True)
        inside = np.cumsum(p, axis=1) - p < top_p
        mass = (p * inside).sum(axis=1)
        sizes.append(inside.sum(axis=1))
        masks.append((p / mass[:, None])[inside])
        kept.append(mass)
    return Pool(np.concatenate(masks), offsets_of(np.concatenate(sizes)), np.concatenate(kept))


def draw(
    weights: Floats, offsets: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw one outcome of each row, in proportion to the weights."""
    noise = rng.gumbel(size=len(weights))
    with np.errstate(divide="ignore"):
        sums = np.log(weights) + noise
    best = reduce_rows(np.maximum, sums, offsets, -np.inf)
    return np.flatnonzero(sums == np.repeat(best, np.diff(offsets)))


def known(probabilities: Floats, offsets: NDArray[np.int64], drawn: NDArray[np.int64]) -> KnownRows:
    """Leave out rows of one token, as a report does."""
    counts = np.diff(offsets)
    several = counts > 1
    member = np.repeat(several, counts)
    place = np.cumsum(member) - 1
    return KnownRows(
        logprobs=np.log(probabilities[member]),
        offsets=offsets_of(counts[several]),
        drawn_at=place[drawn[several]],
        other_last=np.zeros(int(several.sum()), np.bool_),
        left_out={},
    )


def p_values(rows: KnownRows, rng: np.random.Generator) -> tuple[float, ...]:
    """Give the p-values of the tests, that of all together, and the nominal one of z."""
    if not len(rows):
        return (1.0,) * (len(TESTS) + 2)
    # A report takes the hash of its evidence, which no two reports have in common either.
    key = rng.integers(2**64, size=2, dtype=np.uint64)
    tests = (pit_test(rows, key), likelihood_test(rows).test, rank_test(rows))
    each = [test.p_value for test in tests]
    z = tests[1].nominal_p_value
    return (*each, min(1.0, len(each) * min(each)), 1.0 if z is None else z)


def tempered(temperature: float) -> Weights:
    """Draw at `temperature` from rows that were returned at temperature 1."""
    return lambda p, _offsets, _rng: p ** (1.0 / temperature)


def other_model(scale: float) -> Weights:
    """Draw from a model whose logits differ by normal noise of this scale."""
    return lambda p, _offsets, rng: p * np.exp(scale * rng.normal(size=len(p)))


def at_rank(rank: int) -> Weights:
    """Always draw this rank, or the last where a row has fewer."""

    def weights(p: Floats, offsets: NDArray[np.int64], _rng: np.random.Generator) -> Floats:
        chosen = np.zeros(len(p))
        chosen[np.minimum(offsets[:-1] + rank, offsets[1:] - 1)] = 1.0
        return chosen

    return weights


def nucleus(top_p: float) -> Weights:
    """Draw with top_p from rows that were returned without it."""

    def weights(p: Floats, offsets: NDArray[np.int64], _rng: np.random.Generator) -> Floats:
        total = np.concatenate([[0.0], np.cumsum(p)])
        before = total[:-1] - np.repeat(total[offsets[:-1]], np.diff(offsets))
        return np.where(before < top_p, p, 0.0)

    return weights


ALTERNATIVES: dict[str, Weights] = {
    "honest": lambda p, _offsets, _rng: p,
    "temperature 1.0, drawn at 1.1": tempered(1.1),
    "temperature 1.0, drawn at 0.9": tempered(0.9),
    "temperature 1.0, drawn at 1.5": tempered(1.5),
    "logprobs of another model (logits differ by 0.5)": other_model(0.5),
    "logprobs of another model (logits differ by 1)": other_model(1.0),
    "greedy: always the most likely": at_rank(0),
    "always the second": at_rank(1),
    "uniform over the mask": lambda p, _offsets, _rng: np.ones_like(p),
}


def power(reports: int) -> Iterator[str]:
    """Measure how often each alternative is refuted, as a table.

    A cell has the share of reports refuted, by each test, and what z would refute were the tail
    of its limit trusted.
    """
    pool = model(np.random.default_rng(1), 0.95)
    wide = model(np.random.default_rng(1), 1.0, top_k=64)
    yield f"| drawn | {' | '.join(f'{n:,} rows' for n in SIZES)} |"
    yield "|---|" + "---|" * len(SIZES)
    cases = [(name, pool, weights) for name, weights in ALTERNATIVES.items()]
    cases.append(("with top_k 64 and top_p 0.95, rows returned without top_p", wide, nucleus(0.95)))
    for name, rows, weights in cases:
        shares = [_refuted(rows, weights, n, reports) for n in SIZES]
        yield f"| {name} | {' | '.join(shares)} |"
    # A token outside its mask is no matter of statistics: one refutes the report.
    kept = np.log(pool.kept).mean()
    shares = [f"{1.0 - np.exp(n * kept):.3g}" for n in SIZES]
    yield f"| without top_p, rows returned with 0.95 (by the mask alone) | {' | '.join(shares)} |"


def _refuted(pool: Pool, weights: Weights, n: int, reports: int) -> str:
    rng = np.random.default_rng([2, n])
    refuted = np.zeros(len(TESTS) + 2)
    one, all_ = FALSE_ALARM_RATE / len(TESTS), FALSE_ALARM_RATE
    for _ in range(reports):
        p, offsets = pool.pick(rng.integers(len(pool.kept), size=n))
        drawn = draw(weights(p, offsets, rng), offsets, rng)
        values = np.array(p_values(known(p, offsets, drawn), rng))
        refuted += values <= np.array([one, one, one, all_, one])
    *each, together, z = (f"{share / reports:.2g}" for share in refuted)
    return f"**{together}** ({', '.join(each)}; {z})"


def _peaked(rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int64]]:
    """Two tokens, one nearly certain."""
    rare = 10.0 ** rng.uniform(-7.0, -2.0, n)
    return np.stack([1.0 - rare, rare], axis=1).ravel(), offsets_of(np.full(n, 2))


def _tied(rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int64]]:
    """Two to eight equally likely tokens."""
    counts = rng.integers(2, 9, n)
    return np.repeat(1.0 / counts, counts), offsets_of(counts)


def false_alarms(reports: int) -> Iterator[str]:
    """Measure how often honest draws fall below nominal rates, as a table."""
    pool = model(np.random.default_rng(1), 0.95)

    def ordinary(rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int64]]:
        return pool.pick(rng.integers(len(pool.kept), size=n))

    def stopped(rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int64]]:
        return ordinary(rng, 20 * n)

    rates = (0.05, 0.01, 0.001)
    heads = [f"{name} {rate:g}" for name in (*TESTS, "together", "z") for rate in rates]
    yield f"| rows | n | {' | '.join(heads)} |"
    yield "|---|---|" + "---|" * len(heads)
    for name, rows, sizes in (
        ("ordinary", ordinary, (1, 2, 8, 32, 256)),
        ("nearly certain", _peaked, (1, 8, 256)),
        ("equal", _tied, (1, 2, 8, 32)),
        ("until one token in 20 or so stops it", stopped, (8,)),
    ):
        for n in sizes:
            rng = np.random.default_rng([3, n])
            below = np.zeros((len(TESTS) + 2, len(rates)))
            for _ in range(reports):
                p, offsets = rows(rng, n)
                drawn = draw(p, offsets, rng)
                if rows is stopped:
                    p, offsets, drawn = _until_second(p, offsets, drawn, rng)
                values = np.array(p_values(known(p, offsets, drawn), rng))
                below += values[:, None] <= np.array(rates)
            cells = " | ".join(f"{share:.2g}" for share in (below / reports).ravel())
            yield f"| {name} | {n} | {cells} |"


def _until_second(
    p: Floats, offsets: NDArray[np.int64], drawn: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """End where a draw that is not the likeliest, in a tenth of the rows, comes up."""
    stops = (drawn > offsets[:-1]) & (rng.random(len(drawn)) < 0.25)
    n = int(np.argmax(stops)) + 1 if stops.any() else len(drawn)
    return p[: offsets[n]], offsets[: n + 1], drawn[:n]


def _bf16(logprobs: Floats) -> Floats:
    words = logprobs.astype(np.float32).view(np.uint32)
    rounded = (words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return rounded.view(np.float32).astype(np.float64)


ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "none": lambda logprobs: logprobs,
    "three decimals": lambda logprobs: np.round(logprobs, 3),
    "two decimals": lambda logprobs: np.round(logprobs, 2),
    "float16": lambda logprobs: logprobs.astype(np.float16).astype(np.float64),
    "bf16": _bf16,
}


def rounding(_reports: int) -> Iterator[str]:
    """Measure what rounded logprobs do to an honest report of a million rows."""
    pool = model(np.random.default_rng(1), 0.95)
    rng = np.random.default_rng(9)
    p, offsets = pool.pick(rng.integers(len(pool.kept), size=1_000_000))
    rows = known(p, offsets, draw(p, offsets, rng))
    yield f"| rounding | {' | '.join((*TESTS, 'together', 'z'))} |"
    yield "|---|" + "---|" * (len(TESTS) + 2)
    for name, rounded in ROUNDINGS.items():
        logprobs = rounded(rows.logprobs)
        total = reduce_rows(np.add, np.exp(logprobs), rows.offsets, 1.0)
        logprobs -= np.repeat(np.log(total), np.diff(rows.offsets))
        values = p_values(replace(rows, logprobs=logprobs), np.random.default_rng(1))
        yield f"| {name} | {' | '.join(f'{value:.2g}' for value in values)} |"


def speed(_reports: int) -> Iterator[str]:
    """Measure the tests' own time."""
    pool = model(np.random.default_rng(1), 0.95)
    rng = np.random.default_rng(4)
    yield "| rows | with several tokens | ms | µs a row |"
    yield "|---|---|---|---|"
    for n in (32, 1_024, 32_768, 262_144):
        p, offsets = pool.pick(rng.integers(len(pool.kept), size=n))
        rows = known(p, offsets, draw(p, offsets, rng))
        best = np.inf
        for _ in range(3):
            start = time.process_time()
            p_values(rows, rng)
            best = min(best, time.process_time() - start)
        yield f"| {n:,} | {len(rows):,} | {best * 1e3:.3g} | {best / n * 1e6:.3g} |"


def main() -> None:
    """Print the tables asked for."""
    tables = {"power": power, "false-alarms": false_alarms, "rounding": rounding, "speed": speed}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", choices=[*tables], default=[])
    parser.add_argument("--reports", type=int, default=200, help="simulated reports a cell")
    arguments = parser.parse_args()
    for name in arguments.tables or tables:
        print(f"\n{name}, {arguments.reports} reports a cell\n")
        for line in tables[name](arguments.reports):
            print(line, flush=True)


if __name__ == "__main__":
    main()
