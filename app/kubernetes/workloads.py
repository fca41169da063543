"""Where the pods of an object are described, for every kind that has any.

Kinds that are not known are searched for what looks like a pod: an object with `containers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.kubernetes.manifest import Manifest, Path

_TEMPLATE: Final[Path] = ("spec", "template", "spec")

# Group and kind: the pod specs in it.
_PODS: Final[dict[tuple[str, str], tuple[Path, ...]]] = {
    ("", "Pod"): (("spec",),),
    ("", "PodTemplate"): (("template", "spec"),),
    ("", "ReplicationController"): (_TEMPLATE,),
    ("apps", "Deployment"): (_TEMPLATE,),
    ("apps", "StatefulSet"): (_TEMPLATE,),
    ("apps", "ReplicaSet"): (_TEMPLATE,),
    ("apps", "DaemonSet"): (_TEMPLATE,),
    ("batch", "Job"): (_TEMPLATE,),
    ("batch", "CronJob"): (("spec", "jobTemplate", *_TEMPLATE),),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        ("spec", "leaderWorkerTemplate", "leaderTemplate", "spec"),
        ("spec", "leaderWorkerTemplate", "workerTemplate", "spec"),
    ),
}
_MAX_CONTAINERS: Final = 200
# Of a group of pods: how many there are in one.
_GROUP_SIZES: Final = ("size", "podGroupSize")
_MAX_DEPTH: Final = 24
# Dynamo's `extraPodSpec` names one container beside the others; its operator adds to the pod.
EXTRA: Final = "extraPodSpec"
MAIN: Final = "mainContainer"
# KubeRay's description of a cluster, of whose pods one engine may use them all.
_RAY_HEAD: Final = "headGroupSpec"
_RAY_WORKERS: Final = "workerGroupSpecs"
_COMMON_STEPS: Final = frozenset({"spec", "template", "podTemplate", EXTRA})


def containers_of(pod: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Give the containers of a pod's spec with their places in it, in the order of their start."""
    for member in ("initContainers", "containers"):
        items = pod.get(member)
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, Mapping) and i < _MAX_CONTAINERS:
                yield (member, i), item
    main = pod.get(MAIN)
    if isinstance(main, Mapping):
        yield (MAIN,), main


@dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod spec in an object: its path, and of how many pods one replica is made.

    `role` names it among several of the object (`leaderTemplate`, the name of a role).
    """

    path: Path
    group_size: int = 1
    role: str | None = None


def is_judged_kind(group: str, kind: str) -> bool:
    """Whether objects of the kind are judged themselves, so that what they own need not be."""
    return (group, kind) in _PODS


def is_of_ray(pod: PodPlace) -> bool:
    """Whether KubeRay runs the pod: a node of Ray, whatever else its container starts."""
    return _RAY_HEAD in pod.path or _RAY_WORKERS in pod.path


def pods_of(manifest: Manifest) -> Iterator[PodPlace]:
    """Give the pod specs of an object, each with its containers."""
    known = _PODS.get((manifest.group, manifest.kind))
    if known is None:
        yield from _search(manifest, manifest.data, ())
        return
    for path in known:
        if isinstance(manifest.at(path), Mapping):
            role = path[-2] if len(known) > 1 else None
            yield PodPlace(path, _group_size(manifest, path), role if role is None else str(role))


def _search(manifest: Manifest, value: Any, path: Path) -> Iterator[PodPlace]:
    """Find what has containers, as any custom resource spells it."""
    if len(path) > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        if _has_containers(value):
            yield PodPlace(path, _group_size(manifest, path), _role(manifest, path))
            return
        for key, member in value.items():
            # The last applied configuration and the like, and the schema of a definition.
            if key not in {"metadata", "status", "openAPIV3Schema"}:
                yield from _search(manifest, member, (*path, str(key)))
    elif isinstance(value, list):
        for i, member in enumerate(value):
            yield from _search(manifest, member, (*path, i))


def _has_containers(value: Mapping[str, Any]) -> bool:
    if isinstance(value.get(MAIN), Mapping):
        return True
    containers = value.get("containers")
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(isinstance(c, Mapping) and _is_container(c) for c in containers)
    )


def _is_container(value: Mapping[str, Any]) -> bool:
    return bool({"name", "image", "args", "command"} & value.keys())


def _group_size(manifest: Manifest, path: Path) -> int:
    if _RAY_HEAD in path:
        return _ray_nodes(manifest, path[: path.index(_RAY_HEAD)])
    for length in range(len(path), -1, -1):
        around = manifest.at(path[:length])
        if not isinstance(around, Mapping):
            continue
        multinode = around.get("multinode")  # Dynamo's
        inner = multinode.get("nodeCount") if isinstance(multinode, Mapping) else None
        for size in (inner, *map(around.get, _GROUP_SIZES)):
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                return size
    return 1


def _ray_nodes(manifest: Manifest, cluster: Path) -> int:
    """Count the nodes that a cluster of Ray may have, with the head.

    Source: KubeRay, `apis/ray/v1/raycluster_types.go::WorkerGroupSpec`.
    """
    groups = manifest.at((*cluster, _RAY_WORKERS))
    nodes = 1
    for group in groups if isinstance(groups, list) else ():
        held = group if isinstance(group, Mapping) else {}
        replicas = max(_number(held.get("replicas"), 1), _number(held.get("maxReplicas"), 0))
        nodes += replicas * _number(held.get("numOfHosts"), 1)
    return nodes


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _role(manifest: Manifest, path: Path) -> str | None:
    """Name a pod by the list item or key it stands in, where there are several of its like."""
    for length in range(len(path), 0, -1):
        if isinstance(path[length - 1], int):
            item = manifest.at(path[:length])
            name = item.get("name") if isinstance(item, Mapping) else None
            return name if isinstance(name, str) else str(path[length - 1])
    steps = [step for step in path if step not in _COMMON_STEPS]
    return str(steps[-1]) if steps else None
