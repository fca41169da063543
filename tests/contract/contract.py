"""What has to be equal between two servers that answer the same request.

Tokens differ between models, so bodies are compared by shape: keys and their order, types and
nulls, and the values that do not depend on the model. Errors are compared word for word. The
assertions take recorded answers of real vLLM on one side and any server on the other: the
simulated one in the tests, real vLLM in the lab.
"""

from __future__ import annotations

import http.client
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.contract.cases import Case

RECORDED = Path(__file__).parent / "recorded"
HEADERS = (
    *("content-type", "allow", "location", "vary", "transfer-encoding"),
    *("access-control-allow-origin", "access-control-allow-methods"),
)
"""The headers a client may rely on; the others are the server's own."""

# Members whose value is the same whatever the model generates.
_EXACT = frozenset(
    {
        *("object", "model", "finish_reason", "stop_reason", "output_mode", "role", "owned_by"),
        *("version", "message", "type", "param", "code", "index", "prompt_tokens", "count"),
        *("total_tokens", "completion_tokens", "max_model_len", "start", "end", "detail"),
        *("organization", "server_load", "prompt_token_ids", "token_strs", "prompt"),
    }
)
_NAMES = frozenset({"id", "request_id", "system_fingerprint"})
# Lists whose length depends on the model.
_ANY_LENGTH = frozenset({"sampling_mask", "top_logprobs", "bytes"})


