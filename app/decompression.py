"""Undoing Content-Encoding piece by piece, so that a small input cannot become a large memory.

gzip is RFC 1952 (several members may follow each other), deflate is RFC 1950, zstd is RFC 8878
with the window that RFC 9659 allows for HTTP.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Final, Protocol

from app.errors import MalformedDocument, PayloadTooLarge, UnsupportedMedia

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# The most that one step gives; what is decompressed is held piece by piece.
PIECE: Final = 256 * 1024
# What a member leaves over is copied, so that input is cut to keep many small ones cheap.
_INPUT: Final = 32 * 1024
_ZSTD_WINDOW_LOG: Final = 23
_ACCEPTED: Final = "gzip, deflate, zstd or none"


class _Stream(Protocol):
    """One gzip member, zlib stream or zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, limit: int, /) -> bytes: ...


class Inflater:
    """Undoes one Content-Encoding; fed with the body as it comes."""

    def __init__(self, encoding: str | None) -> None:
        """Choose by the value of a Content-Encoding header.

        Raises:
            UnsupportedMedia: an encoding that is not known, or several.
        """
        name = (encoding or "identity").strip().lower().removeprefix("x-")
        if name not in {"identity", "gzip", "deflate", "zstd"}:
            raise UnsupportedMedia(f"Content-Encoding {name!r} is not read; use {_ACCEPTED}")
        self._name = name
        self._stream: _Stream | None = None

    @property
    def identity(self) -> bool:
        """Whether there is nothing to undo."""
        return self._name == "identity"

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give what `data` decompresses to, at most `PIECE` bytes at a time.

        Raises:
            MalformedDocument: the bytes are not what the header says.
        """
        if self.identity:
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))
        else:
            for at in range(0, len(data), _INPUT):
                yield from self._inflate(data[at : at + _INPUT])

    def finish(self) -> None:
        """Say that the body has ended.

        Raises:
            MalformedDocument: it ended inside a member or frame.
        """
        if self._stream is not None:
            raise MalformedDocument(f"the {self._name} data ends early")

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        while data:
            stream = self._stream = self._stream or self._begin()
            piece = self._step(stream, data)
            data = b""
            if piece:
                yield piece
            # A full piece says that more may wait inside, which empty input brings out.
            while len(piece) == PIECE and not stream.eof:
                piece = self._step(stream, b"")
                if piece:
                    yield piece
            if stream.eof:
                data = stream.unused_data
                self._stream = None

    def _begin(self) -> _Stream:
        if self._name == "zstd":
            return _Zstd()
        return _Zlib(31 if self._name == "gzip" else 15)

    def _step(self, stream: _Stream, data: bytes) -> bytes:
        try:
            return stream.decompress(data, PIECE)
        except (zlib.error, zstd.ZstdError) as error:
            detail = f"the body is not {self._name} data: {error}"
            raise MalformedDocument(detail) from None


class _Zlib:
    """zlib's stream, with input that did not fit kept inside as zstd's does."""

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, limit: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, limit)


class _Zstd:
    def __init__(self) -> None:
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        self._inner = zstd.ZstdDecompressor(options=options)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, limit: int) -> bytes:
        return self._inner.decompress(data, limit)


def decompress(data: bytes, encoding: str | None, *, limit: int) -> bytes:
    """Undo a Content-Encoding, never holding more than `limit` bytes and a piece.

    Raises:
        PayloadTooLarge: the decompressed size passes the limit.
        MalformedDocument: the bytes are not what the header says.
        UnsupportedMedia: an encoding that is not known.
    """
    inflater = Inflater(encoding)
    if inflater.identity:
        return data
    pieces: list[bytes] = []
    size = 0
    for piece in inflater.feed(data):
        size += len(piece)
        if size > limit:
            raise PayloadTooLarge(f"the body decompresses to more than {limit} bytes")
        pieces.append(piece)
    inflater.finish()
    if not data:
        raise MalformedDocument("the body is empty, which is no compressed data")
    return b"".join(pieces)
