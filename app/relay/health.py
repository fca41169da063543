"""Asks several backends whether they are well, so that a sick one is not asked for more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import httpx
import structlog

from app.relay.fleet import Fleet, Member
from app.relay.headers import VIA

_log = structlog.get_logger("vllm_admission.relay")
_TARGET: Final = b"/health"
_SICK: Final = 500


class HealthMonitor:
    """Keeps `Member.well` of each backend.

    A backend whose engine is dead still answers: every request at once with 500, which makes it
    the least busy of all. vLLM's `/health` is 503 then. A server that has no such page is well
    as long as it answers.
    """

    def __init__(self, fleet: Fleet, interval: float, patience: float) -> None:
        """Ask every `interval` seconds once `run()` runs; `patience` is what an answer may take."""
        self._fleet = fleet
        self._interval = interval
        self._patience = patience

    async def run(self) -> None:
        """Ask for ever; cancel it to end."""
        while True:
            await self.ask(self._fleet.members)
            await asyncio.sleep(self._interval)

    async def ask(self, members: Sequence[Member]) -> None:
        """Ask each once, all at a time."""
        for member, well in zip(
            members, await asyncio.gather(*map(self._is_well, members)), strict=True
        ):
            if well != member.well:
                _log.warning("health of a backend", backend=member.name, well=well)
            self._fleet.found(member, well=well)

    async def _is_well(self, member: Member) -> bool:
        try:
            async with asyncio.timeout(self._patience):
                response = await member.backend.send("GET", _TARGET, [VIA])
        except (httpx.TransportError, TimeoutError):
            return False
        await response.aclose()
        return response.status_code < _SICK
