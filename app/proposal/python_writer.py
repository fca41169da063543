"""Writing environment variables into Python source, where `os.environ[…] = …` sets them."""

from __future__ import annotations

import json

from app.proposal.changes import Change
from app.proposal.positions import LineIndex
from app.proposal.proposal import Proposal


class PythonWriter:
    """Writes into the text of a script. A variable that it does not set is given beside it."""

    def __init__(self, index: LineIndex) -> None:
        """Keep the text."""
        self._index = index

    def words(self, proposal: Proposal, change: Change) -> str | None:  # noqa: ARG002 - a protocol
        """Give nothing: engine arguments are no words."""
        return None

    def set_variable(self, proposal: Proposal, name: str, value: str) -> str | None:
        """Write the value of a variable that the script sets."""
        span = self._span(proposal, name)
        if span is None:
            return None
        start, end = span
        target, equals, _ = self._index.text[start:end].partition("=")
        if not equals:
            return None
        new = f"{target.rstrip()} = {json.dumps(value)}"
        return self._index.text[:start] + new + self._index.text[end:]

    def unset_variable(self, proposal: Proposal, name: str) -> str | None:
        """Take the statement that sets a variable out."""
        span = self._span(proposal, name)
        if span is None:
            return None
        text = self._index.text
        start = text.rfind("\n", 0, span[0]) + 1
        end = text.find("\n", span[1])
        alone = not text[start : span[0]].strip() and not text[span[1] : end].strip()
        return text[:start] + text[end + 1 :] if alone and end >= 0 else None

    def _span(self, proposal: Proposal, name: str) -> tuple[int, int] | None:
        variable = proposal.environment.get(name)
        return None if variable is None else self._index.span(variable.location)
