"""Would `vllm serve` of one version accept a configuration? Real vLLM's own answer.

    python -m lab.oracle VERSION [--jobs N] [--timeout S] [--fresh] < cases.jsonl > answers.jsonl

No GPU is needed and no engine is started: that version's own command-line program runs until
its engine configuration is finished, on a CPU or a faked NVIDIA machine (lab/README.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from lab.environment import CHECKOUT, Lab, LabError, process_environment

# In a case's arguments and files, the directory of the lab's models; in answers it is put
# back, so that cases and answers are the same on every machine.
MODELS = "$MODELS"
GPUS = ("a100", "a10g", "b200", "h100", "h200", "l4", "l40s", "t4", "v100")
PLATFORMS = ("cpu", "cpu-triton", *(f"cuda-{gpu}" for gpu in GPUS))
# Cases on their way to one worker: enough to keep it busy, less than a pipe's capacity.
WINDOW = 16


class OracleFailed(LabError):
    """The process that answers ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A proposed configuration.

    Attributes:
        args: what follows `vllm serve`; `$MODELS/qwen3-0.6b` is a model of the lab.
        env: variables of this case only; None unsets one.
        platform: one of `PLATFORMS`; `cpu-triton` is what `lab.server` runs on.
        gpus: how many GPUs a `cuda-*` machine has.
        files: text by name relative to the case's working directory (`--config c.yaml`).
        id: anything; comes back in the answer.
    """

    args: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    platform: str = "cuda-h100"
    gpus: int = 8
    files: Mapping[str, str] = field(default_factory=dict)
    id: Any = None

    def __post_init__(self) -> None:
        if self.platform not in PLATFORMS:
            raise ValueError(f"platform {self.platform!r} is none of {', '.join(PLATFORMS)}")

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read one JSON object.

        Raises:
            ValueError: it is not a case.
        """
        if not isinstance(value, dict) or not isinstance(value.get("args"), list):
            raise ValueError("a case is an object whose `args` is a list")
        unknown = set(value) - {"args", "env", "files", "gpus", "id", "platform"}
        if unknown:
            raise ValueError(f"a case has no {', '.join(sorted(unknown))}")
        return cls(**value | {"args": tuple(map(str, value["args"]))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What vLLM said.

    Attributes:
        accepted: None where the oracle has no answer (`stage` is then `oracle`).
        stage: where it was refused: `argparse`, `serve-args` (validate_parsed_serve_args),
            `launch` (the serve command before engine arguments), `engine-args`
            (from_cli_args), `engine-config` (create_engine_config); `done` if accepted.
        error, error_type, exit_code: how the process would end.
        cause: the exception inside pydantic's.
        where: the innermost line of vLLM.
        warnings: what vLLM logged as such.
        facts: of the finished configuration; `executor_class` is the engine's first step,
            and an error there does not change `accepted`.
    """

    id: Any
    accepted: bool | None
    stage: str
    error: str | None = None
    error_type: str | None = None
    exit_code: int | None = None
    cause: str | None = None
    where: str | None = None
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Render as plain data."""
        return asdict(self)


class _Worker:
    """One process that has imported vLLM for one platform."""

    def __init__(
        self,
        lab: Lab,
        version: str,
        platform: str,
        gpus: int,
        *,
        jobs: int,
        timeout: float,
        env: Mapping[str, str | None] | None = None,
    ) -> None:
        build = "cuda" if platform.startswith("cuda-") else "cpu"
        environment = process_environment(lab, version, build=build, cache=platform)
        environment["OMP_NUM_THREADS"] = "1"
        # Multimodal classes and processors import torchvision.
        environment["PYTHONPATH"] += os.pathsep + str(lab.model_packages)
        if platform == "cpu-triton":
            environment["LAB_TRITON_ON_CPU"] = "1"
        elif build == "cuda":
            environment["LAB_NVIDIA"] = f"{platform.removeprefix('cuda-')}:{gpus}"
        for name, value in (env or {}).items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        lab.logs.mkdir(exist_ok=True)
        self.log = lab.logs / f"oracle-{version}-{platform}.log"
        self.outstanding = 0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [lab.python, "-P", "-m", "lab.inside.worker", str(jobs), str(timeout)],
                env=environment,
                cwd=CHECKOUT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.cases: IO[bytes] = self.process.stdin
        self.answers: IO[bytes] = self.process.stdout

    def send(self, case: dict[str, Any]) -> None:
        self.outstanding += 1
        try:
            self.cases.write(json.dumps(case).encode() + b"\n")
            self.cases.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def receive(self) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            raise self._failure()
        self.outstanding -= 1
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> OracleFailed:
        code = self.process.wait()
        tail = self.log.read_text(errors="replace")[-2000:]
        return OracleFailed(f"the oracle's process ended with {code}; end of {self.log}:\n{tail}")

    def close(self) -> None:
        """Stop the process; its children end with their cases."""
        self.cases.close()
        if self.outstanding:
            self.process.terminate()
        self.answers.close()
        self.process.wait()


class Oracle(AbstractContextManager["Oracle"]):
    """Answers cases of one version; keeps a process per platform while it is open.

    `jobs` is the number of cases worked on at once per platform, `timeout` seconds for each.
    `fresh` imports vLLM anew for every case, with the case's variables already set: slow, and
    needed only for variables that vLLM reads while it is imported.
    """

    def __init__(
        self,
        version: str,
        *,
        jobs: int = 1,
        timeout: float = 120.0,
        fresh: bool = False,
        lab: Lab | None = None,
    ) -> None:
        self.lab = lab or Lab.default()
        self.lab.require(version)
        self.version = version
        self.jobs = jobs
        self.timeout = timeout
        self.fresh = fresh
        self._workers: dict[str, _Worker] = {}

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def ask(self, cases: Iterable[Case]) -> Iterator[Answer]:
        """Give the answers in the order of the cases.

        Raises:
            OracleFailed: a process of the oracle ended by itself.
        """
        ready: dict[int, dict[str, Any]] = {}
        asked: dict[int, tuple[Case, _Worker]] = {}
        following = 0
        for number, case in enumerate(cases):
            worker = self._worker(case)
            asked[number] = (case, worker)
            worker.send(self._as_sent(number, case))
            while worker.outstanding >= (1 if self.fresh else WINDOW + self.jobs):
                self._receive(worker, ready)
            while following in ready:
                yield self._answer(asked.pop(following)[0], ready.pop(following))
                following += 1
        while asked:
            case, worker = asked[following]
            while following not in ready:
                self._receive(worker, ready)
            del asked[following]
            yield self._answer(case, ready.pop(following))
            following += 1

    def _worker(self, case: Case) -> _Worker:
        platform = case.platform
        if self.fresh and platform in self._workers:
            self._workers.pop(platform).close()
        if platform not in self._workers:
            self._workers[platform] = _Worker(
                self.lab,
                self.version,
                platform,
                case.gpus,
                jobs=self.jobs,
                timeout=self.timeout,
                env=case.env if self.fresh else None,
            )
        return self._workers[platform]

    def _receive(self, worker: _Worker, ready: dict[int, dict[str, Any]]) -> None:
        answer = worker.receive()
        ready[answer.pop("n")] = answer

    def _as_sent(self, number: int, case: Case) -> dict[str, Any]:
        models = str(self.lab.models)
        return {
            "n": number,
            "args": [argument.replace(MODELS, models) for argument in case.args],
            "env": {k: v and v.replace(MODELS, models) for k, v in case.env.items()},
            "files": {k: v.replace(MODELS, models) for k, v in case.files.items()},
            "platform": case.platform,
            "gpus": case.gpus,
        }

    def _answer(self, case: Case, sent: dict[str, Any]) -> Answer:
        text = json.dumps(sent).replace(json.dumps(str(self.lab.models))[1:-1], MODELS)
        members = json.loads(text)
        return Answer(id=case.id, **members | {"warnings": tuple(members["warnings"])})


def ask(version: str, cases: Iterable[Case], *, jobs: int = 1) -> list[Answer]:
    """Ask vLLM `version` about each case; answers come in the same order.

    Raises:
        NotInstalled: that version is not in the lab.
        OracleFailed: the oracle's process ended by itself.
    """
    with Oracle(version, jobs=jobs) as oracle:
        return list(oracle.ask(cases))


def read_cases(stream: Iterable[str]) -> Iterator[Case]:
    """Read JSON lines; empty ones are skipped.

    Raises:
        LabError: a line is not a case; says which.
    """
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                yield Case.from_json(json.loads(line))
            except (TypeError, ValueError) as error:
                raise LabError(f"line {number}: {error}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.oracle", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--jobs", type=int, default=1, help="cases worked on at once")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each case")
    parser.add_argument("--fresh", action="store_true", help="import vLLM anew for each case")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    try:
        with Oracle(
            options.version, jobs=options.jobs, timeout=options.timeout, fresh=options.fresh
        ) as oracle:
            for answer in oracle.ask(read_cases(sys.stdin)):
                counts[answer.stage] += 1
                print(json.dumps(answer.as_json()), flush=True)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    print(f"lab: {dict(counts)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
