"""What a cluster says of a server beside its command: the pod it runs in, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.verdict.location import Location

if TYPE_CHECKING:
    from app.proposal.proposal import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The pod that a server runs in, as the manifest has it.

    Attributes:
        kind, name, namespace: of the object.
        pod: the pod's spec.
        container: the server's container in it.
        group_size: pods of one replica (LeaderWorkerSet, a pod group).
        role: which of several pods of the object it is.
        services: names of the Services in the same namespace that have an address, as far as they
            were given.
        neighbours: the other servers of the same stream, with their workloads.
        locate: the place of a path, relative to the pod's spec.
        container_path: the container's path, relative to the pod's spec.
    """

    kind: str
    name: str
    namespace: str
    pod: Mapping[str, Any]
    container: Mapping[str, Any]
    group_size: int = 1
    role: str | None = None
    services: tuple[str, ...] = ()
    neighbours: tuple[Proposal, ...] = field(default=(), compare=False, repr=False)
    locate: Callable[[tuple[str | int, ...]], Location] = field(compare=False, repr=False)
    container_path: tuple[str | int, ...] = ()
