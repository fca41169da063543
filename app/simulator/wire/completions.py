"""`/v1/completions`. Source: `vllm/entrypoints/openai/completion/serving.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.simulator.engine import Engine, prompt_candidates
from app.simulator.errors import InvalidRequest
from app.simulator.sampler import Candidate
from app.simulator.sampling_params import SamplingParams
from app.simulator.tokenizer import decode, encode
from app.simulator.wire.answer import (
    Choice,
    check_model,
    check_room,
    event,
    fingerprint,
    now,
    prompt_logprobs,
    request_id,
    usage,
)
from app.simulator.wire.dialect import Dialect
from app.simulator.wire.json_response import json_response
from app.simulator.wire.logprobs import by_offset
from app.simulator.wire.openai import (
    UsageChoice,
    as_ids,
    check_simulated,
    final_usage,
    in_turn,
    sampling,
)
from app.simulator.wire.requests import COMPLETION, CompletionRequest, read
from app.simulator.wire.stream import EventStream, ending, unless_gone

Runs = list[tuple[list[int], SamplingParams]]
"""Token ids and sampling parameters of each prompt of a request."""


class CompletionsRoute:
    """The handler; one instance serves all requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._dialect = Dialect.of(engine.settings)

    async def __call__(self, request: Request) -> Response:
        """Answer one request, streamed or not."""
        body = await read(request, COMPLETION, self._dialect)
        check_model(body.model, self._settings, self._dialect)
        check_simulated(body, self._dialect)
        runs = self._runs(body)
        name = request_id(request, "cmpl", body.request_id)
        if body.stream:
            return EventStream(ending(self._stream(body, runs, name)))
        return json_response(await unless_gone(request, self._whole(body, runs, name)))

    def _runs(self, body: CompletionRequest) -> Runs:
        prompt = body.prompt
        prompts: list[Any] = list(prompt) if isinstance(prompt, list) else [prompt]
        if not prompts:
            raise InvalidRequest("You must pass at least one prompt")
        if isinstance(prompts[0], int):
            prompts = [prompts]
        runs: Runs = []
        for item in prompts:
            text = isinstance(item, str)
            ids = encode(item) if text else list(item)
            if not ids:
                raise InvalidRequest("The decoder prompt cannot be empty")
            check_room(ids, body.max_tokens, self._settings, self._dialect, text=text)
            only_echo = body.echo and body.max_tokens == 0
            params = sampling(
                body,
                self._settings,
                logprobs=body.logprobs,
                max_tokens=1 if only_echo else body.max_tokens,
                prompt_logprobs=(
                    body.logprobs
                    if body.prompt_logprobs is None and body.echo
                    else body.prompt_logprobs
                ),
            )
            runs.append((ids, params))
        return runs

    def _prompt_entries(
        self, prompt: Sequence[int], params: SamplingParams
    ) -> list[list[Candidate] | None] | None:
        if params.prompt_logprobs is None:
            return None
        return prompt_candidates(self._engine.model, prompt, params.prompt_logprobs)

    async def _whole(self, body: CompletionRequest, runs: Runs, name: str) -> dict[str, Any]:
        found: list[dict[int, Choice]] = [{} for _ in runs]
        async with aclosing(in_turn(self._engine, runs)) as steps:
            async for number, step in steps:
                found[number].setdefault(step.index, Choice(step.index)).add(step)
        choices: list[dict[str, Any]] = []
        generated = 0
        for (prompt, params), finished in zip(runs, found, strict=True):
            entries = self._prompt_entries(prompt, params)
            for index in sorted(finished):
                choice = finished[index]
                generated += len(choice.tokens)
                choices.append(self._choice(body, len(choices), choice, prompt, entries))
        return {
            "id": name,
            "object": "text_completion",
            "created": now(),
            "model": self._settings.model_name,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": fingerprint(self._settings),
            "usage": usage(sum(len(p) for p, _ in runs), generated, self._settings),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(
        self,
        body: CompletionRequest,
        index: int,
        choice: Choice,
        prompt: list[int],
        entries: list[list[Candidate] | None] | None,
    ) -> dict[str, Any]:
        text, tokens = choice.text, choice.tokens
        listed: list[list[Candidate] | None] = [*(choice.candidates or ())]
        if body.echo:
            only = body.max_tokens == 0
            shown = "" if body.return_token_ids else decode(prompt, skip_special=False)
            text = shown if only else shown + text
            tokens = prompt if only else [*prompt, *tokens]
            listed = [*(entries or ()), *(() if only else listed)]
        logprobs = None
        if body.logprobs is not None:
            logprobs = self._logprobs(body, tokens, listed)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.tokens if body.return_token_ids else None,
            "prompt_logprobs": None if entries is None else prompt_logprobs(entries, prompt),
            "prompt_token_ids": prompt if body.return_token_ids else None,
            "routed_experts": None,
        }

    def _logprobs(
        self,
        body: CompletionRequest,
        tokens: Sequence[int],
        listed: Sequence[Sequence[Candidate] | None],
        *,
        context: Sequence[int] = (),
        offset: int = 0,
    ) -> dict[str, Any]:
        return by_offset(
            tokens,
            listed,
            body.logprobs or 0,
            context=context,
            as_ids=as_ids(body, self._settings),
            offset=offset,
            return_all=bool(body.logprob_token_ids),
        )

    async def _stream(self, body: CompletionRequest, runs: Runs, name: str) -> AsyncGenerator[str]:
        telling = UsageChoice.of(body)
        start = {"id": name, "object": "text_completion", "created": now()}
        start["model"] = self._settings.model_name
        stamp = {"system_fingerprint": fingerprint(self._settings)}
        history: dict[int, list[int]] = {}
        offsets: dict[int, int] = {}
        async with aclosing(in_turn(self._engine, runs)) as steps:
            async for number, step in steps:
                index = number * body.n + step.index
                prompt, params = runs[number]
                seen = history.setdefault(index, [])
                choice = Choice.of(step)
                text, tokens = choice.text, choice.tokens
                listed: list[list[Candidate] | None] = [*(choice.candidates or ())]
                prompt_ids = None
                if body.echo and not seen:
                    only = body.max_tokens == 0
                    shown = "" if body.return_token_ids else decode(prompt, skip_special=False)
                    text = shown if only else shown + text
                    tokens = prompt if only else [*prompt, *tokens]
                    entries = self._prompt_entries(prompt, params) or []
                    listed = [*entries, *(() if only else listed)]
                    prompt_ids = prompt
                elif body.return_token_ids and not seen:
                    prompt_ids = prompt
                logprobs = None
                if body.logprobs is not None:
                    logprobs = self._logprobs(
                        body, tokens, listed, context=seen, offset=offsets.get(index, 0)
                    )
                    offsets[index] = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
                seen.append(step.token)
                rendered = {
                    "index": index,
                    "text": text,
                    "logprobs": logprobs,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    "prompt_token_ids": prompt_ids,
                    "token_ids": choice.tokens if body.return_token_ids else None,
                }
                chunk = {**start, "choices": [rendered]}
                if telling.in_chunks:
                    chunk["usage"] = final_usage(len(prompt), len(seen), self._settings)
                ended = choice.finish_reason is not None
                yield event({**chunk, **(stamp if ended and not telling.at_end else {})})
        if telling.at_end:
            prompt_count = sum(len(prompt) for prompt, _ in runs)
            count = final_usage(
                prompt_count, sum(len(seen) for seen in history.values()), self._settings
            )
            yield event({**start, "choices": [], "usage": count, **stamp})
