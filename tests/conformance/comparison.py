"""Asking one server directly and another through the gate, and what may differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.contract.cases import Case
from tests.relay.harness import Answer, client_of

# The connection's own, the gate's own, and the clock.
_OWN = frozenset({"connection", "keep-alive", "date", "server", "via", "x-request-id"})
_GATE_PREFIX = "x-vllm-admission-"
_CHANGING = re.compile(
    rb'(?<="created":)\s?\d+|modelperm-[0-9a-f]+|(?<="server_load":)\d+'
    rb'|(?<=chatcmpl-tool-)[0-9a-f]+|(?<="id":"call_)[0-9a-f]+'
)


@dataclass(frozen=True, slots=True)
class Both:
    """The answers to one request."""

    case: Case
    direct: Answer
    gated: Answer

    @property
    def bodiless(self) -> bool:
        """Whether answers have no body by the method alone."""
        return self.case.method == "HEAD"

    @property
    def refused(self) -> bool:
        """Whether it was the gate that refused: its errors name a rule."""
        return self.gated.status >= 400 and b'"rule": "' in self.gated.body

    @property
    def fails(self) -> bool:
        """Whether the backend refused by itself: with a status, or in a stream's only event."""
        return self.direct.status >= 400 or self.direct.body.startswith(b'data: {"error":')

    def differences(self) -> list[str]:
        """Say what a client can tell; nothing if nothing."""
        return [f"{self.case.name}: {d}" for d in differences_of(self.direct, self.gated)]


def differences_of(direct: Answer, gated: Answer) -> list[str]:
    """Say what a client can tell of two answers to one request; nothing if nothing."""
    found = []
    if direct.status != gated.status:
        found.append(f"status {gated.status}, not {direct.status}: {gated.body[:200]!r}")
    if _fields(direct) != _fields(gated):
        found.append(f"fields {_fields(gated)}, not {_fields(direct)}")
    if not (direct.complete and gated.complete):
        found.append("an answer was cut short")
    plain, relayed = (_CHANGING.sub(b"", answer.body) for answer in (direct, gated))
    if plain != relayed:
        at = next(
            (i for i, (a, b) in enumerate(zip(plain, relayed, strict=False)) if a != b),
            min(len(plain), len(relayed)),
        )
        found.append(
            f"body at {at}: …{relayed[at - 20 : at + 80]!r}, not {plain[at - 20 : at + 80]!r}"
        )
    return found


async def ask(url: str, case: Case, *fields: str) -> Answer:
    """Send a case over a connection of its own."""
    port = urlsplit(url).port
    assert port is not None
    async with client_of(port) as client:
        own = [f"{name}: {value}" for name, value in case.all_headers().items()]
        await client.send(case.method, case.path, *own, *fields, body=case.content())
        head = await client.head()
        return await client.rest(head, bodiless=case.method == "HEAD" or head.status in {204, 304})


async def ask_both(direct: str, gated: str, case: Case) -> Both:
    """Send a case both ways under the same request id."""
    field = f"x-request-id: {re.sub('[^a-z0-9]+', '-', case.name.lower())}"
    return Both(case, await ask(direct, case, field), await ask(gated, case, field))


def _fields(answer: Answer) -> Sequence[tuple[str, str]]:
    return sorted(
        (name, value)
        for name, value in answer.fields
        if name not in _OWN and not name.startswith(_GATE_PREFIX)
    )
