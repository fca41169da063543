"""The checks of a response: of the exchange, of ids, of probabilities."""

from app.replay.checks.distribution import check_distribution
from app.replay.checks.exchange import check_exchange
from app.replay.checks.ids import check_ids
from app.replay.checks.result import Result, Subject

__all__ = ["Result", "Subject", "check_distribution", "check_exchange", "check_ids"]
