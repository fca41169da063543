"""Putting repairs into a body: the members they name change, every other byte stays."""

from __future__ import annotations

from collections.abc import Sequence

from app.request_rules.json_text import object_at
from app.request_rules.request import Route
from app.request_rules.rule import Change


def apply(route: Route, body: bytes, changes: Sequence[Change]) -> bytes | None:
    """Set the members that `changes` name; None where the text cannot be edited.

    On `/inference/v1/generate` all of them are in `sampling_params`.
    """
    for change in changes:
        holder = object_at(body)
        if holder is not None and route is Route.GENERATE:
            span = holder.members.get("sampling_params")
            holder = None if span is None else object_at(body, span[0])
        if holder is None:
            return None
        body = holder.with_member(body, change.name, str(change.value).encode())
    return body
