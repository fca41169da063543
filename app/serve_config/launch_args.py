"""What `vllm serve` refuses or changes between its arguments and the engine's configuration.

Source: `validate_api_server_args` and `setup_server`, in `vllm/entrypoints/openai/api_server.py`
(0.28), `launchers/launcher.py` (0.29 to 0.32) and `common/cli_args.py` (0.33).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.serve_config.diagnostics import finding
from app.serve_config.serve_config import Abstain, ServeConfig
from app.serve_config.suggest import hint, nearest
from app.verdict.finding import Finding
from app.verdict.fix import Fix, SetFlag

# A shorter name of a plugin is not imported.
_SHORTEST_PLUGIN: Final = 4


def check_launch(config: ServeConfig) -> list[Finding]:
    """Run the checks; one whose settings are not known says nothing."""
    found: list[Finding] = []
    for check in (_tool_parser, _reasoning_parser, _port, _chat_template_with_hf, _tokens_only):
        try:
            found.extend(check(config))
        except Abstain:
            continue
    return found


def _serves_http(config: ServeConfig) -> bool:
    """Whether an API server is set up, which a headless node and the gRPC server have not."""
    return not config["headless"] and not config["grpc"]


def _imports_plugin(config: ServeConfig, dest: str) -> bool:
    """Whether a file is imported that may register further parsers."""
    return len(config[dest] or "") >= _SHORTEST_PLUGIN


def _tool_parser(config: ServeConfig) -> Iterator[Finding]:
    name = config["tool_call_parser"]
    known = config.catalogue.registries.get("tool_parsers")
    if not name or not known or name in known or not config["enable_auto_tool_choice"]:
        return
    if not _serves_http(config) or _imports_plugin(config, "tool_parser_plugin"):
        return
    near = nearest(str(name), known)
    yield finding(
        "serve-tool-parser",
        f"{name!r} is no tool parser of this version{hint(near)}",
        location=config.place("tool_call_parser"),
        engine_message=f"invalid tool call parser: {name} (chose from {{ {','.join(known)} }})",
        fix=_use("tool_call_parser", near),
    )


def _reasoning_parser(config: ServeConfig) -> Iterator[Finding]:
    name = config["structured_outputs_config.reasoning_parser"]
    known = config.catalogue.registries.get("reasoning_parsers")
    if not name or not known or name in known:
        return
    if not _serves_http(config) or _imports_plugin(config, "reasoning_parser_plugin"):
        return
    near = nearest(str(name), known)
    yield finding(
        "serve-reasoning-parser",
        f"{name!r} is no reasoning parser of this version{hint(near)}",
        location=config.place("structured_outputs_config"),
        engine_message=f"invalid reasoning parser: {name} (chose from {{ {','.join(known)} }})",
        fix=_use("structured_outputs_config.reasoning_parser", near),
    )


def _use(dest: str, near: tuple[str, ...]) -> Fix | None:
    if not near:
        return None
    return Fix(f"use {near[0]}", (SetFlag(dest, near[0]),), safe=False)


def _port(config: ServeConfig) -> Iterator[Finding]:
    port = config["port"]
    if not isinstance(port, int) or 0 <= port <= 65535 or config["uds"]:
        return
    if not config["headless"] and not config["data_parallel_multi_port_external_lb"]:
        yield finding(
            "serve-port",
            f"--port must be from 0 to 65535, not {port}; 0 takes a free one",
            location=config.place("port"),
            engine_message="bind(): port must be 0-65535.",
        )


def _chat_template_with_hf(config: ServeConfig) -> Iterator[Finding]:
    if config["chat_template"] is None:
        return
    parser = next(
        (d for d in ("tool_call_parser", "reasoning_parser") if config[d] == "hf"),
        None,
    )
    if parser is not None:
        template, other = config.place("chat_template"), config.place(parser)
        yield finding(
            "serve-chat-template-hf",
            "the hf parser reads the output format of the checkpoint's own template, and "
            "--chat-template replaces that",
            location=template,
            related=() if other is None else (other,),
            engine_message=(
                "--chat-template is set; the hf parser still expects the checkpoint's output "
                "format."
            ),
        )


def _tokens_only(config: ServeConfig) -> Iterator[Finding]:
    if config["tokens_only"] and not config["skip_tokenizer_init"]:
        yield finding(
            "serve-tokens-only",
            "--tokens-only also turns the tokenizer off, as --skip-tokenizer-init does",
            location=config.place("tokens_only"),
        )
