"""Asks the backends what they are, at start and again and again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx
import structlog

from app.relay.drift.compare import Difference, Running, cache_labels, differences, models_of
from app.relay.fleet import Member
from app.relay.headers import VIA, RawHeaders
from app.relay.metrics import DriftMetrics
from app.serve_config.serve_config import Abstain, ServeConfig

_log = structlog.get_logger("vllm_admission.drift")
_MOST_BYTES: Final = 16 * 2**20
_ANSWER_SECONDS: Final = 30.0
# Until a backend has answered once, which takes a starting vLLM minutes.
_FIRST_INTERVAL: Final = 5.0
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Declared:
    """What the backends are said to be."""

    version: str | None
    config: ServeConfig | None

    @property
    def api_key(self) -> str | None:
        """A key that they were started with, so that `/v1/models` can be asked for."""
        try:
            keys = self.config["api_key"] if self.config is not None else None
        except Abstain:
            return None
        return keys[0] if isinstance(keys, list) and keys and isinstance(keys[0], str) else None


class DriftMonitor:
    """Compares every backend with what was declared."""

    def __init__(
        self,
        members: Sequence[Member],
        declared: Declared,
        interval: float,
        metrics: DriftMetrics,
    ) -> None:
        """Compare every `interval` seconds once `run()` runs."""
        self._members = members
        self._declared = declared
        self._interval = interval
        self._metrics = metrics
        self._found: dict[str, tuple[Difference, ...]] = {}
        self._told: set[tuple[str, Difference]] = set()

    @property
    def remarks(self) -> list[str]:
        """What differs, and which backend has not been compared."""
        lines = []
        for member in self._members:
            found = self._found.get(member.name)
            if found is None:
                lines.append(f"{member.name} has not answered yet, so it was not compared")
            else:
                lines += [f"{member.name}: {difference}" for difference in found]
        return lines

    @property
    def drifted(self) -> bool:
        """Whether any backend differs."""
        return any(self._found.values())

    async def run(self) -> None:
        """Compare for ever; cancel it to end."""
        while True:
            for member in self._members:
                await self.compare(member)
            first = len(self._found) < len(self._members)
            await asyncio.sleep(min(self._interval, _FIRST_INTERVAL) if first else self._interval)

    async def compare(self, member: Member) -> None:
        """Ask one backend and compare; one that does not answer keeps what was found before."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                running = await self._ask(member)
        except (httpx.TransportError, TimeoutError):
            self._metrics.compared(member.name, "unreachable")
            return
        declared = self._declared
        found = tuple(differences(declared.config, declared.version, running))
        self._metrics.compared(member.name, "differs" if found else "same")
        before = {difference.field for difference in self._found.get(member.name, ())}
        self._metrics.found(member.name, {d.field for d in found}, before)
        self._found[member.name] = found
        for difference in found:
            if (member.name, difference) not in self._told:
                self._told.add((member.name, difference))
                _log.warning("drift", backend=member.name, difference=str(difference))

    async def _ask(self, member: Member) -> Running:
        version = await self._document(member, b"/version")
        models = await self._document(member, b"/v1/models")
        metrics = await self._get(member, b"/metrics")
        info = await self._document(member, b"/server_info?config_format=json")
        told = version.get("version") if isinstance(version, Mapping) else None
        config = info.get("vllm_config") if isinstance(info, Mapping) else None
        return Running(
            told if isinstance(told, str) else None,
            models_of(models),
            cache_labels(metrics.decode("utf-8", "replace")) if metrics is not None else (),
            config if isinstance(config, Mapping) else {},
        )

    async def _document(self, member: Member, target: bytes) -> Any:
        body = await self._get(member, target)
        if body is None:
            return None
        with suppress(ValueError, RecursionError):
            return json.loads(body)
        return None

    async def _get(self, member: Member, target: bytes) -> bytes | None:
        """Get one page; None if there is none, or it is too long."""
        fields: RawHeaders = [(b"accept", b"*/*"), VIA]
        key = self._declared.api_key
        if key is not None:
            fields.append((b"authorization", f"Bearer {key}".encode()))
        response = await member.backend.send("GET", target, fields)
        try:
            if response.status_code != _OK:
                return None
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > _MOST_BYTES:
                    return None
            return bytes(body)
        finally:
            await response.aclose()
