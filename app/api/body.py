"""Reading request bodies within a limit."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from app.decompression import decompress
from app.errors import PayloadTooLarge


async def read_body(request: Request, limit: int) -> bytes:
    """Read the whole body, decoded from its Content-Encoding, up to `limit` bytes.

    Raises:
        PayloadTooLarge: as soon as the limit is passed; nothing more is read.
        MalformedDocument, UnsupportedMedia: the Content-Encoding cannot be undone.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    body = b"".join(parts)
    encoding = request.headers.get("content-encoding")
    if encoding is None:
        return body
    return await run_in_threadpool(decompress, body, encoding, limit=limit)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {limit} bytes, the limit of this endpoint")
