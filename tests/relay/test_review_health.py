"""A backend that answers, but whose engine is dead, must not draw the requests of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.errors import UnusableInput
from app.main import create_app
from app.relay.fleet import Fleet
from app.relay.health import HealthMonitor
from app.relay.metrics import FleetMetrics
from app.relay.upstream import Backend
from app.settings import Settings
from app.telemetry.access import AccessLog
from tests.relay.faulty import Peer, Script, Seen, faulty_backend
from tests.relay.harness import client_of, eventually, gate_of
from tests.relay.test_fleet import closed_port
from tests.support import serving

_HEALTHY = "vllm_admission_backend_healthy"


class _Engine:
    """A server that says what it is; its `/health` tells whether the engine lives."""

    def __init__(self, name: bytes, status: str = "200 OK", health: str = "200 OK") -> None:
        self.name = name
        self.status = status
        self.health = health

    async def script(self, request: Seen, peer: Peer) -> None:
        asked = request.line.split(" ")[1]
        await peer.answer(self.name, status=self.health if asked == "/health" else self.status)


@asynccontextmanager
async def _fleet(*scripts: Script) -> AsyncIterator[tuple[Fleet, CollectorRegistry]]:
    registry = CollectorRegistry()
    backends = []
    for script in scripts:
        running = faulty_backend(script)
        backends.append((running, await running.__aenter__()))
    fleet = Fleet(
        [Backend(b.url, connect_timeout=1, idle_timeout=1) for _, b in backends],
        metrics=FleetMetrics(registry),
    )
    try:
        yield fleet, registry
    finally:
        for running, _ in backends:
            await running.__aexit__(None, None, None)


@pytest.mark.asyncio
async def test_a_dead_engine_is_passed_over_until_it_is_well_again() -> None:
    dead = _Engine(b"dead", "500 Internal Server Error", "503 Service Unavailable")
    live = _Engine(b"live")
    async with _fleet(dead.script, live.script) as (fleet, registry):
        monitor = HealthMonitor(fleet, interval=1, patience=1)
        async with gate_of(fleet) as gate, client_of(gate.port) as client:
            before = {(await client.ask("GET", "/x")).body for _ in range(4)}
            await monitor.ask()
            after = {(await client.ask("GET", "/x")).body for _ in range(8)}
            seen = [registry.get_sample_value(_HEALTHY, {"backend": m.name}) for m in fleet.members]
            dead.status = dead.health = "200 OK"
            await monitor.ask()
            again = {(await client.ask("GET", "/x")).body for _ in range(4)}
    assert (before, after, again) == ({b"dead", b"live"}, {b"live"}, {b"dead", b"live"})
    assert seen == [0, 1]


@pytest.mark.asyncio
async def test_where_none_is_well_they_are_asked_all_the_same() -> None:
    one, other = _Engine(b"1", health="503 x"), _Engine(b"2", health="500 x")
    async with _fleet(one.script, other.script) as (fleet, _):
        await HealthMonitor(fleet, interval=1, patience=1).ask()
        async with gate_of(fleet) as gate, client_of(gate.port) as client:
            assert {(await client.ask("GET", "/x")).body for _ in range(4)} == {b"1", b"2"}


@pytest.mark.asyncio
async def test_silence_is_no_health_and_a_missing_page_is_no_illness() -> None:
    async def silent(_: Seen, peer: Peer) -> None:
        await peer.until_closed()

    lost = _Engine(b"router", health="404 Not Found")
    async with _fleet(silent, lost.script) as (fleet, _):
        await HealthMonitor(fleet, interval=1, patience=0.05).ask()
        assert [member.well for member in fleet.members] == [False, True]
        await fleet.aclose()


@pytest.mark.asyncio
async def test_the_service_asks_several_backends_and_prefers_the_living() -> None:
    live = _Engine(b"live")
    async with faulty_backend(live.script) as backend:
        settings = Settings(
            backend_url=f"http://127.0.0.1:{closed_port()},{backend.url}",
            health_interval=0.02,
            access_log=AccessLog.OFF,
        )
        async with serving(create_app(settings)) as url:
            port = int(url.rpartition(":")[2])
            async with client_of(port) as client:

                async def gauges() -> list[str]:
                    text = (await client.ask("GET", "/metrics")).body.decode()
                    return [line[-3:] for line in text.splitlines() if line.startswith(_HEALTHY)]

                found: list[str] = []
                for _ in range(100):
                    found = await gauges()
                    if found == ["0.0", "1.0"]:
                        break
                assert found == ["0.0", "1.0"]
                assert (await client.ask("GET", "/x")).body == b"live"
    await eventually(lambda: backend.open == 0)


@pytest.mark.asyncio
async def test_readiness_has_hysteresis_both_ways() -> None:
    """Well once at the start; then three rounds in a row against it, and two for it."""
    one, other = _Engine(b"1"), _Engine(b"2", health="503 Service Unavailable")
    async with _fleet(one.script, other.script) as (fleet, _):
        monitor = HealthMonitor(fleet, interval=1, patience=1)
        assert monitor.absence == "no backend has been well yet"
        seen = []
        for answer in ("200", "500", "500", "200", "500", "500", "500", "200", "500", "200", "200"):
            one.health = f"{answer} x"
            await monitor.ask()
            seen.append(monitor.absence is None)
            if len(seen) == 7:
                first, second = (member.name for member in fleet.members)
                assert monitor.absence == (
                    f"{first} answers /health with 500; {second} answers /health with 503"
                )
        await fleet.aclose()
    ready, unready = [True], [False]
    assert seen == ready * 6 + unready * 4 + ready


@pytest.mark.asyncio
async def test_a_backend_that_was_never_well_has_to_be_so_twice() -> None:
    loading = _Engine(b"", health="503 Loading")
    async with _fleet(loading.script) as (fleet, _):
        monitor = HealthMonitor(fleet, interval=1, patience=1)
        seen = []
        for answer in ("503", "200", "200"):
            loading.health = f"{answer} x"
            await monitor.ask()
            seen.append(monitor.absence is None)
        await fleet.aclose()
    assert seen == [False, False, True]


@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.asyncio
async def test_a_proxy_is_ready_with_its_backend_where_that_is_wanted(needed: bool) -> None:
    engine = _Engine(b"live", health="503 Loading")
    async with faulty_backend(engine.script) as backend:
        settings = Settings(
            backend_url=backend.url,
            unready_without_backend=needed,
            health_interval=0.02,
            access_log=AccessLog.OFF,
        )
        app = create_app(settings)
        async with serving(app) as url, client_of(int(url.rpartition(":")[2])) as client:

            async def becomes(status: int) -> bytes:
                answer = None
                for _ in range(500):
                    answer = await client.ask("GET", "/readyz?verbose")
                    if answer.status == status:
                        return answer.body
                    await asyncio.sleep(0.01)
                raise AssertionError(answer)

            if not needed:
                assert b"backend" not in await becomes(200)
                assert not backend.seen
                return
            assert b"[-]backend: " in await becomes(503)
            engine.health = "200 OK"
            assert b"[+]backend ok" in await becomes(200)
            engine.health = "503 Service Unavailable"
            reason = f"[-]backend: {backend.url} answers /health with 503\n"
            assert reason.encode() in await becomes(503)
            # It is the balancers' business who is asked: what comes is relayed.
            assert (await client.ask("GET", "/x")).body == b"live"


@pytest.mark.asyncio
async def test_the_reason_tells_silence_from_refusal() -> None:
    async def silent(_: Seen, peer: Peer) -> None:
        await peer.until_closed()

    registry = CollectorRegistry()
    async with faulty_backend(silent) as backend:
        refusing = f"http://127.0.0.1:{closed_port()}"
        fleet = Fleet(
            [Backend(url, connect_timeout=1, idle_timeout=1) for url in (backend.url, refusing)],
            metrics=FleetMetrics(registry),
        )
        monitor = HealthMonitor(fleet, interval=1, patience=0.1)
        await monitor.ask()
        absence = monitor.absence
        await fleet.aclose()
    assert absence is not None
    first, second = absence.split("; ")
    assert first == f"{backend.url} has not answered /health within 0.1 s"
    assert second.startswith(f"{refusing} cannot be asked: ")


@pytest.mark.parametrize("settings", [{"backend_url": None}, {"health_interval": 0.0}])
def test_a_readiness_that_could_never_come_is_refused(settings: dict[str, Any]) -> None:
    given = {"backend_url": "http://127.0.0.1:8000", "unready_without_backend": True, **settings}
    with pytest.raises(UnusableInput, match="VLLM_ADMISSION_UNREADY_WITHOUT_BACKEND"):
        create_app(Settings(**given))
