"""One worker of several: `python -m app.worker NUMBER LISTENER METRICS`, run by the supervisor.

LISTENER is the inherited descriptor of a listening socket, METRICS a directory that all workers
share. Settings come from the environment, as the supervisor's do.
"""

from __future__ import annotations

import os
import socket
import sys

import structlog

from app.errors import AdmissionError
from app.event_loop import keep_for_good, run_loop
from app.inputs import UNUSABLE
from app.main import create_app
from app.serving import serve_apps
from app.settings import read_settings
from app.telemetry.logs import configure_logging
from app.telemetry.registry import share_metrics


def main() -> None:
    """Serve until a signal, or until the supervisor is gone."""
    number, listener, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    share_metrics(number, directory)
    try:
        settings = read_settings()
        configure_logging(settings.log_level)
        structlog.contextvars.bind_contextvars(worker=number, pid=os.getpid())
        app = create_app(settings)
    except AdmissionError as error:
        sys.stderr.write(f"vllm-admission: {error}\n")
        sys.exit(UNUSABLE)
    keep_for_good()
    run_loop(serve_apps((app, socket.socket(fileno=listener)), lifeline=sys.stdin.fileno()))


if __name__ == "__main__":
    main()
