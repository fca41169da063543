"""Writing a word so that a POSIX shell reads it back as the same word."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection
from typing import Final

_DOUBLE_QUOTED: Final = re.compile(r'([\\"`])')


def quote(text: str, unresolved: Collection[str] = ()) -> str:
    """Quote a word; one with unresolved variables keeps them open to expansion."""
    if not unresolved:
        return shlex.quote(text)
    if any(not name.isidentifier() for name in unresolved):
        return f'"{text}"'  # `$(…)` has quotes of its own; it stands as it was written
    if not _needs_quotes(text):
        return text
    escaped = _DOUBLE_QUOTED.sub(r"\\\1", text)
    return f'"{escaped}"'


def _needs_quotes(text: str) -> bool:
    return re.search(r"[^\w@%+=:,./${}-]", text) is not None


def encoder_at(text: str, start: int, at: int) -> Callable[[str], str]:
    """Give how a piece of text is written at an offset of a word that begins at `start`."""
    before = text[start:at]
    if before.endswith("$'"):
        return lambda new: new.replace("\\", "\\\\").replace("'", "\\'")
    if before.endswith("'"):
        return lambda new: new.replace("'", "'\\''")
    if before.endswith('"'):
        return lambda new: re.sub(r'([\\"`$])', r"\\\1", new)
    return lambda new: re.sub(r"([^\w@%+=:,./-])", r"\\\1", new)
