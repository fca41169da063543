"""The requests of the conformance suite: those of the contract, and what they leave out."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.contract.cases import CHAT, COMPLETIONS, GENERATE, MESSAGES, PROMPT, Case, all_cases

_JSON = {"content-type": "application/json"}
_SEEDED = {"temperature": 1.0, "top_k": 4, "top_p": 0.9, "seed": 7, "max_tokens": 4}


def conformance_cases() -> list[Case]:
    """Give every request, each with its own name."""
    return [*all_cases(), *_methods(), *_targets(), *_bodies(), *_streams()]


def _methods() -> Iterable[Case]:
    for path in (GENERATE, COMPLETIONS, CHAT, "/tokenize", "/v1/models", "/nothing-here"):
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
            yield Case(f"{method.lower()}{path}", path, method=method)


def _targets() -> Iterable[Case]:
    for target in (
        "/version?",
        "/version?a=1&a=2&b=%20%2F&c=%C3%A9",
        "/version?q=/a//b?c",
        "//version",
        "/v1//models",
        "/v1/models?api-version=1",
        "/v1/mod%65ls",
        "/v1/completions/",
        "/nothing/%2e%2e/version",
    ):
        yield Case(f"target {target}", target, method="GET")


def _bodies() -> Iterable[Case]:
    seeded = {"token_ids": PROMPT, "sampling_params": _SEEDED}
    yield Case("spaces and order", GENERATE, raw=json.dumps(seeded, indent=3), headers=_JSON)
    yield Case(
        "names given twice",
        COMPLETIONS,
        raw='{"model": "x", "prompt": "hi", "seed": 1, "max_tokens": 2, "model": "tiny"}',
        headers=_JSON,
    )
    yield Case(
        "escapes",
        COMPLETIONS,
        raw='{"mod\\u0065l": "tiny", "prompt": "\\ud83d\\ude00\\u0000 \\u00e9", "seed": 3, '
        '"max_tokens": 2}',
        headers=_JSON,
    )
    yield Case("empty body", CHAT, raw="", headers=_JSON)
    yield Case("no JSON", CHAT, raw="model=tiny", headers=_JSON)
    yield Case("not UTF-8", CHAT, raw='{"model": "\udcff"}', headers=_JSON)
    yield Case("list", CHAT, raw="[1, 2]", headers=_JSON)
    yield Case("null", GENERATE, raw="null", headers=_JSON)
    yield Case("other media type", CHAT, raw="{}", headers={"content-type": "text/plain"})
    yield Case("no media type", CHAT, raw=json.dumps({"model": "tiny", "messages": MESSAGES}))
    large = {"model": "tiny", "prompt": "hi", "seed": 1, "max_tokens": 2, "user": "x" * 3_000_000}
    yield Case("large body", COMPLETIONS, body=large)
    yield Case("large prompt", "/tokenize", body={"model": "tiny", "prompt": "ab " * 50_000})
    yield Case("ids of another kind", GENERATE, body={**seeded, "token_ids": ["a"]})
    yield Case("wrong type of a parameter", COMPLETIONS, body={"model": "tiny", "prompt": 1.5})


def _streams() -> Iterable[Case]:
    for n in (1, 3):
        common = {"model": "tiny", **_SEEDED, "stream": True, "n": n}
        usage = {"stream_options": {"include_usage": True}}
        yield Case(f"stream/completions {n}", COMPLETIONS, body={**common, "prompt": "hi"})
        yield Case(f"stream/chat {n}", CHAT, body={**common, "messages": MESSAGES})
        yield Case(f"stream/chat usage {n}", CHAT, body={**common, **usage, "messages": MESSAGES})
        sampling = {**_SEEDED, "n": n}
        yield Case(
            f"stream/generate {n}",
            GENERATE,
            body={"token_ids": PROMPT, "sampling_params": sampling, "stream": True},
        )
