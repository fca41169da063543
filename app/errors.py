"""Errors that reach a user, and how each is rendered.

    AdmissionError
    ├── UnusableInput          400  the input cannot be read at all
    │   ├── MalformedDocument       broken JSON, YAML, shell text, encoding
    │   └── InvalidEnvelope         readable, but not what the endpoint takes
    ├── UnknownVersion         422  no catalogue for that vLLM version
    ├── PayloadTooLarge        413
    ├── UnsupportedMedia       415
    ├── CatalogueError         500  a catalogue file is unreadable (start-up, CLI)
    └── NotReady               503  the gate cannot work yet, and says why

Our own endpoints answer RFC 9457 problem+json; proxied endpoints answer vLLM's own error
JSON (`vllm/entrypoints/serve/exception_handling/error_response.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an input, and where.

    `pointer` is an RFC 6901 JSON pointer into the request body; `line` and `column` are
    1-based, for text input. `code` is a stable slug.
    """

    code: str
    detail: str
    pointer: str | None = None
    line: int | None = None
    column: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the members that are known."""
        members = {
            "code": self.code,
            "detail": self.detail,
            "pointer": self.pointer,
            "line": self.line,
            "column": self.column,
        }
        return {name: value for name, value in members.items() if value is not None}

    def __str__(self) -> str:
        if self.line is not None:
            return f"line {self.line}, column {self.column or 1}: {self.detail}"
        if self.pointer is not None:
            return f"{self.pointer or '(root)'}: {self.detail}"
        return self.detail


@dataclass(eq=False)
class AdmissionError(Exception):
    """Base of all errors whose text is meant for the user."""

    detail: str
    problems: tuple[Problem, ...] = field(default=())

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "Internal error"
    vllm_type: ClassVar[str] = "InternalServerError"

    def __str__(self) -> str:
        return "\n".join([self.detail, *(f"  {problem}" for problem in self.problems)])

    def problem_json(self, instance: str | None = None) -> dict[str, Any]:
        """Render as an RFC 9457 problem object; `instance` is the request id."""
        body: dict[str, Any] = {
            "type": f"urn:vllm-admission:problem:{self.slug}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if instance is not None:
            body["instance"] = f"urn:request:{instance}"
        if self.problems:
            body["errors"] = [problem.as_json() for problem in self.problems]
        return body

    def vllm_json(self) -> dict[str, Any]:
        """Render as vLLM does on its own routes: `code` is the status as an integer."""
        param = next((p.pointer for p in self.problems if p.pointer), None)
        return {
            "error": {
                "message": str(self),
                "type": self.vllm_type,
                "param": param,
                "code": self.status,
                "vllm_admission": self.slug,
            }
        }


class UnusableInput(AdmissionError):
    """The input cannot be read, so there is no verdict."""

    status = 400
    slug = "unusable-input"
    title = "Unusable input"
    vllm_type = "BadRequestError"


class MalformedDocument(UnusableInput):
    """Broken JSON, YAML, shell text or character encoding."""

    slug = "malformed-document"
    title = "Malformed document"


class InvalidEnvelope(UnusableInput):
    """Well-formed, but not what the endpoint takes."""

    slug = "invalid-envelope"
    title = "Invalid request"


class UnknownVersion(AdmissionError):
    """There is no catalogue for the vLLM version asked for."""

    status = 422
    slug = "unknown-vllm-version"
    title = "Unknown vLLM version"


class PayloadTooLarge(AdmissionError):
    """The body is over the configured limit."""

    status = 413
    slug = "payload-too-large"
    title = "Payload too large"
    vllm_type = "PayloadTooLargeError"


class UnsupportedMedia(AdmissionError):
    """The Content-Type is none that the endpoint reads."""

    status = 415
    slug = "unsupported-media-type"
    title = "Unsupported media type"


class CatalogueError(AdmissionError):
    """A catalogue file cannot be read or is not a catalogue."""

    slug = "catalogue-error"
    title = "Unreadable catalogue"


class NotReady(AdmissionError):
    """A gate cannot work yet; the detail says why and what to do."""

    status = 503
    slug = "not-ready"
    title = "Not ready"
    vllm_type = "ServiceUnavailableError"
