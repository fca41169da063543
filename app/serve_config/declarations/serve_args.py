"""What the serve command checks once the command line is parsed."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import parser_rule
from app.verdict.finding import Severity

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    parser_rule(
        "serve-auto-tool-choice",
        Severity.ERROR,
        "--enable-auto-tool-choice needs a tool parser",
        "Without `--tool-call-parser` vLLM refuses to start.",
        "Add `--tool-call-parser NAME`.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        bad="vllm serve org/model --enable-auto-tool-choice",
        good="vllm serve org/model --enable-auto-tool-choice --tool-call-parser hermes",
    ),
    parser_rule(
        "serve-log-outputs",
        Severity.ERROR,
        "--enable-log-outputs needs --enable-log-requests",
        "vLLM refuses one without the other.",
        "Add `--enable-log-requests`.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        bad="vllm serve org/model --enable-log-outputs",
        good="vllm serve org/model --enable-log-outputs --enable-log-requests",
    ),
    parser_rule(
        "serve-per-request-metrics",
        Severity.ERROR,
        "--enable-per-request-metrics needs engine statistics",
        "It cannot be combined with `--disable-log-stats`.",
        "Leave one of the two out.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        bad="vllm serve org/model --enable-per-request-metrics --disable-log-stats",
        good="vllm serve org/model --enable-per-request-metrics",
    ),
    parser_rule(
        "serve-sse-keep-alive",
        Severity.ERROR,
        "--sse-keep-alive-interval is negative",
        "0 turns the comments off; negative numbers are refused.",
        "Use 0 or more.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        versions=">=0.29",
    ),
    parser_rule(
        "serve-grpc-port",
        Severity.ERROR,
        "--grpc-port does not fit the other settings",
        "It belongs to the Rust front end: it needs VLLM_USE_RUST_FRONTEND=1 and excludes --grpc, "
        "--headless, the multi-port load-balancer mode and the HTTP port.",
        "Change what the message names.",
        source="vllm/entrypoints/*/cli_args.py::validate_grpc_port_arg",
        versions=">=0.32",
    ),
    parser_rule(
        "serve-multi-port",
        Severity.ERROR,
        "--data-parallel-multi-port-external-lb does not fit the other settings",
        "The supervisor starts one server for each local rank, with ports counted up from --port.",
        "Change what the message names.",
        source="vllm/entrypoints/*/dp_supervisor.py::validate_multi_port_external_lb_args",
        bad="vllm serve org/model --data-parallel-multi-port-external-lb",
    ),
    parser_rule(
        "serve-reasoning-effort-map",
        Severity.ERROR,
        "--reasoning-effort-map is not a map of efforts to strings",
        "vLLM checks it before it starts.",
        'Write a JSON object such as \'{"low": "short"}\'.',
        source="vllm/entrypoints/common/cli_args.py::validate_reasoning_effort_map",
        versions=">=0.33",
    ),
    parser_rule(
        "serve-chat-template-file",
        Severity.INFO,
        "The chat template must exist where the server runs",
        "A template that looks like a path is opened at start; a missing file is refused. Whether "
        "it exists cannot be seen from here.",
        "Mount the file, or name one that vLLM ships.",
        source="vllm/renderers/chat_utils.py::validate_chat_template",
        bad="vllm serve org/model --chat-template template.jinja",
    ),
)
