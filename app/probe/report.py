"""What a probe found, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from app.probe.plan import PlannedRequest, ProbeOptions
from app.relay.inline.outcome import first_rows
from app.replay.report import ReplayVerdict, Report
from app.verdict.finding import Severity

PROBE_SCHEMA = "vllm-admission.probe/1"
_OUTCOMES = ("exact", "mismatch", "undecidable")


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one request.

    Attributes:
        request: as planned.
        report: of the replay; None if there was nothing to replay.
        error: why not.
        seconds: until the last byte; None where it did not come.
        first_byte: until the first byte of the body.
    """

    request: PlannedRequest
    report: Report | None
    error: str | None = None
    seconds: float | None = None
    first_byte: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Who was asked.

    Attributes:
        url: base URL of the backend.
        version: that it tells of itself; None if it does not.
        model: first model that it lists.
        max_model_len: of that model.
    """

    url: str
    version: str | None
    model: str | None
    max_model_len: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """The answer of a probe.

    Attributes:
        target: who was asked.
        vllm_version: whose draw was repeated.
        options: what was sent.
        answers: one for each planned request, in the plan's order.
        seconds: how long it took altogether.
    """

    target: Target
    vllm_version: str
    options: ProbeOptions
    answers: Sequence[Answered]
    seconds: float

    @property
    def verdict(self) -> ReplayVerdict:
        """Inconsistent if a replay is; consistent if every request was answered and replays."""
        verdicts = {a.report.verdict if a.report is not None else None for a in self.answers}
        if ReplayVerdict.INCONSISTENT in verdicts:
            return ReplayVerdict.INCONSISTENT
        if verdicts == {ReplayVerdict.CONSISTENT}:
            return ReplayVerdict.CONSISTENT
        return ReplayVerdict.UNPROVEN

    def as_json(self) -> dict[str, Any]:
        """Render as the object that `POST /replay/probe` and `--format json` give."""
        replayed = [a.report for a in self.answers if a.report is not None]
        reasons: Counter[str] = Counter()
        for report in replayed:
            reasons.update(report.rows["undecidable_reasons"])
        return {
            "schema": PROBE_SCHEMA,
            "verdict": self.verdict.value,
            "vllm_version": self.vllm_version,
            "backend": {
                "url": self.target.url,
                "version": self.target.version,
                "model": self.target.model,
                "max_model_len": self.target.max_model_len,
            },
            "remarks": self.remarks(),
            "seed": self.options.seed,
            "requests": {
                "planned": len(self.answers),
                "replayed": len(replayed),
                "failed": len(self.answers) - len(replayed),
                "verdicts": dict(Counter(report.verdict.value for report in replayed)),
            },
            "rows": {
                "total": sum(report.rows["total"] for report in replayed),
                **{name: sum(report.rows[name] for report in replayed) for name in _OUTCOMES},
                "undecidable_reasons": dict(reasons),
            },
            "parameters": self._breakdown(),
            "findings": self._findings(),
            "failures": self._failures(),
            "latency": self._latency(),
        }

    def remarks(self) -> list[str]:
        """What the reader should know of how this was found out."""
        said = self.target.version
        if said is not None and said != self.vllm_version:
            return [
                f"the backend says it is {said}; its answers were replayed as {self.vllm_version}"
            ]
        return []

    def _breakdown(self) -> dict[str, dict[str, dict[str, int]]]:
        """Requests, failures and rows for each value of each parameter."""
        table: dict[str, dict[str, Counter[str]]] = {}
        for answer in self.answers:
            for name, value in answer.request.labels.items():
                cell = table.setdefault(name, {}).setdefault(
                    value, Counter(requests=0, failed=0, exact=0, mismatch=0, undecidable=0)
                )
                cell["requests"] += 1
                if answer.report is None:
                    cell["failed"] += 1
                    continue
                for outcome in _OUTCOMES:
                    cell[outcome] += answer.report.rows[outcome]
        return {
            name: {value: dict(cells[value]) for value in sorted(cells, key=_by_number)}
            for name, cells in table.items()
        }

    def _findings(self) -> list[dict[str, Any]]:
        """Each rule that something broke, with the first request that did."""
        first: dict[str, dict[str, Any]] = {}
        for answer in self.answers:
            for finding in answer.report.findings if answer.report is not None else ():
                if finding.severity is not Severity.ERROR:
                    continue
                entry = first.setdefault(
                    finding.rule,
                    {
                        "rule": finding.rule,
                        "message": finding.message,
                        "requests": set(),
                        "first": {
                            "index": answer.request.index,
                            "sampling_params": answer.request.body["sampling_params"],
                            "stream": answer.request.stream,
                            "rows": first_rows(finding),
                        },
                    },
                )
                entry["requests"].add(answer.request.index)
        return [{**entry, "requests": len(entry["requests"])} for entry in first.values()]

    def _failures(self) -> list[dict[str, Any]]:
        """Each error that requests ended with, how often, and where first."""
        found: dict[str, dict[str, Any]] = {}
        for answer in self.answers:
            if answer.error is None:
                continue
            entry = found.setdefault(
                answer.error,
                {"error": answer.error, "requests": 0, "first": answer.request.index},
            )
            entry["requests"] += 1
        return sorted(found.values(), key=lambda entry: -entry["requests"])

    def _latency(self) -> dict[str, Any]:
        """Seconds until the last byte, and until a stream's first."""
        tokens = sum(a.report.rows["total"] for a in self.answers if a.report is not None)
        return {
            "seconds": self.seconds,
            "tokens_per_second": tokens / self.seconds if self.seconds > 0 else None,
            "request": _spread(a.seconds for a in self.answers),
            "first_byte_of_stream": _spread(a.first_byte for a in self.answers if a.request.stream),
        }


