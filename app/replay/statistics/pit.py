"""The randomised probability-integral transform, and Kolmogorov and Smirnov's test of it.

With outcomes in a fixed order, u = P(earlier outcomes) + v P(drawn outcome), v uniform, is
uniform whatever the row, and independent of all earlier rows: Rosenblatt, "Remarks on a
multivariate transformation", Ann. Math. Stat. 23, 1952; Dawid, "Present position and potential
developments: statistical theory, the prequential approach", J. R. Stat. Soc. A 147, 1984.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from app.replay.evidence import Choice
from app.replay.statistics.known_rows import KnownRows
from app.replay.statistics.result import Tested
from app.replay.statistics.special import kolmogorov_survival

_PERSON = b"vllm-admission/1"


def pit_test(rows: KnownRows, key: NDArray[np.uint64]) -> Tested:
    """Test that the transformed draws are uniform; the statistic is the largest deviation.

    `key`, (2,), is of the randomisation; see `evidence_key`.
    """
    u = np.sort(transformed(rows, key))
    n = len(u)
    steps = np.arange(n + 1) / n
    deviation = float(max((steps[1:] - u).max(), (u - steps[:-1]).max()))
    p_value = kolmogorov_survival(n, deviation)
    return Tested("pit", n, deviation, p_value, p_value)


def transformed(rows: KnownRows, key: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Give u of each row, (n,), in [0, 1]."""
    before = np.concatenate(
        [_before(block, np.exp(block.logprobs)) for block in rows.blocks()] or [np.empty(0)]
    )
    own = np.exp(rows.logprobs[rows.drawn_at])
    u: NDArray[np.float64] = np.clip(before + randomisation(len(rows), key) * own, 0.0, 1.0)
    return u


def evidence_key(choices: Iterable[Choice]) -> NDArray[np.uint64]:
    """Give the key, (2,), of the randomisation: the evidence itself decides it.

    It is the BLAKE2b hash of all sampled ids and masks, so anyone can repeat it, whatever form the
    evidence comes in, and logprobs that were rounded on the way do not change it.
    """
    digest = blake2b(digest_size=16, person=_PERSON)
    for choice in choices:
        for numbers in (choice.token_ids, choice.masks.counts, choice.masks.values):
            digest.update(np.ascontiguousarray(numbers, "<i8").data)
    return np.frombuffer(digest.digest(), "<u8").astype(np.uint64)


def randomisation(n: int, key: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Give v of each row, (n,), in [0, 1): the Philox stream of the key.

    NumPy promises the raw stream of a bit generator, not what is made of it (NEP 19).
    """
    raw = np.random.Philox(key=key).random_raw(n)
    v: NDArray[np.float64] = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return v


def _before(block: KnownRows, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.concatenate([[0.0], np.cumsum(probabilities)])
    difference: NDArray[np.float64] = total[block.drawn_at] - total[block.offsets[:-1]]
    return difference
