"""Answers cases: imports vLLM once, then forks a child for each.

    python -m lab.inside.worker JOBS TIMEOUT     JSON lines in, JSON lines out, as they finish

Started by `lab.oracle`, which numbers the cases (`n`).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.inside import case as case_module

_log = logging.getLogger(__name__)


@dataclass
class _Running:
    number: int
    pid: int
    directory: Path
    began: float = field(default_factory=time.monotonic)
    received: bytes = b""


class Worker:
    """Reads cases from descriptor 0, keeps `jobs` children running, writes to `out`."""

    def __init__(self, out: int, jobs: int, timeout: float, serve: Callable[[], None]) -> None:
        self.out = out
        self.jobs = jobs
        self.timeout = timeout
        self.serve = serve
        self.waiting: deque[dict[str, Any]] = deque()
        self.running: dict[int, _Running] = {}

    def run(self) -> None:
        """Work until descriptor 0 is closed and every case is answered."""
        unread, closed = b"", False
        while not closed or self.waiting or self.running:
            while self.waiting and len(self.running) < self.jobs:
                self._start(self.waiting.popleft())
            sources = [*self.running, *([] if closed else [0])]
            for descriptor in select.select(sources, [], [], 0.5)[0]:
                data = os.read(descriptor, 1 << 16)
                if descriptor == 0:
                    closed = not data
                    *lines, unread = (unread + data).split(b"\n")
                    self.waiting.extend(json.loads(line) for line in lines)
                elif data:
                    self.running[descriptor].received += data
                else:
                    self._finish(descriptor, "Died", "the process ended without an answer")
            for descriptor, child in list(self.running.items()):
                if time.monotonic() - child.began > self.timeout:
                    self._finish(descriptor, "Timeout", f"no answer in {self.timeout:g} s")

    def _start(self, case: dict[str, Any]) -> None:
        directory = Path(tempfile.mkdtemp(prefix="vllm-lab-"))
        read, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write)
            with suppress(OSError):  # the child may have done it
                os.setpgid(pid, pid)
            self.running[read] = _Running(case["n"], pid, directory)
            return
        try:
            os.setpgid(0, 0)
            case_module.run(case, self.serve, directory, write)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _finish(self, descriptor: int, error_type: str, error: str) -> None:
        """Send a child's answer; if it has none, that `error`."""
        child = self.running.pop(descriptor)
        os.close(descriptor)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        try:
            answer = json.loads(child.received)
        except ValueError:
            with suppress(OSError):
                error += ": " + (child.directory / "output").read_text(errors="replace")[-500:]
            answer = {
                "accepted": None,
                "stage": "oracle",
                "error_type": error_type,
                "error": error,
                "warnings": [],
            }
        answer |= {"n": child.number, "seconds": round(time.monotonic() - child.began, 3)}
        shutil.rmtree(child.directory, ignore_errors=True)
        with os.fdopen(os.dup(self.out), "w") as stream:
            stream.write(json.dumps(answer) + "\n")


class _ParserBuilt(BaseException):
    """Ends vLLM's `main` once its option tables are there."""


def prepare() -> Callable[[], None]:
    """Import what a case needs, settle the platform, and give vLLM's `main`."""
    import vllm.entrypoints.cli.main as cli
    import vllm.model_executor.layers.quantization as quantization
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for name in ("vllm.transformers_utils.config", "vllm.v1.engine.async_llm", "vllm.v1.executor"):
        _import_if_possible(name)

    def stop(*_: object, **__: object) -> None:
        raise _ParserBuilt

    parse_args = FlexibleArgumentParser.parse_args
    FlexibleArgumentParser.parse_args = stop
    sys.argv = ["vllm", "serve"]
    with suppress(_ParserBuilt):
        cli.main()
    FlexibleArgumentParser.parse_args = parse_args
    _log.info("platform: %s", current_platform.device_type)
    for method in quantization.QUANTIZATION_METHODS:
        # Some need a package or kernels that are not here; the case that asks is told so.
        with suppress(Exception):
            quantization.get_quantization_config(method)
    registry._run_in_subprocess = _run_forked
    serve: Callable[[], None] = cli.main
    return serve


def _import_if_possible(name: str) -> None:
    try:
        __import__(name)
    except Exception:
        _log.exception("importing %s", name)


def _run_forked(function: Callable[[], Any]) -> Any:
    """Inspect a model class in a fork; vLLM does it in a new process, which takes seconds."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if not pid:
            try:
                try:
                    result = (True, function())
                except BaseException:
                    result = (False, traceback.format_exc())
                file.write(pickle.dumps(result))
                file.flush()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        file.seek(0)
        succeeded, value = pickle.loads(file.read())  # noqa: S301 - written by our own fork
    if not succeeded:
        raise RuntimeError(f"Error raised in subprocess:\n{value}")
    return value


def main(jobs: str, timeout: str) -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what vLLM prints is no answer
    serve = prepare()
    Worker(out, int(jobs), float(timeout), serve).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
