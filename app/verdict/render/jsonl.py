"""JSON lines: one verdict a line, the object that `POST /validate` returns."""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.verdict.verdict import Verdict


def render_jsonl(verdicts: Sequence[Verdict]) -> str:
    """Render one JSON object a line; ASCII, so that no reader splits a line elsewhere."""
    return "".join(json.dumps(verdict.as_json()) + "\n" for verdict in verdicts)
