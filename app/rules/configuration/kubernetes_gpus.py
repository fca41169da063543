"""A GPU that others use too: vLLM does not start unless its share of the memory is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.memory.estimate import UTILIZATION, utilization
from app.proposal.proposal import Hardware, Proposal, Variable
from app.proposal.workload import GpuShare, Workload
from app.rules.configuration.kubernetes_examples import AREA, deployment
from app.rules.configuration.kubernetes_neighbours import neighbour_config
from app.rules.declaration import Example
from app.rules.derived.devices import device_named
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

IN_USE: Final = "vllm-admission/gpu-memory-in-use"
_SOURCE: Final = "vllm/v1/worker/utils.py::request_memory"
_GPUS: Final = "resources: {limits: {nvidia.com/gpu: %d}}"
_SLEEPS: Final = "enable_sleep_mode"
_VISIBLE: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_NO_DEVICES: Final = frozenset({"", "none", "void", "-1"})
# Rounding of shares that are written with two digits.
_SLACK: Final = 1e-6
# What one of several that share a GPU may take where nothing tells its part.
_HALF: Final = 0.5


@rule(
    id="memory-in-use",
    title="The GPU has less memory free than the server takes",
    explanation="`--gpu-memory-utilization` is a part of all the memory of a GPU, whoever else "
    "uses it. vLLM looks at its start how much is free, and ends where that is less. What others "
    "hold is told by `memory_in_use` of the hardware, or in a manifest by the annotation "
    "`vllm-admission/gpu-memory-in-use`.",
    remedy="Lower `--gpu-memory-utilization`, or free the memory first.",
    severity=Severity.WARNING,
    area="memory",
    source=_SOURCE,
    bad=(
        deployment(
            "m --gpu-memory-utilization 0.825",
            _GPUS % 1,
            annotations='vllm-admission/gpu-memory-in-use: "0.2"',
            note="a sleeping server keeps a fifth of it",
        ),
    ),
    good=(
        deployment(
            "m --gpu-memory-utilization 0.8",
            _GPUS % 1,
            annotations="vllm-admission/gpu-memory-in-use: 20%",
        ),
        Example("vllm serve m --gpu-memory-utilization 0.99"),
    ),
)
def memory_in_use(config: ServeConfig) -> Iterator[Finding]:
    """Add what is in use to what the server takes."""
    used = None if config.hardware is None else config.hardware.memory_in_use
    if used is None or machine_of(config).is_cpu:
        return
    share = utilization(config)
    if share + used > 1 + _SLACK:
        yield memory_in_use.finding(
            f"others hold {used:g} of the GPU's memory and the server takes {share:g} of all of "
            "it: vLLM does not start unless that much is free",
            location=config.place(UTILIZATION) or _place(config.workload, "args"),
            evidence={"in_use": used, "share": share},
        )


@rule(
    id="kubernetes-gpu-share",
    title="The GPU is shared, and the server takes more than its part of the memory",
    explanation="Time slicing, KAI's fractions, Alibaba Cloud's `aliyun.com/gpu-mem` and sleeping "
    "servers on the same GPU do not keep their memory apart: each server sees all of it, and "
    "`--gpu-memory-utilization` counts from all of it. Whoever starts second finds too little "
    "free, and ends. HAMi's `nvidia.com/gpumem`, Volcano's vGPUs and MIG slices show a server "
    "its own memory alone, and are no such case.",
    remedy="Let the shares of all servers on a GPU add up to 1 at the most. Where it is known "
    "how much the others hold, say so: `vllm-admission/gpu-memory-in-use`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(
        deployment("m", "resources: {limits: {nvidia.com/gpu.shared: 1}}"),
        deployment(
            "m --gpu-memory-utilization 0.6",
            _GPUS % 1,
            pod=("schedulerName: kai-scheduler",),
            template_annotations='gpu-fraction: "0.5"',
        ),
    ),
    good=(
        deployment(
            "m --gpu-memory-utilization 0.45", "resources: {limits: {nvidia.com/gpu.shared: 1}}"
        ),
        deployment("m", "resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 10240}}"),
        deployment("m", "resources: {limits: {nvidia.com/mig-1g.10gb: 1}}"),
        deployment("m", _GPUS % 1),
    ),
)
def gpu_share(config: ServeConfig) -> Iterator[Finding]:
    """Compare what the server takes with the part that the object means for it."""
    sign = None if config.workload is None else config.workload.gpu_share
    if sign is None or (config.hardware is not None and config.hardware.memory_in_use is not None):
        return
    if sign.limited is None:
        raise Abstain(f"whether {sign.sign} shows the server its own part of the memory alone")
    part = _part(config, sign)
    share = utilization(config)
    if share > part + _SLACK:
        yield gpu_share.finding(
            f"others use the GPU too ({sign.sign}), and the server takes {share:g} of all its "
            f"memory; {_meant(sign, part)}. It does not start where less is free",
            location=config.place(UTILIZATION) or sign.location,
            related=(sign.location,),
            evidence={"share": share, "part": round(part, 4)},
        )


def _part(config: ServeConfig, sign: GpuShare) -> float:
    """Give the part of the GPU's memory that is meant for the server."""
    if sign.fraction is not None:
        return sign.fraction
    if sign.gib is None:
        return _HALF
    hardware = config.hardware
    known = None if hardware is None else hardware.memory_gib
    if known is None and hardware is not None and hardware.gpu is not None:
        known = device_named(hardware.gpu).memory_gib
    if known is None:
        if not config.given(UTILIZATION):
            return _HALF  # nobody has set it, so that nobody has reckoned with the others
        raise Abstain("the memory of the GPU, of which a part is meant for the server")
    return min(1.0, sign.gib / known)


