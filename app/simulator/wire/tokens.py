"""`/tokenize` and `/detokenize`. Source: `vllm/entrypoints/serve/tokenize/serving.py`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.simulator.settings import SimulatorSettings
from app.simulator.tokenizer import decode, encode, symbol
from app.simulator.wire.answer import check_model
from app.simulator.wire.chat import render
from app.simulator.wire.dialect import Dialect
from app.simulator.wire.json_response import json_response
from app.simulator.wire.requests import DETOKENIZE, TOKENIZE, TokenizeChatRequest, read


class TokenizeRoute:
    """The handler of `/tokenize`."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings
        self._dialect = Dialect.of(settings)

    async def __call__(self, request: Request) -> Response:
        """Give the token ids of a text or of a conversation."""
        body = await read(request, TOKENIZE, self._dialect)
        check_model(body.model, self._settings, self._dialect)
        if isinstance(body, TokenizeChatRequest):
            ids = render(body.messages)
        else:
            ids = encode(body.prompt)
        return json_response(
            {
                "count": len(ids),
                "max_model_len": self._settings.max_model_len,
                "tokens": ids,
                "token_strs": [symbol(token) for token in ids] if body.return_token_strs else None,
            }
        )


class DetokenizeRoute:
    """The handler of `/detokenize`."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings
        self._dialect = Dialect.of(settings)

    async def __call__(self, request: Request) -> Response:
        """Give the text of token ids, special tokens included."""
        body = await read(request, DETOKENIZE, self._dialect)
        check_model(body.model, self._settings, self._dialect)
        return json_response({"prompt": decode(body.tokens, skip_special=False)})
