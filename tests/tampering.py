"""A backend that is not honest: it changes one token of what another backend generates."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_GENERATE = "/inference/v1/generate"


class TokenSwapper:
    """Wraps a simulated backend; in its generations the first token that can be swapped is.

    The swapped token and its logprob are those of another member of the mask, so that only the
    repeated draw can tell.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != _GENERATE:
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def collect(message: Message) -> None:
            nonlocal body
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                changed = swap(body) if self.changes(body) else body
                fields = [f for f in start["headers"] if f[0] != b"content-length"]
                await send({**start, "headers": fields})
                await send({"type": "http.response.body", "body": changed})

        await self._app(scope, receive, collect)

    def changes(self, body: bytes) -> bool:
        """Whether to change this response."""
        return True


def swap(body: bytes) -> bytes:
    """Swap one token in a whole body, or in a stream's events."""
    if body.startswith(b"data:"):
        events = body.decode().split("\n\n")
        for place, event in enumerate(events):
            data = event.removeprefix("data: ")
            if data.startswith("{") and _swap_in(chunk := json.loads(data)):
                events[place] = "data: " + json.dumps(chunk)
                break
        return "\n\n".join(events).encode()
    whole = json.loads(body)
    _swap_in(whole)
    return json.dumps(whole).encode()


def _swap_in(response: dict[str, Any]) -> bool:
    for choice in response.get("choices", ()):
        for row, mask in enumerate(choice["sampling_mask"] or ()):
            entry = choice["logprobs"]["content"][row]
            for other in entry["top_logprobs"]:
                if other["token_id"] in mask and other["token_id"] != entry["token_id"]:
                    choice["token_ids"][row] = other["token_id"]
                    entry.update({name: other[name] for name in ("token_id", "logprob", "rank")})
                    return True
    return False
