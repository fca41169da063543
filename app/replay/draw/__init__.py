"""The engine's counter-based noise, repeated bit for bit in its integer part.

vLLM draws token `argmax_i(row_i + noise(seed, position, i))`. The integer streams here are
exact; `ln` and `log1p` may differ from the device's by about one unit in the last place, so a
comparison of sums needs a tolerance (`app.replay.rows`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.catalogue.semantics import DrawGenerator
from app.replay.draw import murmur3, philox
from app.replay.draw.philox import acceptance_uniform

__all__ = ["acceptance_uniform", "gumbel_noise", "gumbel_noise_of_rows"]

# Pairs worked on at a time, so that the dozen temporaries stay in the processor's cache.
_BLOCK = 1 << 14


def gumbel_noise(
    generator: DrawGenerator,
    *,
    seed: int | NDArray[np.integer],
    positions: NDArray[np.int64],
    token_ids: NDArray[np.int64],
    fp64: bool = False,
) -> NDArray[np.float32] | NDArray[np.float64]:
    """Give the noise of n (seed, position, token id) triples.

    Args:
        generator: of the vLLM version (`app.catalogue.semantics.semantics_of(version).draw`).
        seed: the request's seed, of any size and sign, wrapped to 64 bits; or one a row, (n,).
        positions: of the last input token of each row, (n,); token i of a prompt of P tokens
            has P - 1 + i.
        token_ids: (n,), below 2**32.
        fp64: whether the server runs with `--use-fp64-gumbel`.

    Returns:
        The noise, (n,), float32 or float64.
    """
    offsets = np.arange(len(token_ids) + 1, dtype=np.int64)
    return gumbel_noise_of_rows(
        generator,
        seed=seed,
        positions=positions,
        token_ids=token_ids,
        offsets=offsets,
        fp64=fp64,
    )


def gumbel_noise_of_rows(
    generator: DrawGenerator,
    *,
    seed: int | NDArray[np.integer],
    positions: NDArray[np.int64],
    token_ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    fp64: bool = False,
) -> NDArray[np.float32] | NDArray[np.float64]:
    """Give the noise of n rows of several token ids each.

    Args:
        generator: as in `gumbel_noise`.
        seed: as in `gumbel_noise`; an array has one seed a row, (n,).
        positions: one a row, (n,).
        token_ids: flat, (m,); row i has `token_ids[offsets[i]:offsets[i + 1]]`.
        offsets: (n + 1,), ascending from 0 to m.
        fp64: as in `gumbel_noise`.

    Returns:
        The noise, flat, (m,), float32 or float64.
    """
    counts = np.diff(offsets)
    ids = token_ids.astype(np.uint32, casting="unsafe")
    if generator is DrawGenerator.MURMUR3:
        domains = (0, 1) if fp64 else (0,)
        streams = [murmur3.row_keys(seed, positions, domain=domain) for domain in domains]
    else:
        streams = [philox.row_keys(seed, positions)]
    keys = [np.repeat(stream, counts) for stream in streams]
    noise: NDArray[np.float32] | NDArray[np.float64]
    noise = np.empty(len(ids), np.float64) if fp64 else np.empty(len(ids), np.float32)
    for start in range(0, len(ids), _BLOCK):
        part = slice(start, start + _BLOCK)
        noise[part] = _noise(generator, [key[part] for key in keys], ids[part], fp64)
    return noise


def _noise(
    generator: DrawGenerator,
    keys: list[NDArray[np.uint32]],
    ids: NDArray[np.uint32],
    fp64: bool,
) -> NDArray[np.float32] | NDArray[np.float64]:
    if generator is DrawGenerator.MURMUR3:
        return murmur3.gumbel64((keys[0], keys[1]), ids) if fp64 else murmur3.gumbel32(keys[0], ids)
    return philox.gumbel64(keys[0], ids) if fp64 else philox.gumbel32(keys[0], ids)
