"""Whatever somebody sends, the parser answers, and reads its own rendering alike."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from app.proposal.envelope import read_envelope
from app.proposal.render import render
from app.serve_config.resolve import Resolution, resolve
from tests.serve_config.reading import LIBRARY, NEWEST_LAB, VERSIONS

_CATALOGUE = LIBRARY.get(NEWEST_LAB)
_OPTIONS = sorted(_CATALOGUE.by_option)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_VALUES = st.one_of(
    _TEXT,
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "None", "auto", "1k", "4K", "true", "{}", '{"a": 1}', "-0.5", "a=b"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
        max_leaves=6,
    ).map(json.dumps),
)


def _spelt(option: str, form: int, value: str) -> str:
    forms = (
        option,
        option.replace("-", "_"),
        option[: 3 + form],
        f"{option}={value}",
        f"{option}.{value}",
        f"{option}.a.b+={value}",
        option + value,
    )
    return forms[form]


_WORDS = st.lists(
    st.one_of(
        st.builds(_spelt, st.sampled_from(_OPTIONS), st.integers(0, 6), _VALUES),
        st.sampled_from(_OPTIONS),
        _VALUES,
        st.sampled_from(["--", "-", "-O", "-O3", "-cc.mode=3", "--config", "c.yaml", "--model"]),
    ),
    max_size=12,
)
_FILE = st.one_of(
    _TEXT,
    st.dictionaries(st.sampled_from(_OPTIONS).map(lambda o: o.strip("-")) | _TEXT, _VALUES).map(
        lambda members: "\n".join(f"{key}: {value}" for key, value in members.items())
    ),
)


def _values(resolution: Resolution) -> dict[str, str]:
    config = resolution.config
    if config is None:
        return {}
    return {dest: repr(setting.value) for dest, setting in config.settings.items()}


def _check(members: dict[str, Any], version: str) -> None:
    catalogue = LIBRARY.get(version)
    proposal = read_envelope(members).proposal
    again = read_envelope(json.loads(json.dumps(render(proposal)))).proposal
    assert _values(resolve(proposal, catalogue)) == _values(resolve(again, catalogue))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(words=_WORDS, text=_FILE, version=st.sampled_from(VERSIONS))
def test_any_words_and_files_are_answered(words: list[str], text: str, version: str) -> None:
    _check({"args": words, "files": {"c.yaml": text}}, version)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kwargs=st.dictionaries(
        st.sampled_from(sorted(_CATALOGUE.by_dest)) | _TEXT,
        st.none() | st.booleans() | st.integers() | _TEXT | _VALUES.map(lambda text: {"a": text}),
        max_size=6,
    ),
    version=st.sampled_from(VERSIONS),
)
def test_any_kwargs_are_answered(kwargs: dict[str, Any], version: str) -> None:
    _check({"config": kwargs}, version)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    env=st.dictionaries(
        st.sampled_from(sorted(_CATALOGUE.env_vars)) | st.from_regex(r"\AVLLM_[A-Z_]{0,12}\Z"),
        _TEXT | st.sampled_from(["1", "true", "tcp://1", "{"]),
        max_size=6,
    ),
    version=st.sampled_from(VERSIONS),
)
def test_any_variables_are_answered(env: dict[str, str], version: str) -> None:
    _check({"args": ["m"], "env": env}, version)
