"""Several processes that serve as one, as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import IO, Any

import httpx
import pytest

from app.serving import demo_command
from tests.support import start_command

WORKERS = 2
REQUESTS = 24


class Service:
    """A running `serve`, and the lines of its log."""

    def __init__(self, process: subprocess.Popen[str], lines: Queue[str]) -> None:
        self.process = process
        self._lines = lines
        self.seen: list[dict[str, Any]] = []

    def wait_for(self, event: str, seconds: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            found: dict[str, Any] = json.loads(self._lines.get(timeout=deadline - time.monotonic()))
            self.seen.append(found)
            if found["event"] == event:
                return found


@contextmanager
def _serving(temporary: Path, backend: str, **settings: str) -> Iterator[tuple[Service, str]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from app.cli import main; main()"),
            *("serve", "--port", "0", "--workers", str(WORKERS)),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "VLLM_ADMISSION_BACKEND_URL": backend,
            "TMPDIR": str(temporary),
            **{f"VLLM_ADMISSION_{name.upper()}": value for name, value in settings.items()},
        },
    )
    stderr = process.stderr
    assert stderr is not None
    lines: Queue[str] = Queue()
    reading = threading.Thread(target=_read, args=(stderr, lines), daemon=True)
    reading.start()
    service = Service(process, lines)
    try:
        yield service, service.wait_for("listening")["url"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=40)
        reading.join(timeout=10)
        stderr.close()


def _read(stream: IO[str], lines: Queue[str]) -> None:
    for line in stream:
        lines.put(line)


def _get(url: str, path: str) -> httpx.Response:
    """Ask over a connection of its own, so that any worker may answer."""
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        return client.get(path)


def _value(text: str, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found is not None else 0.0


def _eventually(truth: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not truth():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_count_as_one_through_the_death_of_one_and_end_together() -> None:
    requests = 'vllm_admission_proxy_requests_total{outcome="2xx",route="other"}'
    timed = 'vllm_admission_proxy_overhead_seconds_count{route="other"}'
    with (
        tempfile.TemporaryDirectory() as temporary,
        start_command("simulate", "--port", "0", "--", *demo_command("0.32.0").split()) as urls,
        _serving(Path(temporary), next(iter(urls.values()))) as (service, url),
    ):
        pids = {service.wait_for("worker started")["pid"] for _ in range(WORKERS)}
        answered = {_get(url, "/v1/models").status_code for _ in range(REQUESTS)}
        assert answered == {200}
        for _ in range(4):
            text = _get(url, "/metrics").text
            assert (_value(text, requests), _value(text, timed)) == (REQUESTS, REQUESTS)
            assert _value(text, "vllm_admission_proxy_in_flight") == 0
            assert _value(text, 'vllm_admission_catalogue_info{vllm_version="0.32.0"}') == 1
            assert "pid=" not in text

        victim = min(pids)
        os.kill(victim, signal.SIGKILL)
        ended = service.wait_for("worker ended")
        assert (ended["pid"], ended["exit_code"]) == (victim, -signal.SIGKILL)
        replacement = service.wait_for("worker started")
        assert replacement["worker"] == ended["worker"]
        served = {event["worker"] for event in service.seen if event["event"] == "request"}
        assert served == set(range(WORKERS)), "the kernel gave all connections to one worker"

        assert {_get(url, "/v1/models").status_code for _ in range(REQUESTS)} == {200}
        assert _value(_get(url, "/metrics").text, requests) == 2 * REQUESTS

        (directory,) = Path(temporary).glob("vllm-admission-metrics-*")
        assert directory.stat().st_mode & 0o077 == 0
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(timeout=40) == 0
        assert list(Path(temporary).iterdir()) == []
        for pid in (pids - {victim}) | {replacement["pid"]}:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_workers_end_when_their_supervisor_is_gone() -> None:
    with (
        tempfile.TemporaryDirectory() as temporary,
        _serving(Path(temporary), "http://127.0.0.1:9") as (service, url),
    ):
        pids = [service.wait_for("worker started")["pid"] for _ in range(WORKERS)]
        for _ in range(8):
            assert _get(url, "/livez").status_code == 200
        service.process.kill()
        service.process.wait(timeout=10)

        def gone() -> bool:
            return not any(Path(f"/proc/{pid}").exists() and _is_alive(pid) for pid in pids)

        _eventually(gone)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_that_cannot_use_their_settings_end_the_service_with_a_reason() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from app.cli import main; main()"),
                *("serve", "--port", "0", "--workers", "2"),
            ],
            env={
                **os.environ,
                "TMPDIR": temporary,
                "VLLM_ADMISSION_BACKEND_URL": "ftp://nowhere",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert "VLLM_ADMISSION_BACKEND_URL" in done.stderr
        assert list(Path(temporary).iterdir()) == []
