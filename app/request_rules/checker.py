"""Running the request rules over one body, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from app.request_rules.counting import NOTHING_COUNTED, Counts, TokenCounter, Tokens
from app.request_rules.declarations import RULES
from app.request_rules.editing import apply
from app.request_rules.examination import Examination
from app.request_rules.policy import Action, Policy
from app.request_rules.request import INVOCATIONS, GenerationRequest, Route, read_request
from app.request_rules.rule import UNKNOWN, Change, RequestRule
from app.request_rules.seeding import lacks_seed, missing_seed, seed_place
from app.request_rules.served import Served
from app.verdict.finding import Finding


class Apart(Protocol):
    """Judges bodies where nobody else waits: another process with the same rules."""

    async def judge(self, route: str, body: bytes, counts: Counts) -> Examination | None:
        """See `RequestChecker.judge`; None if that process is not to be had."""


CrashHook = Callable[[str, Exception], None]
_Found: TypeAlias = list[tuple[RequestRule, Finding]]
_EXAMINED: Final = frozenset({*Route, INVOCATIONS})
_LONGEST_WARNING: Final = 512
# It is sent with every text that is to be counted.
_LONGEST_MODEL: Final = 256
_HEAVY_BYTES: Final = 16 * 2**20
_HEAVY_VALUES: Final = 50_000
_HEAVY_ESCAPES: Final = 500_000


def is_heavy(body: bytes) -> bool:
    """Whether judging a body may take ten milliseconds and more.

    It takes 50 to 400 ns for each value in it, which its commas count, 15 ns for each escape in
    its texts, and 0.7 ns for any byte of them; handing it over takes as much for each byte.
    """
    size = len(body)
    return size >= _HEAVY_BYTES or (
        size >= 2 * _HEAVY_VALUES
        and (body.count(b",") > _HEAVY_VALUES or body.count(b"\\") > _HEAVY_ESCAPES)
    )


class RequestChecker:
    """The rules that the backend's version has, against what is known of the backend."""

    def __init__(
        self,
        served: Served,
        rules: Sequence[RequestRule] = RULES,
        on_crash: CrashHook | None = None,
        *,
        inject_seeds: bool = False,
        policy: Policy | None = None,
        apart: Apart | None = None,
        prefixes: Collection[str] = (),
    ) -> None:
        """Check requests for `served`; `on_crash` is told of rules that crash.

        With `inject_seeds`, or where the policy repairs missing seeds, examinations say which
        requests lack a seed. With `apart`, heavy bodies are judged there. `prefixes` are what
        backends' URLs put before a path, such as `/v1`: both are looked at, with and without.
        """
        self._apart = apart
        self._prefixes = tuple(prefix for prefix in prefixes if prefix)
        self._policy = policy or Policy()
        self._served = replace(served, limits=self._policy.limits)
        self._facts = served.catalogue.requests
        self._actions = {rule.declaration.id: self._policy.action(rule) for rule in rules}
        seeds = self._actions.get(missing_seed.declaration.id) is Action.REPAIR
        self._inject_seeds = inject_seeds or seeds
        self._rules = [
            rule
            for rule in rules
            if rule.declaration.applies_to(served.version)
            and self._actions[rule.declaration.id] is not Action.OFF
            and not (rule is missing_seed and self._inject_seeds)
        ]
        # Bits of the rules that a member wakes; most requests wake few.
        self._by_field: dict[str, int] = {}
        self._always = 0
        for place, rule in enumerate(self._rules):
            for name in rule.fields:
                self._by_field[name] = self._by_field.get(name, 0) | 1 << place
            self._always |= 0 if rule.fields else 1 << place
        self._asking = [rule for rule in self._rules if rule.texts is not None]
        self._on_crash = on_crash

    def route_of(self, method: str, path: str) -> str | None:
        """Give the route if its requests are examined."""
        if method != "POST":
            return None
        # vLLM's router matches up to `$`, before which one line end may stand: `…%0A` is the route.
        path = path.removesuffix("\n")
        if path in _EXAMINED:
            return path
        root = self._served.root_path
        for whole in (path, *(prefix + path for prefix in self._prefixes)):
            inner = whole.removeprefix(root) if root else whole
            if inner in _EXAMINED:
                return inner
        return None

    def examine(self, route: str, body: bytes) -> Examination:
        """Judge one body, for certain unless there is `settle` in what it gives.

        What is no request of that route passes; vLLM answers it itself.
        """
        if self._apart is not None and is_heavy(body):
            return Examination(settle=partial(self._settle, route, body, None))
        examination = self.judge(route, body)
        if not examination.asks:
            return examination
        return replace(examination, settle=partial(self._settle, route, body, examination))

    async def _settle(
        self, route: str, body: bytes, before: Examination | None, counter: TokenCounter
    ) -> Examination:
        """Judge a heavy body; have counted what an examination asks for, and judge again."""
        counts: dict[str, Tokens | None] = {}
        examination = before or await self._judged(route, body, counts)
        while examination.asks and None not in counts.values():
            counts |= dict.fromkeys(examination.asks)
            counts |= await counter.count(examination.asks, examination.model)
            examination = await self._judged(route, body, counts)
        return examination

    async def _judged(self, route: str, body: bytes, counts: Counts) -> Examination:
        if self._apart is None or not is_heavy(body):
            return self.judge(route, body, counts)
        examination = await self._apart.judge(route, body, counts)
        if examination is None:
            return self.judge(route, body, counts)
        for rule in examination.crashed:
            if self._on_crash is not None:
                self._on_crash(rule, RuntimeError("the log of that process says more"))
        return examination

    def judge(self, route: str, body: bytes, counts: Counts = NOTHING_COUNTED) -> Examination:
        """Judge one body by what was counted for it.

        Where that is not enough, `asks` says what is to be counted, and the verdict is what it
        is if that cannot be had.
        """
        request = read_request(route, body, self._facts, counts)
        if request is None or (request.by_invocation and self._served.generates is False):
            return Examination()
        found, crashed = self._run(request)
        changes = self._changes(request, found)
        repaired: bytes | None = None
        repairs: list[str] = []
        if changes:
            edited = apply(request.route, body, [change for _, change in changes])
            again = None if edited is None else read_request(route, edited, self._facts, counts)
            if edited is not None and again is not None:
                # What a repair leaves wrong, or makes wrong, is said of the repaired request.
                repaired = edited
                repairs = [f"{rule.declaration.id}; {change}" for rule, change in changes]
                found, more = self._run(again)
                request, crashed = again, sorted({*crashed, *more})
        mended = [] if repaired is None else [rule for rule, _ in changes]
        examination = self._outcome(request, found, crashed, repaired, repairs, mended)
        if not examination.lacks_seed or examination.refusal is not None:
            return examination
        place = seed_place(request.route, body if repaired is None else repaired)
        return replace(examination, seed_place=place)

    def _outcome(
        self,
        request: GenerationRequest,
        found: _Found,
        crashed: Sequence[str],
        repaired: bytes | None,
        repairs: Sequence[str],
        mended: Sequence[RequestRule],
    ) -> Examination:
        errors = [pair for pair in found if not self._is_told(*pair)]
        # What is refused anyway needs no counting.
        asks = () if any(rule.texts is None for rule, _ in errors) else self._asks(request)
        warned = [finding for rule, finding in found if self._is_told(rule, finding)]
        return Examination(
            refusal=refusal(errors) if errors else None,
            status=errors[0][0].status if errors else 400,
            warnings=[f"{f.rule}; {f.message}"[:_LONGEST_WARNING] for f in warned],
            findings=[
                *((f.rule, "warning" if self._is_told(r, f) else "error") for r, f in found),
                *((rule.declaration.id, "repaired") for rule in mended),
            ],
            crashed=list(crashed),
            request_id=request.request_id,
            lacks_seed=self._inject_seeds
            and not request.by_invocation
            and lacks_seed(request, self._served),
            body=None if errors else repaired,
            repairs=[] if errors else repairs,
            asks=asks,
            model=_model(request) if asks else None,
        )

    def _asks(self, request: GenerationRequest) -> Sequence[str]:
        """Give the texts that a rule must have counted."""
        for rule in self._asking:
            if not rule.fields.isdisjoint(request.parameters):
                assert rule.texts is not None  # noqa: S101 - `_asking` has no others
                if asks := rule.texts(request, self._served):
                    return asks
        return ()

    def _changes(
        self, request: GenerationRequest, found: _Found
    ) -> list[tuple[RequestRule, Change]]:
        changes: dict[str, tuple[RequestRule, Change]] = {}
        for rule, _ in found:
            if self._action(rule) is Action.REPAIR and rule.repair is not None:
                change = rule.repair(request, self._served)
                if change is not None:
                    changes[rule.declaration.id] = (rule, change)
        return list(changes.values())

    def _is_told(self, rule: RequestRule, finding: Finding) -> bool:
        """Whether the client is told and the request passes; doubt of a rule's is only told."""
        action = self._action(rule)
        doubted = finding.severity is not rule.declaration.severity
        return action is Action.WARN or (action is Action.REJECT and doubted)

    def _action(self, rule: RequestRule) -> Action:
        return self._actions[rule.declaration.id]

    def findings(self, request: GenerationRequest) -> tuple[list[Finding], list[str]]:
        """Give the findings, and the ids of rules that crashed."""
        found, crashed = self._run(request)
        return [finding for _, finding in found], crashed

    def _run(self, request: GenerationRequest) -> tuple[_Found, list[str]]:
        found: _Found = []
        crashed: list[str] = []
        wanted = self._always
        for name in request.parameters:
            wanted |= self._by_field.get(name, 0)
        if request.body is not request.parameters:
            for name in request.body:
                wanted |= self._by_field.get(name, 0)
        if request.unknown:
            wanted |= self._by_field.get(UNKNOWN, 0)
        for place, rule in enumerate(self._rules):
            if not wanted >> place & 1:
                continue
            try:
                for finding in rule.check(request, self._served):
                    found.append((rule, finding))
            except Exception as error:
                crashed.append(rule.declaration.id)
                if self._on_crash is not None:
                    self._on_crash(rule.declaration.id, error)
        return found, crashed


def refusal(errors: Sequence[tuple[RequestRule, Finding]]) -> dict[str, Any]:
    """Say findings as vLLM says errors, the first as the message and all in `errors`.

    Source: `entrypoints/serve/exception_handling/error_response.py::create_error_response`.
    """
    rule = errors[0][0]
    first = _entry(errors[0][1])
    return {
        "error": {
            "message": f"{first['message']} [{first['rule']}]",
            "type": rule.error_type,
            "param": first["param"],
            "code": rule.status,
            "rule": first["rule"],
            "errors": [_entry(error) for _, error in errors],
        }
    }


def _model(request: GenerationRequest) -> str | None:
    name = request.of_body("model")
    return name if isinstance(name, str) and len(name) <= _LONGEST_MODEL else None


def _entry(finding: Finding) -> dict[str, Any]:
    pointer = finding.location.pointer if finding.location is not None else None
    return {
        "rule": finding.rule,
        "message": finding.message,
        "param": pointer.rsplit("/", 1)[-1] if pointer else None,
        "pointer": pointer,
    }
