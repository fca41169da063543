"""What KServe makes of the `parallelism` of an LLMInferenceService: arguments and groups of pods.

Sources: KServe, `config/llmisvcconfig` (the arguments),
`pkg/controller/v1alpha2/llmisvc/config_merge.go::combineBaseRefsConfig` (which of them are taken),
`pkg/apis/serving/v1alpha2/llm_inference_service_types_func.go::ParallelismSpec.GetSize` (the pods
of a group, which is a LeaderWorkerSet).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.kubernetes.manifest import Manifest, Path

_MEMBERS: Final = ("tensor", "data", "dataLocal", "pipeline")
_PAIR: Final = 2  # a leader and one worker, whose index is then known
_INDEX: Final = "LWS_WORKER_INDEX"
_SERVERS: Final = "VLLM_API_SERVER_COUNT"
_DEFAULT_SERVERS: Final = "8"


class Parallelism:
    """The parallelism of one pod of the resource, and the group that the pod is in.

    Attributes:
        place: where it is said.
        group_size: the pods of the group; None where it is not known.
    """

    def __init__(self, manifest: Manifest, pod: Path) -> None:
        """Take the resource, and where the pod is in it."""
        self.place: Path = (*pod[:-1], "parallelism")
        self._manifest, self._pod = manifest, pod
        self._sizes = {member: self._size(member) for member in _MEMBERS}
        self._is_worker = pod[-1] == "worker"
        self._in_group = isinstance(manifest.at((*pod[:-1], "worker")), Mapping)
        local = self._sizes["dataLocal"]
        self._local = local or 1
        self._by_data = self._in_group and bool(self._sizes["data"] or local)
        self._by_stage = self._in_group and not self._by_data and bool(self._sizes["pipeline"])
        self.group_size = self._pods()

    def _size(self, member: str) -> int | None:
        value = self._manifest.at((*self.place, member))
        is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return value if is_size else None

    def _pods(self) -> int | None:
        if not self._in_group:
            return 1
        if self._by_data:
            return max((self._sizes["data"] or 1) // self._local, 1)
        return self._sizes["pipeline"]

    @property
    def _index(self) -> int | None:
        if not self._is_worker:
            return 0
        return 1 if self.group_size == _PAIR else None

    def variables(self) -> list[dict[str, Any]]:
        """Give what the group's webhook sets in each container, as entries of `env`."""
        if not self._in_group:
            return []
        values = {
            "LWS_LEADER_ADDRESS": None,
            "LWS_GROUP_SIZE": self.group_size,
            _INDEX: self._index,
        }
        return [
            {"name": name, "valueFrom": {}}
            if value is None
            else {"name": name, "value": str(value)}
            for name, value in values.items()
        ]

    def words(self, variables: frozenset[str]) -> Iterator[tuple[str, Path]]:
        """Give the arguments, each with the place it is made from.

        `variables` are those that the container sets. Addresses and ports are left out: they
        decide nothing. A group with neither data nor pipeline parallelism is refused by KServe.
        """
        yield from self._option("--tensor-parallel-size", "tensor", self._sizes["tensor"])
        if self._by_data:
            yield from self._data_parallel(variables)
        elif self._by_stage:
            stages = self._sizes["pipeline"]
            yield from self._option("--pipeline-parallel-size", "pipeline", stages)
            yield from self._option("--nnodes", "pipeline", stages)
            yield from self._option("--node-rank", "pipeline", f"$({_INDEX})")
        if self._is_worker and (self._by_data or self._by_stage):
            yield "--headless", self._pod

    def _data_parallel(self, variables: frozenset[str]) -> Iterator[tuple[str, Path]]:
        yield from self._option("--data-parallel-size", "data", self._sizes["data"] or 1)
        yield from self._option("--data-parallel-size-local", "dataLocal", self._local)
        if self._manifest.at((*self.place, "expert")) is True:
            yield "--enable-expert-parallel", (*self.place, "expert")
        # Where the index is open, so is the rank, which is a multiple of it.
        rank = f"$({_INDEX})" if self._index is None else self._index * self._local
        yield from self._option("--data-parallel-start-rank", "dataLocal", rank)
        if not self._is_worker:
            servers = f"$({_SERVERS})" if _SERVERS in variables else _DEFAULT_SERVERS
            yield from self._option("--api-server-count", "data", servers)

    def _option(
        self, option: str, member: str, value: int | str | None
    ) -> Iterator[tuple[str, Path]]:
        for word in () if value is None else (option, str(value)):
            yield word, (*self.place, member)
