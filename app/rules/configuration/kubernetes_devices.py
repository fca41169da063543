"""What a pod gives a server against what it needs: GPUs, shared memory, its neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.proposal.workload import Workload
from app.rules.configuration.kubernetes_examples import AREA, SHM, SHM_MOUNT, deployment
from app.rules.derived.parallel import (
    data_parallel_size,
    executor,
    is_multi_port,
    launch_of,
    nodes_within_rank,
    number,
    size,
    variable_number,
    world_size,
)
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity

_MIB: Final = 1 << 20
_DEFAULT_SHM: Final = 64 * _MIB
# Messages that the queue to the workers holds (`shm_broadcast.py::MessageQueue`, max_chunks).
_CHUNKS: Final = 10
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS: Final[dict[str | None, int]] = {
    None: 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}
_GPUS: Final = "resources: {limits: {nvidia.com/gpu: %d}}"


@rule(
    id="kubernetes-group-devices",
    title="A group of pods has fewer GPUs than one replica needs",
    explanation="Tensor x pipeline x prefill-context parallel size is the number of GPUs of one "
    "replica. With Ray, or over several nodes, they may be in several pods, but not in more than "
    "the group has.",
    remedy="Make the group larger, give its pods more GPUs, or lower the sizes.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/v1/executor/ray_utils.py::initialize_ray_cluster",
    bad=(
        deployment(
            "m -tp 16 --distributed-executor-backend ray",
            _GPUS % 8,
            note="a Deployment's pods are no group",
        ),
    ),
    good=(deployment("m -tp 8 --distributed-executor-backend ray", _GPUS % 8),),
)
def group_devices(config: ServeConfig) -> Iterator[Finding]:
    """Compare one replica with the group of pods."""
    workload, present = config.workload, _devices(config)
    if workload is None or present is None:
        return
    if config["distributed_executor_backend"] is None and size(config, "nnodes") == 1:
        return  # vLLM itself compares, and a rule of the parallel sizes says so
    needed, there = world_size(config), present * workload.group_size
    if needed > there and executor(config) in {"mp", "ray"}:
        yield group_devices.finding(
            f"one replica needs {needed} GPUs; {_group(workload)} has {there}",
            location=workload.locate((*workload.container_path, "resources")),
            evidence={"needed": needed, "devices": there, "pods": workload.group_size},
        )


def _group(workload: Workload) -> str:
    if workload.group_size > 1:
        return f"the group of {workload.group_size} pods"
    return "the pod"


@rule(
    id="kubernetes-devices-unused",
    title="The container asks for GPUs that vLLM does not use",
    explanation="Without `--tensor-parallel-size` and its kin vLLM uses one GPU, however many the "
    "container has. The others are idle, and nobody else gets them.",
    remedy="Set `--tensor-parallel-size` or `--data-parallel-size`, or ask for fewer GPUs.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/parallel.py::ParallelConfig.world_size",
    bad=(deployment("m", _GPUS % 8), deployment("m -tp 2", _GPUS % 4)),
    good=(deployment("m -tp 2 -dp 4", _GPUS % 8), deployment("m", _GPUS % 1)),
)
def devices_unused(config: ServeConfig) -> Iterator[Finding]:
    """Compare what the ranks of this pod use with what it has."""
    workload, present = config.workload, _devices(config)
    if workload is None or present is None or present < 2 or workload.group_size > 1:
        return
    launch, span = launch_of(config), nodes_within_rank(config)
    if launch is None or not span or executor(config) not in {"mp", "uni"}:
        return
    if config["data_parallel_backend"] == "ray":
        return
    local = launch.local_size
    if is_multi_port(config):
        local = number(config, "data_parallel_size_local") or data_parallel_size(config)
    used = max(world_size(config) // span, 1) * max(local, 1)
    if used < present:
        yield devices_unused.finding(
            f"the container asks for {present} GPUs and vLLM uses {used}",
            location=workload.locate((*workload.container_path, "resources")),
            evidence={"devices": present, "used": used},
        )


def _devices(config: ServeConfig) -> int | None:
    """Give the devices of the container, as far as it says them in its resources."""
    return None if config.hardware is None else config.hardware.count


@rule(
    id="kubernetes-shared-memory",
    title="The shared memory of the container is too small for several workers",
    explanation="The processes of one replica talk through shared memory: the queue to the workers "
    "alone has ten chunks of `VLLM_MQ_MAX_CHUNK_BYTES_MB` (16), and NCCL takes more. A container's "
    "/dev/shm has 64 MiB unless a volume is mounted there; writing past its end kills the process "
    "with SIGBUS, or NCCL says that there is no space left.",
    remedy="Mount an `emptyDir` with `medium: Memory` at /dev/shm, of a few GiB.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/distributed/device_communicators/shm_broadcast.py::MessageQueue",
    bad=(
        deployment("m -tp 2", _GPUS % 2),
        deployment(
            "m -tp 2", SHM_MOUNT, pod=("volumes:", SHM.replace("8Gi", "128Mi")), note="too small"
        ),
    ),
    good=(
        deployment("m -tp 2", SHM_MOUNT, pod=("volumes:", SHM)),
        deployment("m -tp 2", pod=("hostIPC: true",)),
        deployment("m"),
    ),
)
def shared_memory(config: ServeConfig) -> Iterator[Finding]:
    """Compare /dev/shm with the queue between the processes of a replica."""
    workload = config.workload
    if workload is None or workload.pod.get("hostIPC") is True or not workload.kind:
        return
    if world_size(config) == 1 or executor(config) != "mp":
        return
    needed = _CHUNKS * variable_number(config, "VLLM_MQ_MAX_CHUNK_BYTES_MB", 16) * _MIB
    there = _shared_memory(workload)
    if there is None and workload.partial:
        raise Abstain("what the controller of the resource mounts at /dev/shm")
    if there is not None and there < needed:
        yield shared_memory.finding(
            f"the container's /dev/shm has {there // _MIB} MiB; the queue to "
            f"{world_size(config)} workers takes {needed // _MIB} MiB, and NCCL more: mount an "
            "emptyDir with medium: Memory there",
            location=workload.locate((*workload.container_path, "volumeMounts")),
            evidence={"mib": there // _MIB, "needed_mib": needed // _MIB},
        )


def _shared_memory(workload: Workload) -> int | None:
    """Give the size of /dev/shm; None where it is not bounded by what can be seen."""
    for mount in _mappings(workload.container.get("volumeMounts")):
        if str(mount.get("mountPath", "")).rstrip("/") not in {"/dev/shm", "/dev"}:  # noqa: S108 - no file of ours
            continue
        for volume in _mappings(workload.pod.get("volumes")):
            if volume.get("name") == mount.get("name"):
                directory = volume.get("emptyDir")
                limit = directory.get("sizeLimit") if isinstance(directory, Mapping) else None
                return _quantity(limit)
        return None
    return None if workload.partial else _DEFAULT_SHM


def _quantity(value: object) -> int | None:
    match = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int) else None
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item
