"""The OpenAPI document: `python -m app.api.document [FILE]` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import replay_schemas, schemas
from app.api.problems import ProblemDetails

_MODELS: Final[tuple[type[BaseModel], ...]] = (
    schemas.ProposalEnvelope,
    replay_schemas.ReplayCase,
    replay_schemas.ReplayBatchLine,
    ProblemDetails,
)


class Service(FastAPI):
    """FastAPI whose document also has the models of bodies that we read by hand.

    `front`, if it is set, is asked first; it passes on to `answer` what it does not take.
    """

    front: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        # FastAPI's layers are for our own pages; a relayed request would pay for each of them.
        await (self.front or self.answer)(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection for one of our own pages, or the lifespan."""
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Give the document; made once."""
        if self.openapi_schema is None:
            specification = super().openapi()
            components = specification.setdefault("components", {}).setdefault("schemas", {})
            for model in _MODELS:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                components.update(schema.pop("$defs", {}))
                components[model.__name__] = schema
        assert self.openapi_schema is not None  # noqa: S101 - super().openapi() has set it
        return self.openapi_schema


def render(app: FastAPI) -> str:
    """Render the document as it is kept in `openapi/`."""
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the document to the file named, or to standard output."""
    from app.main import create_app
    from app.settings import Settings

    text = render(create_app(Settings.model_construct()))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
