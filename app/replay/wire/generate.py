"""Bodies of `/inference/v1/generate`, of all versions, as far as the replay reads them.

Source: `entrypoints/scale_out/token_in_token_out/protocol.py`. Structs are partial: members
not named here are skipped by the decoder and never become objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.replay.wire.packed import FloatArray, IntArray, MaskBody


class RequestBody(msgspec.Struct, gc=False):
    """A request, bare or as `{"endpoint", "body"}`; `messages`, `prompt` are of other routes."""

    token_ids: list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    content_parts: list[Any] | None = None
    stream: bool | None = None
    messages: Any = None
    prompt: Any = None
    endpoint: str | None = None
    body: RequestBody | None = None


class Candidate(msgspec.Struct, gc=False):
    """One logprob. Up to 0.31 `token` is `token_id:N`, from 0.32 on there is `token_id`.

    Ranks (from 0.32) are left out: they repeat the order of the list.
    """

    logprob: float | None = None
    token_id: int | None = None
    token: str | None = None


class Entry(msgspec.Struct, gc=False):
    """The logprobs of one generated token."""

    logprob: float | None = None
    token_id: int | None = None
    token: str | None = None
    top_logprobs: list[Candidate] | None = None


class Logprobs(msgspec.Struct, gc=False):
    """The logprobs of a choice or of a chunk.

    Not vLLM's own: `on_mask`, one for each id of the mask, flat in the mask's order, and
    `sampled`, one a token.
    """

    content: list[Entry] | None = None
    on_mask: FloatArray | None = None
    sampled: FloatArray | None = None


class ChoiceBody(msgspec.Struct, gc=False):
    """A choice, or what a chunk adds to one; chunks are never packed."""

    index: int = 0
    token_ids: IntArray | None = None
    sampling_mask: list[list[int]] | MaskBody | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    text: str | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Metrics(msgspec.Struct, gc=False):
    """Engine metrics of a request; `speculative_decoding` is set when it speculated."""

    speculative_decoding: Any = None


class ResponseBody(msgspec.Struct, gc=False):
    """A whole response, or one chunk of a stream."""

    choices: list[ChoiceBody] | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    object: str | None = None
    error: Any = None
