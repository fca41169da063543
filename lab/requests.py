"""Our verdict on generated requests beside a real server's: `python -m lab.requests VERSION`.

A request that the gate refuses and vLLM answers is a false rejection, and the exit code is 1.
What the gate lets through and vLLM refuses is counted by vLLM's words; most of it is vLLM's own
to say. Requests that would end the engine are not sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
from packaging.version import Version

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.request_rules.checker import RequestChecker
from app.request_rules.served import Served, served_by
from app.serve_config.resolve import resolve
from lab.environment import LabError
from lab.request_cases import generated
from lab.server import Server, is_healthy

_PLAIN: Final = ("--no-return-sampling-mask", "--max-model-len", "64", "--max-num-seqs", "8")
PROFILES: Final[dict[str, tuple[str, ...]]] = {
    "plain": (*_PLAIN, "--max-logprobs", "30"),
    "masks": ("--max-model-len", "64", "--max-num-seqs", "8"),
    "all-logprobs": (*_PLAIN, "--max-logprobs", "-1"),
    "speculating": (
        *_PLAIN,
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}',
    ),
}
# The first version that runs a profile on Model Runner V2.
_SINCE: Final = {"speculating": Version("0.32.0")}
# What ends an engine, or a bound of our own: the gate refuses it, and vLLM takes it.
OURS: Final = frozenset(
    {
        "request-seed-range",
        "request-seed-children",
        "request-allowed-token-ids",
        "request-logit-bias-size",
        "request-logit-bias-finite",
        "request-stop-token-ids",
        "request-stop-token-range",
        "request-output-range",
        "request-min-tokens",
        "request-min-tokens-endless",
        "request-prompt-range",
        "request-nesting",
        "request-prompt-logprobs-cost",
        "request-bad-words",
    }
)
# Our name for a connection that broke: a stream that vLLM ends without saying why.
_BROKEN: Final = 599


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, our verdict, and what vLLM said.

    `rules` are those that reject. `status` is vLLM's; an error event in a stream counts as the
    status in it.
    """

    version: str
    profile: str
    route: str
    body: str
    rules: tuple[str, ...]
    status: int
    message: str

    @property
    def is_false_rejection(self) -> bool:
        return bool(self.rules) and self.status < 400

    @property
    def is_missed(self) -> bool:
        return not self.rules and self.status >= 400


def profiles_of(version: str) -> list[str]:
    """Give the profiles that a version can run."""
    known = Version(version)
    return [name for name in PROFILES if known >= _SINCE.get(name, known)]


def served(version: str, command: Sequence[str], model: Path) -> Served:
    """Give what the gate knows of a server of the lab."""
    words = parse_command(f"VLLM_USE_V2_MODEL_RUNNER=1 vllm serve {shlex.join(command)}")
    resolution = resolve(words, CatalogueLibrary().get(version))
    if resolution.config is None:
        raise LabError(f"our parser refuses the lab's own command: {resolution.findings}")
    facts = json.loads((model / "config.json").read_text())
    return served_by(replace(resolution.config, model_config=facts, memo={}))


def ask(server: Server, profile: str, count: int, seed: int, jobs: int = 8) -> list[Answer]:
    """Send `count` generated requests to a server that is up."""
    known = served(server.version, server.command, server.lab.models / "tiny")
    if known.max_model_len is None:
        raise LabError("the length of the context is not known")
    checker = RequestChecker(known, on_crash=_report)
    cases = []
    for route, body in generated(seed, known.max_model_len, count):
        examination = checker.examine(route, body.encode())
        errors = (examination.refusal or {}).get("error", {}).get("errors", ())
        rules = tuple(error["rule"] for error in errors)
        if not OURS.intersection(rules):
            cases.append((route, body, rules))
    return asyncio.run(_ask_all(server, profile, cases, jobs))


async def _ask_all(
    server: Server, profile: str, cases: Sequence[tuple[str, str, tuple[str, ...]]], jobs: int
) -> list[Answer]:
    places = asyncio.Semaphore(jobs)

    async def one(case: tuple[str, str, tuple[str, ...]]) -> Answer:
        route, body, rules = case
        async with places:
            try:
                response = await client.post(
                    server.url + route,
                    content=body.encode(),
                    headers={"content-type": "application/json"},
                )
                status, message = _told(response)
            except httpx.TransportError as error:
                status, message = _BROKEN, f"{type(error).__name__}: {error}"
        return Answer(server.version, profile, route, body, rules, status, message)

    async with httpx.AsyncClient(timeout=300) as client:
        return list(await asyncio.gather(*map(one, cases)))


def _told(response: httpx.Response) -> tuple[int, str]:
    """Give status and message, of a stream those of the error event in it."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        for line in response.text.splitlines():
            if line.startswith("data: {") and '"error"' in line:
                error = json.loads(line.removeprefix("data: ")).get("error")
                if isinstance(error, dict) and error.get("message") is not None:
                    return int(error.get("code") or 500), str(error.get("message"))
        return response.status_code, ""
    if response.status_code < 400:
        return response.status_code, ""
    try:
        return response.status_code, str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.status_code, response.text[:300]


def _report(rule: str, error: Exception) -> None:
    print(f"rule {rule} crashed: {type(error).__name__}: {error}", file=sys.stderr)


def summary(answers: Sequence[Answer]) -> Iterator[str]:
    """Say how far we and vLLM agree."""
    refused = sum(answer.status >= 400 for answer in answers)
    ours = sum(bool(answer.rules) for answer in answers)
    yield f"{len(answers)} requests: vLLM refused {refused}, the gate {ours}"
    for answer in answers:
        if answer.is_false_rejection:
            yield f"FALSE {answer.route} {answer.rules} {answer.status} {answer.body[:300]}"
    missed = Counter(" ".join(a.message.split())[:110] for a in answers if a.is_missed)
    for message, number in missed.most_common():
        yield f"missed {number:3} {message}"


def sample(answers: Sequence[Answer], each: int = 1, longest: int = 330) -> Iterator[Answer]:
    """Give a few short ones of each kind: by version, profile, route, and why it was refused.

    Of those that vLLM answered, which nothing may refuse, there are four times as many.
    """
    taken: Counter[tuple[object, ...]] = Counter()
    for answer in answers:
        kind = (answer.version, answer.profile, answer.route, answer.rules, answer.status)
        taken[kind] += 1
        most = each if answer.status >= 400 else 4 * each
        if taken[kind] <= most and len(answer.body) <= longest and answer.status != _BROKEN:
            yield replace(answer, message=answer.message[:100])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.requests", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--count", type=int, default=300, help="requests for each server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="append", choices=PROFILES, default=None)
    parser.add_argument("--jobs", type=int, default=8, help="requests at a time")
    parser.add_argument("--keep", type=Path, help="write the answers, as JSON lines, to this file")
    parser.add_argument("--sample", action="store_true", help="keep a few of each kind only")
    options = parser.parse_args()
    answers: list[Answer] = []
    try:
        for profile in options.profile or profiles_of(options.version):
            with Server(options.version, PROFILES[profile]) as server:
                found = ask(server, profile, options.count, options.seed, options.jobs)
                print(f"{options.version} {profile}: " + "\n  ".join(summary(found)), flush=True)
                answers += found
                if not server.running or not is_healthy(server.url):
                    raise LabError(f"a request ended the server{server.tail()}")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    if options.keep is not None:
        kept = sample(answers) if options.sample else answers
        rows: list[dict[str, Any]] = [asdict(answer) for answer in kept]
        options.keep.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return int(any(answer.is_false_rejection for answer in answers))


if __name__ == "__main__":
    sys.exit(main())
