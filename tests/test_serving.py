from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest
import structlog

from app.errors import UnusableInput
from app.event_loop import run_loop
from app.serving import listen
from app.telemetry.logs import configure_logging


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def fail_with(secret: str) -> None:
    raise RuntimeError(f"a text of {len(secret)} characters")


def test_a_logged_failure_tells_where_it_was_and_not_what_was_processed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info")
    try:
        fail_with("hunter2")
    except RuntimeError:
        structlog.get_logger().exception("failed")
    written = capsys.readouterr().err
    (failure,) = json.loads(written)["exception"]
    assert failure["exc_value"] == "a text of 7 characters"
    assert failure["frames"][-1]["name"] == "fail_with"
    assert "hunter2" not in written


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(UnusableInput, match="'loud' is none of"):
        configure_logging("loud")


def test_what_json_cannot_hold_is_logged_by_its_repr(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    structlog.get_logger().info("odd", path=b"\xff", name="\udce9", error=ValueError("x"))
    event = json.loads(capsys.readouterr().err)
    assert (event["name"], event["error"]) == ("\udce9", "ValueError('x')")


def test_connections_send_small_writes_at_once() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_address_is_both_families(address: str) -> None:
    """Pods of a cluster may have either, or both."""
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((address, port)), listener.accept()[0] as accepted:
            assert accepted.getpeername()[0].endswith(address)


def test_servers_run_in_uvloop() -> None:
    async def loop_of() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run_loop(loop_of()).startswith("uvloop")
