"""One recorded exchange, and what replaying it came to, small enough to pass between processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.errors import AdmissionError
from app.relay.inline.facts import ReplayFacts
from app.replay.report import Report, replay
from app.verdict.finding import Finding, Severity

_SHOWN_ROWS = 3


def first_rows(finding: Finding) -> list[Any]:
    """Give the first rows that a finding shows; a finding about many rows at once shows none."""
    rows = finding.evidence.get("rows")
    return rows[:_SHOWN_ROWS] if isinstance(rows, list) else []


class Skipped(StrEnum):
    """Why an exchange was not replayed."""

    TOO_LARGE = "too-large"
    BUFFER_FULL = "buffer-full"
    QUEUE_FULL = "queue-full"
    NOT_IN_TIME = "not-in-time"
    INCOMPLETE = "incomplete"
    NO_VERSION = "no-version"
    OTHER_ROUTE = "other-route"
    MASKS_OFF = "masks-off"
    STREAM = "no-masks-in-streams"
    STATUS = "status"
    ERROR = "error-response"
    MEDIA_TYPE = "media-type"
    ENCODED = "encoded"
    UNKNOWN_VALUE = "unknown-value"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request as it went to the backend, and the whole response to it."""

    facts: ReplayFacts
    request: bytes
    response: bytes
    streamed: bool

    def case(self) -> bytes:
        """Give the replay case, as JSON.

        Raises:
            UnicodeDecodeError: the stream is not UTF-8.
        """
        response = self.response
        if self.streamed:
            response = json.dumps(response.decode("utf-8"), ensure_ascii=False).encode()
        known = {"vllm_version": self.facts.vllm_version, "options": self.facts.options_json()}
        head = json.dumps(known).encode().removesuffix(b"}")
        return b"".join((head, b', "request": ', self.request, b', "response": ', response, b"}"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one exchange.

    Attributes:
        verdict: consistent, inconsistent, unproven; unusable where the response cannot be
            replayed at all; failed where the replay crashed; skipped.
        rows: counts of rows; empty without a report.
        reason: why it was skipped or unusable, a slug; or what rows were undecidable for.
        detail: the same in words, for the log.
        findings: rule, message and first rows of each error.
    """

    verdict: str
    rows: Mapping[str, int]
    reason: str = ""
    detail: str = ""
    findings: tuple[Mapping[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The value of the metric's label."""
        return f"skipped:{self.reason}" if self.verdict == "skipped" else self.verdict

    @property
    def rules(self) -> list[str]:
        """The rules that refute the response."""
        return list(dict.fromkeys(str(finding["rule"]) for finding in self.findings))

    def __str__(self) -> str:
        """Say it in one line: `inconsistent; rows=20; exact=19; mismatch=1; rules="…"`."""
        parts = [self.verdict]
        if self.rows:
            parts += [f"rows={self.rows['total']}", f"exact={self.rows['exact']}"]
            parts += [f"{n}={self.rows[n]}" for n in ("mismatch", "undecidable") if self.rows[n]]
        if self.rules:
            parts.append(f'rules="{" ".join(self.rules)}"')
        if self.reason:
            parts.append(
                f'reason="{self.reason}"' if " " in self.reason else f"reason={self.reason}"
            )
        return "; ".join(parts)


def skipped(reason: Skipped) -> Outcome:
    """Make the outcome of an exchange that was not replayed."""
    return Outcome("skipped", {}, reason.value)


def replay_exchange(exchange: Exchange) -> Outcome:
    """Replay a recorded exchange; never raises for what is in it."""
    try:
        return _outcome(replay(exchange.case()))
    except AdmissionError as error:
        slug = error.problems[0].code if error.problems else error.slug
        if slug == Skipped.ERROR:
            return skipped(Skipped.ERROR)
        return Outcome("unusable", {}, slug, str(error))
    except UnicodeDecodeError as error:
        return Outcome("unusable", {}, "not-utf-8", f"byte {error.start}: {error.reason}")
    except Exception as error:  # a crash of ours must not look like a verdict
        return Outcome("failed", {}, "internal-error", f"{type(error).__name__}: {error}")


def _outcome(report: Report) -> Outcome:
    counted = ("total", "exact", "mismatch", "undecidable")
    return Outcome(
        report.verdict.value,
        {name: int(report.rows[name]) for name in counted},
        " ".join(sorted(report.rows["undecidable_reasons"])),
        findings=tuple(
            {
                "rule": finding.rule,
                "message": finding.message,
                "rows": first_rows(finding),
            }
            for finding in report.findings
            if finding.severity is Severity.ERROR
        ),
    )
