"""Bad words by tokens: what is asked, and what comes of the answers."""

from __future__ import annotations

import json
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.request_rules.bad_words import most_tokens
from app.request_rules.checker import RequestChecker
from app.request_rules.counting import Counts, Tokens
from app.request_rules.examination import Examination
from app.request_rules.limits import Limits
from app.request_rules.policy import Policy
from app.request_rules.request import Route
from tests.request_rules.serving import served_by_command

V2 = "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m"
Tokenizer = Callable[[str], list[int] | None]


class FakeCounter:
    """Counts by a function; remembers what it was asked."""

    def __init__(self, tokenize: Tokenizer) -> None:
        self._tokenize = tokenize
        self.asked: list[str] = []
        self.models: set[str | None] = set()

    async def count(self, texts: Sequence[str], model: str | None) -> Counts:
        self.asked += texts
        self.models.add(model)
        counts: dict[str, Tokens | None] = {}
        for text in texts:
            ids = self._tokenize(text)
            counts[text] = None if ids is None else Tokens(len(ids), ids[0] if ids else None)
        return counts


def in_bytes(text: str) -> list[int]:
    return list(text.encode())


def same_after_a_blank(text: str) -> list[int]:
    return [hash(word) for word in text.split()]


def not_at_all(text: str) -> None:
    return None


async def examined(
    words: list[str], tokenize: Tokenizer, command: str = V2, **body: Any
) -> tuple[Examination, FakeCounter]:
    checker = RequestChecker(served_by_command(command))
    counter = FakeCounter(tokenize)
    raw = json.dumps({"prompt": "a", "bad_words": words, **body}).encode()
    examination = checker.examine(Route.COMPLETIONS, raw)
    if examination.settle is not None:
        examination = await examination.settle(counter)
    return examination, counter


def _verdict(examination: Examination) -> list[tuple[str, str]]:
    return [pair for pair in examination.findings if pair[0] == "request-bad-words"]


PASSES: list[tuple[str, str]] = []
REFUSED = [("request-bad-words", "error")]
TOLD = [("request-bad-words", "warning")]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("words", "tokenize", "verdict"),
    [
        # Bytes: `abc` has three tokens, ` abc` four, so it counts once.
        (["x" * 1024], in_bytes, PASSES),
        (["x" * 1025], in_bytes, REFUSED),
        (["x" * 512, "y" * 512], in_bytes, PASSES),
        (["x" * 512, "y" * 513], in_bytes, REFUSED),
        # Blanks at the front are taken off by vLLM, and words that differ only there stay two.
        (["  " + "x" * 512, "x" * 512], in_bytes, PASSES),
        (["  " + "x" * 513, "x" * 512], in_bytes, REFUSED),
        # One token for a word: the sum is small however long the words are.
        (["x" * 2000], same_after_a_blank, PASSES),
        (["x " * 1024], same_after_a_blank, PASSES),
        (["x " * 1025], same_after_a_blank, REFUSED),
        # Nothing is left of a word of blanks.
        (["   ", "x" * 1024], in_bytes, PASSES),
    ],
)
async def test_the_tokens_decide(
    words: list[str], tokenize: Tokenizer, verdict: list[tuple[str, str]]
) -> None:
    examination, counter = await examined(words, tokenize)
    assert _verdict(examination) == verdict
    assert counter.asked
    assert examination.settle is None


@pytest.mark.asyncio
async def test_the_spelling_after_a_blank_counts_where_it_has_another_first_token() -> None:
    def other_first(text: str) -> list[int]:
        return [text[0] == " "] + [7] * (len(text.strip()) - 1)

    words = ["x" * 512]
    assert _verdict((await examined(words, other_first))[0]) == PASSES
    refused, _ = await examined(["x" * 513], other_first)
    assert _verdict(refused) == REFUSED
    assert refused.refusal is not None
    assert "at least 1026 tokens" in refused.refusal["error"]["message"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["short", "words"], V2),
        (["ü" * 20] * 100, V2),
        ([f"{i:04}" for i in range(128)], "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS=4096 " + V2),
        (["x" * 2000], "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m"),
        (["x" * 9000], "vllm serve m --skip-tokenizer-init"),
    ],
)
async def test_nobody_is_asked_where_there_is_no_doubt(words: list[str], command: str) -> None:
    examination, counter = await examined(words, not_at_all, command)
    assert _verdict(examination) == PASSES
    assert counter.asked == []


@pytest.mark.asyncio
async def test_what_is_refused_anyway_is_not_counted() -> None:
    examination, counter = await examined(["x" * 2000], in_bytes, prompt_logprobs=-5)
    assert examination.refusal is not None
    assert counter.asked == []


