"""Request rules: one declaration and one generator function each.

    @request_rule(Declaration(id="request-seed-range", ...))
    def seed_range(request: GenerationRequest, served: Served) -> Iterator[Finding]:
        if ...:
            yield seed_range.finding(request, "seed", "...")

A rule speaks only where the vLLM version at hand refuses the request, dies of it, or answers
without what was asked for.
"""

from __future__ import annotations

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
    """A body sent to `route` of a server started with `serve`; `text` is the body."""

    route: str = "/inference/v1/generate"
    serve: str = "vllm serve m"


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
