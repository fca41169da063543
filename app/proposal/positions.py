"""Offsets in a text, as lines and columns."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

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

    def whole(self, text: str) -> str:
        """Give the outermost text for an edited `text` of this one: here the same."""
        return text


class NestedText(LineIndex):
    """A text that is written inside another one: a script in quotes, a scalar of a YAML file.

    Its places are those in the outermost text. `offsets` say where in the text around it each
    character is written, and last where the text ends. `encode` writes a piece of it as it must
    stand there.
    """

    def __init__(
        self,
        around: LineIndex,
        text: str,
        offsets: Sequence[int],
        encode: Callable[[str], str],
    ) -> None:
        super().__init__(text, around.source)
        self.around = around
        self._offsets = offsets
        self._encode = encode

    def line_column(self, offset: int) -> tuple[int, int]:
        """Give the 1-based line and column in the outermost text."""
        return self.around.line_column(self._offsets[offset])

    def location(self, start: int, end: int, *, argv_index: int | None = None) -> Location:
        """Describe the text between two offsets, as it is written in the outermost text."""
        return self.around.location(self._offsets[start], self._offsets[end], argv_index=argv_index)

    def span(self, location: Location) -> tuple[int, int] | None:
        """Give the offsets of a location; None if it is not within this text."""
        outer = self.around.span(location)
        if outer is None or outer[0] < self._offsets[0] or outer[1] > self._offsets[-1]:
            return None
        return bisect_left(self._offsets, outer[0]), bisect_left(self._offsets, outer[1])

    def whole(self, text: str) -> str:
        """Give the outermost text for an edited `text`: only what changed is written anew."""
        old = self.text
        start = 0
        while start < min(len(old), len(text)) and old[start] == text[start]:
            start += 1
        kept = 0
        while kept < min(len(old), len(text)) - start and old[-1 - kept] == text[-1 - kept]:
            kept += 1
        longer = max(old, text, key=len)
        one_sided = start + kept == min(len(old), len(text))
        if one_sided and start and longer[start - 1] == "\n" == longer[len(longer) - kept - 1]:
            # Whole lines: with the line end before them, as they have their indentation behind it.
            start, kept = start - 1, kept + 1
        begin, end = self._offsets[start], self._offsets[len(old) - kept]
        around = self.around.text
        changed = self._encode(text[start : len(text) - kept])
        return self.around.whole(around[:begin] + changed + around[end:])