def _meant(sign: GpuShare, part: float) -> str:
    if sign.gib is not None:
        return f"{sign.gib:g} GiB are meant for it"
    if sign.fraction is not None:
        return f"{part:.3g} is meant for it"
    if sign.asleep:
        return f"servers that sleep there keep a part of it (how much, {IN_USE} may say)"
    return "no two servers can have more than half"


@rule(
    id="kubernetes-gpu-shared",
    title="Servers of one pod take more than the whole of a GPU",
    explanation="Servers of a pod use the same GPU where one of them asks for none and sees the "
    "other's (`NVIDIA_VISIBLE_DEVICES`, time slicing), where they name the same devices by that "
    "variable, ask for shares (`nvidia.com/gpu.shared`) or name one resource claim. Each takes "
    "`--gpu-memory-utilization` of all its memory, and stops at its start where that much is not "
    "free.",
    remedy="Give each its own GPU, or let the shares add up to less than 1.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(
        deployment(
            "m",
            _GPUS % 1,
            beside="d",
            note="both ask for most of it",
        ),
    ),
    good=(
        deployment(
            "m --gpu-memory-utilization 0.5",
            _GPUS % 1,
            beside="d --gpu-memory-utilization 0.4",
        ),
        deployment("m", _GPUS % 1),
    ),
)
def gpu_shared(config: ServeConfig) -> Iterator[Finding]:
    """Add up the shares of the servers of a pod, or of a claim, told at the first one."""
    workload = config.workload
    if workload is None or not workload.neighbours:
        return
    own = _Use(workload, config.environment, config.hardware)
    beside = [other for other in workload.neighbours if own.shares_with(other)]
    if not beside or any(_comes_before(other, workload) for other in beside):
        return
    configs = [_config_of(other, config) for other in beside]
    shares = [utilization(config), *map(utilization, configs)]
    if sum(shares) > 1 + _SLACK:
        shown = " + ".join(f"{share:g}" for share in shares)
        asleep = all(found[_SLEEPS] for found in (config, *configs))
        yield gpu_shared.finding(
            f"{len(shares)} servers {_where(beside, workload)} share a GPU and take {shown} of "
            "its memory" + (": one has to sleep before the next one starts" if asleep else ""),
            location=config.place(UTILIZATION) or _place(workload, "args"),
            related=tuple(
                other.workload.locate(other.workload.container_path)
                for other in beside
                if other.workload is not None
            ),
            evidence={"shares": shares},
        )


class _Use:
    """Which GPUs a server uses, as far as the object tells."""

    def __init__(
        self, workload: Workload, environment: Mapping[str, Variable], hardware: Hardware | None
    ) -> None:
        self.workload = workload
        self.count = 0 if hardware is None else hardware.count or 0
        self.visible = _visible(environment)
        self.claims = frozenset(_claims(workload))
        asked = workload.container.get("resources")
        sides = (asked.get("limits"), asked.get("requests")) if isinstance(asked, Mapping) else ()
        names = {str(name) for side in sides if isinstance(side, Mapping) for name in side}
        self.sliced = any(name.endswith(".shared") for name in names)

    def shares_with(self, other: Proposal) -> bool:
        """Whether the other server sees a GPU that this one uses."""
        workload = other.workload
        if workload is None:
            return False
        beside = _Use(workload, other.environment, other.hardware)
        if self.claims & beside.claims:
            return True
        if workload.pod is not self.workload.pod:
            return False
        if bool(self.count) is not bool(beside.count):
            return True
        if self.count:
            return self.sliced and beside.sliced
        if self.visible is None or beside.visible is None:
            return False
        return bool(self.visible & beside.visible) or "all" in {*self.visible, *beside.visible}


def _visible(environment: Mapping[str, Variable]) -> frozenset[str] | None:
    """Give the devices that variables name; None where none does, or it is not known."""
    for name in reversed(_VISIBLE):
        variable = environment.get(name)
        if variable is not None and not variable.unresolved:
            if variable.value.strip().lower() in _NO_DEVICES:
                return frozenset()
            return frozenset(part.strip() for part in variable.value.split(","))
    return None


def _claims(workload: Workload) -> Iterator[tuple[str, ...]]:
    """Name the resource claims of the container: of its pod, or of the whole namespace."""
    resources = workload.container.get("resources")
    used = _mappings(resources.get("claims")) if isinstance(resources, Mapping) else ()
    shared = {
        claim.get("name"): claim.get("resourceClaimName")
        for claim in _mappings(workload.pod.get("resourceClaims"))
    }
    for claim in used:
        name, request = str(claim.get("name")), str(claim.get("request", ""))
        outside = shared.get(claim.get("name"))
        if isinstance(outside, str):
            yield "named", workload.namespace, outside, request
        else:
            yield "own", str(id(workload.pod)), name, request


def _where(beside: list[Proposal], workload: Workload) -> str:
    inside = all(other.workload and other.workload.pod is workload.pod for other in beside)
    return "of this pod" if inside else "of one resource claim"


def _comes_before(other: Proposal, workload: Workload) -> bool:
    found = other.workload
    return found is not None and _order(found) < _order(workload)


def _order(workload: Workload) -> tuple[str, ...]:
    return (workload.namespace, workload.kind, workload.name, str(workload.container_path))


def _config_of(other: Proposal, config: ServeConfig) -> ServeConfig:
    """Read a neighbour for the same version."""
    found = neighbour_config(other, config.catalogue)
    if found is None:
        raise Abstain(f"the configuration of {other.subject}, which cannot be read")
    return found


def _place(workload: Workload | None, member: str) -> Location | None:
    return None if workload is None else workload.locate((*workload.container_path, member))


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item
