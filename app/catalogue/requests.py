"""What a vLLM version takes in requests, as its catalogue has it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec


class RequestFields(msgspec.Struct, frozen=True, dict=True):
    """The fields of a request body (or of `SamplingParams`), and defaults other than null."""

    model: str
    fields: tuple[str, ...]
    defaults: dict[str, Any] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """The fields, to look names up in."""
        return frozenset(self.fields)


class RequestFacts(msgspec.Struct, frozen=True):
    """What requests may hold; empty in catalogues of forks that were extracted before 0.3.

    Attributes:
        routes: the fields of each generating route that the version has.
        sampling_params: the fields of `sampling_params` on `/inference/v1/generate`.
        limits: sizes of the engine's tables, by the name of the constant.
        checks: what `SamplingParams.verify` calls, in order.
        output_is_reserved: whether the tokens asked for are kept free of the prompt
            (`TokenizeParams.max_input_tokens`); else `max_tokens` is cut to what is left.
    """

    routes: dict[str, RequestFields] = {}
    sampling_params: RequestFields | None = None
    limits: dict[str, int] = {}
    checks: tuple[str, ...] = ()
    output_is_reserved: bool | None = None
