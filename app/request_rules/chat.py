"""Rules about what chat requests ask of templates and tool parsers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

_MOST: Final = 5
_LONGEST: Final = 16
_TOOLS = '"tools": [{"type": "function", "function": {"name": "f"}}]'


def _reads_false(text: str) -> bool:
    return len(text) < _LONGEST and text.strip().lower() in ("false", "no", "off", "0")


@request_rule(
    Declaration(
        id="request-tool-parser",
        title="A forced tool call needs a tool parser",
        explanation="Without `--tool-call-parser`, `tool_choice: required` or a named function is "
        "refused for most models; those with a Mistral tokenizer and gpt-oss bring their own "
        "parser, which the gate does not see.",
        remedy="Start the server with `--tool-call-parser`.",
        severity=Severity.WARNING,
        area="request",
        gate=Gate.REQUEST,
        source="renderers/online_renderer.py::OnlineRenderer.render_chat",
        bad=(
            RequestExample(
                f'{{"messages": [], {_TOOLS}, "tool_choice": "required"}}', route=Route.CHAT
            ),
        ),
        good=(
            RequestExample(f'{{"messages": [], {_TOOLS}}}', route=Route.CHAT),
            RequestExample(
                f'{{"messages": [], {_TOOLS}, "tool_choice": "required"}}',
                route=Route.CHAT,
                serve="vllm serve m --tool-call-parser hermes --enable-auto-tool-choice",
            ),
        ),
    ),
    fields=("tool_choice",),
)
def tool_parser(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Warn of a tool call that nothing may parse."""
    if request.route is not Route.CHAT or served.has_tool_parser is not False:
        return
    choice = request.sent("tool_choice")
    if request.has("tools") and (choice == "required" or isinstance(choice, dict)):
        yield tool_parser.finding(
            request,
            "tool_choice",
            "a forced tool call needs --tool-call-parser, which this server was started without",
        )


@request_rule(
    Declaration(
        id="request-template-switch",
        title="Switches of a chat template must be true or false, not text",
        explanation='A template tests them for truth, and `"false"` is a text that is not empty: '
        "it counts as true, so that thinking, say, is turned on.",
        remedy="Send `true` or `false` without quotes.",
        severity=Severity.WARNING,
        area="request",
        gate=Gate.REQUEST,
        source="renderers/hf.py::safe_apply_chat_template",
        bad=(
            RequestExample(
                '{"messages": [], "chat_template_kwargs": {"enable_thinking": "false"}}',
                route=Route.CHAT,
            ),
        ),
        good=(
            RequestExample(
                '{"messages": [], "chat_template_kwargs": {"enable_thinking": false}}',
                route=Route.CHAT,
            ),
        ),
    ),
    fields=("chat_template_kwargs",),
)
def template_switch(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Warn of `"false"` and the like."""
    del served
    given = request.sent("chat_template_kwargs")
    if not isinstance(given, dict):
        return
    wrong = ((n, v) for n, v in given.items() if isinstance(v, str) and _reads_false(v))
    for name, value in islice(wrong, _MOST):
        yield template_switch.finding(
            request,
            "chat_template_kwargs",
            f"{str(name)[:64]!r} is the text {value!r}, which a template takes for true",
        )
