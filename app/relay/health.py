"""Asks backends whether they are well: the sick are passed over, and readiness may hang on it."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx
import structlog

from app.relay.fleet import Fleet, Member
from app.relay.headers import VIA

_log = structlog.get_logger("vllm_admission.relay")
_TARGET: Final = b"/health"
_SICK: Final = 500

# Rounds of questions in a row that change what `absence` says. One lost answer takes no proxy out
# of service, and one answer of a backend that restarts over and over brings none back.
ABSENT_AFTER: Final = 3
PRESENT_AFTER: Final = 2


class HealthMonitor:
    """Keeps `Member.well` of each backend, and whether there is any that is.

    A backend whose engine is dead still answers: every request at once with 500, which makes it
    the least busy of all. vLLM's `/health` is 503 then. A server that has no such page is well
    as long as it answers.
    """

    def __init__(self, fleet: Fleet, interval: float, patience: float) -> None:
        """Ask every `interval` seconds once `run()` runs; `patience` is what an answer may take."""
        self._fleet = fleet
        self._interval = interval
        self._patience = patience
        # The first round alone decides where it goes well: nobody waits for a second then.
        self._absent = True
        self._against = PRESENT_AFTER - 1
        self._reasons = ["no backend has been well yet"]

    @property
    def absence(self) -> str | None:
        """Why no backend counts as well; None while one does."""
        return "; ".join(self._reasons) if self._absent else None

    async def run(self) -> None:
        """Ask for ever; cancel it to end."""
        while True:
            await self.ask()
            await asyncio.sleep(self._interval)

    async def ask(self) -> None:
        """Ask each once, all at a time."""
        members = self._fleet.members
        illnesses = await asyncio.gather(*map(self._illness, members))
        for member, illness in zip(members, illnesses, strict=True):
            if (illness is None) != member.well:
                _log.warning("health of a backend", backend=member.name, illness=illness)
            self._fleet.found(member, well=illness is None)
        self._note([f"{m.name} {why}" for m, why in zip(members, illnesses, strict=True) if why])

    def _note(self, reasons: list[str]) -> None:
        """Change the common verdict where the rounds of late are all against it."""
        absent = len(reasons) == len(self._fleet.members)
        self._against = self._against + 1 if absent != self._absent else 0
        if absent:
            self._reasons = reasons
        if self._against >= (ABSENT_AFTER if absent else PRESENT_AFTER):
            self._absent, self._against = absent, 0
            _log.warning("no backend is well" if absent else "a backend is well", reasons=reasons)

    async def _illness(self, member: Member) -> str | None:
        try:
            async with asyncio.timeout(self._patience):
                response = await member.backend.send("GET", _TARGET, [VIA])
        except TimeoutError:
            return f"has not answered /health within {self._patience:g} s"
        except httpx.TransportError as error:
            return f"cannot be asked: {error}"
        await response.aclose()
        status = response.status_code
        return f"answers /health with {status}" if status >= _SICK else None
