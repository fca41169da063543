"""The fast reading of regular logprobs gives what the decoder gives, or steps aside."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import UnusableInput
from app.replay.evidence import Evidence
from app.replay.report import replay
from app.replay.wire import case as cases
from app.replay.wire import scan
from app.replay.wire.case import read_case
from tests.replay.engine import Engine, chunks_of

Case = dict[str, Any]
COMPACT = (",", ":")
SPACED = (", ", ": ")


def big_case(version: str = "0.32.0", **sampling: Any) -> Case:
    asked = {"top_k": 20, "logprobs": 20, "max_tokens": 50, "temperature": 2.0, **sampling}
    case = Engine(version, vocabulary=5000).case(**asked)
    for choice in case["response"]["choices"]:
        content = choice["logprobs"]["content"]
        choice["logprobs"]["content"] = [in_vllms_order(entry) for entry in content]
    return case


def in_vllms_order(entry: Case) -> Case:
    """Members as vLLM writes them, `bytes` after `logprob`."""
    names = ("token_id", "token", "logprob", "rank", "bytes", "top_logprobs")
    ordered = {name: entry[name] for name in names if name in entry}
    if "top_logprobs" in ordered:
        ordered["top_logprobs"] = [in_vllms_order(c) for c in ordered["top_logprobs"]]
    return ordered


CASES = {version: big_case(version) for version in ("0.30.0", "0.32.0")}


@pytest.fixture(autouse=True, scope="module")
def small_texts_are_scanned_too() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_LEAST_BYTES", 0)
        patch.setattr(scan, "_LEAST_OBJECTS", 1)
        yield


def slowly(text: bytes) -> Evidence | str:
    """What the decoder alone makes of a text: evidence, or an error in words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "cut", lambda data: (data, {}))
        return outcome(text)


def outcome(text: bytes) -> Evidence | str:
    try:
        return read_case(text)
    except UnusableInput as error:
        return repr((error.detail, error.problems))


def assert_same(fast: Evidence | str, slow: Evidence | str) -> None:
    if isinstance(fast, str) or isinstance(slow, str):
        assert fast == slow
        return
    for one, other in zip(fast.choices, slow.choices, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)
        a, b = one.candidates, other.candidates
        assert (a is None) == (b is None)
        if a is None or b is None:
            continue
        assert np.array_equal(a.named, b.named)
        assert a.sampled.tobytes() == b.sampled.tobytes()
        assert np.array_equal(a.ids.values, b.ids.values)
        assert np.array_equal(a.ids.offsets, b.ids.offsets)
        assert a.logprobs.tobytes() == b.logprobs.tobytes()
        assert a.on_mask == b.on_mask
        assert (a.ranks is None) == (b.ranks is None)
        if a.ranks is not None and b.ranks is not None:
            assert np.array_equal(a.ranks, b.ranks)


@pytest.mark.parametrize("separators", [COMPACT, SPACED])
@pytest.mark.parametrize("version", CASES)
@pytest.mark.parametrize("block", [1 << 15, 64, 21, 1])
def test_regular_lists_are_read_without_the_decoder(
    version: str, separators: tuple[str, str], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_BLOCK", block)
    text = json.dumps(CASES[version], separators=separators).encode()
    rest, scans = scan.cut(text)
    assert len(scans) == 1
    assert len(rest) < len(text) / 3
    assert_same(read_case(text), slowly(text))
    assert replay(text).as_json() == replay(CASES[version]).as_json()


def test_each_choice_has_its_own_list() -> None:
    text = json.dumps(big_case(n=3), separators=COMPACT)
    assert len(scan.cut(text.encode())[1]) == 3
    assert_same(read_case(text), slowly(text.encode()))


def test_a_list_at_the_very_end_of_the_text_is_read() -> None:
    case = big_case()
    choice = case["response"]["choices"][0]
    choice["logprobs"] = choice.pop("logprobs")
    case["response"] = {"choices": [choice]}
    text = json.dumps(case, separators=COMPACT).encode()
    assert text.endswith(b"}]}]}}]}}"), text[-20:]
    assert len(scan.cut(text)[1]) == 1
    assert_same(read_case(text), slowly(text))
    for end in range(len(text) - 40, len(text)):
        assert_same(outcome(text[:end]), slowly(text[:end]))
    before, name, after = text.rpartition(b'"logprob":')
    for digits in (20, 30, 40, 100, 300):
        number = b"-0." + b"1" * digits
        long = before + name + number + after[after.index(b",") :]
        assert_same(outcome(long), slowly(long))


@pytest.mark.parametrize("recorded", [False, True])
def test_streams_are_left_to_the_decoder(recorded: bool) -> None:
    case = big_case()
    chunks = chunks_of(case, [40, 7])
    case["response"] = chunks
    if recorded:
        case["response"] = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks)
    text = json.dumps(case, separators=COMPACT).encode()
    assert_same(read_case(text), slowly(text))


