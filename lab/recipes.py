"""Known-good command lines and what every version's own parser says of them.

    python -m lab.recipes            asks again, and writes tests/serve_config/recipes.jsonl

The lines are published recipes for serving models; a row's `refused` has the stage that refuses,
by version, and is empty where all accept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from lab.environment import CHECKOUT, Lab, LabError
from lab.parser_oracle import ask_parser

RECIPES: Final = CHECKOUT / "tests" / "serve_config" / "recipes.jsonl"


def ask_again(path: Path, versions: tuple[str, ...]) -> list[dict[str, Any]]:
    """Give the rows of a file with the answers of these versions."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["refused"] = {}
    for version in versions:
        for row, answer in zip(rows, ask_parser(version, rows), strict=True):
            if not answer["accepted"]:
                row["refused"][version] = f"{answer['stage']}: {answer['error'][-90:]}"
    return rows


def main() -> int:
    try:
        rows = ask_again(RECIPES, Lab.default().versions())
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    with RECIPES.open("w") as lines:
        for row in rows:
            lines.write(json.dumps(row, separators=(",", ":")) + "\n")
    refused = sum(bool(row["refused"]) for row in rows)
    print(f"{len(rows)} recipes, {refused} refused by a version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
