"""Edits of engine kwargs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.proposal.nested import key_like, with_value, without
from app.verdict.fix import Edit, RemoveFlag, ReplaceArgument, SetFlag


def edit_kwargs(kwargs: Mapping[str, Any], edit: Edit) -> Mapping[str, Any]:
    """Apply one edit; keys keep their spelling and order."""
    if isinstance(edit, SetFlag):
        members = without_earlier(kwargs, edit.dest.split(".")[0])
        result: Mapping[str, Any] = with_value(members, edit.dest.split("."), edit.value)
        return result
    if isinstance(edit, RemoveFlag):
        path = edit.dest.split(".")
        while key_like(kwargs, path[0]) in kwargs:
            before, kwargs = kwargs, without(kwargs, path)
            if len(path) > 1 or before == kwargs:
                break
        return kwargs
    if isinstance(edit, ReplaceArgument) and isinstance(edit.at, str):
        old = edit.at.removeprefix("/config").removeprefix("/")
        old = old.replace("~1", "/").replace("~0", "~")
        return {edit.text if key == old else key: value for key, value in kwargs.items()}
    return kwargs


def without_earlier(kwargs: Mapping[str, Any], dest: str) -> Mapping[str, Any]:
    """Drop all but the last spelling of a key, which is the one that counts."""
    spelt = [key for key in kwargs if str(key).replace("-", "_") == dest]
    return {key: value for key, value in kwargs.items() if key not in spelt[:-1]}
