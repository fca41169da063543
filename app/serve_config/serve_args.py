"""What `vllm serve` refuses after parsing and before it builds a configuration.

Source: `validate_parsed_serve_args` and what it calls, in `vllm/entrypoints/openai/cli_args.py`
(0.28), `launchers/cli_args.py` (0.29 to 0.32) and `common/cli_args.py` (0.33).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.proposal.proposal import Entrypoint
from app.serve_config.diagnostics import finding
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding
from app.verdict.fix import Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def check_serve_args(config: ServeConfig, entrypoint: Entrypoint) -> list[Finding]:
    """Run the checks; one whose settings are not known says nothing."""
    found: list[Finding] = []
    for check in (
        _chat_template,
        _log_config_file,
        lambda c: _grpc_port(c, entrypoint),
        _effort_map,
        _auto_tool_choice,
        _log_outputs,
        _keep_alive,
        _request_metrics,
        _multi_port,
    ):
        try:
            found.extend(check(config))
        except Abstain:
            continue
    return found


def _chat_template(config: ServeConfig) -> Iterator[Finding]:
    template = config["chat_template"]
    if isinstance(template, str) and not any(char in template for char in "{}\n"):
        yield finding(
            "serve-chat-template-file",
            f"{template!r} is opened as a file, or taken from those that vLLM ships; it must "
            "exist where the server runs",
            location=config.place("chat_template"),
        )


def _log_config_file(config: ServeConfig) -> Iterator[Finding]:
    for name in ("logging_config.pylogging_config_file", "log_config_file"):
        file = config[name]
        if isinstance(file, str) and file:
            yield finding(
                "serve-log-config-file",
                f"{file!r} is read when the server starts; it must exist where that runs",
                location=config.place(name),
            )


def _auto_tool_choice(config: ServeConfig) -> Iterator[Finding]:
    if config["enable_auto_tool_choice"] and not config["tool_call_parser"]:
        yield finding(
            "serve-auto-tool-choice",
            "--enable-auto-tool-choice needs --tool-call-parser",
            location=config.place("enable_auto_tool_choice"),
            engine_message="Error: --enable-auto-tool-choice requires --tool-call-parser",
        )


def _log_outputs(config: ServeConfig) -> Iterator[Finding]:
    if config["enable_log_outputs"] and not config["enable_log_requests"]:
        yield finding(
            "serve-log-outputs",
            "--enable-log-outputs needs --enable-log-requests",
            location=config.place("enable_log_outputs"),
            engine_message="Error: --enable-log-outputs requires --enable-log-requests",
            fix=Fix(
                "add --enable-log-requests", (SetFlag("enable_log_requests", True),), safe=True
            ),
        )


def _keep_alive(config: ServeConfig) -> Iterator[Finding]:
    interval = config["sse_keep_alive_interval"]
    if interval is not None and interval < 0:
        yield finding(
            "serve-sse-keep-alive",
            f"--sse-keep-alive-interval must be 0 or more, not {interval}",
            location=config.place("sse_keep_alive_interval"),
            engine_message=(
                "Error: --sse-keep-alive-interval must be a non-negative integer "
                "(0 disables keep-alive comments)."
            ),
            fix=Fix("turn it off", (SetFlag("sse_keep_alive_interval", 0),), safe=True),
        )


def _request_metrics(config: ServeConfig) -> Iterator[Finding]:
    if config["enable_per_request_metrics"] and config["disable_log_stats"]:
        yield finding(
            "serve-per-request-metrics",
            "--enable-per-request-metrics needs the statistics that --disable-log-stats turns off",
            location=config.place("disable_log_stats"),
            related=_places(config, "enable_per_request_metrics"),
            engine_message=(
                "Error: --enable-per-request-metrics requires engine statistics logging; remove "
                "--disable-log-stats to enable per-request metrics."
            ),
            fix=Fix("keep the statistics", (RemoveFlag("disable_log_stats"),), safe=False),
        )


def _effort_map(config: ServeConfig) -> Iterator[Finding]:
    efforts = config["reasoning_effort_map"]
    if efforts is None:
        return
    place = config.place("reasoning_effort_map")
    message = engine = ""
    if not isinstance(efforts, Mapping) or not all(isinstance(v, str) for v in efforts.values()):
        message = "--reasoning-effort-map must be an object of strings"
        engine = (
            "Error: --reasoning-effort-map must be a JSON object mapping reasoning efforts to "
            "strings."
        )
    elif unknown := sorted(set(efforts) - set(_EFFORTS)):
        message = f"--reasoning-effort-map: {unknown} are no efforts; use {', '.join(_EFFORTS)}"
        engine = f"Error: --reasoning-effort-map has unknown efforts {unknown}"
    if message:
        yield finding("serve-reasoning-effort-map", message, location=place, engine_message=engine)


def _grpc_port(config: ServeConfig, entrypoint: Entrypoint) -> Iterator[Finding]:
    port = config["grpc_port"]
    if port is None:
        return
    place = config.place("grpc_port")
    servers = config["api_server_count"]
    refused: list[tuple[bool, str, str, tuple[str, ...]]] = [
        (
            bool(config["grpc"]),
            "--grpc and --grpc-port exclude each other",
            "--grpc and --grpc-port are mutually exclusive.",
            ("grpc",),
        ),
        (
            not _rust_frontend(config) or entrypoint is not Entrypoint.SERVE,
            "--grpc-port needs VLLM_USE_RUST_FRONTEND=1 and `vllm serve`",
            "--grpc-port requires VLLM_USE_RUST_FRONTEND=1 vllm serve",
            (),
        ),
        (
            bool(config["headless"]) or (servers is not None and servers <= 0),
            "--grpc-port needs an API server: leave out --headless and a zero server count",
            (
                "--grpc-port requires a Rust frontend; remove --headless and non-positive "
                "--api-server-count"
            ),
            ("headless", "api_server_count"),
        ),
        (
            bool(config["data_parallel_multi_port_external_lb"]),
            "--grpc-port cannot be shared by the servers of the multi-port mode",
            (
                "--grpc-port is incompatible with --data-parallel-multi-port-external-lb: its "
                "frontends would share the same gRPC port"
            ),
            ("data_parallel_multi_port_external_lb",),
        ),
        (
            not 0 <= port <= 65535,
            "--grpc-port must be between 0 and 65535",
            "--grpc-port must be between 0 and 65535",
            (),
        ),
        (
            port != 0 and port == config["port"] and not config["uds"],
            "--grpc-port must differ from --port",
            "--grpc-port must differ from --port when HTTP uses TCP",
            ("port",),
        ),
    ]
    for is_refused, message, engine, others in refused:
        if is_refused:
            yield finding(
                "serve-grpc-port",
                message,
                location=place,
                related=_places(config, *others),
                engine_message=engine,
            )


def _rust_frontend(config: ServeConfig) -> bool:
    variable = config.variable("VLLM_USE_RUST_FRONTEND")
    if variable is None:
        return False
    try:
        return int(variable.value) != 0
    except ValueError:  # refused by itself
        return False


def _multi_port(config: ServeConfig) -> Iterator[Finding]:
    """The checks of `validate_multi_port_external_lb_args`."""
    if not config["data_parallel_multi_port_external_lb"]:
        return
    size, local = config["data_parallel_size"], config["data_parallel_size_local"]
    start = config["data_parallel_start_rank"]
    if start is None:
        start = (config["node_rank"] or 0) * (local or 0)
    port, supervisor = config["port"], config["data_parallel_supervisor_port"]
    ranks = local if isinstance(local, int) else 0
    mode = "--data-parallel-multi-port-external-lb"
    refused: list[tuple[str, bool, str]] = [
        ("grpc", bool(config["grpc"]), f"{mode} does not support --grpc"),
        ("uds", config["uds"] is not None, f"{mode} does not support --uds"),
        (
            "ssl_keyfile" if config["ssl_keyfile"] else "ssl_certfile",
            bool(config["ssl_keyfile"]) != bool(config["ssl_certfile"]),
            "--ssl-keyfile and --ssl-certfile must be provided together",
        ),
        (
            "api_server_count",
            config["api_server_count"] not in (None, 1),
            f"{mode} currently requires --api-server-count=1",
        ),
        (
            "headless",
            bool(config["headless"]) and config["api_server_count"] is None,
            f"{mode} currently requires --api-server-count=1; --headless has no API server",
        ),
        (
            "data_parallel_rank",
            config["data_parallel_rank"] is not None,
            f"{mode} manages child --data-parallel-rank values internally",
        ),
        (
            "data_parallel_external_lb",
            bool(config["data_parallel_external_lb"] or config["data_parallel_hybrid_lb"]),
            (
                f"{mode} cannot be combined with --data-parallel-external-lb or "
                "--data-parallel-hybrid-lb"
            ),
        ),
        ("data_parallel_size", size < 2, f"{mode} requires --data-parallel-size > 1"),
        (
            "data_parallel_size_local",
            local is None or local < 2,
            f"{mode} requires --data-parallel-size-local >= 2",
        ),
        (
            "data_parallel_size_local",
            ranks > size,
            "--data-parallel-size-local cannot exceed --data-parallel-size",
        ),
        (
            "data_parallel_size",
            ranks > 0 and size % ranks != 0,
            "--data-parallel-size must be divisible by --data-parallel-size-local",
        ),
        (
            "data_parallel_start_rank",
            start + ranks > size,
            "multi-port supervised ranks would exceed --data-parallel-size",
        ),
        (
            "data_parallel_supervisor_port",
            supervisor is not None and port <= supervisor <= port + ranks - 1,
            (
                f"--data-parallel-supervisor-port {supervisor} overlaps with child rank ports "
                f"{port}-{port + ranks - 1}"
            ),
        ),
    ]
    for dest, is_refused, message in refused:
        if is_refused:
            other = config.place("data_parallel_multi_port_external_lb")
            place = config.place(dest)
            yield finding(
                "serve-multi-port",
                message,
                location=place or other,
                related=() if place is None or other is None else (other,),
                engine_message=f"Error: {message.partition(';')[0]}",
            )


def _places(config: ServeConfig, *dests: str) -> tuple[Location, ...]:
    """Give where the settings that it conflicts with were written."""
    places = (config.place(dest) for dest in dests)
    return tuple(place for place in places if place is not None)
