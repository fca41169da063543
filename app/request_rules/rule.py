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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.request_rules.request import GenerationRequest
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Example
from app.rules.registry import finding_of
from app.verdict.finding import Finding
from app.verdict.location import Location

Check: TypeAlias = Callable[[GenerationRequest, Served], Iterator[Finding]]


UNKNOWN = ""
"""Stands among a rule's `fields` for a member that the route does not have."""


@dataclass(frozen=True, slots=True)
class Change:
    """One sampling parameter, or member of the body, to set; every other byte stays."""

    name: str
    value: int

    def __str__(self) -> str:
        """Say it as the repair field of the response does."""
        return f"{self.name}={self.value}"


Repair: TypeAlias = Callable[[GenerationRequest, Served], Change | None]
"""Gives what makes a request good; None where nothing does."""


Texts: TypeAlias = Callable[[GenerationRequest, Served], Sequence[str]]
"""Gives texts whose tokens must be counted before a check can be sure; see `counting`."""


@dataclass(frozen=True, slots=True)
class RequestExample(Example):
    """A body sent to `route` of a server started with `serve`; `text` is the body.

    So that long lists stay readable, `"<N ids>"` stands for the ids 0 to N-1, `"<N biases>"` for
    an object that gives each of them a bias, and `"<N levels>"` for lists within lists.
    """

    route: str = "/inference/v1/generate"
    serve: str = "vllm serve m"

    @property
    def body(self) -> bytes:
        """The body in full."""
        return _LONG.sub(_in_full, self.text).encode()


_LONG = re.compile(r'"<(\d+) (ids|biases|levels)>"')


def _in_full(long: re.Match[str]) -> str:
    if long[2] == "levels":
        return "[" * int(long[1]) + "]" * int(long[1])
    ids = range(int(long[1]))
    return json.dumps(list(ids) if long[2] == "ids" else dict.fromkeys(map(str, ids), 1))


@dataclass(frozen=True)
class RequestRule:
    """A declared rule of the request gate, its check, and what may be done about findings.

    Attributes:
        fields: members without any of which the rule has nothing to say; none means always.
        repair: what makes a request good, if anything can.
        can_repair: whether `repair` may be chosen as the action.
        on: whether it speaks unless a setting names it.
        status, error_type: of the answer where it rejects, as vLLM gives them.
        texts: what must be counted before the check is sure.
    """

    declaration: Declaration
    check: Check
    fields: frozenset[str] = frozenset()
    repair: Repair | None = None
    can_repair: bool = False
    on: bool = True
    status: int = 400
    error_type: str = "BadRequestError"
    texts: Texts | None = None

    def finding(
        self, request: GenerationRequest, name: str, message: str, **members: Any
    ) -> Finding:
        """Build a finding about the body's field `name`; `members` are those of `Finding`."""
        members.setdefault("location", Location(source="body", pointer=request.pointer(name)))
        return finding_of(self.declaration, message, **members)


def request_rule(
    declaration: Declaration,
    *,
    fields: Iterable[str] = (),
    repair: Repair | None = None,
    can_repair: bool = False,
    on: bool = True,
    status: int = 400,
    error_type: str = "BadRequestError",
    texts: Texts | None = None,
) -> Callable[[Check], RequestRule]:
    """Make a check function a `RequestRule`; `can_repair` without `repair` is for seeds."""
    return lambda check: RequestRule(
        declaration,
        check,
        fields=frozenset(fields),
        repair=repair,
        can_repair=can_repair or repair is not None,
        on=on,
        status=status,
        error_type=error_type,
        texts=texts,
    )
