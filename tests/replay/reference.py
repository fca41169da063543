"""The draw once more, one number at a time, written apart from the application."""

from __future__ import annotations

import math
import struct

from app.catalogue.semantics import DrawGenerator

M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF


def f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def scalar_philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & M32, (p0 >> 32) ^ c[3] ^ k[1], p0 & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def scalar_philox_uniform(word: int) -> float:
    signed = word - (1 << 32) if word >> 31 else word
    folded = -signed - 1 if signed < 0 else signed
    scale = f32(4.6566127342e-10)
    return max(f32(f32(folded) * scale), scale)


def scalar_philox_noise(seed: int, pos: int, token: int, fp64: bool) -> float:
    seed, pos = seed & M64, pos & M64
    key = scalar_philox([pos & M32, pos >> 32, 0, 0], [seed & M32, seed >> 32])[0]
    word0, word1, *_ = scalar_philox([token, 0, 0, 0], [key, 0])
    if fp64:
        u = max(((word1 << 32) | word0) * 2.0**-64, 2.2250738585072014e-308)
        return -math.log(-math.log(u))
    return -math.log(-math.log1p(-scalar_philox_uniform(word0)))


def scalar_acceptance_uniform(seed: int, pos: int) -> float:
    seed, pos = seed & M64, pos & M64
    word = scalar_philox([pos & M32, pos >> 32, 0, 0], [seed & M32, seed >> 32])[0]
    return scalar_philox_uniform(word)


def scalar_murmur3(words: list[int], domain: int) -> int:
    def rotate(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (32 - bits))) & M32

    h = domain
    for word in words:
        h ^= rotate(word * 0xCC9E2D51 & M32, 15) * 0x1B873593 & M32
        h = (rotate(h, 13) * 5 + 0xE6546B64) & M32
    h ^= 4 * len(words)
    h = (h ^ (h >> 16)) * 0x85EBCA6B & M32
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & M32
    return h ^ (h >> 16)


def scalar_murmur3_noise(seed: int, pos: int, token: int, fp64: bool) -> float:
    seed = seed & M64
    words = [seed & M32, seed >> 32, pos & M32, token]
    low = scalar_murmur3(words, 0)
    if fp64:
        high = scalar_murmur3(words, 0x9E3779B9)
        u = ((((high << 32) | low) >> 11) + 0.5) * 2.0**-53
        return -math.log(-math.log(u if u < 1.0 else u - 2.0**-53))
    u = f32((low + 0.5) * 2.0**-32)
    if u < 0.25:
        minus_log = sum(u**order / order for order in range(1, 9))
    else:
        minus_log = -math.log(max(1.0 - u, 5.960464477539063e-08))
    return -math.log(minus_log)


SCALAR = {
    DrawGenerator.PHILOX: scalar_philox_noise,
    DrawGenerator.MURMUR3: scalar_murmur3_noise,
}
