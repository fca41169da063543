"""Generated requests: valid ones, and ones at and over every edge that vLLM checks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

_NUMBERS: Final[dict[str, tuple[Any, ...]]] = {
    "temperature": (0, 0.0, 1e-9, 0.5, 1, 2, 2.5, -1, "1", None, True),
    "top_k": (-2, -1, 0, 1, 5, 2000, "5", 5.0, 5.5, None),
    "top_p": (0.5, 1, 0, 1.5, None),
    "min_p": (0, 0.1, 1e-6, 1, 1.5, -0.1, None),
    "n": (0, 1, 2, 8, 9, 16385, "2", None),
    "seed": (0, 1, -1, 2**63 - 1, 2**63, -(2**63), "7", None),
    "min_tokens": (0, 1, 3, -1),
    "presence_penalty": (0.5, -3),
    "repetition_penalty": (1.1, 0),
}
_LOGPROBS: Final[tuple[Any, ...]] = (
    *(0, 1, 5, 20, 21, 30, 31, 1024, 1025, -1, -2),
    *(None, "3", True, 2.0),
)
_IDS: Final[tuple[Any, ...]] = (
    [1, 2],
    [1023],
    [1024],
    [1, 2000],
    [-1],
    [],
    ["3"],
    [3, 3],
    list(range(128)),
    list(range(129)),
    None,
)
_LISTS: Final[dict[str, tuple[Any, ...]]] = {
    "stop_token_ids": _IDS,
    "allowed_token_ids": _IDS,
    "logprob_token_ids": _IDS,
    "trace_decode_token_ids": _IDS,
    "logit_bias": (
        {},
        {"1": 1},
        {"1023": 5, "5": -100},
        {"1024": 1},
        {"-1": 1},
        {"x": 1},
        {" 5": 1},
        {"1": 200},
        None,
    ),
    "bad_words": (["a"], ["ab", "c"], [""], [f"w{i}" for i in range(129)], ["a"] * 200),
    "stop": ("a", ["a", "b"], [""], None),
}
_SWITCHES: Final[dict[str, tuple[Any, ...]]] = {
    "use_beam_search": (True, False),
    "echo": (True, False),
    "ignore_eos": (True,),
    "stream": (True,),
    "topk": (5,),
}
_MODELS: Final = ("tiny", "other", "Tiny", "", None)
_TEXTS: Final = ("a b c", "hello there", "x " * 20, "word " * 60, "z" * 3000, "")


class _Source(random.Random):
    """Draws for a server with `context` tokens of context."""

    def __init__(self, seed: int, context: int) -> None:
        super().__init__(seed)
        edges = [context + change for change in (-4, -2, -1, 0, 1)]
        self.outputs: tuple[Any, ...] = (0, 1, 2, 3, *edges, 1000, "2", None, -1)
        self.truncations = (-1, 0, 1, 2, *edges[2:], 1000, None)
        self.lengths = (2, 2, 3, 5, context // 2, *edges, 5 * context)


def generated(seed: int, context: int, count: int) -> Iterator[tuple[str, str]]:
    """Give routes and bodies for a server with 1024 ids and that context length."""
    source = _Source(seed, context)
    for _ in range(count):
        route, make = source.choice(_ROUTES)
        yield route, json.dumps(make(source))


def _ids(source: _Source) -> list[int]:
    ids = [source.randrange(1, 1000) for _ in range(source.choice(source.lengths))]
    if source.random() < 0.06:
        ids[-1] = source.choice((1023, 1024, 5000, -1))
    return ids


def _sampling(source: _Source, output: str = "max_tokens") -> dict[str, Any]:
    """Give one to four parameters, and an output that is short unless it is one of them."""
    tables: dict[str, tuple[Any, ...]] = {
        **_NUMBERS,
        **_LISTS,
        **_SWITCHES,
        "logprobs": _LOGPROBS,
        "top_logprobs": _LOGPROBS,
        "prompt_logprobs": _LOGPROBS,
        output: source.outputs,
        "max_completion_tokens": source.outputs,
    }
    given: dict[str, Any] = {output: source.choice((1, 2))}
    if source.random() < 0.7:
        given["top_k"] = source.choice((3, 20))
    for name in source.sample(sorted(tables), source.choice((0, 1, 1, 1, 2, 2, 3))):
        given[name] = source.choice(tables[name])
    return given


def _shared(source: _Source) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if source.random() < 0.15:
        given["model"] = source.choice(_MODELS)
    if source.random() < 0.05:
        given["stream"] = True
    if source.random() < 0.04:
        given["streem"] = True
    return given


def _generate(source: _Source) -> dict[str, Any]:
    return {"token_ids": _ids(source), "sampling_params": _sampling(source), **_shared(source)}


def _completions(source: _Source) -> dict[str, Any]:
    prompt: Any = source.choice(_TEXTS)
    kind = source.random()
    if kind < 0.45:
        prompt = _ids(source)
    elif kind < 0.55:
        prompt = [_ids(source), _ids(source)]
    elif kind < 0.6:
        prompt = ["a b", "c d"]
    body = {"prompt": prompt, **_sampling(source), **_shared(source)}
    if source.random() < 0.1:
        body["truncate_prompt_tokens"] = source.choice(source.truncations)
    if source.random() < 0.1:
        body.pop("max_tokens", None)
    return body


def _chat(source: _Source) -> dict[str, Any]:
    text = source.choice(("a b c", "hello there", "word " * 80))
    body = {
        "messages": [{"role": "user", "content": text}],
        **_sampling(source),
        **_shared(source),
    }
    if "top_logprobs" in body and source.random() < 0.7:
        body["logprobs"] = True
    return body


def _batch(source: _Source) -> dict[str, Any]:
    body = _chat(source)
    return {**body, "messages": [body["messages"]]}


def _responses(source: _Source) -> dict[str, Any]:
    body = {
        "input": source.choice(("a b c", "hello there", "word " * 80)),
        **_sampling(source, "max_output_tokens"),
        **_shared(source),
    }
    if "top_logprobs" in body and source.random() < 0.7:
        body["include"] = ["message.output_text.logprobs"]
    return body


def _messages(source: _Source) -> dict[str, Any]:
    text = source.choice(("a b c", "hello there", "word " * 80))
    return {
        "model": source.choice(("tiny", "tiny", "tiny", "other")),
        "messages": [{"role": "user", "content": text}],
        **_sampling(source),
    }


_ROUTES: Final = (
    *(("/inference/v1/generate", _generate),) * 4,
    *(("/v1/completions", _completions),) * 5,
    *(("/v1/chat/completions", _chat),) * 3,
    ("/v1/chat/completions/batch", _batch),
    ("/v1/responses", _responses),
    ("/v1/messages", _messages),
    ("/invocations", _chat),
    ("/invocations", _completions),
)
