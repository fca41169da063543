"""How a rule of the parser is declared."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration, Example
from app.verdict.finding import Severity

PARSER: Final = "vllm/utils/argparse_utils.py::FlexibleArgumentParser"


def parser_rule(
    id: str,  # noqa: A002 - the member's name
    severity: Severity,
    title: str,
    explanation: str,
    remedy: str,
    *,
    source: str = "",
    bad: str = "",
    good: str = "vllm serve org/model --max-model-len 8192",
    versions: str = "",
    covers: tuple[str, ...] = (),
) -> Declaration:
    """Declare a rule whose examples hold on every version."""
    return Declaration(
        id=id,
        title=title,
        explanation=explanation,
        remedy=remedy,
        severity=severity,
        area=id.partition("-")[0],
        source=source or f"{PARSER}.parse_args",
        versions=versions,
        bad=(Example(bad),) if bad else (),
        good=(Example(good),),
        covers=covers,
    )
