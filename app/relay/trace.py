"""W3C Trace Context: the trace a request belongs to, with this hop as its latest parent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from app.entropy import random_hex

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"

# Level 1 section 3.2.2. A version we do not know is read by its first four fields.
_TRACEPARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED = b"01"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One hop of one trace: ids in lower-case hex, flags as two hex digits."""

    trace_id: bytes
    span_id: bytes
    flags: bytes

    @property
    def traceparent(self) -> bytes:
        """The field's value."""
        return b"00-%b-%b-%b" % (self.trace_id, self.span_id, self.flags)


def received_context(raw: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Read the context of a request; None if it has none, or one that is not valid."""
    values = [value for name, value in raw if name == TRACEPARENT]
    found = _TRACEPARENT.fullmatch(values[0].strip()) if len(values) == 1 else None
    if found is None or (found[1] == b"00" and found[5]):
        return None
    return TraceContext(found[2], found[3], found[4])


def next_hop(received: TraceContext | None) -> TraceContext:
    """Make this hop's context: the same trace with a new parent, or a new trace.

    A new trace is marked as sampled, which is what vLLM's own root spans are by default.
    """
    span_id = _random_id(8)
    if received is None:
        return TraceContext(_random_id(16), span_id, _SAMPLED)
    return TraceContext(received.trace_id, span_id, received.flags)


def _random_id(size: int) -> bytes:
    # All zeros is no id.
    while not (digits := random_hex(size)).strip("0"):
        pass
    return digits.encode()
