"""The OpenAI routes, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from app.simulator.server import create_simulator
from app.simulator.settings import SimulatorSettings
from tests.simulator.serving import serving

SAMPLING: dict[str, Any] = {"seed": 7, "max_tokens": 8, "extra_body": {"top_k": 5}}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        serving(create_simulator()) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def _messages(text: str = "hello") -> list[Any]:
    return [{"role": "user", "content": text}]


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_completion_streams_the_same_text(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="hello", **SAMPLING)

    chunks = list(client.completions.create(model="tiny", prompt="hello", stream=True, **SAMPLING))

    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text != ""
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_a_chat_streams_the_same_text_and_usage(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=_messages(), **SAMPLING)

    *chunks, last = client.chat.completions.create(
        model="tiny",
        messages=_messages(),
        stream=True,
        stream_options={"include_usage": True},
        **SAMPLING,
    )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""
    assert chunks[0].choices[0].delta.role == "assistant"
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_chat_logprobs_add_up_to_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=_messages(),
        logprobs=True,
        top_logprobs=3,
        **{**SAMPLING, "extra_body": {"top_k": 5, "allowed_token_ids": [71, 72, 73]}},
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == answer.choices[0].message.content
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)


def test_echo_gives_the_prompt_back_with_its_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="hello", echo=True, logprobs=1, **SAMPLING
    )

    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith("hello")
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.tokens[:5] == list("hello")
    assert logprobs.token_logprobs[0] is None


def test_errors_arrive_as_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
        client.completions.create(model="other", prompt="x", **SAMPLING)
    with pytest.raises(openai.BadRequestError, match=r"temperature must be in \[0, 2\]"):
        client.completions.create(model="tiny", prompt="x", temperature=3, **SAMPLING)
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="tiny", prompt="x", temperature=0, **SAMPLING)


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["a"]}},
        {"use_beam_search": True},
    ],
)
def test_what_is_not_simulated_is_said_to_be_so(
    client: openai.OpenAI, extra: dict[str, Any]
) -> None:
    with pytest.raises(openai.InternalServerError, match="does not support") as failure:
        client.completions.create(
            model="tiny", prompt="x", seed=1, extra_body={"top_k": 5, **extra}
        )

    assert failure.value.status_code == 501


def test_server_side_sampling_defaults_hold_where_the_request_is_silent() -> None:
    settings = SimulatorSettings(override_generation_config={"top_k": 5, "temperature": 0.5})
    with (
        serving(create_simulator(settings)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        implicit = client.completions.create(model="tiny", prompt="x", seed=7)
        explicit = client.completions.create(
            model="tiny", prompt="x", seed=7, temperature=0.5, extra_body={"top_k": 5}
        )

    assert implicit.choices[0].text == explicit.choices[0].text
