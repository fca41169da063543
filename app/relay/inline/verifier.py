"""Which exchanges are replayed while they are relayed, and what becomes of them.

A share of all generations is chosen by the hash of their request ids, and any request may ask
for it with the field `x-vllm-admission-replay: verify`. Replaying happens after the last byte,
in another process; only the answer to a request that asked waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import structlog

from app.relay.inline.facts import ReplayFacts
from app.relay.inline.outcome import Exchange, Outcome, Skipped, skipped
from app.relay.inline.recording import Budget, Recording
from app.relay.inline.worker import Worker
from app.relay.metrics import InlineMetrics
from app.request_rules.request import Route

VERIFY = "verify"
_DOMAIN = b"vllm-admission sample 1\0"
_log = structlog.get_logger("vllm_admission.replay")


@dataclass(frozen=True, slots=True)
class InlineLimits:
    """What inline replays may cost.

    Attributes:
        sample: share of generations to replay, 0 to 1.
        buffer_bytes: kept at a time, of all exchanges together.
        queue: exchanges that wait to be replayed; more are dropped.
        wait: seconds that a response waits for the verdict its request asked for.
    """

    sample: float = 0.0
    buffer_bytes: int = 64 * 2**20
    queue: int = 64
    wait: float = 10.0


def is_sampled(request_id: str, share: float) -> bool:
    """Choose by the hash of the id, so that a retry is chosen again."""
    if share <= 0:
        return False
    digest = hashlib.sha256(_DOMAIN + request_id.encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2.0**64


class InlineVerifier:
    """Records exchanges and has them replayed. Make and use it inside one event loop."""

    def __init__(
        self,
        facts: ReplayFacts | None,
        limits: InlineLimits,
        metrics: InlineMetrics,
        worker: Worker,
    ) -> None:
        """Replay with what `facts` says of the backend; without, everything is skipped."""
        self.facts = facts
        self.limits = limits
        self.masks_in_streams = facts is not None and facts.masks_in_streams
        self.budget = Budget(limits.buffer_bytes)
        self._metrics = metrics
        self._worker = worker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inline-replay")
        self._waiting = 0
        metrics.watch(lambda: self.budget.used, lambda: self._waiting)

    def inspect(
        self, route: str | None, asked: str | None, request_id: str, request: bytes
    ) -> Inspection | None:
        """Begin with one request, or None if it is neither chosen nor asks for it.

        Args:
            route: the examined route, None for any other.
            asked: value of the request's `x-vllm-admission-replay`.
            request_id: as settled.
            request: the body, as the backend gets it.
        """
        generates = route == Route.GENERATE
        if asked is None and not (generates and is_sampled(request_id, self.limits.sample)):
            return None
        inspection = Inspection(self, request_id, request, asked=asked is not None)
        if asked is not None and asked.strip().lower() != VERIFY:
            inspection.skip(Skipped.UNKNOWN_VALUE)
        elif not generates:
            inspection.skip(Skipped.OTHER_ROUTE)
        elif self.facts is None:
            inspection.skip(Skipped.NO_VERSION)
        elif self.facts.returns_masks is False:
            inspection.skip(Skipped.MASKS_OFF)
        return inspection

    def submit(self, exchange: Exchange, request_id: str) -> asyncio.Future[Outcome] | None:
        """Queue an exchange; None if the queue is full."""
        if self._waiting >= self.limits.queue:
            return None
        self._waiting += 1
        loop = asyncio.get_running_loop()
        replayed = loop.run_in_executor(self._thread, self._worker.replay, exchange)
        outcome: asyncio.Future[Outcome] = loop.create_future()

        def done(finished: asyncio.Future[Outcome]) -> None:
            self._waiting -= 1
            if finished.cancelled():
                outcome.cancel()
                return
            error = finished.exception()
            result = finished.result() if error is None else _crash(error)
            self.count(result, request_id)
            if not outcome.done():
                outcome.set_result(result)

        replayed.add_done_callback(done)
        return outcome

    def count(self, outcome: Outcome, request_id: str) -> None:
        """Count an outcome, and log what is wrong; never a prompt."""
        self._metrics.ended(outcome.label, outcome.rows)
        if outcome.verdict in {"inconsistent", "unusable", "failed"}:
            _log.warning(
                "inline replay",
                verdict=outcome.verdict,
                request_id=request_id,
                rules=outcome.rules,
                rows=dict(outcome.rows),
                findings=[dict(finding) for finding in outcome.findings],
                reason=outcome.reason or None,
                detail=outcome.detail or None,
            )

    async def aclose(self) -> None:
        """Drop what waits and end the worker, after what it is doing."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._thread.shutdown()
        self._worker.close()