def render_text(report: ProbeReport) -> str:
    """Render for people."""
    body = report.as_json()
    rows, requests, latency = body["rows"], body["requests"], body["latency"]
    about = f"vLLM {report.vllm_version} at {report.target.url}"
    if report.target.model is not None:
        about += f", model {report.target.model}"
    counts = (
        f"{requests['replayed']} of {requests['planned']} requests replayed: {rows['total']} rows, "
        f"{rows['exact']} exact, {rows['mismatch']} mismatched, {rows['undecidable']} undecidable"
    )
    lines = [f"{body['verdict']}: {about}"]
    lines += [f"  note: {remark}" for remark in body["remarks"]]
    lines.append(f"  {counts}")
    lines += [
        f"    undecidable: {count} {why}" for why, count in rows["undecidable_reasons"].items()
    ]
    for entry in body["failures"]:
        lines.append(f"  failed: {entry['requests']} requests, first #{entry['first']}")
        lines += [f"    {line}" for line in entry["error"].splitlines()]
    for entry in body["findings"]:
        first = entry["first"]
        lines.append(f"  error[{entry['rule']}] in {entry['requests']} requests")
        lines.append(f"    {entry['message']}")
        lines.append(f"    first in #{first['index']}, seed {first['sampling_params']['seed']}")
        for row in first["rows"]:
            lines.append("      " + ", ".join(f"{name} {value}" for name, value in row.items()))
    lines += _table(body["parameters"])
    if (spread := latency["request"]) is not None:
        lines.append(
            f"  a request took {spread['median']:.3f} s (median), {spread['p95']:.3f} s (p95), "
            f"{spread['max']:.3f} s (longest); {latency['seconds']:.1f} s altogether"
        )
    return "\n".join(lines) + "\n"


def _table(parameters: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[str]:
    """Show the parameters on which it depends whether requests fail or mismatch."""
    wanted = ("requests", "failed", *_OUTCOMES)
    telling = {
        f"{name}={value}": cell
        for name, cells in parameters.items()
        if len({bool(cell["failed"] or cell["mismatch"]) for cell in cells.values()}) > 1
        for value, cell in cells.items()
    }
    if not telling:
        return []
    width = max(map(len, telling))
    head = "  " + " " * width + "".join(f"{name:>13}" for name in wanted)
    return [
        head,
        *(
            f"  {label:<{width}}" + "".join(f"{cell[name]:>13}" for name in wanted)
            for label, cell in telling.items()
        ),
    ]


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return {
        "min": known[0],
        "median": median(known),
        "p95": known[min(len(known) - 1, int(0.95 * len(known)))],
        "max": known[-1],
    }


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text), ""
    except ValueError:
        return 0.0, text
