"""The backend of the benchmark: raw ASGI that answers at once, `python -m … PORT`.

A unary answer is 1 KB of JSON, a stream 200 events, each sent by itself with a turn of the event
loop in between.
"""

from __future__ import annotations

import asyncio
import json
import sys

from starlette.types import Receive, Scope, Send

from benchmarks.proxy.server import serve

EVENTS = 200
_TEXT = "x" * 640
BODY = json.dumps(
    {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": _TEXT},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 64, "total_tokens": 73},
        "padding": "y" * 64,
    }
).encode()
# Not the same text each time: LiteLLM breaks off a stream that repeats itself.
_EVENTS = [
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk",'
    b'"created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{"content":" t%03d"},'
    b'"finish_reason":null}]}\n\n' % number
    for number in range(EVENTS)
]
DONE = b"data: [DONE]\n\n"
MODELS = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()
_JSON = (b"content-type", b"application/json")
_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


async def backend(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request."""
    if scope["type"] != "http":
        return
    request = b""
    more = True
    while more:
        message = await receive()
        request += message.get("body", b"")
        more = message.get("more_body", False)
    if b'"stream": true' in request or b'"stream":true' in request:
        await send({"type": "http.response.start", "status": 200, "headers": [_STREAM]})
        for event in _EVENTS:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
        return
    body = BODY if request else MODELS
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [_JSON, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def main() -> None:
    """Serve on the port of the command line."""
    serve(backend, int(sys.argv[1]))


if __name__ == "__main__":
    main()
