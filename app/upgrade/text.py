"""The report of an upgrade check that an operator reads in a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from app.upgrade.report import Upgrade
from app.verdict.jsonable import jsonable
from app.verdict.render.plain import printable, sentence, where
from app.verdict.verdict import Outcome

_HEADLINES: Final = {
    Outcome.ACCEPTED: "vLLM {new} starts with this",
    Outcome.REJECTED: "vLLM {new} does not start with this",
    Outcome.UNDETERMINED: "whether vLLM {new} starts with this is open",
}
_WIDTH: Final = 100


def render_upgrades(upgrades: Sequence[Upgrade]) -> str:
    """Render reports, one after the other, ending in a line break."""
    return "\n".join("\n".join(_report(upgrade)) + "\n" for upgrade in upgrades)


def _report(upgrade: Upgrade) -> Iterator[str]:
    old, new = upgrade.before.vllm_version, upgrade.after.vllm_version
    name = "" if upgrade.subject is None else f"[{printable(upgrade.subject)}] "
    headline = _HEADLINES[upgrade.outcome].format(new=new)
    yield f"{name}from vLLM {old} to {new}: {headline} (vLLM {old}: {upgrade.before.outcome.value})"
    if upgrade.changes:
        yield "\nwhat changes for what is given:"
        for change in upgrade.changes:
            place = "" if change.location is None else f" ({where(change.location)})"
            since = "" if change.since is None else f", since {change.since}"
            yield from _item(f"{change.kind}: {printable(change.message)}{since}{place}")
    if upgrade.new:
        yield f"\nwhat vLLM {new} says and {old} does not:"
        for finding in upgrade.new:
            yield from _item(f"{finding.severity.value}[{finding.rule}]: {sentence(finding)}")
    if upgrade.gone:
        yield f"\nwhat vLLM {old} says and {new} no longer:"
        for finding in upgrade.gone:
            yield from _item(f"{finding.severity.value}[{finding.rule}]: {sentence(finding)}")
    if upgrade.defaults:
        yield "\ndefaults that differ, of what is not given:"
        for default in upgrade.defaults:
            since = "" if default.since is None else f", since {default.since}"
            before, after = _value(default.before), _value(default.after)
            yield from _item(f"{printable(default.name)}: {before} -> {after}{since}")
    if not (upgrade.changes or upgrade.new or upgrade.gone or upgrade.defaults):
        yield "\nnothing changes for it"
    yield from _corrected(upgrade)


def _corrected(upgrade: Upgrade) -> Iterator[str]:
    corrected = upgrade.corrected
    if corrected is None:
        return
    yield f"\nfor vLLM {upgrade.after.vllm_version}:"
    for fix in corrected.get("fixes", ()):
        yield from _item(printable(str(fix)))
    yield ""
    for form in ("command", "config_yaml", "compose", "python"):
        text = corrected.get(form)
        if isinstance(text, str):
            yield from (f"  {printable(line)}".rstrip() for line in text.rstrip("\n").split("\n"))
    for key in ("env", "args", "config"):
        if corrected.get(key):
            yield f"  {key}: {_value(corrected[key])}"


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _value(value: Any) -> str:
    return printable(json.dumps(jsonable(value), ensure_ascii=False))
