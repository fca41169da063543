"""Running the servers: uvicorn with a graceful end, and a line that says where they listen."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from contextlib import suppress
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp
from structlog.tracebacks import ExceptionDictTransformer

from app.catalogue import CatalogueLibrary
from app.errors import UnusableInput
from app.main import create_app
from app.proposal.shell import parse_command
from app.serve_config.resolve import resolve
from app.settings import Settings
from app.simulator.server import create_simulator

DEMO_COMMAND: Final = (
    "vllm serve toy --return-sampling-mask --logprobs-mode processed_logprobs "
    "--enable-scale-out --max-logprobs 64 --max-model-len 2048 --generation-config vllm"
)
_DRAIN_SECONDS: Final = 30


def run_service(settings: Settings, host: str, port: int) -> None:
    """Serve until a signal; streams in flight are drained."""
    configure_logging(settings.log_level)
    listener = listen(host, port)
    _announce("vllm-admission", listener)
    asyncio.run(_serve((create_app(settings), listener)))


def run_simulator(vllm_version: str, command: str | None, host: str, port: int) -> None:
    """Serve the simulated backend until a signal.

    Args:
        vllm_version: whose wire format, draw and quirks to show.
        command: a `vllm serve` command whose settings the backend follows.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.

    Raises:
        UnusableInput: the command is not one that this version would start with.
    """
    configure_logging("info")
    app = simulator_of(vllm_version, command or DEMO_COMMAND)
    listener = listen(host, port)
    _announce(f"simulated vLLM {vllm_version}", listener)
    asyncio.run(_serve((app, listener)))


def run_demo(vllm_version: str, host: str, port: int) -> None:
    """Serve both, the service in front of the simulated backend."""
    configure_logging("info")
    command = demo_command(vllm_version)
    backend = listen("127.0.0.1", 0)
    service = listen(host, port)
    settings = Settings(
        backend_url=address(backend), serve_config=command, vllm_version=vllm_version
    )
    _announce(f"simulated vLLM {vllm_version}", backend)
    _announce("vllm-admission", service)
    servers = ((simulator_of(vllm_version, command), backend), (create_app(settings), service))
    asyncio.run(_serve(*servers))


def demo_command(vllm_version: str) -> str:
    """The demo's command line, as far as that version knows its flags."""
    known = CatalogueLibrary().get(vllm_version)
    if known.has_flag("enable_scale_out"):
        return DEMO_COMMAND
    return DEMO_COMMAND.replace("--enable-scale-out ", "")


def simulator_of(vllm_version: str, command: str) -> ASGIApp:
    """Make the simulated backend that a `vllm serve` command describes."""
    resolution = resolve(parse_command(command), CatalogueLibrary().get(vllm_version))
    if resolution.config is None:
        messages = "; ".join(finding.message for finding in resolution.findings)
        raise UnusableInput(f"vLLM {vllm_version} would not start with that: {messages}")
    return create_simulator(resolution.config)


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        UnusableInput: the address cannot be had; the message says which and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UnusableInput(f"cannot listen on {host} port {port}: {error.strerror}") from None


def address(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configure_logging(level: str) -> None:
    """Log JSON lines to standard error."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise UnusableInput(f"log level {level!r} is none of debug, info, warning, error")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without local variables: they hold request bodies and environments.
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _announce(name: str, listener: socket.socket) -> None:
    structlog.get_logger("vllm_admission").info("listening", server=name, url=address(listener))


async def _serve(*servers: tuple[ASGIApp, socket.socket]) -> None:
    """Run several uvicorn servers in one loop; a signal ends all of them."""
    running = [
        uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=False,  # the relay passes the backend's on, the others add theirs
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )
        for app, _ in servers
    ]
    sockets = [listener for _, listener in servers]

    async def run(server: uvicorn.Server, listener: socket.socket) -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            for other in running:
                other.should_exit = True

    with suppress(KeyboardInterrupt):
        await asyncio.gather(*map(run, running, sockets))
