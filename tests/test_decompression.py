from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.decompression import PIECE, Inflater, decompress
from app.errors import MalformedDocument, PayloadTooLarge, UnsupportedMedia

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compress = Callable[[bytes], bytes]
COMPRESS: dict[str, Compress] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (None, b"x" * 100),
        ("identity", b"x" * 100),
        ("GZIP", gzip.compress(b"x" * 100)),
        ("x-gzip", gzip.compress(b"x" * 100)),
        ("deflate", zlib.compress(b"x" * 100)),
        ("zstd", zstd.compress(b"x" * 100)),
    ],
)
def test_content_encodings_are_undone(encoding: str | None, packed: bytes) -> None:
    assert decompress(packed, encoding, limit=100) == b"x" * 100


@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_compression_bomb_stops_at_the_limit(encoding: str) -> None:
    bomb = COMPRESS[encoding](bytes(10_000_000))
    with pytest.raises(PayloadTooLarge):
        decompress(bomb, encoding, limit=1000)
    assert max(map(len, Inflater(encoding).feed(bomb))) <= PIECE


@pytest.mark.parametrize("encoding", COMPRESS)
def test_damaged_data_is_named(encoding: str) -> None:
    for data in (b"no such data", COMPRESS[encoding](b"x" * 100)[:-9], b""):
        with pytest.raises(MalformedDocument, match=f"{encoding}|empty"):
            decompress(data, encoding, limit=1000)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "gzip;q=1"])
def test_an_unknown_encoding_is_named(encoding: str) -> None:
    with pytest.raises(UnsupportedMedia, match=encoding):
        decompress(b"", encoding, limit=10)


def test_a_window_larger_than_http_allows_is_refused() -> None:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 27}
    packed = zstd.compress(bytes(1 << 25) + b"x", options=options)
    with pytest.raises(MalformedDocument, match="zstd"):
        decompress(packed, "zstd", limit=1 << 30)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@settings(max_examples=30, deadline=None)
@given(parts=st.lists(st.binary(max_size=300), min_size=1), step=st.integers(1, 400))
def test_members_and_input_may_be_cut_anywhere(
    encoding: str, parts: list[bytes], step: int
) -> None:
    packed = b"".join(COMPRESS[encoding](part) for part in parts)
    inflater = Inflater(encoding)
    pieces = [
        piece
        for at in range(0, len(packed), step)
        for piece in inflater.feed(packed[at : at + step])
    ]
    inflater.finish()
    assert b"".join(pieces) == b"".join(parts)


def test_many_tiny_members_take_linear_time() -> None:
    packed = gzip.compress(b"") * 100_000
    assert decompress(packed, "gzip", limit=10) == b""
