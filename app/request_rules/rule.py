"""Request rules: one declaration and one generator function each.

    @request_rule(Declaration(id="request-seed-range", ...))
    def seed_range(request: GenerationRequest, served: Served) -> Iterator[Finding]:
        if ...:
            yield seed_range.finding(request, "seed", "...")

A rule speaks only where the vLLM version at hand refuses the request, dies of it, or answers
without what was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.request_rules.request import GenerationRequest
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Example
from app.rules.registry import finding_of
from app.verdict.finding import Finding
from app.verdict.location import Location

Check: TypeAlias = Callable[[GenerationRequest, Served], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class RequestExample(Example):
    """A body sent to `route` of a server started with `serve`; `text` is the body.

    So that long lists stay readable, `"<N ids>"` stands for the ids 0 to N-1, and
    `"<N biases>"` for an object that gives each of them a bias.
    """

    route: str = "/inference/v1/generate"
    serve: str = "vllm serve m"

    @property
    def body(self) -> bytes:
        """The body in full."""
        return _LONG.sub(_in_full, self.text).encode()


_LONG = re.compile(r'"<(\d+) (ids|biases)>"')


def _in_full(long: re.Match[str]) -> str:
    ids = range(int(long[1]))
    return json.dumps(list(ids) if long[2] == "ids" else dict.fromkeys(map(str, ids), 1))


@dataclass(frozen=True)
class RequestRule:
    """A declared rule of the request gate and its check."""

    declaration: Declaration
    check: Check

    def finding(
        self, request: GenerationRequest, name: str, message: str, **members: Any
    ) -> Finding:
        """Build a finding about the body's field `name`; `members` are those of `Finding`."""
        return finding_of(
            self.declaration,
            message,
            location=Location(source="body", pointer=request.pointer(name)),
            **members,
        )


def request_rule(declaration: Declaration) -> Callable[[Check], RequestRule]:
    """Make a check function a `RequestRule`."""
    return lambda check: RequestRule(declaration, check)
