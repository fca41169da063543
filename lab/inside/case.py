"""One case, in a forked child: vLLM's own `vllm serve` up to a finished engine configuration.

The child is ended as soon as `create_engine_config` has returned, so no engine is started.
`--config` merging, underscores for dashes, headless mode, several API servers and so on take
vLLM's own path, since its command-line program is what runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing.process
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from lab.inside import nvidia
from lab.inside.facts import facts_of

LONGEST_WARNING = 400
MOST_WARNINGS = 40


class _StartsProcess(BaseException):
    """vLLM would start a process here; its work is done in this one instead."""

    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self.process = process


class _Child:
    """The state of one case; lives as long as its process."""

    def __init__(self, answer_pipe: int) -> None:
        self.answer_pipe = answer_pipe
        self.stage = "argparse"
        self.exit_text: str | None = None
        self.front_end: Any = None
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        """Keep a warning, unless it is about this machine."""
        text = text if len(text) <= LONGEST_WARNING else text[:LONGEST_WARNING] + "..."
        if text.startswith("Found ulimit of") or text in self.warnings:
            return
        if len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(text)

    def answer(self, **members: Any) -> NoReturn:
        """Send the answer and end this process."""
        data = json.dumps({**members, "stage": self.stage, "warnings": self.warnings}).encode()
        while data:
            data = data[os.write(self.answer_pipe, data) :]
        os._exit(0)

    def accept(self, config: Any) -> NoReturn:
        self.stage = "done"
        self.answer(accepted=True, facts=facts_of(config, self.front_end))

    def refuse(self, error: BaseException, output: Path) -> NoReturn:
        text, code = str(error), 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            text = self.exit_text or (error.code if isinstance(error.code, str) else "")
            if not text or code == 0:
                said = output.read_text(errors="replace")[-300:]
                text = f"exit {code}: {text or said}"
        inner = _inner_error(error)
        self.answer(
            accepted=False,
            error_type=type(error).__name__,
            error=text,
            cause=None if inner is error else f"{type(inner).__name__}: {inner}",
            where=_innermost_vllm_line(inner),
            exit_code=code,
        )


def run(case: dict[str, Any], serve: Callable[[], None], directory: Path, answer_pipe: int) -> None:
    """Answer one case and end this process; `serve` is vLLM's `main`."""
    output = directory / "output"
    _redirect(output)
    working_directory = directory / "cwd"
    working_directory.mkdir()
    os.chdir(working_directory)
    for name, text in case["files"].items():
        file = working_directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    os.environ["TMPDIR"] = str(directory)
    tempfile.tempdir = None
    for name, value in case["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if case["platform"].startswith("cuda-"):
        nvidia.select(case["platform"].removeprefix("cuda-"), case["gpus"])

    child = _Child(answer_pipe)
    _listen_to_warnings(child)
    _keep_processes_and_ports_out(child)
    _follow_stages(child)
    sys.argv = ["vllm", "serve", *case["args"]]
    while True:
        try:
            serve()
            error: BaseException = RuntimeError("vllm serve ended without an engine configuration")
        except _StartsProcess as start:
            process = start.process
            serve = partial(process._target, *process._args, **process._kwargs)
            continue
        except BaseException as raised:  # a refusal is any way to end
            error = raised
        child.refuse(error, output)


def _redirect(output: Path) -> None:
    log = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _listen_to_warnings(child: _Child) -> None:
    handle = logging.Logger.handle

    def listen(self: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            child.note(record.getMessage())
        handle(self, record)

    def show(message: object, category: type, filename: str, *_: Any, **__: Any) -> None:
        if "/vllm/" in filename:
            child.note(f"{category.__name__}: {message}")

    def exit_with_message(
        _: argparse.ArgumentParser, status: int = 0, message: str | None = None
    ) -> NoReturn:
        child.exit_text = (message or "").strip()
        sys.exit(status)

    patched: Any = logging.Logger
    patched.handle = listen
    patched = warnings
    patched.showwarning = show
    warnings.simplefilter("default")
    patched = argparse.ArgumentParser
    patched.exit = exit_with_message


def _keep_processes_and_ports_out(child: _Child) -> None:
    class Socket(socket.socket):
        def bind(self, address: Any) -> None:
            # A port that is taken here, or another machine's address, says nothing.
            if self.family != socket.AF_UNIX:
                try:
                    super().bind(address)
                except OSError as error:
                    child.note(f"lab: bind {address}: {error} (ignored)")

    def start(self: Any) -> NoReturn:
        raise _StartsProcess(self)

    patched: Any = socket
    patched.socket = Socket
    patched = multiprocessing.process.BaseProcess
    patched.start = start


def _follow_stages(child: _Child) -> None:
    """Note how far vLLM comes, and stop it once its configuration is finished."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def entering(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def enter(*arguments: Any, **keywords: Any) -> Any:
            child.stage = stage
            if stage == "launch":
                child.front_end = arguments[0]
            return function(*arguments, **keywords)

        return enter

    parse_args = FlexibleArgumentParser.parse_args
    create_engine_config = EngineArgs.create_engine_config

    def parse(self: Any, *arguments: Any, **keywords: Any) -> Any:
        namespace = parse_args(self, *arguments, **keywords)
        child.stage = "serve-args"
        return namespace

    def create(self: Any, *arguments: Any, **keywords: Any) -> NoReturn:
        child.stage = "engine-config"
        child.accept(create_engine_config(self, *arguments, **keywords))

    FlexibleArgumentParser.parse_args = parse
    ServeSubcommand.cmd = staticmethod(entering("launch", ServeSubcommand.cmd))
    EngineArgs.from_cli_args = classmethod(
        entering("engine-args", EngineArgs.from_cli_args.__func__)
    )
    EngineArgs.create_engine_config = create


def _inner_error(error: BaseException) -> BaseException:
    """Give what a validator raised, where pydantic wraps it."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        for detail in errors():
            cause = detail.get("ctx", {}).get("error")
            if isinstance(cause, BaseException):
                return cause
    return error


def _innermost_vllm_line(error: BaseException) -> str | None:
    place, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "/vllm/" in code.co_filename:
            file = code.co_filename.rsplit("/vllm/", 1)[1]
            place = f"vllm/{file}:{traceback.tb_lineno} {code.co_name}"
        traceback = traceback.tb_next
    return place
