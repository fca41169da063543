"""Packed arrays: the forms in which trainers keep masks and logprobs.

Flat ids with counts (prime-rl) or offsets (Miles, slime), dense padded rows with sizes (NeMo-RL,
SkyRL), each as lists, as base64 of raw little-endian numbers, or as base64 of a `.npy` file.
"""

from __future__ import annotations

import binascii
import io
import math
from base64 import b64decode
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from app.errors import InvalidEnvelope, Problem
from app.replay.ragged import Ragged, offsets_of

_NPY = b"\x93NUMPY"
_DTYPES = ("int32", "int64", "uint32", "float16", "float32", "float64")


class ArrayBody(msgspec.Struct, gc=False):
    """Base64 of little-endian numbers; without a shape it is flat."""

    data: str
    dtype: str
    shape: list[int] | None = None


# A str is base64 of a .npy file, or of int32 or float32 numbers alone.
IntArray: TypeAlias = list[int] | ArrayBody | str
FloatArray: TypeAlias = list[float | None] | ArrayBody | str
IntTable: TypeAlias = list[list[int]] | ArrayBody | str
FlagArray: TypeAlias = list[int | bool] | ArrayBody | str
# One flat list, or a list a row.
FloatTable: TypeAlias = list[float | list[float | None] | None] | ArrayBody | str