class Inspection:
    """One exchange that is to be replayed.

    In this order: `opened` with the response's header, then for a body that `holds_body` says to
    keep back `hold`, `passed` for its bytes, `ending` after the last, and in any case `close`.
    """

    def __init__(
        self, verifier: InlineVerifier, request_id: str, request: bytes, *, asked: bool
    ) -> None:
        """Keep the request's body."""
        self.asked = asked
        self.outcome: Outcome | None = None
        self._verifier = verifier
        self._request_id = request_id
        self._recording: Recording | None = Recording(verifier.budget, request)
        self._job: asyncio.Future[Outcome] | None = None
        self._streamed = False
        self._held = False
        if self._recording.refused is not None:
            self.skip(self._recording.refused)

    @property
    def recording(self) -> bool:
        """Whether bytes are still being kept."""
        return self.outcome is None and self._job is None and self._recording is not None

    @property
    def holds_body(self) -> bool:
        """Whether the response is to be kept back until its verdict is known."""
        return self.asked and self.recording and not self._streamed

    def opened(self, response: httpx.Response) -> None:
        """Look at the response's header, which may rule a replay out."""
        content_type = response.headers.get("content-type", "")
        self._streamed = content_type.startswith("text/event-stream")
        if not self.recording:
            return
        if response.status_code != 200:
            self.skip(Skipped.STATUS)
        elif not (self._streamed or content_type.startswith("application/json")):
            self.skip(Skipped.MEDIA_TYPE)
        elif response.headers.get("content-encoding", "identity") != "identity":
            self.skip(Skipped.ENCODED)
        elif self._streamed and not self._verifier.masks_in_streams:
            self.skip(Skipped.STREAM)
        self._held = self.holds_body

    def passed(self, data: bytes) -> None:
        """Keep a part of the response's body."""
        if self._recording is None or not self.recording:
            return
        self._recording.add(data)
        if self._recording.refused is not None:
            self.skip(self._recording.refused)

    async def hold(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Read a body up to its end, or to where it is too much to keep; gives it all again."""
        held: list[bytes] = []
        async for data in parts:
            held.append(data)
            self.passed(data)
            if not self.recording:
                break
        self._complete()
        return _followed_by(held, parts)

    async def ending(self) -> bytes:
        """Have the exchange replayed; gives the comment that ends a stream which asked."""
        self._complete()
        if not (self.asked and self._streamed):
            return b""
        return f": vllm-admission-replay {await self.verdict()}\n\n".encode()

    def _complete(self) -> None:
        facts = self._verifier.facts
        if self._recording is None or not self.recording or facts is None:
            return
        recording = self._recording
        exchange = Exchange(facts, recording.request, recording.response(), self._streamed)
        self._job = self._verifier.submit(exchange, self._request_id)
        if self._job is None:
            self.skip(Skipped.QUEUE_FULL)
            return
        recording.share()
        self._job.add_done_callback(lambda _: recording.let_go())

    async def verdict(self) -> Outcome:
        """Wait for the outcome, for a bounded time; the replay goes on if nobody waits."""
        if self._job is None:
            return self.outcome or skipped(Skipped.INCOMPLETE)
        done, _ = await asyncio.wait({self._job}, timeout=self._verifier.limits.wait)
        if done and not self._job.cancelled():
            return self._job.result()
        return skipped(Skipped.NOT_IN_TIME)

    def skip(self, reason: Skipped) -> None:
        """Give up on a replay, and free its memory unless it is still held for the client."""
        if self.outcome is not None:
            return
        self.outcome = skipped(reason)
        self._verifier.count(self.outcome, self._request_id)
        if not self._held:
            self._let_go()

    def close(self) -> None:
        """Let go; an exchange that broke off before its end is counted as that."""
        if self.recording:
            self.skip(Skipped.INCOMPLETE)
        self._let_go()

    def _let_go(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.let_go()


async def _followed_by(held: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for data in held:
        yield data
    async for data in rest:
        yield data


def _crash(error: BaseException) -> Outcome:
    return Outcome("failed", {}, "internal-error", f"{type(error).__name__}: {error}")
