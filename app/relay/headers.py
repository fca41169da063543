"""Which header fields pass through a relay, and which belong to one connection only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from starlette.types import Scope

from app.entropy import random_hex
from app.errors import UnusableInput

RawHeaders = list[tuple[bytes, bytes]]

VIA = (b"via", b"1.1 vllm-admission")
WARNING_FIELD = b"x-vllm-admission-warning"
SEED_FIELD = b"x-vllm-admission-seed"
REPAIR_FIELD = b"x-vllm-admission-repair"
REPLAY_FIELD = b"x-vllm-admission-replay"

# RFC 9110 section 7.6.1, and the fields about one hop that it does not list.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The backend gets its own Host; this server has already answered an Expect; the request id
# is set anew; the wish for a replay is to us.
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"expect", b"x-request-id", REPLAY_FIELD}

_SAFE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")


def forwarded_request_headers(raw: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Give the fields of a request that go to the backend, in order, repeats kept.

    `traceparent` and `tracestate` pass unchanged: the relay is no span of its own.
    """
    return [*_end_to_end(raw, _NOT_FORWARDED), VIA]


def forwarded_response_headers(raw: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Give the fields of a response that go to the client, in order, repeats kept.

    Content-Encoding and Content-Length stay: the body is passed on as raw bytes.
    """
    return [*_end_to_end(raw, _HOP_BY_HOP), VIA]


def with_own_location(fields: RawHeaders, backend: bytes, own: bytes) -> RawHeaders:
    """Let a redirect within the backend lead through the relay, as its Host field would say.

    Args:
        fields: of the response.
        backend: the base URL that requests are sent to, without a slash at its end.
        own: scheme and authority by which the client calls the relay.
    """
    return [
        (name, own + (value[len(backend) :] or b"/"))
        if name == b"location" and _is_below(backend, value)
        else (name, value)
        for name, value in fields
    ]


def _is_below(backend: bytes, url: bytes) -> bool:
    """Whether a URL is of this server; one with another port begins the same."""
    return url.startswith(backend) and url[len(backend) : len(backend) + 1] in (b"", b"/", b"?")


def _end_to_end(
    raw: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]
) -> Iterable[tuple[bytes, bytes]]:
    fields = [(name.lower(), value) for name, value in raw]
    named = {
        token.strip().lower()
        for name, value in fields
        if name == b"connection"
        for token in value.split(b",")
    }
    if named:
        dropped = dropped | named
    return [field for field in fields if field[0] not in dropped]


def header(raw: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Give the first value of a lower-case field name, as vLLM's framework reads it."""
    return next((value for key, value in raw if key == name), None)


def first_values(raw: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Give the first value of each lower-case field name, for whoever asks for several."""
    return dict(reversed(raw))


def safe_request_id(candidate: str | bytes | None) -> str | None:
    """Give the id if it may stand in logs and headers, else None."""
    if candidate is None:
        return None
    raw = candidate if isinstance(candidate, bytes) else candidate.encode("utf-8", "replace")
    return raw.decode("ascii") if _SAFE_REQUEST_ID.fullmatch(raw) else None


def request_id_of(candidate: str | bytes | None) -> str:
    """Give the id if it is safe, else a new one of the form that vLLM mints."""
    return safe_request_id(candidate) or random_hex(16)


def target_of(scope: Scope) -> bytes:
    """Give the request target as it was received: path and query, byte for byte.

    Raises:
        UnusableInput: it is no path (`OPTIONS *` asks about us, and is for no route).
    """
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    if not raw_path.startswith(b"/"):
        raise UnusableInput("the request target must be a path that begins with /")
    query: bytes = scope["query_string"]
    return raw_path + b"?" + query if query else raw_path
