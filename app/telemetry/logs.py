"""Logs: JSON lines on standard error, one for each event, never with a prompt or an answer."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer

from app.errors import UnusableInput


def configure_logging(level: str) -> None:
    """Log JSON lines of `level` and above to standard error.

    Raises:
        UnusableInput: there is no such level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise UnusableInput(f"log level {level!r} is none of debug, info, warning, error")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without local variables: they hold request bodies and environments.
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # One write for a whole line: lines of several workers must not mix.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


def _json(event: Any, **_: Any) -> str:
    """Write one event; much faster than the standard library, and a request is an event."""
    try:
        return msgspec.json.encode(event, enc_hook=repr).decode()
    except UnicodeEncodeError:  # half a character, as in a file name that is not UTF-8
        return json.dumps(event, default=repr)
