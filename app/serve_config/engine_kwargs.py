"""Engine kwargs: what `AsyncEngineArgs(**kwargs)` would make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.catalogue import Catalogue
from app.catalogue.compare import Absence
from app.proposal.envelope import escape_pointer
from app.serve_config import absence
from app.serve_config.config_file import rename_key
from app.serve_config.diagnostics import finding
from app.serve_config.field_check import check_field
from app.serve_config.serve_config import Origin, Setting
from app.serve_config.suggest import nearest, similarity
from app.verdict.finding import Finding
from app.verdict.location import Location

_SURE: Final = 0.85


@dataclass(frozen=True, slots=True)
class KwargSettings:
    """The settings that kwargs give, and what is wrong with their names."""

    settings: Mapping[str, Setting]
    findings: tuple[Finding, ...]


def read_kwargs(
    kwargs: Mapping[str, Any],
    catalogue: Catalogue,
    places: Mapping[str, Location] | None = None,
    *,
    serving: bool = False,
) -> KwargSettings:
    """Take the keys, with `_` or `-`, as engine arguments.

    `places` are where the keys are written, if not in an object named `config`. A program that is
    `serving` takes the HTTP server's settings among them.
    """
    engine = catalogue.config_classes["AsyncEngineArgs"].fields
    settings: dict[str, Setting] = {}
    findings: list[Finding] = []
    for key, value in kwargs.items():
        location = (places or {}).get(key) or Location(
            pointer=f"/config/{escape_pointer(key)}", text=str(key)
        )
        name = str(key).removeprefix("--").replace("-", "_")
        flag = catalogue.by_dest.get(name)
        if name not in engine and (flag is None or not flag.options):
            known = [*engine, *(f.dest for f in catalogue.flags if f.options)]
            gone = absence.argument(catalogue, name)
            findings.append(_unknown(str(key), value, known, location, gone, catalogue))
            continue
        if name not in engine and not serving:
            findings.append(
                finding(
                    "kwargs-serve-only",
                    f"{name} is an option of `vllm serve`, no engine argument",
                    location=location,
                )
            )
        before = settings.get(name)
        overridden: tuple[Location, ...] = ()
        if before is not None and before.location is not None:
            overridden = (*before.overridden, before.location)
            findings.append(
                finding(
                    "cli-repeated-flag",
                    f"{name} is given again later, and the last one wins",
                    location=before.location,
                    related=(location,),
                )
            )
        settings[name] = Setting(value, Origin.ARGV, location, overridden)
    return KwargSettings(settings, tuple(findings))


def _unknown(
    key: str,
    value: Any,
    known: list[str],
    location: Location,
    gone: Absence | None,
    catalogue: Catalogue,
) -> Finding:
    name = key.removeprefix("--").replace("-", "_")
    tail, names = absence.tell(gone, nearest(name, known))
    fix = None
    if names and not check_field(catalogue, "AsyncEngineArgs", names[0], value):
        sure = similarity(name, names[0]) >= _SURE
        fix = rename_key(("config", key), names[0], f"write {names[0]}", safe=sure)
    return finding(
        "kwargs-unknown",
        f"the engine takes no argument {key!r}{tail}",
        location=location,
        engine_message=f"AsyncEngineArgs.__init__() got an unexpected keyword argument {name!r}",
        fix=fix,
    )
