from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.simulator.tokenizer import (
    END_TEXT,
    END_TOKEN,
    VOCABULARY,
    Detokenizer,
    decode,
    encode,
    symbol,
    token_bytes,
)

UNTIMED = settings(deadline=None)  # the machine may be busy


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
@UNTIMED
def test_text_survives_encoding_and_decoding(text: str) -> None:
    assert decode(encode(text), skip_special=False) == text


def test_ids_are_those_of_byte_level_bpe() -> None:
    assert encode("hello wörld") == [71, 68, 75, 75, 78, 220, 86, 127, 114, 81, 75, 67]
    assert [symbol(token) for token in encode("hi \n")] == ["h", "i", "Ġ", "Ċ"]


def test_every_byte_has_its_own_id_below_256() -> None:
    assert sorted(token_bytes(token)[0] for token in range(256)) == list(range(256))
    assert all(len(token_bytes(token)) == 1 for token in range(256))


def test_the_end_token_is_text_only_where_special_tokens_are_shown() -> None:
    assert encode(f"a{END_TEXT}") == [encode("a")[0], END_TOKEN]
    assert decode([71, END_TOKEN]) == "h"
    assert decode([71, END_TOKEN], skip_special=False) == f"h{END_TEXT}"


@pytest.mark.parametrize("token", [END_TOKEN + 1, VOCABULARY - 1, VOCABULARY, 10**9, -1])
def test_ids_without_text_decode_to_nothing(token: int) -> None:
    assert decode([token], skip_special=False) == ""


def test_filler_words_are_named_by_their_id() -> None:
    assert symbol(300) == decode([300]) == "w300"


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=30))
@UNTIMED
def test_pieces_given_out_make_up_the_text(tokens: list[int]) -> None:
    detokenizer = Detokenizer()
    pieces = [detokenizer.push(token) for token in tokens]

    assert decode(tokens).startswith("".join(pieces))
    assert all(not piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in pieces)


def test_a_character_is_held_back_until_its_last_byte() -> None:
    detokenizer = Detokenizer()

    assert [detokenizer.push(token) for token in encode("ö€x")] == ["", "ö", "", "", "€", "x"]


def test_a_broken_character_is_given_out_with_the_next_one() -> None:
    detokenizer = Detokenizer()
    first = encode("ö")[0]

    assert [detokenizer.push(token) for token in (first, 71)] == ["", "\N{REPLACEMENT CHARACTER}h"]
