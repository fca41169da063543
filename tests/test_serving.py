from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from app.errors import UnusableInput
from app.serving import configure_logging


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
