"""Records a server's raw answers to the contract's requests.

    python -m tests.contract.record http://127.0.0.1:8000 > tests/contract/recorded/0.32.0.jsonl

The server has to be the tiny one of the lab; the answers are what the tests compare with.
"""

from __future__ import annotations

import json
import re
import sys

from tests.contract.cases import all_cases
from tests.contract.contract import HEADERS, Answer, exchange

_MODEL_PATH = re.compile(r'"root":"[^"]*/([^"/]+)"')
_HOST = re.compile(r"^http://[^/]+")


def line(answer: Answer) -> str:
    """Render an answer without what belongs to the machine it was recorded on."""
    headers = [[name, _HOST.sub("", value)] for name, value in answer.headers if name in HEADERS]
    body = _MODEL_PATH.sub(r'"root":"\1"', answer.body)
    item = {"case": answer.case, "status": answer.status, "headers": headers, "body": body}
    return json.dumps(item, ensure_ascii=False)


def main() -> None:
    """Record every case as one JSON line."""
    for case in all_cases():
        sys.stdout.write(line(exchange(sys.argv[1], case)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
