"""Running the servers: uvicorn with a graceful end, and a line that says where they listen."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from typing import Final, NoReturn

import structlog
import uvicorn
from starlette.types import ASGIApp

from app.api.state import Gates
from app.catalogue import CatalogueLibrary
from app.certificates.serving import ServingCertificate
from app.errors import UnusableInput
from app.event_loop import keep_for_good, run_loop
from app.main import create_app
from app.proposal.shell import parse_command
from app.relay.draining import DrainingServer
from app.relay.http_protocol import HeaderLimits, guarded_http
from app.serve_config.resolve import resolve
from app.settings import Settings, unknown_variables
from app.simulator.server import create_simulator
from app.supervisor import Supervisor
from app.telemetry.logs import configure_logging

DEMO_COMMAND: Final = (
    "vllm serve toy --return-sampling-mask --logprobs-mode processed_logprobs "
    "--enable-scale-out --max-logprobs 64 --max-model-len 2048 --generation-config vllm"
)
_DRAIN_SECONDS: Final = 30
# For closing connections and ending inline replays after that.
_END_SECONDS: Final = 10
_LOOK_AGAIN_SECONDS: Final = 0.01


def run_service(settings: Settings, host: str, port: int) -> None:
    """Serve until a signal; streams in flight are drained."""
    configure_logging(settings.log_level)
    for name, nearest in unknown_variables(os.environ).items():
        structlog.get_logger("vllm_admission").warning(
            "no setting has this name", variable=name, nearest=nearest
        )
    certificate = certificate_of(settings)
    if settings.workers > 1:
        _run_workers(settings, host, port)
    app = create_app(settings)
    keep_for_good()
    listener = listen(host, port)
    _announce("vllm-admission", listener)
    if certificate is None or settings.tls_port is None:
        run_loop(serve_apps((app, listener)))
        return
    app.state.certificate = certificate
    app.state.gates.metrics.certified(certificate)
    tls_listener = listen(host, settings.tls_port)
    _announce("vllm-admission with TLS", tls_listener, scheme="https")
    run_loop(serve_apps((app, listener), tls=(tls_listener, certificate)))


def certificate_of(settings: Settings) -> ServingCertificate | None:
    """Load the certificate of the port with TLS, if there is to be one.

    Raises:
        UnusableInput: it cannot be loaded, or the settings say only half.
    """
    chain, key = settings.tls_cert_file, settings.tls_key_file
    if settings.tls_port is None:
        return None
    if chain is None or key is None:
        raise UnusableInput(
            "a port with TLS needs VLLM_ADMISSION_TLS_CERT_FILE and VLLM_ADMISSION_TLS_KEY_FILE"
        )
    if settings.workers > 1:
        raise UnusableInput(
            "a port with TLS goes with one worker: for more reviews at a time run more replicas"
        )
    return ServingCertificate(chain, key)


def _run_workers(settings: Settings, host: str, port: int) -> NoReturn:
    first = listen(host, port, shared=True)
    taken: int = first.getsockname()[1]
    listeners = [first, *(listen(host, taken, shared=True) for _ in range(settings.workers - 1))]
    _announce("vllm-admission", first)
    patience = settings.drain_delay + settings.drain_seconds + _END_SECONDS

    async def supervise() -> int:
        return await Supervisor(listeners, patience).run()

    sys.exit(asyncio.run(supervise()))


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
    run_loop(serve_apps((app, listener)))


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
    run_loop(serve_apps(*servers))


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


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Open the listening socket, one of several at the same address if `shared`.

    `::` is every address, those of IPv4 too.

    Raises:
        UnusableInput: the address cannot be had; the message says which and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            (host, port),
            family=family,
            backlog=2048,
            reuse_port=shared,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise UnusableInput(f"cannot listen on {host} port {port}: {error.strerror}") from None
    # Connections inherit it, which uvloop does not set. Without it the second write of a response
    # waits for the client's delayed acknowledgement of the first, 40 ms on Linux.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address(listener: socket.socket, scheme: str = "http") -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _announce(name: str, listener: socket.socket, scheme: str = "http") -> None:
    url = address(listener, scheme)
    structlog.get_logger("vllm_admission").info("listening", server=name, url=url)


def server_of(app: ASGIApp, certificate: ServingCertificate | None = None) -> uvicorn.Server:
    """Make the server of an app; one that has gates bounds its clients, and drains them.

    With a certificate it is a second server of an app that another has started.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Whoever asks is whoever connects; forwarded fields pass to the backend as they are.
        proxy_headers=False,
        date_header=False,  # the relay passes the backend's on, the others add theirs
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        lifespan="auto" if certificate is None else "off",
    )
    if certificate is not None:
        config.ssl_context_factory = lambda *_: certificate.context
    gates: Gates | None = getattr(getattr(app, "state", None), "gates", None)
    if gates is None:
        return uvicorn.Server(config)
    settings = gates.settings
    config.http = guarded_http(HeaderLimits(settings.max_header_bytes, settings.header_timeout))
    config.ws_max_size = settings.max_websocket_bytes
    longest = settings.drain_delay + settings.drain_seconds
    return DrainingServer(config, gates.request_gate.drain, longest)


async def serve_apps(
    *servers: tuple[ASGIApp, socket.socket],
    lifeline: int | None = None,
    tls: tuple[socket.socket, ServingCertificate] | None = None,
) -> None:
    """Run several uvicorn servers in one loop; a signal ends all of them.

    So does the end of the file that `lifeline`, if given, is the descriptor of. With `tls` the
    first app is served on that listener too, once it has started.
    """
    running = [server_of(app) for app, _ in servers]
    sockets = [listener for _, listener in servers]
    first = running[0]

    async def run(server: uvicorn.Server, listener: socket.socket) -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            for other in running:
                other.should_exit = True

    async def run_tls(listener: socket.socket, certificate: ServingCertificate) -> None:
        server = server_of(servers[0][0], certificate)
        running.append(server)
        # uvicorn tells by an attribute alone.
        while not (first.started or first.should_exit):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if first.should_exit:
            return
        watching = asyncio.create_task(certificate.watch())
        try:
            await run(server, listener)
        finally:
            watching.cancel()

    def stop() -> None:
        if lifeline is not None:
            asyncio.get_running_loop().remove_reader(lifeline)
        for server in running:
            server.should_exit = True

    if lifeline is not None:
        asyncio.get_running_loop().add_reader(lifeline, stop)
    both = () if tls is None else (run_tls(*tls),)
    with suppress(KeyboardInterrupt):
        await asyncio.gather(*map(run, running, sockets), *both)
