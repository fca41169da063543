"""Every known site in vLLM that refuses or changes something is answered for, or said not to be.

`inventory/inventory.csv` lists the sites of vLLM 0.32.0 that flags, the environment or config.json
decide. A rule names the rows it answers for in `covers`; `inventory/<area>.csv` lists the others of
an area as `id,by,reason`: `by` is the id of a declaration made elsewhere (the parser's type and
range checks), or `none` with the reason why it is not told.
"""

import csv
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from app.rules.registry import default_registry

INVENTORY = Path(__file__).parent / "inventory"


@cache
def sites() -> dict[str, dict[str, str]]:
    with (INVENTORY / "inventory.csv").open(newline="") as lines:
        return {row["id"]: row for row in csv.DictReader(lines)}


@cache
def told_elsewhere() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for area in areas():
        path = INVENTORY / f"{area}.csv"
        if path.exists():
            with path.open(newline="") as lines:
                for row in csv.DictReader(lines):
                    assert row["id"] not in found, row["id"]
                    assert sites()[row["id"]]["area"] == area, row["id"]
                    found[row["id"]] = row
    return found


@cache
def covered() -> dict[str, str]:
    return {
        site: declaration.id
        for declaration in default_registry().declarations
        for site in declaration.covers
    }


def areas() -> list[str]:
    return sorted({row["area"] for row in sites().values()})


@pytest.mark.parametrize("area", areas())
def test_each_site_is_answered_for(area: str) -> None:
    open_sites = [
        site
        for site, row in sites().items()
        if row["area"] == area and site not in covered() and site not in told_elsewhere()
    ]
    assert not open_sites, f"{len(open_sites)} of {area} have neither a rule nor a reason"


def test_rules_cover_sites_that_exist() -> None:
    assert set(covered()) <= set(sites())


def test_a_site_is_not_both_covered_and_excused() -> None:
    assert not set(covered()) & set(told_elsewhere())


def test_what_answers_elsewhere_is_declared() -> None:
    known = {*default_registry().by_id, "none"}
    assert {row["by"] for row in told_elsewhere().values()} <= known


def test_every_excuse_gives_a_reason() -> None:
    bare = [i for i, row in told_elsewhere().items() if row["by"] == "none" and not row["reason"]]
    assert not bare


def test_coverage_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    by_outcome: Counter[tuple[str, str]] = Counter()
    for site, row in sites().items():
        if site in covered():
            outcome = "rule"
        elif site in told_elsewhere():
            outcome = "not told" if told_elsewhere()[site]["by"] == "none" else "parser"
        else:
            outcome = "open"
        by_outcome[row["class"], outcome] += 1
    with capsys.disabled():
        print()
        for (kind, outcome), count in sorted(by_outcome.items()):
            print(f"inventory class {kind}: {outcome:9} {count:4}")
    assert sum(by_outcome.values()) == len(sites())
