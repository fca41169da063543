"""A real vLLM server on this CPU, with the tiny random model and sampling masks.

    python -m lab.server VERSION [--port P] [options of vllm serve]

Model Runner V2 runs by Triton's interpreter. Stops when interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Self

from lab.environment import Lab, LabError, process_environment

MODEL_NAME = "tiny"
VOCABULARY = 1024
HOST = "127.0.0.1"
# What a user of sampling masks starts vLLM with; these words also make a proposal.
REPLAY_OPTIONS = ("--return-sampling-mask", "--logprobs-mode", "processed_logprobs")
_OPTIONS = (
    *("--served-model-name", MODEL_NAME, "--host", HOST),
    *("--max-model-len", "256", "--enforce-eager", "--generation-config", "vllm"),
    # 65,536 tokens of KV cache, 32 MB; what VLLM_CPU_KVCACHE_SPACE gives at least is 1 GB.
    *("--num-gpu-blocks-override", "512"),
    *REPLAY_OPTIONS,
)
_ENVIRONMENT = {
    "LAB_TRITON_ON_CPU": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Several servers may run at once: no thread is bound to a core of its own.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": HOST,
}
_START = "from vllm.entrypoints.cli.main import main; main()"


class ServerFailed(LabError):
    """The server ended by itself, or was not up in time; the text has the end of its log."""


class Server(AbstractContextManager["Server"]):
    """vLLM `version`, from `start()` (or `with`) to `stop()`.

    Attributes:
        command: the words after `vllm serve`; a proposal for the gate.
        url: where it listens; known once it is constructed.
        log: its output.
    """

    def __init__(
        self,
        version: str,
        options: Sequence[str] = (),
        *,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        startup_timeout: float = 300.0,
        lab: Lab | None = None,
    ) -> None:
        """Prepare the command; port 0 takes a free one.

        Raises:
            NotInstalled: that version is not in the lab.
            LabError: that version has no CPU build.
        """
        self.lab = lab or Lab.default()
        if not self.lab.can_serve(version):
            raise LabError(f"vLLM {version} has no CPU build: the lab can only ask for verdicts")
        self.version = version
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        scale_out = ("--enable-scale-out",) if self._has_scale_out() else ()
        self.command = (str(self.lab.models / "tiny"), *_OPTIONS, *scale_out, *options)
        self.env = dict(env or {})
        self.startup_timeout = startup_timeout
        self.log = self.lab.logs / f"server-{version}-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def _has_scale_out(self) -> bool:
        """Whether /inference/v1/generate is off unless asked for (0.30.0 and newer)."""
        sources = self.lab.require(self.version).glob("vllm/entrypoints/*/cli_args.py")
        return any("enable_scale_out" in source.read_text() for source in sources)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises:
            ServerFailed: it ended, or was not healthy in time.
        """
        environment = process_environment(self.lab, self.version, build="cpu", cache="server")
        listen = ("--port", str(self.port))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [self.lab.python, "-P", "-c", _START, "serve", *self.command, *listen],
                env=environment | _ENVIRONMENT | {"LAB_PARENT": str(os.getpid())} | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_healthy(self._process)
        except BaseException:
            self.stop()
            raise

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.startup_timeout
        while not is_healthy(self.url):
            if process.poll() is not None:
                raise ServerFailed(
                    f"vLLM {self.version} ended with {process.returncode}{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"vLLM {self.version} was not up in {self.startup_timeout:g} s{self.tail()}"
                )
            time.sleep(0.25)

    def tail(self, size: int = 3000) -> str:
        """Give the end of the log, to be put after a message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"; end of {self.log}:\n{text[-size:]}"

    def stop(self) -> None:
        """Stop the server and every process it started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
        # It led a session of its own, so this reaches what it left behind and nothing else.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None


def free_port() -> int:
    """Give a port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def is_healthy(url: str) -> bool:
    """Whether the server at `url` answers its health check."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.server", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parsed, options = parser.parse_known_args()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with Server(parsed.version, options, port=parsed.port) as server:
            print(f"vLLM {server.version} serves {MODEL_NAME} at {server.url}", flush=True)
            print(f"log: {server.log}", flush=True)
            while not stopped.wait(0.5):
                if not server.running:
                    raise ServerFailed(f"vLLM {server.version} ended{server.tail()}")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