@pytest.mark.asyncio
async def test_only_as_many_texts_are_asked_about_as_settle_it() -> None:
    words = [f"word{i:03}" for i in range(120)]
    examination, counter = await examined(words, same_after_a_blank, model="m")
    assert _verdict(examination) == PASSES
    assert 40 < len(counter.asked) < 120
    assert len(set(counter.asked)) == len(counter.asked)
    assert counter.models == {"m"}
    _, counter = await examined(
        words, same_after_a_blank, f"{V2} --served-model-name {'m' * 999}", model="m" * 999
    )
    assert counter.models == {None}
    _, counter = await examined(["y" * 9000, *words], in_bytes)
    assert len(counter.asked) <= 8


@pytest.mark.asyncio
async def test_what_cannot_be_counted_is_bounded_by_its_bytes_and_told_of() -> None:
    examination, counter = await examined(["x" * 2048, "y" * 2048], not_at_all)
    assert _verdict(examination) == TOLD
    assert examination.refusal is None
    (warning,) = examination.warnings
    assert warning.startswith("request-bad-words; the tokens of bad_words could not be counted")
    assert len(counter.asked) == 2  # both at once, and no more after the first failure

    assert _verdict((await examined(["x" * 2048, "y" * 2049], not_at_all))[0]) == REFUSED


@pytest.mark.asyncio
async def test_a_part_that_cannot_be_counted_leaves_what_was_counted() -> None:
    def but_one(text: str) -> list[int] | None:
        return None if "y" in text else in_bytes(text)

    assert _verdict((await examined(["x" * 1025, "y" * 1500], but_one))[0]) == REFUSED
    assert _verdict((await examined(["x" * 1000, "y" * 15], but_one))[0]) == TOLD


@pytest.mark.asyncio
async def test_text_that_is_longer_than_any_tokens_is_not_sent() -> None:
    examination, counter = await examined(["x" * 2**20, "y"], in_bytes)
    assert _verdict(examination) == REFUSED
    assert counter.asked == []


def test_where_the_runner_is_not_known_long_text_is_only_told_of() -> None:
    served = served_by_command("vllm serve m", "0.28.0")
    assert served.runs_v2 is None
    checker = RequestChecker(served)
    for words, verdict in ((["x" * 4096], PASSES), (["x" * 4097], TOLD)):
        body = json.dumps({"prompt": "a", "bad_words": words}).encode()
        examination = checker.examine(Route.COMPLETIONS, body)
        assert (_verdict(examination), examination.settle) == (verdict, None)


def test_the_setting_bounds_what_is_not_counted() -> None:
    checker = RequestChecker(
        served_by_command(V2), policy=Policy(limits=Limits(bad_word_bytes=2000))
    )
    body = json.dumps({"prompt": "a", "bad_words": ["x" * 2001]}).encode()
    assert _verdict(checker.examine(Route.COMPLETIONS, body)) == REFUSED


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS, "/invocations"])
def test_every_route_that_has_the_field_asks(route: str) -> None:
    checker = RequestChecker(served_by_command(V2))
    head = "messages" if route == Route.CHAT else "prompt"
    body = json.dumps({head: [], "bad_words": ["x" * 2000]}).encode()
    assert checker.examine(route, body).settle is not None
    inner = {"token_ids": [1], "sampling_params": {"bad_words": ["x" * 2000]}}
    assert checker.examine(Route.GENERATE, json.dumps(inner).encode()).settle is not None


def _widest(text: str) -> int:
    """Bytes of the longest that a usual normaliser makes of a text, blanks as sentencepiece's."""
    spelled = (text, text.lower(), text.casefold())
    forms = [
        unicodedata.normalize(f, one) for f in ("NFC", "NFD", "NFKC", "NFKD") for one in spelled
    ]
    return max(len(one.replace(" ", "▁").encode()) for one in (*spelled, *forms))


def test_no_character_may_have_more_tokens_than_is_said() -> None:
    characters = [
        chr(code)
        for code in range(0x110000)
        if unicodedata.decomposition(chr(code)) and not 0xAC00 <= code < 0xD7A4
    ]
    assert len(characters) > 5000
    wrong = [c for c in (*characters, *string.printable, "한") if most_tokens(c) < _widest("▁" + c)]
    assert wrong == []
    assert most_tokens("ﷺ") >= 39


@given(st.text(max_size=30))
def test_no_text_may_have_more_tokens_than_is_said(text: str) -> None:
    assert most_tokens(text) >= _widest("▁" + text)
