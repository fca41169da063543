from __future__ import annotations

from typing import Any

import pytest

from app.simulator.errors import InvalidRequest, NotSimulated
from app.simulator.settings import SimulatorSettings
from app.simulator.tokenizer import decode
from app.simulator.wire.chat import render
from app.simulator.wire.messages import Message
from tests.simulator.client import client_of

CHAT = "/v1/chat/completions"


def test_the_template_puts_roles_before_contents() -> None:
    prompt = render(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
    )

    assert decode(prompt) == "system: s\nuser: hi\nassistant:"


def test_text_parts_are_joined_by_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert decode(render([{"role": "user", "content": parts}])) == "user: a\nb\nassistant:"
    harmony = Message(author={"role": "user"}, content=parts)
    assert decode(render([harmony])) == "user: a\nb\nassistant:"


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty conversation"):
        render([])


def test_pictures_are_not_simulated() -> None:
    with pytest.raises(NotSimulated):
        render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


@pytest.mark.parametrize(
    ("members", "status", "text"),
    [
        ({"tools": []}, 400, "`tools` must not be an empty array."),
        ({"tool_choice": "auto"}, 400, "When using `tool_choice`, `tools` must be set."),
        ({"tools": [{"type": "function"}]}, 400, '"auto" tool choice requires'),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, 501, "does not call tools"),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, 200, ""),
        ({"top_logprobs": "x"}, 400, "`top_logprobs` must be an integer."),
        ({"prompt_logprobs": -3}, 400, "`prompt_logprobs` must be a positive value or -1."),
        ({"prompt_logprobs": 1, "stream": True}, 400, "are not available when `stream=True`."),
        ({"thinking_token_budget": 5}, 501, "does not support thinking_token_budget"),
    ],
)
@pytest.mark.asyncio
async def test_requests_beyond_the_simulation_or_wrong(
    members: dict[str, Any], status: int, text: str
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "top_k": 3, "max_tokens": 2, **members}
    async with client_of() as client:
        response = await client.post(CHAT, json=body)

    assert response.status_code == status, response.text
    if text:
        assert text in response.json()["error"]["message"]


@pytest.mark.asyncio
async def test_without_a_limit_the_answer_fills_the_context_or_the_servers_default() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "top_k": 3, "ignore_eos": True}
    default = SimulatorSettings(max_model_len=64, override_generation_config={"max_new_tokens": 5})
    lengths = []
    for settings in (SimulatorSettings(max_model_len=64), default):
        async with client_of(settings) as client:
            usage = (await client.post(CHAT, json=body)).json()["usage"]
        lengths.append((usage["total_tokens"], usage["completion_tokens"]))

    assert lengths[0][0] == 64
    assert lengths[1][1] == 5
