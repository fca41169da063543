"""Running a probe: look at the backend, send one request, then the rest, replay each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

from app.catalogue.semantics import EngineSemantics, semantics_of
from app.errors import AdmissionError, InvalidEnvelope
from app.probe.asking import (
    BackendUnfit,
    RequestFailed,
    ask,
    chosen_version,
    look,
    message_of,
    refuse_unfit,
)
from app.probe.plan import PlannedRequest, ProbeOptions, make_plan
from app.probe.report import Answered, ProbeReport
from app.relay.faults import BackendFault, BackendTimeout
from app.relay.fleet import Upstream
from app.relay.headers import RawHeaders
from app.relay.inline.facts import ReplayFacts
from app.relay.inline.outcome import Exchange
from app.replay.evidence import ReplayOptions
from app.replay.report import Report, replay
from app.request_rules.request import Route

_NO_MASKS = "no-sampling-mask"
_HINT = "; prompts need ids that the model has (--token-ids LOW:HIGH, or token_ids)"
_NOT_IN_TIME = "no answer before the probe's time was over"
_NOT_SENT = "not sent: the probe's time was over"


async def probe(
    backend: Upstream,
    options: ProbeOptions,
    *,
    vllm_version: str | None = None,
    replay_options: ReplayOptions | None = None,
    model: str | None = None,
    authorization: str | None = None,
) -> ProbeReport:
    """Probe a backend.

    Args:
        backend: a vLLM server, or a gate in front of one.
        options: what to send.
        vllm_version: whose draw to repeat; the backend's own if not given.
        replay_options: what the operator says of the server.
        model: to name in the requests.
        authorization: value of the Authorization field.

    Raises:
        BackendFault: it cannot be reached; or (BackendUnfit) it cannot be probed, because the
            route is off, it returns no masks, it wants a key, or no request succeeds.
        InvalidEnvelope: the options do not fit the model.
        UnknownVersion: that version returns no masks.
    """
    began = time.perf_counter()
    headers: RawHeaders = [(b"accept", b"*/*")]
    if authorization is not None:
        headers.append((b"authorization", authorization.encode("latin-1", "replace")))
    try:
        async with asyncio.timeout(options.max_seconds):
            target = await look(backend, headers)
    except TimeoutError:
        raise BackendTimeout(f"the backend did not answer in {options.max_seconds:g} s") from None
    version = chosen_version(target, vllm_version)
    semantics = semantics_of(version)
    try:
        plan = make_plan(options, semantics, max_model_len=target.max_model_len, model=model)
    except ValueError as error:
        raise InvalidEnvelope(str(error)) from None
    facts = ReplayFacts(version, replay_options or ReplayOptions())
    run = _Run(backend, headers, facts, semantics, began + options.max_seconds)
    answers = await run.all(plan, options.concurrency)
    if all(answer.report is None for answer in answers):
        hint = _HINT if "vocabulary" in (answers[0].error or "") else ""
        raise BackendUnfit(f"none of {len(answers)} requests succeeded: {answers[0].error}{hint}")
    return ProbeReport(
        target=target,
        vllm_version=version,
        options=options,
        answers=answers,
        seconds=time.perf_counter() - began,
    )


class _Run:
    def __init__(
        self,
        backend: Upstream,
        headers: RawHeaders,
        facts: ReplayFacts,
        semantics: EngineSemantics,
        deadline: float,
    ) -> None:
        self._backend = backend
        self._headers = [*headers, (b"content-type", b"application/json")]
        self._facts = facts
        self._semantics = semantics
        self._deadline = deadline

    async def all(self, plan: tuple[PlannedRequest, ...], concurrency: int) -> list[Answered]:
        """Send the first alone, since what ails it may ail all; then the others."""
        answers = [await self._one(plan[0], alone=True)]
        rest = iter(plan[1:])
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._work(rest)) for _ in range(concurrency)]
        for worker in workers:
            answers += worker.result()
        return sorted(answers, key=lambda answer: answer.request.index)

    async def _work(self, rest: Iterator[PlannedRequest]) -> list[Answered]:
        return [await self._one(request) for request in rest]

    async def _one(self, request: PlannedRequest, *, alone: bool = False) -> Answered:
        left = self._deadline - time.perf_counter()
        if left <= 0:
            return Answered(request, None, _NOT_SENT)
        try:
            async with asyncio.timeout(left):
                return await self._answer(request, alone=alone)
        except TimeoutError:
            return Answered(request, None, _NOT_IN_TIME)
        except (AdmissionError, RequestFailed) as error:
            if alone and isinstance(error, BackendFault):
                raise
            return Answered(request, None, str(error))

    async def _answer(self, request: PlannedRequest, *, alone: bool) -> Answered:
        body = json.dumps(request.body).encode()
        target = Route.GENERATE.value.encode()
        answer = await ask(self._backend, "POST", target, self._headers, body)
        if answer.status != 200:
            if alone:
                refuse_unfit(answer, self._facts.vllm_version, self._semantics)
            raise RequestFailed(f"status {answer.status}: {message_of(answer)}")
        exchange = Exchange(self._facts, body, answer.body, request.stream)
        try:
            report = await asyncio.to_thread(_replayed, exchange)
        except InvalidEnvelope as error:
            if alone and any(problem.code == _NO_MASKS for problem in error.problems):
                raise BackendUnfit(f"the backend returns no masks: {error.detail}") from None
            raise
        return Answered(request, report, None, answer.seconds, answer.first_byte)


def _replayed(exchange: Exchange) -> Report:
    try:
        return replay(exchange.case())
    except UnicodeDecodeError as error:
        raise RequestFailed(f"the stream is not UTF-8: {error.reason}") from None
    except AdmissionError:
        raise
    except Exception as error:  # a crash of ours is no verdict, and no end of the probe
        what = f"{type(error).__name__}: {error}"
        raise RequestFailed(f"the replay crashed ({what}); please report it") from error
