"""Finding catalogues: shipped ones, and those of the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.errors import CatalogueError, UnknownVersion

RELEASES = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


def minimal(version: str, **members: Any) -> str:
    facts: dict[str, Any] = {
        "vllm_version": version,
        "parser": {},
        "flags": [],
        "config_classes": {},
        "env_vars": {},
        "registries": {},
    }
    return json.dumps({**facts, **members})


def test_every_release_that_is_supported_is_shipped() -> None:
    library = CatalogueLibrary()
    assert library.versions == RELEASES
    assert library.newest == "0.33.0"


@pytest.mark.parametrize("spelling", ["0.32.0", "v0.32.0", " 0.32.0 ", "0.32", "0.32.0+cu129"])
def test_a_release_is_found_under_each_of_its_spellings(spelling: str) -> None:
    assert CatalogueLibrary().get(spelling).vllm_version == "0.32.0"


@pytest.mark.parametrize("version", ["0.27.1", "latest", "", "0.32.0+fork", "0.32.1"])
def test_an_unknown_version_is_answered_with_those_there_are(version: str) -> None:
    with pytest.raises(UnknownVersion) as raised:
        CatalogueLibrary().get(version)
    message = str(raised.value)
    assert repr(version) in message
    assert "Supported: 0.28.0, 0.29.0, 0.30.0, 0.31.0, 0.32.0, 0.33.0." in message
    assert "app.catalogue.extract" in message


def test_a_typing_error_in_a_version_is_met_with_a_suggestion() -> None:
    with pytest.raises(UnknownVersion, match=r"did you mean 0\.32\.0\?"):
        CatalogueLibrary().get("0.32.00x")


def test_a_catalogue_of_the_users_wins_over_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(minimal("0.32.0"))
    library = CatalogueLibrary(tmp_path)
    assert library.versions == RELEASES
    assert library.get("0.32.0").flags == ()
    assert library.get("0.31.0").flags != ()


def test_a_fork_is_a_version_of_its_own(tmp_path: Path) -> None:
    messages = {"no_sheep": "replay does not support sheep"}
    (tmp_path / "fork.json").write_text(minimal("0.32.0+fork", replay={"messages": messages}))
    library = CatalogueLibrary(tmp_path)
    assert library.versions == ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
                                "0.32.0+fork", "0.33.0")  # fmt: skip
    assert library.newest == "0.33.0"
    assert library.get("0.32.0+fork").replay.messages == messages
    assert library.get("0.32.0").flags != ()


def test_a_nightly_is_supported_but_not_the_newest(tmp_path: Path) -> None:
    (tmp_path / "nightly.json").write_text(minimal("0.34.0.dev12+gabc123"))
    library = CatalogueLibrary(tmp_path)
    assert library.versions[-1] == "0.34.0.dev12+gabc123"
    assert library.newest == "0.33.0"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
        minimal("not a version").encode(),
        minimal("0.34.0", flags={}).encode(),
        minimal("0.34.0", flags=[{"dest": "x"}]).encode(),
    ],
)
def test_an_unreadable_file_of_the_users_is_named_at_start(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(CatalogueError) as raised:
        CatalogueLibrary(tmp_path)
    assert f"{path} is not a readable catalogue" in str(raised.value)


def test_two_files_of_one_version_are_a_mistake_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(minimal("0.34.0"))
    (tmp_path / "b.json").write_text(minimal("0.34.0"))
    with pytest.raises(CatalogueError, match=r"b\.json and a\.json are both of vLLM 0\.34\.0"):
        CatalogueLibrary(tmp_path)


def test_a_directory_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="does not exist"):
        CatalogueLibrary(tmp_path / "nowhere")


def test_a_catalogue_is_read_once() -> None:
    library = CatalogueLibrary()
    assert library.get("0.32.0") is library.get("v0.32.0")
