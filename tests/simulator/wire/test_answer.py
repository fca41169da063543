from __future__ import annotations

import json
import math

import pytest

from app.simulator.errors import ModelNotFound
from app.simulator.settings import SimulatorSettings
from app.simulator.tokenizer import END_TOKEN, encode
from app.simulator.wire.answer import check_model, decoded, event, fingerprint, usage
from app.simulator.wire.dialect import Dialect

FIRST, LAST = encode("ö")


@pytest.mark.parametrize(
    ("token", "context", "text"),
    [
        (71, [], "h"),
        (END_TOKEN, [], "<|end|>"),
        (FIRST, [], ""),
        (LAST, [], ""),
        (LAST, [FIRST], "ö"),
        (LAST, [71, FIRST], "ö"),
        (encode("€")[2], [71, *encode("€")[:2]], "€"),
        (LAST, [71], ""),
    ],
)
def test_the_token_that_completes_a_character_gets_all_of_it(
    token: int, context: list[int], text: str
) -> None:
    assert decoded(token, context) == text


def test_nan_is_null_in_events() -> None:
    data = event({"a": [1.5, math.nan], "b": {"c": math.nan}}).removeprefix("data: ")

    assert json.loads(data) == {"a": [1.5, None], "b": {"c": None}}


def test_events_have_no_spaces_and_keep_letters() -> None:
    assert event({"text": "ö", "n": 1}) == 'data: {"text":"ö","n":1}\n\n'


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("0.31.0", "The model `c` does not exist."),
        ("0.32.0", "The model `c` does not exist. Valid aliases: a, b."),
    ],
)
def test_an_unknown_model_is_named(version: str, text: str) -> None:
    settings = SimulatorSettings(vllm_version=version, served_model_name=("a", "b"))
    dialect = Dialect.of(settings)

    for name in ("a", "b", "", None):
        check_model(name, settings, dialect)
    with pytest.raises(ModelNotFound) as refusal:
        check_model("c", settings, dialect)
    assert (refusal.value.message, refusal.value.param) == (text, "model")


def test_usage_tells_cached_tokens_only_where_asked_for() -> None:
    settings = SimulatorSettings(enable_prompt_tokens_details=True)

    assert usage(3, 2)["prompt_tokens_details"] is None
    assert usage(3, 2, settings)["prompt_tokens_details"] == {"cached_tokens": 0}


def test_the_fingerprint_follows_the_configuration() -> None:
    one, other = SimulatorSettings(), SimulatorSettings(max_model_len=7)

    assert fingerprint(one) == fingerprint(SimulatorSettings()) != fingerprint(other)
    assert fingerprint(one).startswith("vllm-0.32.0-")
