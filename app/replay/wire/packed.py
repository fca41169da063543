"""Packed arrays: the forms in which trainers keep masks and logprobs.

Flat ids with counts (prime-rl) or offsets (Miles, slime), dense padded rows with sizes (NeMo-RL,
SkyRL), each as lists, as base64 of raw little-endian numbers, or as base64 of a `.npy` file.
"""

from __future__ import annotations

import binascii
import io
import math
from base64 import b64decode
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from app.errors import InvalidEnvelope, Problem
from app.replay.ragged import Ragged, offsets_of

_DTYPES = ("int32", "int64", "uint32", "float16", "float32", "float64")


class ArrayBody(msgspec.Struct, gc=False):
    """Base64 of little-endian numbers; without a shape it is flat."""

    data: str
    dtype: str
    shape: list[int] | None = None


# A str is base64 of a .npy file.
IntArray: TypeAlias = list[int] | ArrayBody | str
FloatArray: TypeAlias = list[float | None] | ArrayBody | str
IntTable: TypeAlias = list[list[int]] | ArrayBody | str


class MaskBody(msgspec.Struct, gc=False):
    """A mask a row: flat `ids` with `counts` or `offsets`, or dense `rows` with `sizes`."""

    ids: IntArray | None = None
    counts: IntArray | None = None
    offsets: IntArray | None = None
    rows: IntTable | None = None
    sizes: IntArray | None = None


def integers(body: IntArray | IntTable, pointer: str) -> NDArray[np.int64]:
    """Read integers in any form, in their own shape.

    Raises:
        InvalidEnvelope: they are no integers, or do not fit in 64 bits.
    """
    if isinstance(body, list):
        try:
            return np.array(body, np.int64)
        except OverflowError:
            raise refusal("no-token-id", "an id does not fit in 64 bits", pointer) from None
        except ValueError:
            raise refusal("bad-shape", "the rows differ in length", pointer) from None
    array = _decode(body, pointer)
    if array.dtype.kind not in "iu":
        raise refusal("wrong-type", f"{array.dtype} numbers are no ids", pointer)
    return array.astype(np.int64, copy=False)


def floats(body: FloatArray, pointer: str) -> NDArray[np.float64]:
    """Read floating-point numbers in any form, flat; null becomes NaN.

    Raises:
        InvalidEnvelope: one is NaN or +inf, or they are no floating-point numbers.
    """
    array: NDArray[np.float64]
    if isinstance(body, list):
        array = np.array(body, np.float64)
        given = np.array([value is not None for value in body], np.bool_)
    else:
        decoded = _decode(body, pointer)
        if decoded.dtype.kind != "f":
            raise refusal("wrong-type", f"{decoded.dtype} numbers are no logprobs", pointer)
        array = decoded.astype(np.float64).ravel()
        given = np.ones(len(array), np.bool_)
    wrong = np.flatnonzero(given & ~(array < math.inf))
    if len(wrong):
        place = f"{pointer}/{wrong[0]}" if isinstance(body, list) else pointer
        raise refusal("no-number", f"logprob {wrong[0]} is {array[wrong[0]]}", place)
    return array


def mask_rows(body: MaskBody, pointer: str) -> Ragged:
    """Read a mask a row.

    Raises:
        InvalidEnvelope: members are missing, or their lengths do not fit together.
    """
    if body.rows is not None and body.sizes is not None:
        return _dense(body.rows, integers(body.sizes, f"{pointer}/sizes").ravel(), pointer)
    if body.ids is None or (body.counts is None) == (body.offsets is None):
        raise refusal(
            "missing-member",
            "a packed mask is ids with counts or offsets, or rows with sizes",
            pointer,
        )
    ids = integers(body.ids, f"{pointer}/ids").ravel()
    if body.offsets is not None:
        offsets = integers(body.offsets, f"{pointer}/offsets").ravel()
        where = f"{pointer}/offsets"
        falling = len(offsets) > 1 and bool(np.any(offsets[1:] < offsets[:-1]))
        if not len(offsets) or offsets[0] != 0 or falling or offsets[-1] != len(ids):
            detail = f"offsets must rise from 0 to the {len(ids)} ids, one more than there are rows"
            raise refusal("bad-offsets", detail, where)
        return Ragged(ids, offsets)
    counts = integers(body.counts if body.counts is not None else [], f"{pointer}/counts").ravel()
    if np.any(counts < 0) or int(counts.sum()) != len(ids):
        detail = f"counts must add up to the {len(ids)} ids; they give {int(counts.sum())}"
        raise refusal("bad-counts", detail, f"{pointer}/counts")
    return Ragged(ids, offsets_of(counts))


def refusal(code: str, detail: str, pointer: str) -> InvalidEnvelope:
    """An error about one place."""
    return InvalidEnvelope(f"{pointer}: {detail}", (Problem(code, detail, pointer),))


def _dense(body: IntTable, sizes: NDArray[np.int64], pointer: str) -> Ragged:
    rows = integers(body, f"{pointer}/rows")
    if rows.ndim != 2 or len(rows) != len(sizes):
        detail = (
            f"rows has shape {rows.shape} and sizes {sizes.shape}; they must be (n, k) and (n,)"
        )
        raise refusal("bad-shape", detail, f"{pointer}/rows")
    if np.any((sizes < 0) | (sizes > rows.shape[1])):
        detail = f"sizes must be between 0 and {rows.shape[1]}"
        raise refusal("bad-counts", detail, f"{pointer}/sizes")
    used = np.arange(rows.shape[1]) < sizes[:, None]
    return Ragged(rows[used], offsets_of(sizes))


def _decode(body: ArrayBody | str, pointer: str) -> NDArray[np.generic]:
    text = body if isinstance(body, str) else body.data
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise refusal("not-base64", "the text is not base64", pointer) from None
    if isinstance(body, str):
        return _npy(data, pointer)
    if body.dtype not in _DTYPES:
        raise refusal("wrong-type", f"dtype must be one of {', '.join(_DTYPES)}", pointer)
    dtype = np.dtype(body.dtype).newbyteorder("<")
    shape = tuple(body.shape) if body.shape is not None else (len(data) // dtype.itemsize,)
    return _array(data, dtype, shape, pointer)


def _npy(data: bytes, pointer: str) -> NDArray[np.generic]:
    """Read a `.npy` file; its header is checked before anything is allocated by it."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except ValueError as error:
        raise refusal(
            "not-npy", f"the text is not base64 of a .npy file: {error}", pointer
        ) from None
    if fortran or dtype.name not in _DTYPES:
        detail = f"the array must be in C order and one of {', '.join(_DTYPES)}"
        raise refusal("wrong-type", detail, pointer)
    return _array(data[stream.tell() :], dtype, shape, pointer)


def _array(
    data: bytes, dtype: np.dtype[np.generic], shape: tuple[int, ...], pointer: str
) -> NDArray[np.generic]:
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
        detail = f"{len(data)} bytes are no array of shape {shape} and type {dtype}"
        raise refusal("bad-shape", detail, pointer)
    return np.frombuffer(data, dtype).reshape(shape)
