"""Each generated row of the inventory, violated: the rule that answers for it says so.

The rows are ranges, choices, literals, unknown keys and environment variables of vLLM 0.32.0; what
violates one is made from its id, its flags and the catalogue.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.serve_config.reading import LIBRARY, NEWEST_LAB, read_members

_INVENTORY: Final = Path(__file__).parents[1] / "rules" / "inventory"
_CATALOGUE: Final = LIBRARY.get(NEWEST_LAB)
_RANGE: Final = ("-2", "-1", "0", "-0.5", "1.5", "100000", "[]", "{}")
_LITERAL: Final = ("zz-not", '["zz-not"]', '{"a": "zz"}')
# Some are looked at only for a model that takes images.
_MODEL: Final = {"architectures": ["Gemma3ForConditionalGeneration"]}


def _rows() -> Iterator[tuple[dict[str, str], str]]:
    with (_INVENTORY / "inventory.csv").open(newline="") as lines:
        sites = {row["id"]: row for row in csv.DictReader(lines)}
    for path in sorted(_INVENTORY.glob("*.csv")):
        if path.name == "inventory.csv":
            continue
        with path.open(newline="") as lines:
            for row in csv.DictReader(lines):
                if row["by"] != "none":
                    yield sites[row["id"]], row["by"]


_GENERATED: Final = [
    (site, rule)
    for site, rule in _rows()
    if site["id"].startswith(("range-", "choice-", "literal-", "unknown-key-", "env-"))
]


def _violations(site: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    kind, flag = site["id"].partition("-")[0], site["flags"].split(",")[0]
    extra = ["--enable-lora"] if "--enable-lora" in site["condition"] else []
    needed = [] if "watermark" not in site["id"] else ["--watermark-config.key=1"]
    if kind == "env":
        for text in ("zz!", "yes", "off", "{"):
            yield [], {flag: text}
    elif kind == "unknown":
        yield [*needed, f"{flag}.zz_not=1"], {}
    elif kind == "choice":
        yield [f"{flag}=zz-not"], {}
        yield [f"{flag}=7"], {}
    else:
        if flag == "--watermark-config.key":
            needed = []
        for text in _RANGE if kind == "range" else _LITERAL:
            yield [*needed, f"{flag}={text}", *extra], {}


def _told(args: list[str], env: dict[str, str]) -> set[str]:
    return {f.rule for f in read_members(args=["m", *args], env=env, model_config=_MODEL).findings}


@pytest.mark.parametrize("kind", ["range", "choice", "literal", "unknown", "env"])
def test_what_violates_a_row_has_a_finding_of_its_rule(kind: str) -> None:
    rows = [(site, rule) for site, rule in _GENERATED if site["id"].partition("-")[0] == kind]
    untold = [
        (site["id"], rule)
        for site, rule in rows
        if not any(rule in _told(args, env) for args, env in _violations(site))
    ]
    assert untold == []
    assert len(rows) > 20
