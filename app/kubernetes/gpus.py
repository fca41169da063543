"""The GPUs of a container: how many, of which product, and whether others use them too.

Sources: NVIDIA's device plugin and GPU feature discovery (`nvidia.com/gpu.shared`,
`nvidia.com/mig-*`, `nvidia.com/gpu.product`), GKE's node labels, HAMi (`nvidia.com/gpumem`),
Volcano (`volcano.sh/vgpu-*`, `volcano.sh/gpu-memory`), Alibaba Cloud (`aliyun.com/gpu-mem`), the
annotations of KAI and Run:ai (`gpu-fraction`, `gpu-memory`), and llm-d's fast model actuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.kubernetes.comments import gpu_comments
from app.kubernetes.manifest import Manifest, Path
from app.kubernetes.workloads import EXTRA, PodPlace
from app.proposal.image import Image
from app.proposal.proposal import Hardware
from app.proposal.workload import GpuShare

IN_USE_ANNOTATION: Final = "vllm-admission/gpu-memory-in-use"
# Resources that are whole devices; what the product is, the node's labels tell.
_DEVICES: Final[dict[str, str | None]] = {
    "nvidia.com/gpu": None,
    "amd.com/gpu": "AMD Instinct",
    "nvidia.com/gpu.shared": None,
    "volcano.sh/vgpu-number": None,
    "gpu": None,
}
_MIG: Final = re.compile(r"nvidia\.com/mig-\d+g\.(\d+)gb(?:\.me)?(\.shared)?")
# Limits that the container's CUDA calls are held to, in MiB: the server sees that much.
_SEEN: Final = ("nvidia.com/gpumem", "volcano.sh/vgpu-memory")
# Amounts that the scheduler alone reckons with, and how many of their unit are a GiB.
_PLANNED: Final = {"aliyun.com/gpu-mem": 1, "volcano.sh/gpu-memory": 1024}
_PRODUCTS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_SLICE: Final = re.compile(r"(?:^|MIG-)\d+g\.(\d+)gb", re.IGNORECASE)
_SLICES: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-gpu-partition-size")
_STRATEGIES: Final = (
    "nvidia.com/gpu.sharing-strategy",
    "cloud.google.com/gke-gpu-sharing-strategy",
)
_CLIENTS: Final = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
_TIME: Final = frozenset({"time-slicing", "time-sharing"})
_FRACTION: Final = "gpu-fraction"
_MEMORY: Final = "gpu-memory"
_DUAL_PODS: Final = "dual-pods.llm-d.ai/"
_REQUIRED: Final[Path] = (
    *("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
    "nodeSelectorTerms",
)


class Gpus:
    """Reads what a pod says of the GPUs of one of its containers."""

    def __init__(self, manifest: Manifest, pod: PodPlace, container: Path) -> None:
        """Take the object, the pod in it, and the container's path in the object."""
        self._manifest = manifest
        self._pod = pod
        self._spec = Manifest(_mapping(manifest.at(pod.path)), manifest.places)
        self._container = container
        self._resources = dict(self._asked())

    def hardware(
        self, image: Image | None, program: str | None, in_use: float | None
    ) -> Hardware | None:
        """Give the devices that the container asks for, and the product its nodes are to have."""
        gpu = "cpu" if image is not None and image.official == "cpu" else None
        count, memory = None, None
        for name, value in self._resources.items():
            number, mig = _count(value), _MIG.fullmatch(name)
            if number is not None and count is None and (mig or name in _DEVICES):
                count, gpu = number, gpu or _DEVICES.get(name)
            if mig is not None:
                memory = memory or float(mig[1])
            elif name in _SEEN and number:
                memory = memory or number / 1024
        if gpu is None:
            gpu = next(self._required(_PRODUCTS), None)
        for text in self._required(_SLICES):
            slice_ = _SLICE.search(text)
            memory = memory or (float(slice_[1]) if slice_ else None)
        nodes = self._pod.group_size if self._pod.group_size > 1 else None
        if nodes is not None and program is not None:
            count = None  # it tells vLLM of the other nodes in its own way
        found = Hardware(gpu=gpu, count=count, memory_gib=memory, nodes=nodes, memory_in_use=in_use)
        return None if found == Hardware(nodes=nodes) else found

    def share(self) -> GpuShare | None:
        """Give the first sign that others use the same GPU."""
        return next(self._signs(), None)

    def _signs(self) -> Iterator[GpuShare]:
        places = self._manifest.places
        clients = _count(next(self._required(_CLIENTS), None))
        equal = 1 / clients if clients else None
        strategies = list(self._required(_STRATEGIES))
        resources = places.location((*self._container, "resources"))
        for name in self._resources:
            mig = _MIG.fullmatch(name)
            unit = _PLANNED.get(name)
            if name == "nvidia.com/gpu.shared" or (mig is not None and mig[2]):
                limited = None if "mps" in strategies else False
                yield GpuShare(sign=name, location=resources, fraction=equal, limited=limited)
            elif unit is not None:
                number = _count(self._resources[name])
                gib = None if number is None else number / unit
                yield GpuShare(sign=name, location=resources, gib=gib)
        selector = places.location((*self._pod.path, "nodeSelector"))
        for strategy in strategies:
            if strategy in _TIME or strategy == "mps":
                limited = False if strategy in _TIME else None
                yield GpuShare(sign=strategy, location=selector, fraction=equal, limited=limited)
        for product in self._required(_PRODUCTS):
            if product.endswith("-SHARED"):
                yield GpuShare(sign=product, location=selector, fraction=equal)
        yield from self._annotated()
        yield from gpu_comments(self._manifest, self._container)

    def _annotated(self) -> Iterator[GpuShare]:
        """Read the annotations of schedulers that give out parts of a GPU."""
        scheduler = str(self._spec.data.get("schedulerName", ""))
        for path in self._metadata():
            held = _mapping(self._manifest.at((*path, "annotations")))
            labels = _mapping(self._manifest.at((*path, "labels")))
            # Run:ai shows the server its part alone; KAI, which it is made from, does not.
            kai = scheduler == "kai-scheduler" or "kai.scheduler/queue" in labels
            for name in (_FRACTION, _MEMORY):
                if name in held:
                    number = _number(held[name])
                    yield GpuShare(
                        sign=f"{name}: {held[name]}",
                        location=self._manifest.places.location((*path, "annotations", name)),
                        fraction=number if name == _FRACTION else None,
                        gib=None if number is None or name == _FRACTION else number / 1024,
                        limited=False if kai else None,
                    )
            for name in held:
                if name.startswith(_DUAL_PODS):
                    place = self._manifest.places.location((*path, "annotations", name))
                    yield GpuShare(sign="fast model actuation", location=place, asleep=True)
                    return

    def _metadata(self) -> tuple[Path, ...]:
        """Give the paths of the metadata that pods get: the template's, or a Pod's own."""
        return tuple(dict.fromkeys(((*self._pod.path[:-1], "metadata"), ("metadata",))))

    def _asked(self) -> Iterator[tuple[str, Any]]:
        """Give the resources asked for; limits win over requests."""
        for path in self._resource_paths():
            resources = _mapping(self._manifest.at(path))
            for side in ("requests", "limits"):
                yield from _mapping(resources.get(side)).items()

    def _resource_paths(self) -> Iterator[Path]:
        if self._pod.path[-1:] == (EXTRA,):  # Dynamo has them beside the pod, too
            yield (*self._pod.path[:-1], "resources")
        yield (*self._container, "resources")

    def _required(self, labels: tuple[str, ...]) -> Iterator[str]:
        """Give the values that the pod's nodes have to have of these labels."""
        selector = _mapping(self._spec.data.get("nodeSelector"))
        yield from (str(selector[label]) for label in labels if label in selector)
        terms = list(_mappings(self._spec.at(_REQUIRED)))
        for match in _mappings(terms[0].get("matchExpressions")) if len(terms) == 1 else ():
            required = str(match.get("key")) in labels and match.get("operator") == "In"
            values = match.get("values")
            if required and isinstance(values, list) and len(values) == 1:
                yield str(values[0])


def in_use(text: str) -> float | None:
    """Read the share of a GPU's memory that an annotation says is in use: `0.2` or `20%`."""
    number = _number(text.strip().removesuffix("%"))
    if number is not None and text.strip().endswith("%"):
        number /= 100
    return number if number is not None and 0 <= number < 1 else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item


def _count(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 8 else None


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < 1e9 else None
