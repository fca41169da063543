"""The configurations of the other servers of a stream, each read once for a version."""

from __future__ import annotations

from functools import lru_cache

from app.catalogue import Catalogue
from app.proposal.proposal import Proposal
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig


def neighbour_config(other: Proposal, catalogue: Catalogue) -> ServeConfig | None:
    """Read a neighbour for a version; None where it cannot be read."""
    return _read(_Pair(other, catalogue))


class _Pair:
    """A proposal and a catalogue as a cache key: the same objects, so that nothing is compared."""

    __slots__ = ("catalogue", "proposal")

    def __init__(self, proposal: Proposal, catalogue: Catalogue) -> None:
        self.proposal = proposal
        self.catalogue = catalogue

    def __hash__(self) -> int:
        return hash((id(self.proposal), id(self.catalogue)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Pair)
            and other.proposal is self.proposal
            and other.catalogue is self.catalogue
        )


@lru_cache(maxsize=512)
def _read(pair: _Pair) -> ServeConfig | None:
    return resolve(pair.proposal, pair.catalogue).config
