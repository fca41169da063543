"""What the checker does around the rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.catalogue import CatalogueLibrary
from app.request_rules.checker import RequestChecker
from app.request_rules.examination import Examination
from app.request_rules.logprobs import range_
from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import RequestRule, request_rule
from app.request_rules.served import Served, unknown_server
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

SERVED = unknown_server(CatalogueLibrary().get("0.32.0"))


def _rule(name: str, severity: Severity, *, versions: str = "", crash: bool = False) -> RequestRule:
    @request_rule(
        Declaration(
            id=name,
            title="t",
            explanation="e",
            remedy="r",
            severity=severity,
            area="a",
            source="s::f",
            gate=Gate.REQUEST,
            versions=versions,
        )
    )
    def check(request: GenerationRequest, served: Served) -> Iterator[Finding]:
        if crash:
            raise KeyError("oops")
        yield check.finding(request, "top_k", f"{name} says")

    return check


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1/completions", "/v1/completions"),
        ("POST", "/inference/v1/generate", "/inference/v1/generate"),
        ("GET", "/v1/completions", None),
        ("POST", "/v1/models", None),
        ("POST", "/v1/completions/", None),
        ("POST", "/v1/completions\n", "/v1/completions"),  # as Starlette's `$` matches
        ("POST", "/v1/completions\n\n", None),
        ("POST", "/v1/completions\r", None),
    ],
)
def test_only_generating_requests_are_examined(method: str, path: str, route: str | None) -> None:
    assert RequestChecker(SERVED).route_of(method, path) == route


def test_a_body_that_is_no_request_passes() -> None:
    assert RequestChecker(SERVED).examine("/v1/completions", b"{") == Examination()


def test_the_first_error_speaks_and_all_are_listed() -> None:
    rules = [
        _rule("w", Severity.WARNING),
        _rule("one", Severity.ERROR),
        _rule("two", Severity.ERROR),
    ]
    result = RequestChecker(SERVED, rules).examine("/v1/completions", b'{"request_id": "r"}')
    assert result.refusal is not None
    error = result.refusal["error"]
    assert error["message"] == "one says [one]"
    assert [entry["rule"] for entry in error["errors"]] == ["one", "two"]
    assert result.warnings == ["w; w says"]
    assert result.findings == [("w", "warning"), ("one", "error"), ("two", "error")]
    assert result.request_id == "r"


def test_rules_of_other_versions_are_silent() -> None:
    checker = RequestChecker(SERVED, [_rule("old", Severity.ERROR, versions="<0.30")])
    assert checker.examine("/v1/completions", b"{}").refusal is None


def test_a_rule_that_crashes_refuses_nothing_and_is_reported() -> None:
    told: list[str] = []
    rules = [_rule("broken", Severity.ERROR, crash=True), range_]
    checker = RequestChecker(SERVED, rules, on_crash=lambda rule, error: told.append(rule))
    result = checker.examine("/v1/completions", b"{}")
    assert result.refusal is None
    assert (list(result.crashed), told) == (["broken"], ["broken"])
    assert RequestChecker(SERVED, rules).examine(Route.CHAT, b"{}").crashed == ["broken"]
