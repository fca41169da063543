"""Where a finding points."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place in a proposal, a request or a response.

    Any subset may be known. `argv_index` counts the words after `vllm serve` from 0;
    `pointer` is an RFC 6901 pointer into the JSON that was sent; `line`/`column` are 1-based
    in the text of `source` (a file name, `command` or `config_yaml`), `end_column` exclusive;
    `variable` is an environment variable; `text` is what stands there.
    """

    source: str | None = None
    argv_index: int | None = None
    pointer: str | None = None
    variable: str | None = None
    line: int | None = None
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    text: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the members that are known."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.source or 'input'}:{self.line}:{self.column or 1}"
        if self.pointer is not None:
            return self.pointer or "(root)"
        if self.argv_index is not None:
            return f"argument {self.argv_index + 1}"
        if self.variable is not None:
            return f"environment variable {self.variable}"
        return self.source or ""
