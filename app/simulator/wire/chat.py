"""`/v1/chat/completions`. Source: `vllm/entrypoints/openai/chat_completion/serving.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.simulator.engine import Engine, prompt_candidates
from app.simulator.errors import InvalidRequest, NotSimulated
from app.simulator.sampling_params import SamplingParams
from app.simulator.tokenizer import encode
from app.simulator.wire.answer import (
    Choice,
    check_model,
    check_room,
    event,
    fingerprint,
    gather,
    now,
    prompt_logprobs,
    request_id,
    usage,
)
from app.simulator.wire.dialect import Dialect
from app.simulator.wire.json_response import json_response
from app.simulator.wire.logprobs import by_text
from app.simulator.wire.messages import ChatMessage
from app.simulator.wire.openai import UsageChoice, as_ids, check_simulated, final_usage, sampling
from app.simulator.wire.requests import CHAT, ChatCompletionRequest, read
from app.simulator.wire.stream import EventStream, ending, unless_gone


def render(messages: Sequence[ChatMessage]) -> list[int]:
    """Apply the toy model's chat template, which is that of the lab's model.

    Raises:
        InvalidRequest: there are no messages.
        NotSimulated: content other than text.
    """
    if not messages:
        raise InvalidRequest(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    lines = []
    for message in messages:
        role, content = _parts(message)
        lines.append(f"{role}: {content}\n")
    return encode("".join(lines) + "assistant:")


def _parts(message: ChatMessage) -> tuple[str, str]:
    content: str | list[dict[str, Any]]
    if isinstance(message, dict):
        role, content = message["role"], message.get("content") or ""
    else:
        role, content = str(message.author.get("role", "user")), message.content
    if isinstance(content, str):
        return role, content
    texts = []
    for part in content:
        if part.get("type", "text") not in ("text", "input_text", "output_text", "refusal"):
            raise NotSimulated("The simulated backend reads text only.")
        texts.append(str(part.get("text", part.get("refusal", ""))))
    return role, "\n".join(texts)


class ChatRoute:
    """The handler; one instance serves all requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._dialect = Dialect.of(engine.settings)

    async def __call__(self, request: Request) -> Response:
        """Answer one request, streamed or not."""
        body = await read(request, CHAT, self._dialect)
        check_model(body.model, self._settings, self._dialect)
        check_simulated(body, self._dialect)
        _check_tools(body)
        prompt = render(body.messages)
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        limit = getattr(body, name)
        check_room(prompt, limit, self._settings, self._dialect, text=True, name=name)
        params = sampling(
            body,
            self._settings,
            logprobs=body.top_logprobs if body.logprobs else None,
            max_tokens=self._default_limit(prompt) if limit is None else limit,
        )
        identity = request_id(request, "chatcmpl", body.request_id)
        if body.stream:
            return EventStream(ending(self._stream(body, prompt, params, identity)))
        answer = self._whole(body, prompt, params, identity)
        return json_response(await unless_gone(request, answer))

    def _default_limit(self, prompt: Sequence[int]) -> int:
        room = self._settings.max_model_len - len(prompt)
        own = self._settings.sampling_defaults.get("max_new_tokens")
        return max(room if own is None else min(room, own), 1)

    async def _whole(
        self, body: ChatCompletionRequest, prompt: list[int], params: SamplingParams, name: str
    ) -> dict[str, Any]:
        async with aclosing(self._engine.generate(prompt, params)) as steps:
            choices = await gather(steps)
        listed = None
        if params.prompt_logprobs is not None:
            entries = prompt_candidates(self._engine.model, prompt, params.prompt_logprobs)
            listed = prompt_logprobs(entries, prompt)
        generated = sum(len(choice.tokens) for choice in choices)
        return {
            "id": name,
            "object": "chat.completion",
            "created": now(),
            "model": self._settings.model_name,
            "choices": [self._choice(body, choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": fingerprint(self._settings),
            "usage": usage(len(prompt), generated, self._settings),
            "prompt_logprobs": listed,
            "prompt_token_ids": prompt if body.return_token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, body: ChatCompletionRequest, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": self._logprobs(body, choice, ()),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.tokens if body.return_token_ids else None,
            "routed_experts": None,
        }

    def _logprobs(
        self, body: ChatCompletionRequest, choice: Choice, context: Sequence[int]
    ) -> dict[str, Any] | None:
        if not body.logprobs or choice.candidates is None:
            return None
        return by_text(
            choice.tokens,
            choice.candidates,
            body.top_logprobs or 0,
            context=context,
            as_ids=as_ids(body, self._settings),
            return_all=bool(body.logprob_token_ids),
        )

    async def _stream(
        self, body: ChatCompletionRequest, prompt: list[int], params: SamplingParams, name: str
    ) -> AsyncGenerator[str]:
        telling = UsageChoice.of(body)
        start = {"id": name, "object": "chat.completion.chunk", "created": now()}
        start["model"] = self._settings.model_name
        stamp = {"system_fingerprint": fingerprint(self._settings)}
        history: list[list[int]] = [[] for _ in range(params.n)]

        def counted(generated: int) -> dict[str, Any]:
            if not telling.in_chunks:
                return {}
            count = final_usage(len(prompt), generated, self._settings)
            return {"usage": {**count, "completion_tokens_details": None}}

        first = True
        async with aclosing(self._engine.generate(prompt, params)) as steps:
            async for step in steps:
                if first:
                    for index in range(params.n):
                        role = {
                            "index": index,
                            "delta": {"role": "assistant", "content": ""},
                            "logprobs": None,
                            "finish_reason": None,
                        }
                        ids = prompt if body.return_token_ids else None
                        known = {"prompt_token_ids": ids, "prompt_text": None}
                        yield event({**start, "choices": [role], **counted(0), **known})
                    first = False
                choice = Choice.of(step)
                seen = history[step.index]
                ended = step.finish_reason is not None
                rendered = {
                    "index": step.index,
                    "delta": {"content": step.text},
                    "logprobs": self._logprobs(body, choice, seen),
                    "finish_reason": step.finish_reason,
                    **({"stop_reason": step.stop_reason} if ended else {}),
                    "token_ids": choice.tokens if body.return_token_ids else None,
                }
                seen.append(step.token)
                last = stamp if ended and not telling.at_end else {}
                yield event({**start, "choices": [rendered], **counted(len(seen)), **last})
        if telling.at_end:
            total = sum(len(seen) for seen in history)
            count = final_usage(len(prompt), total, self._settings)
            yield event({**start, "choices": [], "usage": count, **stamp})


def _check_tools(body: ChatCompletionRequest) -> None:
    if body.tools == []:
        raise InvalidRequest(
            "`tools` must not be an empty array. "
            "Either provide at least one tool or omit the field entirely.",
            "tools",
        )
    choice = body.tool_choice
    if choice in (None, "none"):
        return
    if not body.tools:
        raise InvalidRequest("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice == "auto":
        raise InvalidRequest(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    raise NotSimulated("The simulated backend does not call tools.")
