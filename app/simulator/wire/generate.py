"""`/inference/v1/generate`: token ids in, token ids, masks and log-probabilities out.

Source: `vllm/entrypoints/scale_out/token_in_token_out/serving.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.simulator.engine import Engine, prompt_candidates
from app.simulator.errors import InvalidRequest, Refusal
from app.simulator.sampling_params import CUMULATIVE
from app.simulator.wire.answer import (
    Choice,
    check_model,
    event,
    gather,
    now,
    prompt_logprobs,
    request_id,
    usage,
    without_nulls,
)
from app.simulator.wire.dialect import Dialect
from app.simulator.wire.json_response import json_response
from app.simulator.wire.logprobs import by_id, by_text
from app.simulator.wire.requests import (
    GENERATE,
    GENERATE_DERENDER,
    GENERATE_MODE,
    GenerateRequest,
    read,
)
from app.simulator.wire.stream import EventStream, ending, unless_gone


class GenerateRoute:
    """The handler; one instance serves all requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._dialect = Dialect.of(engine.settings)
        self._adapter = GENERATE_MODE if self._dialect.flat_generate else GENERATE
        if self._dialect.derenders:
            self._adapter = GENERATE_DERENDER

    async def __call__(self, request: Request) -> Response:
        """Answer one request, streamed or not."""
        settings = self._settings
        if not settings.generate_enabled:
            # Older versions do not have the route then; the server does not add it.
            raise _disabled()
        body = await read(request, self._adapter, self._dialect)
        check_model(body.model, settings, self._dialect)
        name = request_id(request, "generate-tokens", body.request_id)
        self._check(body)
        if body.stream:
            return EventStream(ending(self._stream(body, name)))
        return json_response(await unless_gone(request, self._whole(body, name)))

    def _check(self, body: GenerateRequest) -> None:
        params = body.sampling_params
        most = self._settings.max_num_seqs
        if params.n > most:
            raise InvalidRequest(
                "sampling_params.n must be at most the server's max_num_seqs "
                f"({most}), got {params.n}."
            )
        if self._settings.tokens_only and params.stop and self._settings.since("0.31"):
            raise InvalidRequest(
                "stop strings are not supported on a --tokens-only server because "
                "detokenization is disabled. Check stop strings on the coordinator, or use "
                "stop_token_ids."
            )

    async def _whole(self, body: GenerateRequest, name: str) -> dict[str, Any]:
        params = body.sampling_params
        engine = self._engine
        if self._settings.tokens_only:
            params = replace(params, detokenize=False)
        async with aclosing(engine.generate(body.token_ids, params)) as steps:
            choices = await gather(steps)
        if not self._settings.semantics.keeps_all_choices and params.output_kind == CUMULATIVE:
            # 0.28 answers with its last output, which holds the choice that ended last.
            choices = [max(choices, key=lambda choice: (len(choice.tokens), choice.index))]
        listed = None
        if params.prompt_logprobs is not None:
            entries = prompt_candidates(engine.model, body.token_ids, params.prompt_logprobs)
            listed = prompt_logprobs(entries, body.token_ids)
        prompt_ids = body.token_ids if body.return_token_ids else None
        generated = sum(len(choice.tokens) for choice in choices)
        counts = usage(len(body.token_ids), generated, self._settings)
        rendered = [self._choice(body, choice, whole=True) for choice in choices]
        start = {"request_id": name, "model": self._settings.model_name, "created": now()}
        scores = {"prompt_token_id_logprobs": None} if self._dialect.scores_prompt_ids else {}
        metrics = {"metrics": None} if self._dialect.scores_prompt_ids else {}
        prompts = (
            {"prompt_token_ids": prompt_ids, "mm_placeholders": None}
            if self._dialect.returns_prompt_ids
            else {}
        )
        transfer = {"kv_transfer_params": None, "ec_transfer_params": None}
        if self._dialect.flat_generate:
            return {
                **start,
                "usage": counts,
                "prompt_logprobs": listed,
                **scores,
                **prompts,
                **metrics,
                **transfer,
                "output_mode": _mode(body),
                "choices": rendered,
            }
        return {
            **start,
            "choices": rendered,
            "usage": counts,
            "prompt_logprobs": listed,
            **scores,
            **prompts,
            **metrics,
            **transfer,
        }

    async def _stream(self, body: GenerateRequest, name: str) -> AsyncGenerator[str]:
        options = body.stream_options
        include_usage = options is not None and bool(options.include_usage)
        continuous = include_usage and bool(options and options.continuous_usage_stats)
        prompt = len(body.token_ids)
        counts = [0] * body.sampling_params.n
        history: list[list[int]] = [[] for _ in counts]
        prompt_ids = body.token_ids if body.return_token_ids else None
        if not self._dialect.returns_prompt_ids:
            prompt_ids = None
        async with aclosing(self._engine.generate(body.token_ids, body.sampling_params)) as steps:
            async for step in steps:
                index = step.index
                counts[index] += 1
                count = usage(prompt, counts[index]) if continuous else None
                choice = Choice.of(step)
                rendered = self._choice(
                    body, choice, whole=False, context=history[index], length=counts[index]
                )
                history[index].append(step.token)
                yield event(self._chunk(body, name, [rendered], count, prompt_ids))
                prompt_ids = None
        if include_usage:
            total = without_nulls(usage(prompt, sum(counts)))
            yield event(self._chunk(body, name, [], total, None))

    def _chunk(
        self,
        body: GenerateRequest,
        name: str,
        choices: list[dict[str, Any]],
        count: dict[str, Any] | None,
        prompt_ids: list[int] | None,
    ) -> dict[str, Any]:
        prompts = {} if prompt_ids is None else {"prompt_token_ids": prompt_ids}
        if self._dialect.flat_generate:
            mode = {"output_mode": _mode(body)}
            return {"request_id": name, "usage": count, **prompts, **mode, "choices": choices}
        return {"request_id": name, "choices": choices, "usage": count, **prompts}

    def _choice(
        self,
        body: GenerateRequest,
        choice: Choice,
        *,
        whole: bool,
        context: list[int] | None = None,
        length: int | None = None,
    ) -> dict[str, Any]:
        """Render a finished choice, or one chunk of it."""
        params = body.sampling_params
        text_mode = _mode(body) == "text"
        logprobs = None
        if params.logprobs is not None and choice.candidates is not None:
            if text_mode:
                logprobs = by_text(
                    choice.tokens,
                    choice.candidates,
                    params.logprobs if params.logprobs == -1 else max(params.logprobs, 1),
                    context=context or (),
                    as_ids=self._settings.return_tokens_as_token_ids,
                    null_bytes=True,
                    clamp_nan=True,
                )
            else:
                logprobs = by_id(choice.candidates, params.logprobs, self._settings)
        masks = choice.masks
        if not whole and not self._settings.semantics.masks_in_streams:
            masks = None
        finish = choice.finish_reason
        if not self._dialect.flat_generate:
            return {
                "index": choice.index,
                "logprobs": logprobs,
                "finish_reason": finish,
                "token_ids": choice.tokens,
                "routed_experts": None,
                "sampling_mask": masks,
            }
        end = len(choice.tokens) if length is None else length
        spans = [{"version": "default", "start": 0, "end": end}] if finish else None
        return {
            "index": choice.index,
            "finish_reason": finish,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.tokens,
            "routed_experts": None,
            "sampling_mask": masks,
            "weight_versions": spans,
            **({"text": choice.text} if text_mode else {}),
            "logprobs": logprobs,
        }


def _mode(body: GenerateRequest) -> str:
    return str(getattr(body, "output_mode", "tokens"))


class ScaleOutDisabled(Refusal):
    """The route needs `--enable-scale-out`."""

    status = 403
    kind = "PermissionDeniedError"


def _disabled() -> ScaleOutDisabled:
    return ScaleOutDisabled(
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to "
        "enable them."
    )