def test_a_marker_that_somebody_wrote_is_no_marker() -> None:
    case = {**big_case(), "id": "\ue000logprobs:0"}
    text = json.dumps(case, separators=COMPACT, ensure_ascii=False).encode()
    assert scan.cut(text) == (text, {})
    assert_same(read_case(text), slowly(text))
    for escaped in (
        json.dumps(case, separators=COMPACT),
        text.decode().replace("\ue000", "\\uE000"),
    ):
        assert scan.cut(escaped.encode())[1] == {}
        assert read_case(escaped).id == case["id"]
    content = case["response"]["choices"][0]["logprobs"]["content"]
    case["response"]["choices"].append({"token_ids": [5], "sampling_mask": [[5]], "index": 1})
    case["response"]["choices"][1]["logprobs"] = {"content": [{"token": case["id"]}]}
    assert len(content) == 50
    forged = json.dumps(case, separators=COMPACT).encode()
    assert_same(outcome(forged), slowly(forged))


NUMBERS = [
    "0.0", "-0.0", "0", "-0", "-9999.0", "-9999", "-1.1920928955078125e-07", "1e-05", "1E5",
    "-1e400", "-0.30000000000000004", "-0.000123456789012345678901234", "-12345678.5",
    "-123456789012.25", "-9007199254740993.0", "-0.5000000000000001110223024625156540", "null",
    "NaN", "Infinity", "-Infinity", "-01.5", "-.5", "-1.", "-1.e5", "+1.0", "--1.0", "-", "",
    "1.0e", "1.5e+", "1_0.0", "true", '"-1.0"', "-1.0 ", " -1.0", "-1.0,", "-1.0}", "0x1",
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("version", CASES)
def test_odd_numbers_are_read_as_the_decoder_reads_them(version: str, number: str) -> None:
    parts = json.dumps(CASES[version], separators=COMPACT).split('"logprob":')
    for place in (1, 2, 700, len(parts) - 1):
        changed = parts.copy()
        _, comma, rest = parts[place].partition(",")
        changed[place] = number + comma + rest
        text = '"logprob":'.join(changed).encode()
        assert_same(outcome(text), slowly(text))


IDS = ["0", "007", "-5", "1234567", "12345678", "123456789012", "1.0", "null", "", "1 ", '"5"']


@pytest.mark.parametrize("token", IDS)
@pytest.mark.parametrize("name", ['"token_id":', '"token":"token_id:', '"rank":', '"bytes":'])
def test_odd_ids_and_ranks_are_read_as_the_decoder_reads_them(name: str, token: str) -> None:
    version = "0.30.0" if name in {'"token":"token_id:', '"bytes":'} else "0.32.0"
    parts = json.dumps(CASES[version], separators=COMPACT).split(name)
    for place in (1, 2, 700, len(parts) - 1):
        changed = parts.copy()
        changed[place] = token + parts[place].lstrip("0123456789nul")
        text = name.join(changed).encode()
        assert_same(outcome(text), slowly(text))


PIECES = [
    b"", b"0", b"9", b"-", b".", b",", b"}", b"{", b"]", b"[", b" ", b'"', b"e", b"null", b"\xff",
    b"}]},{", b'},{"token_id":', b'"rank":1}', b':', b"\\",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.sampled_from([COMPACT, SPACED]),
    st.randoms(use_true_random=False),
)
def test_any_damage_is_seen_as_the_decoder_sees_it(
    version: str, separators: tuple[str, str], random_: random.Random
) -> None:
    text = bytearray(json.dumps(CASES[version], separators=separators).encode())
    start = text.index(b'"content"') - 20
    for _ in range(random_.choice([1, 1, 2])):
        anywhere, early = random_.randrange(start, len(text)), start + random_.randrange(400)
        place = random_.choice([anywhere, early])
        text[place : place + random_.choice([0, 1, 1, 5])] = random_.choice(PIECES)
    assert_same(outcome(bytes(text)), slowly(bytes(text)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_numbers_and_ids_are_read_to_the_last_bit(data: st.DataObject) -> None:
    number = st.one_of(
        st.floats(-30, 0), st.floats(-32, 0, width=32), st.just(-9999.0), st.floats(-1e9, 0)
    )
    token = st.integers(0, 10**7 - 1)
    entry = st.lists(st.tuples(token, number), min_size=1, max_size=6)
    rows = data.draw(st.lists(entry, min_size=1, max_size=6))
    content = []
    for row in rows:
        top = [{"token_id": i, "logprob": x, "rank": n} for n, (i, x) in enumerate(row, 1)]
        content.append({**top[0], "top_logprobs": top})
    choice = {
        "token_ids": [row[0][0] for row in rows],
        "sampling_mask": [[row[0][0]] for row in rows],
        "logprobs": {"content": content},
    }
    case = {**CASES["0.32.0"], "response": {"choices": [choice]}}
    text = json.dumps(case, separators=COMPACT).encode()
    assert len(scan.cut(text)[1]) == 1
    assert_same(read_case(text), slowly(text))
