"""The proxy that one writes first: FastAPI and httpx, `python -m … PORT BACKEND`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse

from benchmarks.proxy.server import serve


def create_plain(backend: str) -> FastAPI:
    """Make it."""
    client = httpx.AsyncClient(base_url=backend, timeout=None)  # noqa: S113 - as is customary

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def relay(request: Request) -> StreamingResponse:
        outgoing = client.build_request(
            request.method,
            request.url.path,
            headers=[h for h in request.headers.raw if h[0] != b"host"],
            content=await request.body(),
        )
        response = await client.send(outgoing, stream=True)
        return StreamingResponse(
            response.aiter_raw(),
            response.status_code,
            dict(response.headers),
            background=BackgroundTask(response.aclose),
        )

    return app


def main() -> None:
    """Serve on the port of the command line."""
    serve(create_plain(sys.argv[2]), int(sys.argv[1]))


if __name__ == "__main__":
    main()
