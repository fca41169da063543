"""What a namespace asks of the webhook."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What findings lead to: a note in the audit log, a warning to the client, a refusal."""

    AUDIT = "audit"
    WARN = "warn"
    ENFORCE = "enforce"
