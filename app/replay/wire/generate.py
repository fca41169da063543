"""Bodies of `/inference/v1/generate`, of all versions, as far as the replay reads them.

Source: `entrypoints/scale_out/token_in_token_out/protocol.py`. Structs are partial: members
not named here are skipped by the decoder and never become objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.replay.wire.packed import FlagArray, FloatArray, FloatTable, IntArray, IntTable, MaskBody


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
    """One logprob. Up to 0.31 `token` is `token_id:N`, later there are `token_id` and `rank`."""

    logprob: float | None = None
    token_id: int | None = None
    token: str | None = None
    rank: int | None = None


class Entry(msgspec.Struct, gc=False):
    """The logprobs of one generated token."""

    logprob: float | None = None
    token_id: int | None = None
    token: str | None = None
    top_logprobs: list[Candidate] | None = None


class Logprobs(msgspec.Struct, gc=False):
    """The logprobs of a choice or of a chunk.

    Not vLLM's own: `on_mask`, one for each id of the mask in the mask's order, and `sampled`,
    one a token; or an array (`data`, `dtype`, `shape`) of either.
    """

    content: list[Entry] | None = None
    on_mask: FloatTable | None = None
    sampled: FloatArray | None = None
    data: str | None = None
    dtype: str | None = None
    shape: list[int] | None = None


class ChoiceBody(msgspec.Struct, gc=False):
    """A choice, or what a chunk adds to one; chunks are never packed.

    Not vLLM's own: `tokens` for `token_ids`; the members of a packed mask (see `MaskBody`) beside
    `sampling_mask`; logprobs without an object around them; and `loss_mask`, one a token, false
    or zero for a token that the engine did not sample.
    """

    index: int = 0
    token_ids: IntArray | None = None
    sampling_mask: list[list[int]] | MaskBody | str | None = None
    logprobs: Logprobs | list[float | list[float | None] | None] | str | None = None
    finish_reason: str | None = None
    text: str | None = None
    tokens: IntArray | None = None
    ids: IntArray | None = None
    counts: IntArray | None = None
    lengths: IntArray | None = None
    offsets: IntArray | None = None
    rows: IntTable | None = None
    sizes: IntArray | None = None
    sampled_logprobs: FloatArray | None = None
    loss_mask: FlagArray | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Metrics(msgspec.Struct, gc=False):
    """Engine metrics of a request; `speculative_decoding` is set when it speculated."""

    speculative_decoding: Any = None


class ResponseBody(ChoiceBody, gc=False):
    """A whole response, one chunk of a stream, or the one choice itself."""

    choices: list[ChoiceBody] | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    object: str | None = None
    error: Any = None
