"""What the configuration and replay gates count. Labels are bounded: rules, verdicts, versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.catalogue import CatalogueLibrary
from app.certificates.serving import ServingCertificate
from app.replay.report import Report
from app.verdict.verdict import Verdict

_log = structlog.get_logger("vllm_admission.rules")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


class GateMetrics:
    """The instruments of the gates that answer themselves."""

    def __init__(self, registry: CollectorRegistry, library: CatalogueLibrary) -> None:
        """Register them; a registry takes one set only."""
        self._verdicts = Counter(
            "vllm_admission_verdicts",
            "Verdicts on proposals, one for each version judged.",
            ["vllm_version", "verdict"],
            registry=registry,
        )
        self._findings = Counter(
            "vllm_admission_findings",
            "Findings about proposals.",
            ["rule", "severity"],
            registry=registry,
        )
        self._crashes = Counter(
            "vllm_admission_rule_crashes",
            "Rules that crashed; the verdict was made without them.",
            ["rule"],
            registry=registry,
        )
        self._replays = Counter(
            "vllm_admission_replay_verdicts",
            "Reports on responses.",
            ["vllm_version", "verdict"],
            registry=registry,
        )
        self._rows = Counter(
            "vllm_admission_replay_rows",
            "Replayed rows (generated tokens) by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._not_after = Gauge(
            "vllm_admission_certificate_not_after_timestamp_seconds",
            "When the certificate in service ends, in Unix time.",
            ["port"],
            multiprocess_mode="min",
            registry=registry,
        )
        self._reviews = Counter(
            "vllm_admission_reviews",
            "Kubernetes admission reviews, by what was asked and answered.",
            ["operation", "decision"],
            registry=registry,
        )
        self._review_duration = Histogram(
            "vllm_admission_review_duration_seconds",
            "Time to the answer of an admission review, the body already read.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.duration = Histogram(
            "vllm_admission_duration_seconds",
            "Time to a verdict or report, the body already read.",
            ["gate"],
            buckets=_SECONDS,
            registry=registry,
        )
        known = Gauge(
            "vllm_admission_catalogue_info",
            "Versions that can be judged.",
            ["vllm_version"],
            multiprocess_mode="max",
            registry=registry,
        )
        for version in library.versions:
            known.labels(version).set(1)

    def judged(self, verdicts: Iterable[Verdict]) -> None:
        """Count verdicts and their findings."""
        for verdict in verdicts:
            self._verdicts.labels(verdict.vllm_version, verdict.outcome.value).inc()
            for finding in verdict.findings:
                self._findings.labels(finding.rule, finding.severity.value).inc()

    def replayed(self, report: Report) -> None:
        """Count a report and its rows."""
        self.counted(report.vllm_version, report.verdict.value, report.rows)

    def counted(self, vllm_version: str, verdict: str, rows: Mapping[str, Any]) -> None:
        """Count a report, given as what is counted of it."""
        self._replays.labels(vllm_version, verdict).inc()
        for outcome in ("exact", "mismatch", "undecidable"):
            self._rows.labels(outcome).inc(rows[outcome])

    def certified(self, certificate: ServingCertificate) -> None:
        """Show when the certificate of the port with TLS ends."""
        ends = self._not_after.labels(port="tls")
        ends.set_function(lambda: certificate.not_after.timestamp())

    def reviewed(self, operation: str, decision: str, seconds: float) -> None:
        """Count an admission review.

        Args:
            operation: as the API server says it; what is none of its four counts as `OTHER`.
            decision: of a fixed list, such as `allowed`, `patched`, `denied`.
            seconds: it took.
        """
        known = operation if operation in _OPERATIONS else "OTHER"
        self._reviews.labels(known, decision).inc()
        self._review_duration.observe(seconds)

    def crashed(self, rule: str, error: Exception) -> None:
        """Count and log a rule that crashed."""
        self._crashes.labels(rule).inc()
        _log.error("rule crashed", rule=rule, exc_info=error)
