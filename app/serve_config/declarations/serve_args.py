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
    parser_rule(
        "serve-log-config-file",
        Severity.INFO,
        "The logging configuration must exist where the server runs",
        "vLLM opens the file before it starts and ends if it is not there. Whether it is cannot be "
        "seen from here.",
        "Mount the file.",
        source="vllm/logger.py::configure_logging_from_args",
        bad="vllm serve org/model --log-config-file log.json",
    ),
    parser_rule(
        "serve-tool-parser",
        Severity.ERROR,
        "The tool parser is not one of this version",
        "With `--enable-auto-tool-choice` the API server looks the parser up by its name before it "
        "starts. Parsers come and go between versions, and a plugin may add some.",
        "Use the name that the message suggests, or give the plugin that has it.",
        source="vllm/entrypoints/launchers/launcher.py::validate_api_server_args",
        bad="vllm serve org/model --enable-auto-tool-choice --tool-call-parser hermes9",
        good="vllm serve org/model --enable-auto-tool-choice --tool-call-parser hermes",
        covers=("tool-parser-unknown",),
    ),
    parser_rule(
        "serve-reasoning-parser",
        Severity.ERROR,
        "The reasoning parser is not one of this version",
        "The API server looks `reasoning_parser` of `--structured-outputs-config` up by its name "
        "before it starts.",
        "Use the name that the message suggests, or give the plugin that has it.",
        source="vllm/entrypoints/launchers/launcher.py::validate_api_server_args",
        bad="vllm serve org/model --structured-outputs-config.reasoning_parser qwen99",
        good="vllm serve org/model --structured-outputs-config.reasoning_parser qwen3",
        covers=("reasoning-parser-json-unknown",),
    ),
    parser_rule(
        "serve-port",
        Severity.ERROR,
        "The port is no TCP port",
        "Binding the socket fails before the engine starts.",
        "Use a port from 0 to 65535.",
        source="vllm/entrypoints/launchers/launcher.py::setup_server",
        bad="vllm serve org/model --port 80000",
        covers=("port-bind",),
    ),
    parser_rule(
        "serve-chat-template-hf",
        Severity.WARNING,
        "The hf parser with another chat template",
        "The parser `hf` reads answers as the checkpoint's own chat template writes them.",
        "Leave `--chat-template` out, or choose a parser that knows its format.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        versions=">=0.32",
        bad="vllm serve org/model --chat-template '{{ x }}' --reasoning-parser hf",
        covers=("chat-template-with-hf-parser",),
    ),
    parser_rule(
        "serve-tokens-only",
        Severity.INFO,
        "--tokens-only turns the tokenizer off",
        "vLLM sets `skip_tokenizer_init` with it, so text is neither taken nor given.",
        "Nothing, if that is meant.",
        source="vllm/engine/arg_utils.py::EngineArgs.create_engine_config",
        bad="vllm serve org/model --tokens-only",
        covers=("tokens-only-skips-tokenizer",),
    ),
)
