"""What a cluster says of a server beside its command: the pod it runs in, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.verdict.location import Location

if TYPE_CHECKING:
    from app.proposal.proposal import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """A sign in an object that other servers use the same GPU, and what is meant for this one.

    Attributes:
        sign: what says so, as it is written (`nvidia.com/gpu.shared`).
        location: where.
        fraction: the part of the GPU's memory that is meant for the server, if it is told.
        gib: the memory that is meant for it, if that is told.
        asleep: whether the others are servers that sleep, and keep a small part.
        limited: False where the server sees all of the GPU's memory, None where that is not known.
    """

    sign: str
    location: Location
    fraction: float | None = None
    gib: float | None = None
    asleep: bool = False
    limited: bool | None = False


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
        gpu_share: what says that the GPU is shared with other pods, if anything does.
        partial: whether a controller adds to the pod what the object does not say.
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
    gpu_share: GpuShare | None = None
    partial: bool = False
