"""What several formats need: safe text, source lines, a place in words."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from app.verdict.finding import Finding
from app.verdict.location import Location


def printable(text: str) -> str:
    """Make control and direction-changing characters visible, so that none acts on a terminal.

    Line breaks become spaces.
    """
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\r\t":
        return " "
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}:
        return character.encode("unicode_escape").decode("ascii")
    return character


def source_line(sources: Mapping[str, str], location: Location) -> str | None:
    """Give the line that a location begins in, if its text is at hand."""
    text = sources.get(location.source or "")
    if text is None or location.line is None:
        return None
    lines = text.split("\n")
    if not 1 <= location.line <= len(lines):
        return None
    return lines[location.line - 1].rstrip("\r")


def where(location: Location) -> str:
    """Say a place in words, with the word that stands there if only its number is known."""
    if location.line is None and location.argv_index is not None and location.text:
        return f"argument {location.argv_index + 1}: {printable(location.text)}"
    return printable(str(location))


def sentence(finding: Finding) -> str:
    """Give the message on one line."""
    return printable(finding.message)
