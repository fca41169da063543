from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.request_rules.json_text import object_at

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    members=st.dictionaries(st.text(), _VALUES, max_size=5),
    indent=st.none() | st.integers(0, 3),
    ascii_only=st.booleans(),
    lead=st.text(" \t\r\n", max_size=3),
)
def test_a_member_is_set_and_every_other_keeps_its_value_and_bytes(
    members: dict[str, Any], indent: int | None, ascii_only: bool, lead: str
) -> None:
    text = (lead + json.dumps(members, indent=indent, ensure_ascii=ascii_only) + lead).encode(
        "utf-8", "surrogatepass"
    )
    found = object_at(text)
    assert found is not None
    changed = found.with_member(text, "seed", b"7")
    assert repr(json.loads(changed.decode("utf-8", "surrogatepass"))) == repr(
        {**json.loads(text.decode("utf-8", "surrogatepass")), "seed": 7}
    )
    if "seed" not in members:
        added = b', "seed": 7' if members else b'"seed": 7'
        end = changed.rindex(added)
        assert changed[:end] + changed[end + len(added) :] == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"a" :1 }', '{"a" :1, "seed": 7 }'),
        ("{ }", '{"seed": 7 }'),
        ('{"seed":null,"b":[1]}', '{"seed":7,"b":[1]}'),
        (r'{"s\u0065ed": -1}', r'{"s\u0065ed": 7}'),
        ('{"seed": 1, "seed": null}', '{"seed": 1, "seed": 7}'),
        ('{"a": "}\\"{", "b": -Infinity}', '{"a": "}\\"{", "b": -Infinity, "seed": 7}'),
    ],
)
def test_only_the_member_changes(before: str, after: str) -> None:
    text = before.encode()
    found = object_at(text)
    assert found is not None
    assert found.with_member(text, "seed", b"7") == after.encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b'{"a"',
        b'{"a" 1}',
        b'{"a": [1}',
        b'{"a": 1 "b": 2}',
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_what_is_no_object_in_utf_8_is_left(text: bytes) -> None:
    assert object_at(text) is None


def test_an_object_of_very_many_parts_is_given_up_on() -> None:
    assert object_at(b'{"a": [' + b"[]," * 200_000 + b"[]]}") is None


def test_a_long_prompt_of_ids_is_one_step() -> None:
    text = json.dumps({"token_ids": list(range(300_000)), "b": "x" * 10**6}).encode()
    assert object_at(text) is not None
