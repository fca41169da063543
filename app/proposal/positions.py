"""Offsets in a text, as lines and columns."""

from __future__ import annotations

from bisect import bisect_right

from app.verdict.location import Location

_SHOWN = 120


class LineIndex:
    """Turns offsets into 1-based lines and columns, and back."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self._starts = [0]
        position = text.find("\n")
        while position >= 0:
            self._starts.append(position + 1)
            position = text.find("\n", position + 1)

    def line_column(self, offset: int) -> tuple[int, int]:
        """Give the 1-based line and column of an offset."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        """Give the offset of a 1-based line and column; a line past the end is the end."""
        if line > len(self._starts):
            return len(self.text)
        return min(self._starts[line - 1] + column - 1, len(self.text))

    def location(self, start: int, end: int, *, argv_index: int | None = None) -> Location:
        """Describe the text between two offsets."""
        line, column = self.line_column(start)
        end_line, end_column = self.line_column(end)
        return Location(
            source=self.source,
            argv_index=argv_index,
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            text=self.text[start : min(end, start + _SHOWN)],
        )

    def span(self, location: Location) -> tuple[int, int] | None:
        """Give the offsets of a location of this text; None if it has no line."""
        if location.line is None or location.end_line is None or location.source != self.source:
            return None
        start = self.offset(location.line, location.column or 1)
        return start, self.offset(location.end_line, location.end_column or 1)