class MaskBody(msgspec.Struct, gc=False):
    """A mask a row.

    Flat `ids` with `offsets` or with `counts` (also called `lengths` or `sizes`); or dense `rows`
    with `sizes`, or padded with negative ids; or that dense array itself.
    """

    ids: IntArray | None = None
    counts: IntArray | None = None
    lengths: IntArray | None = None
    offsets: IntArray | None = None
    rows: IntTable | None = None
    sizes: IntArray | None = None
    data: str | None = None
    dtype: str | None = None
    shape: list[int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """Masks as they came.

    Attributes:
        rows: a mask a row.
        used: places of their ids in the dense array that they came in, (n, k); None if flat.
    """

    rows: Ragged
    used: NDArray[np.bool_] | None = None


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
    return _floats(body, pointer).ravel()


def float_rows(body: FloatTable, masks: Masks, pointer: str) -> NDArray[np.float64] | None:
    """Read numbers on the ids of masks: flat, a list a row, or dense as the masks are.

    Raises:
        InvalidEnvelope: as `floats`, or they do not fit the masks; None where flat ones do not.
    """
    counts = masks.rows.counts
    if isinstance(body, list) and any(isinstance(row, list) for row in body):
        lists = [row for row in body if isinstance(row, list)]
        if len(lists) != len(body):
            raise refusal("wrong-type", "numbers and lists are mixed", pointer)
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        if len(lists) != len(counts):
            detail = f"{len(lists)} lists for {len(counts)} masks; there must be one for each"
            raise refusal("misaligned-logprobs", detail, pointer)
        if len(wrong := np.flatnonzero(lengths != counts)):
            row = int(wrong[0])
            detail = f"{lengths[row]} logprobs for a mask of {counts[row]} ids"
            raise refusal("misaligned-logprobs", detail, f"{pointer}/{row}")
        return _floats(list(chain.from_iterable(lists)), pointer)
    flat = body if not isinstance(body, list) else [v for v in body if not isinstance(v, list)]
    if masks.used is not None and not isinstance(flat, list):
        dense = _decode(flat, pointer, text="float32")
        if dense.size == masks.used.size and dense.dtype.kind == "f":
            # What pads the rows may be anything, NaN among it.
            values = dense.astype(np.float64).reshape(masks.used.shape)[masks.used]
            return _checked(values, np.ones(len(values), np.bool_), pointer, places=False)
    array = _floats(flat, pointer).ravel()
    return array if len(array) == len(masks.rows.values) else None


def flags(body: FlagArray, pointer: str) -> NDArray[np.bool_]:
    """Read booleans, or numbers that are 0 or 1, flat.

    Raises:
        InvalidEnvelope: one is neither.
    """
    array = np.array(body) if isinstance(body, list) else _decode(body, pointer).ravel()
    if not bool(np.all((array == 0) | (array == 1))):
        raise refusal("wrong-type", "a loss mask has 0 and 1 (or false and true) only", pointer)
    return array.astype(np.bool_)


def _floats(body: FloatArray, pointer: str) -> NDArray[np.float64]:
    array: NDArray[np.float64]
    if isinstance(body, list):
        array = np.array(body, np.float64)
        given = np.array([value is not None for value in body], np.bool_)
    else:
        decoded = _decode(body, pointer, text="float32")
        if decoded.dtype.kind != "f":
            raise refusal("wrong-type", f"{decoded.dtype} numbers are no logprobs", pointer)
        array = decoded.astype(np.float64).ravel()
        given = np.ones(len(array), np.bool_)
    return _checked(array, given, pointer, places=isinstance(body, list))


def _checked(
    array: NDArray[np.float64], given: NDArray[np.bool_], pointer: str, *, places: bool
) -> NDArray[np.float64]:
    wrong = np.flatnonzero(given & ~(array < math.inf))
    if len(wrong):
        place = f"{pointer}/{wrong[0]}" if places else pointer
        raise refusal("no-number", f"logprob {wrong[0]} is {array[wrong[0]]}", place)
    return array


def mask_rows(body: MaskBody | str, pointer: str) -> Masks:
    """Read a mask a row.

    Raises:
        InvalidEnvelope: members are missing, or their lengths do not fit together.
    """
    if isinstance(body, str):
        return _dense(body, None, pointer, pointer)
    if body.data is not None and body.dtype is not None:
        return _dense(ArrayBody(body.data, body.dtype, body.shape), body.sizes, pointer, pointer)
    if body.rows is not None and body.ids is None:
        return _dense(body.rows, body.sizes, f"{pointer}/rows", pointer)
    named = {
        name: value
        for name in ("counts", "lengths", "sizes")
        if (value := getattr(body, name)) is not None
    }
    if body.ids is None or body.rows is not None or len(named) + (body.offsets is not None) != 1:
        raise refusal(
            "missing-member",
            "a packed mask is ids with counts or offsets, or rows with sizes",
            pointer,
        )
    return Masks(_flat(body, integers(body.ids, f"{pointer}/ids").ravel(), named, pointer))


def _flat(
    body: MaskBody, ids: NDArray[np.int64], named: dict[str, IntArray], pointer: str
) -> Ragged:
    if body.offsets is not None:
        offsets = integers(body.offsets, f"{pointer}/offsets").ravel()
        where = f"{pointer}/offsets"
        falling = len(offsets) > 1 and bool(np.any(offsets[1:] < offsets[:-1]))
        if not len(offsets) or offsets[0] != 0 or falling or offsets[-1] != len(ids):
            detail = f"offsets must rise from 0 to the {len(ids)} ids, one more than there are rows"
            raise refusal("bad-offsets", detail, where)
        return Ragged(ids, offsets)
    ((name, given),) = named.items()
    counts = integers(given, f"{pointer}/{name}").ravel()
    if np.any(counts < 0) or int(counts.sum()) != len(ids):
        detail = f"{name} must add up to the {len(ids)} ids; they give {int(counts.sum())}"
        raise refusal("bad-counts", detail, f"{pointer}/{name}")
    return Ragged(ids, offsets_of(counts))


def refusal(code: str, detail: str, pointer: str) -> InvalidEnvelope:
    """An error about one place."""
    return InvalidEnvelope(f"{pointer}: {detail}", (Problem(code, detail, pointer),))


def _dense(body: IntTable, given: IntArray | None, where: str, pointer: str) -> Masks:
    """Read an array of shape (n, k), its rows cut to sizes or, without, at their padding."""
    rows = integers(body, where)
    if not rows.size:
        rows = rows.reshape(len(rows), 0)
    if rows.ndim != 2:
        raise refusal("bad-shape", f"the array has shape {rows.shape}, not (n, k)", where)
    if given is None:
        used = rows >= 0
        return Masks(Ragged(rows[used], offsets_of(used.sum(axis=1))), used)
    sizes = integers(given, f"{pointer}/sizes").ravel()
    if len(rows) != len(sizes):
        detail = (
            f"the array has shape {rows.shape} and sizes {sizes.shape}; they must be (n, k) and "
            "(n,)"
        )
        raise refusal("bad-shape", detail, where)
    if np.any((sizes < 0) | (sizes > rows.shape[1])):
        detail = f"sizes must be between 0 and {rows.shape[1]}"
        raise refusal("bad-counts", detail, f"{pointer}/sizes")
    used = np.arange(rows.shape[1]) < sizes[:, None]
    return Masks(Ragged(rows[used], offsets_of(sizes)), used)


def _decode(body: ArrayBody | str, pointer: str, *, text: str = "int32") -> NDArray[np.generic]:
    """Decode an array; a text that is no `.npy` file holds numbers of type `text`."""
    try:
        data = b64decode(body if isinstance(body, str) else body.data, validate=True)
    except (binascii.Error, ValueError):
        raise refusal("not-base64", "the text is not base64", pointer) from None
    if isinstance(body, str):
        if data.startswith(_NPY):
            return _npy(data, pointer)
        body = ArrayBody(body, text)
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
