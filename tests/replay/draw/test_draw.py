"""The draw against vectors taken from vLLM's kernels and against scalar references."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.catalogue.semantics import DrawGenerator
from app.replay.draw import acceptance_uniform, gumbel_noise, gumbel_noise_of_rows
from app.replay.draw.philox import philox4x32
from tests.replay.reference import M32, SCALAR, scalar_acceptance_uniform

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "vectors.json").read_text()
)
# The references compute in double precision, so fp32 noise may differ in its last places.
ULPS_32 = 4e-6


def draw(
    generator: DrawGenerator, seed: int, positions: list[int], ids: list[int], fp64: bool
) -> NDArray[np.floating]:
    return gumbel_noise(
        generator,
        seed=seed,
        positions=np.array(positions, np.int64),
        token_ids=np.array(ids, np.int64),
        fp64=fp64,
    )


@pytest.mark.parametrize("fp64", [False, True])
@pytest.mark.parametrize("generator", DrawGenerator)
def test_noise_is_that_of_the_engines_kernel(generator: DrawGenerator, fp64: bool) -> None:
    vectors = VECTORS[f"{generator.value}_{'fp64' if fp64 else 'fp32'}"]
    assert len(vectors) == 20
    for vector in vectors:
        ids = vector["token_ids"]
        noise = draw(generator, vector["seed"], [vector["pos"]] * len(ids), ids, fp64)
        assert noise.dtype == (np.float64 if fp64 else np.float32)
        tolerance = 1e-12 if fp64 else ULPS_32
        np.testing.assert_allclose(noise, vector["noise"], rtol=tolerance, atol=tolerance)


def test_vectors_cover_negative_and_extreme_seeds() -> None:
    seeds = {vector["seed"] for vectors in VECTORS.values() for vector in vectors}
    assert {-(2**63), 2**63 - 1} <= seeds


def test_philox_has_the_published_known_answers() -> None:
    """Random123's `kat_vectors` for philox4x32-10."""
    answers = [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([M32] * 4, [M32] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, expected in answers:
        c = [np.array([word], np.uint32) for word in counter]
        k = [np.array([word], np.uint32) for word in key]
        words = philox4x32((c[0], c[1], c[2], c[3]), (k[0], k[1]))
        assert [int(word[0]) for word in words] == expected


@settings(max_examples=60, deadline=None)
@given(
    generator=st.sampled_from(list(DrawGenerator)),
    fp64=st.booleans(),
    seed=st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-3, 3)),
    rows=st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(0, 2**32 - 1)), min_size=1, max_size=20
    ),
)
def test_noise_is_that_of_a_scalar_reference(
    generator: DrawGenerator, fp64: bool, seed: int, rows: list[tuple[int, int]]
) -> None:
    positions, ids = [pos for pos, _ in rows], [token for _, token in rows]
    noise = draw(generator, seed, positions, ids, fp64)
    expected = [SCALAR[generator](seed, pos, token, fp64) for pos, token in rows]
    # Near u = 1 the noise is ln of a small difference, which fp32 resolves only roughly.
    tolerance = 1e-9 if fp64 else ULPS_32
    np.testing.assert_allclose(noise, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("generator", DrawGenerator)
def test_a_seed_beyond_int64_wraps(generator: DrawGenerator) -> None:
    wide = draw(generator, 2**63 + 5, [3, 4], [10, 11], False)
    wrapped = draw(generator, -(2**63) + 5, [3, 4], [10, 11], False)
    np.testing.assert_array_equal(wide, wrapped)


def test_only_philox_sees_the_high_word_of_the_position() -> None:
    near, far = [7, 8], [7 + 2**32, 8 + 2**32]
    for generator, same in ((DrawGenerator.PHILOX, False), (DrawGenerator.MURMUR3, True)):
        low = draw(generator, 1, near, [5, 6], False)
        high = draw(generator, 1, far, [5, 6], False)
        assert np.array_equal(low, high) is same


@pytest.mark.parametrize("fp64", [False, True])
@pytest.mark.parametrize("generator", DrawGenerator)
def test_rows_and_one_seed_a_row_give_the_same_as_single_draws(
    generator: DrawGenerator, fp64: bool
) -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 9, 5000)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    ids = rng.integers(0, 200_000, offsets[-1])
    seeds = rng.integers(-(2**63), 2**63 - 1, 5000)
    positions = rng.integers(0, 2**33, 5000)
    rows = gumbel_noise_of_rows(
        generator, seed=seeds, positions=positions, token_ids=ids, offsets=offsets, fp64=fp64
    )
    single = gumbel_noise(
        generator,
        seed=np.repeat(seeds, counts),
        positions=np.repeat(positions, counts),
        token_ids=ids,
        fp64=fp64,
    )
    np.testing.assert_array_equal(rows, single)


def test_noise_has_the_mean_and_variance_of_a_gumbel_law() -> None:
    ids = np.arange(200_000, dtype=np.int64)
    for generator in DrawGenerator:
        noise = gumbel_noise(generator, seed=9, positions=np.zeros_like(ids), token_ids=ids).astype(
            np.float64
        )
        assert abs(noise.mean() - np.euler_gamma) < 0.015
        assert abs(noise.var() - math.pi**2 / 6) < 0.04


def test_no_rows_give_no_noise() -> None:
    for generator in DrawGenerator:
        assert draw(generator, 0, [], [], False).shape == (0,)


def test_acceptance_uniform_is_a_single_philox_stage() -> None:
    positions = [0, 1, 17, 2**33 + 1]
    drawn = acceptance_uniform(-4, np.array(positions, np.int64))
    assert drawn.tolist() == [scalar_acceptance_uniform(-4, pos) for pos in positions]
