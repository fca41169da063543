"""uvicorn as the backend and the plain proxy run it."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp


def serve(app: ASGIApp, port: int) -> None:
    """Serve on a loopback port until a signal, with uvloop and httptools."""
    listener = socket.create_server(("127.0.0.1", port), backlog=2048)
    # Accepted connections inherit it; without, answers wait for delayed acknowledgements.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        http="httptools",
        loop="uvloop",
        timeout_keep_alive=60,
    )
    uvicorn.Server(config).run(sockets=[listener])
