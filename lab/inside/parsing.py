"""Answers what vLLM's own parser makes of command lines, kwargs and variables.

    python -m lab.inside.parsing      JSON lines in (a list of questions each), JSON lines out

vLLM is imported once; each list is answered in a fork. Started by `lab.parser_oracle`, which says
what a question and an answer are. Only parsing and `validate_parsed_serve_args` are done.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from lab.inside.values import changes, namespace_values, plain

_LONGEST = 400
Answer = dict[str, Any]


class _Exit(BaseException):
    """argparse ends the process here."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Built(BaseException):
    """Ends vLLM's `main` once its option tables are there."""


class Parser:
    """vLLM's command-line program up to the point where it would start."""

    def __init__(self) -> None:
        import vllm.entrypoints.cli.main as cli
        import vllm.envs as envs
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.cli.serve import ServeSubcommand
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        self._main = cli
        self._parser = _parser_of(cli.main, FlexibleArgumentParser)
        self._command = ServeSubcommand()
        self._variables: Mapping[str, Callable[[], Any]] = envs.environment_variables
        self._engine_args = AsyncEngineArgs
        self.defaults = namespace_values(self._parser.parse_args(["serve"]))
        # Any directory will do for a model; a name is looked up on the hub.
        self._kwargs_defaults = namespace_values(AsyncEngineArgs(model="."))
        self._start = time.process_time()

    def answer(self, question: Mapping[str, Any]) -> Answer:
        """Answer one question; never raises for what vLLM refuses."""
        stage = ["argparse"]
        try:
            values = self._values(question, stage)
        except Exception as error:
            return _refusal(stage[0], error)
        except (_Exit, SystemExit) as error:
            return _refusal(stage[0], error)
        return {"accepted": True, "stage": "done", "values": values}

    def _values(self, question: Mapping[str, Any], stage: list[str]) -> dict[str, Any]:
        if question.get("defaults"):
            return {"serve": self.defaults, "kwargs": self._kwargs_defaults}
        if "timed" in question:
            return self._timed(question["timed"], question["args"])
        if "kwargs" in question:
            stage[0] = "engine-args"
            made = self._engine_args(**question["kwargs"])
            return changes(namespace_values(made), self._kwargs_defaults)
        if "variables" in question:
            return {name: self._variable(name) for name in question["variables"]}
        sys.argv = ["vllm", "serve", *question["args"]]
        if "--omni" in sys.argv:  # what `main` does before it parses
            raise _Exit(1, "--omni flag requires a valid instance of vllm-omni to be installed.")
        namespace = self._parser.parse_args()
        values = changes(namespace_values(namespace), self.defaults)
        stage[0] = "serve-args"
        configure = getattr(self._main, "configure_logging_from_args", None)
        if configure is not None:
            configure(namespace)
        self._command.validate(namespace)
        return values

    def _timed(self, count: int, args: list[str]) -> dict[str, float]:
        """Give seconds of CPU time: of starting up to here, and of parsing and validating."""
        began = time.process_time()
        for _ in range(count):
            self._command.validate(self._parser.parse_args(["serve", *args]))
        parse = (time.process_time() - began) / count
        return {"start": self._start, "parse": parse}

    def _variable(self, name: str) -> Any:
        if name not in self._variables:
            return {"$unknown": name}
        try:
            return plain(self._variables[name]())
        except Exception as error:  # what vLLM would end with
            return {"$error": f"{type(error).__name__}: {error}"[:_LONGEST]}


def _parser_of(main: Callable[[], None], parser_class: Any) -> Any:
    """Run vLLM's `main` up to its parser."""
    built: list[Any] = []

    def stop(parser: Any, *_: object, **__: object) -> NoReturn:
        built.append(parser)
        raise _Built

    parse_args = parser_class.parse_args
    parser_class.parse_args = stop
    sys.argv = ["vllm", "serve"]
    with suppress(_Built):
        main()
    parser_class.parse_args = parse_args
    return built[0]


def _refusal(stage: str, error: BaseException) -> Answer:
    text = " ".join(str(error).split())
    return {
        "accepted": False,
        "stage": stage,
        "error_type": type(error).__name__.strip("_"),
        "error": text if len(text) <= _LONGEST else f"{text[:200]} ... {text[-190:]}",
    }


def _answer_all(parser: Parser, questions: list[dict[str, Any]], out: int) -> NoReturn:
    directory = tempfile.mkdtemp(prefix="vllm-lab-")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    environment = dict(os.environ)
    for question in questions:
        os.chdir(directory)
        for name, text in question.get("files", {}).items():
            (Path(directory) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(directory) / name).write_text(text)
        for name, value in question.get("env", {}).items():
            os.environ[name] = value
        line = json.dumps({"n": question["n"], **parser.answer(question)}).encode() + b"\n"
        while line:
            line = line[os.write(out, line) :]
        os.environ.clear()
        os.environ.update(environment)
        for name in question.get("files", {}):
            (Path(directory) / name).unlink()
    os._exit(0)


def _exit_with_message(
    _: argparse.ArgumentParser, status: int = 0, message: str | None = None
) -> NoReturn:
    raise _Exit(status, (message or "").strip() or f"exit {status}")


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what vLLM prints is no answer
    parser = Parser()
    patched: Any = argparse.ArgumentParser
    patched.exit = _exit_with_message
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page it shares
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                _answer_all(parser, json.loads(line), out)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        os.write(out, b'{"end": true}\n')


if __name__ == "__main__":
    main()
