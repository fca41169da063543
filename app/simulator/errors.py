"""How the simulated engine refuses, and what vLLM makes of it on the wire.

    Refusal                the request is refused, with vLLM's own status and text
    ├── InvalidRequest     400 BadRequestError; names the parameter where vLLM does
    ├── ModelNotFound      404 NotFoundError
    └── EngineRefusal      500 InternalServerError with an empty message: a bare ValueError
                           raised inside `AsyncLLM.generate`
    EngineDead             500; the request ended the engine, as it ends vLLM's

Source: `vllm/entrypoints/serve/exception_handling/error_response.py`,
`vllm/v1/engine/async_llm.py::AsyncLLM.generate`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Refusal(Exception):
    """A request that vLLM refuses; `message` is what the client is told."""

    status: ClassVar[int] = 400
    kind: ClassVar[str] = "BadRequestError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """Give vLLM's error object; its `code` is the HTTP status."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


_ABSENT = object()


class InvalidRequest(Refusal):
    """A request error; vLLM appends the parameter and its value to the text."""

    def __init__(self, message: str, param: str | None = None, value: Any = _ABSENT) -> None:
        if param is not None:
            extra = f"parameter={param}" + ("" if value is _ABSENT else f", value={value}")
            message = f"{message} ({extra})"
        super().__init__(message, param)


class MalformedBody(Refusal):
    """A body that cannot be read as the route's request."""

    kind = "Bad Request"


class ModelNotFound(Refusal):
    """No model of that name is served."""

    status = 404
    kind = "NotFoundError"


class NotSimulated(Refusal):
    """Real vLLM takes this request; the simulation does not, and says so."""

    status = 501
    kind = "NotImplementedError"


class EngineRefusal(Refusal):
    """Refused inside the engine by a bare ValueError, so vLLM's answer has no text."""

    status = 500
    kind = "InternalServerError"

    def __init__(self, reason: str) -> None:
        super().__init__("")
        self.reason = reason


class EngineDead(Refusal):
    """The engine has ended; every later request gets the same answer."""

    status = 500
    kind = "InternalServerError"
