"""Running the request rules over one body, and the 400 that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.request_rules.declarations import RULES
from app.request_rules.examination import Examination
from app.request_rules.request import GenerationRequest, Route, read_request
from app.request_rules.rule import RequestRule
from app.request_rules.seeding import lacks_seed
from app.request_rules.served import Served
from app.verdict.finding import Finding, Severity

CrashHook = Callable[[str, Exception], None]


class RequestChecker:
    """The rules that the backend's version has, against what is known of the backend."""

    def __init__(
        self,
        served: Served,
        rules: Sequence[RequestRule] = RULES,
        on_crash: CrashHook | None = None,
        *,
        inject_seeds: bool = False,
    ) -> None:
        """Check requests for `served`; `on_crash` is told of rules that crash.

        With `inject_seeds`, examinations say which requests lack a seed.
        """
        self._served = served
        self._inject_seeds = inject_seeds
        self._rules = [r for r in rules if r.declaration.applies_to(served.version)]
        self._on_crash = on_crash

    def route_of(self, method: str, path: str) -> str | None:
        """Give the route if its requests are examined."""
        return path if method == "POST" and path in _EXAMINED else None

    def examine(self, route: str, body: bytes) -> Examination:
        """Judge one body. What is no request of that route passes; vLLM answers it itself."""
        request = read_request(Route(route), body)
        if request is None:
            return Examination()
        findings, crashed = self.findings(request)
        errors = [f for f in findings if f.severity is Severity.ERROR]
        return Examination(
            refusal=refusal(errors) if errors else None,
            warnings=[f"{f.rule}; {f.message}" for f in findings if f.severity is Severity.WARNING],
            findings=[(f.rule, f.severity.value) for f in findings],
            crashed=crashed,
            request_id=request.request_id,
            lacks_seed=self._inject_seeds and lacks_seed(request, self._served),
        )

    def findings(self, request: GenerationRequest) -> tuple[list[Finding], list[str]]:
        """Give the findings, and the ids of rules that crashed."""
        findings: list[Finding] = []
        crashed: list[str] = []
        for rule in self._rules:
            try:
                findings.extend(rule.check(request, self._served))
            except Exception as error:
                crashed.append(rule.declaration.id)
                if self._on_crash is not None:
                    self._on_crash(rule.declaration.id, error)
        return findings, crashed


_EXAMINED = frozenset(Route)


def refusal(errors: Sequence[Finding]) -> dict[str, Any]:
    """Say findings as vLLM says errors, the first as the message and all in `errors`.

    Source: `entrypoints/serve/exception_handling/error_response.py::create_error_response`.
    """
    first = _entry(errors[0])
    return {
        "error": {
            "message": f"{first['message']} [{first['rule']}]",
            "type": "BadRequestError",
            "param": first["param"],
            "code": 400,
            "rule": first["rule"],
            "errors": [_entry(error) for error in errors],
        }
    }


def _entry(finding: Finding) -> dict[str, Any]:
    pointer = finding.location.pointer if finding.location is not None else None
    return {
        "rule": finding.rule,
        "message": finding.message,
        "param": pointer.rsplit("/", 1)[-1] if pointer else None,
        "pointer": pointer,
    }
