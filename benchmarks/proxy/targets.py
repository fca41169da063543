"""What is measured: ways from a client to the backend, each one process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.proxy.load import request_bytes
from benchmarks.proxy.upstream import EVENTS

_ROOT = Path(__file__).resolve().parent.parent.parent
# Every request rule at work: masks on, and limits to compare with.
SERVE_CONFIG = (
    "vllm serve tiny --return-sampling-mask --logprobs-mode processed_logprobs "
    "--enable-scale-out --max-logprobs 64 --max-model-len 4096 --generation-config vllm"
)


class Unavailable(Exception):
    """A target cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Launch:
    """How to start a target."""

    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """One way to the backend.

    Attributes:
        name: in the tables.
        launch: makes the launch, given a scratch directory, a port and the backend's URL.
        startup: seconds until it answers, at most.
    """

    name: str
    launch: Callable[[Path, int, str], Launch] | None
    startup: float = 60.0


def _ours(_: Path, port: int, backend: str) -> Launch:
    return Launch(
        [
            *(sys.executable, "-c", "from app.cli import main; main()"),
            *("serve", "--port", str(port)),
        ],
        {
            "VLLM_ADMISSION_BACKEND_URL": backend,
            "VLLM_ADMISSION_SERVE_CONFIG": SERVE_CONFIG,
            "VLLM_ADMISSION_VLLM_VERSION": "0.32.0",
        },
    )


def _plain(_: Path, port: int, backend: str) -> Launch:
    return Launch([sys.executable, "-m", "benchmarks.proxy.plain", str(port), backend])


def _router(_: Path, port: int, backend: str) -> Launch:
    command = _installed("vllm-router", "vllm-router")
    return Launch(
        [
            *(command, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", backend),
            *("--policy", "round_robin", "--max-concurrent-requests", "100000"),
            *("--prometheus-port", str(port + 1), "--log-level", "error"),
        ]
    )


def _litellm(scratch: Path, port: int, backend: str) -> Launch:
    command = _installed("litellm[proxy]", "litellm")
    config = scratch / "litellm.json"
    model = {"model": "openai/tiny", "api_base": f"{backend}/v1", "api_key": "none"}
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "tiny", "litellm_params": model}],
                "litellm_settings": {"drop_params": True, "telemetry": False},
            }
        )
    )
    return Launch(
        [
            *(command, "--config", str(config), "--host", "127.0.0.1"),
            *("--port", str(port), "--num_workers", "1"),
        ],
        {
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            # It refuses to start without a key; checking none is the faster way.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    )


def _nginx(scratch: Path, port: int, backend: str) -> Launch:
    command = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if command is None:
        raise Unavailable("nginx is not installed (Debian: apt-get install nginx-light)")
    address = backend.removeprefix("http://")
    config = scratch / "nginx.conf"
    paths = "".join(
        f"{name}_temp_path {scratch}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config.write_text(
        f"""
        daemon off; worker_processes 1; pid {scratch}/nginx.pid; error_log {scratch}/error.log;
        events {{ worker_connections 4096; }}
        http {{
          access_log off; {paths}
          upstream backend {{ server {address}; keepalive 256; keepalive_requests 1000000; }}
          server {{
            listen 127.0.0.1:{port} backlog=2048; keepalive_requests 1000000;
            location / {{
              proxy_pass http://backend; proxy_http_version 1.1; proxy_buffering off;
              proxy_set_header Connection "";
            }}
          }}
        }}
        """
    )
    return Launch([command, "-c", str(config), "-p", str(scratch)])


TARGETS: tuple[Target, ...] = (
    Target("direct", None),
    Target("vllm-admission", _ours),
    Target("vllm-router", _router),
    Target("nginx", _nginx),
    Target("FastAPI + httpx", _plain),
    Target("LiteLLM", _litellm, startup=120.0),
)


def cache() -> Path:
    """Where other projects' environments are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vllm-admission-bench"


def _installed(requirement: str, command: str) -> str:
    """Give the path of a command of another project, which has an environment of its own.

    Raises:
        Unavailable: it cannot be installed here.
    """
    home = cache() / command
    path = home / "bin" / command
    if not path.exists():
        venv.create(home, with_pip=True, clear=True)
        done = subprocess.run(
            [home / "bin" / "python", "-m", "pip", "install", "--quiet", requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not path.exists():
            shutil.rmtree(home, ignore_errors=True)
            said = done.stderr.strip().splitlines()[-1:] or ["no output"]
            raise Unavailable(f"{requirement} cannot be installed: {said[0]}")
    return str(path)


@contextmanager
def process(launch: Launch, cpus: set[int], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a target on some processors, and end it and what it started."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            launch.command,
            env={**os.environ, **launch.env},
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # Before it has started threads or children of its own, which inherit it.
    os.sched_setaffinity(started.pid, cpus)
    try:
        yield started
    finally:
        # It leads a session of its own, so that this reaches its workers and nothing else.
        with suppress(ProcessLookupError):
            os.killpg(started.pid, 15)
        with suppress(subprocess.TimeoutExpired):
            started.wait(timeout=5)
        with suppress(ProcessLookupError):
            os.killpg(started.pid, 9)
        started.wait()


def wait_until_right(url: str, process: subprocess.Popen[bytes], seconds: float, log: Path) -> None:
    """Wait until a target answers, and see that its answers are whole.

    Raises:
        Unavailable: it ended, did not answer in time, or answers something else.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            body, stream = _ask(url, stream=False), _ask(url, stream=True)
        except (OSError, urllib.error.URLError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                end = log.read_text(errors="replace")[-400:] if log.exists() else ""
                raise Unavailable(f"no answer ({error}); end of its log: {end}") from error
            time.sleep(0.02)
            continue
        choices = json.loads(body)["choices"]
        if not choices or stream.count(b"data: ") < EVENTS:
            raise Unavailable(f"its stream has {stream.count(b'data: ')} events of {EVENTS}")
        return


def _ask(url: str, *, stream: bool) -> bytes:
    head, _, body = request_bytes(url, stream=stream).partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    request = urllib.request.Request(  # noqa: S310 - a URL of ours
        f"{url}/v1/chat/completions", data=body, headers=fields
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - the same
        return bytes(response.read())


def usage(pid: int) -> tuple[float, int]:
    """Give the processor seconds and the resident bytes of a process and what it started.

    Pages that several of them share are counted once (PSS).
    """
    seconds, size = 0.0, 0
    for member in _family(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(") ")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
            size += int(rollup.partition("\nPss:")[2].split()[0]) * 1024
    return seconds, size


def _family(leader: int) -> Iterator[int]:
    """Give the processes of the session that a target leads."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int(path.read_text().rpartition(") ")[2].split()[3]) == leader:
                yield int(path.parent.name)