@dataclass(frozen=True, slots=True)
class Answer:
    """One raw answer."""

    case: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: str

    def header(self, name: str) -> str | None:
        """Give a header; of `location` the path only."""
        values = [value for key, value in self.headers if key == name]
        if not values:
            return None
        return urlsplit(values[0]).path if name == "location" else ", ".join(values)

    @property
    def streamed(self) -> bool:
        """Whether the body is server-sent events."""
        return (self.header("content-type") or "").startswith("text/event-stream")

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Decode the events of a stream, the closing `[DONE]` as text.

        Raises:
            AssertionError: the framing is not `data: …`, blank line.
        """
        assert self.body.endswith("\n\n"), "a stream ends with an empty line"
        events: list[Any] = []
        for block in self.body[:-2].split("\n\n"):
            assert block.startswith("data: "), f"not an event: {block!r}"
            assert "\n" not in block, f"an event of several lines: {block!r}"
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
        return events


def exchange(base_url: str, case: Case, timeout: float = 60) -> Answer:
    """Send one request over a fresh connection and give the raw answer."""
    url = urlsplit(base_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout)
    try:
        connection.request(case.method, case.path, case.content(), case.all_headers())
        response = connection.getresponse()
        body = response.read().decode()
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
    finally:
        connection.close()
    return Answer(case.name, response.status, headers, body)


def recorded(version: str) -> dict[str, Answer]:
    """Load what real vLLM of that version answered, by case name."""
    answers = {}
    for line in (RECORDED / f"{version}.jsonl").read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        headers = tuple((name, value) for name, value in item["headers"])
        answers[item["case"]] = Answer(item["case"], item["status"], headers, item["body"])
    return answers


def differences(expected: Answer, actual: Answer) -> list[str]:
    """Say in what the answers differ that a client could tell; nothing if in nothing."""
    if expected.status != actual.status:
        return [f"status {actual.status}, not {expected.status}: {actual.body[:300]}"]
    found = [
        f"{name}: {actual.header(name)!r}, not {expected.header(name)!r}"
        for name in HEADERS
        if expected.header(name) != actual.header(name)
    ]
    if expected.streamed and actual.streamed:
        found += _stream_differences(expected, actual)
    elif (expected.header("content-type") or "").startswith("application/json") and expected.body:
        found += _member_differences(shape(expected.json()), shape(actual.json()))
        if _numbers_of_spaces(expected.body) != _numbers_of_spaces(actual.body):
            found.append("JSON separators differ")
    elif expected.body != actual.body:
        found.append(f"body {actual.body[:200]!r}, not {expected.body[:200]!r}")
    return found


def _numbers_of_spaces(body: str) -> bool:
    return '": ' in body.split('"', 4)[0:4][-1]


def _stream_differences(expected: Answer, actual: Answer) -> Iterator[str]:
    """Compare streams choice by choice: how choices interleave is up to the engine."""
    wanted, got = (_by_choice(answer.events()) for answer in (expected, actual))
    if wanted.keys() != got.keys():
        yield f"choices {list(got)}, not {list(wanted)}"
        return
    for index, chunks in wanted.items():
        if len(chunks) != len(got[index]):
            yield f"choice {index}: {len(got[index])} chunks, not {len(chunks)}"
        for number, (left, right) in enumerate(zip(chunks, got[index], strict=False)):
            for difference in _member_differences(left, right):
                yield f"choice {index}, chunk {number}: {difference}"


def _by_choice(events: Iterable[Any]) -> dict[Any, list[Any]]:
    grouped: dict[Any, list[Any]] = {}
    for event in events:
        index = None
        if isinstance(event, dict) and event.get("choices"):
            index = event["choices"][0]["index"]
        grouped.setdefault(index, []).append(shape(event))
    return grouped


def _member_differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        if list(expected) != list(actual):
            yield f"{path or 'body'}: keys {list(actual)}, not {list(expected)}"
            return
        for key, value in expected.items():
            yield from _member_differences(value, actual[key], f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(actual)} members, not {len(expected)}"
        for number, (left, right) in enumerate(zip(expected, actual, strict=False)):
            yield from _member_differences(left, right, f"{path}[{number}]")
    elif expected != actual:
        yield f"{path or 'body'}: {actual!r}, not {expected!r}"


def shape(value: Any, key: str = "") -> Any:
    """Replace what depends on the model by its type; keep the rest."""
    if isinstance(value, Mapping):
        if value and all(name.isdigit() for name in value):
            return {"<token id>": shape(next(iter(value.values())))}
        if key == "top_logprobs":
            return {"<text>": "float"}
        return {name: shape(member, name) for name, member in value.items()}
    if isinstance(value, list):
        if key in _ANY_LENGTH and key != "top_logprobs":
            return "list"
        members = [shape(member, key) for member in value]
        if key in _ANY_LENGTH:
            return _distinct(members)
        return members
    if value is None or isinstance(value, bool):
        return value
    if key in _NAMES:
        return _without_digits(str(value))
    if key in _EXACT or (key == "tokens" and isinstance(value, int)):
        return value
    return type(value).__name__


def _distinct(members: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for member in members:
        if member not in kept:
            kept.append(member)
    return kept


def _without_digits(name: str) -> str:
    return re.sub(r"-?[0-9a-f]{8,}$", "-<hex>", name)


def rows(answer: Mapping[str, Any]) -> Iterator[tuple[int, list[int], dict[int, float]]]:
    """Give (sampled id, mask, log-probability by id) of every row of a generate answer."""
    for choice in answer["choices"]:
        content = choice["logprobs"]["content"]
        for token, mask, entry in zip(
            choice["token_ids"], choice["sampling_mask"], content, strict=True
        ):
            listed = {_id_of(item): item["logprob"] for item in (entry, *entry["top_logprobs"])}
            yield token, mask, listed


def assert_replay_invariants(answer: Mapping[str, Any], *, top_k: int) -> int:
    """Check what every row of a server with masks promises; gives the number of rows.

    The sampled id is in the mask, the probabilities over the mask sum to one, and the mask has
    at most top_k ids, save ties with the k-th. The request has to list enough logprobs.
    """
    count = 0
    for token, mask, logprobs in rows(answer):
        count += 1
        assert mask == sorted(set(mask)), "ids ascend"
        assert token in mask
        assert not set(mask) - set(logprobs), "ask for more logprobs than the mask has ids"
        values = sorted((logprobs[member] for member in mask), reverse=True)
        assert abs(sum(math.exp(value) for value in values) - 1) < 1e-4
        assert set(values[top_k:]) <= {values[min(top_k, len(values)) - 1]}
    return count


def _id_of(item: Mapping[str, Any]) -> int:
    named = item.get("token", "")
    return int(item["token_id"] if "token_id" in item else named.removeprefix("token_id:"))
