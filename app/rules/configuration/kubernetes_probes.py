"""Probes and grace periods against what a server of models takes to start and to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.memory.by_name import named_weights
from app.memory.weights import bytes_per_weight, parameters
from app.proposal.workload import Workload
from app.rules.configuration.kubernetes_examples import AREA, READY, deployment
from app.rules.derived.parallel import is_multi_port
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity

_HEALTH: Final = "httpGet: {path: /health, port: 8000}"
_SERVER: Final = "vllm/entrypoints/cli/serve.py::ServeSubcommand.cmd"
# Starting the engine, compiling and capturing graphs take minutes whatever the model.
_LEAST_PATIENCE: Final = 300
# Weights over a network, as a rough figure: 1 GB a second.
_BYTES_A_SECOND: Final = 10**9
_SHORT: Final = 20
# Kinds whose pods get the probes that are written in them, and no others.
_WRITTEN: Final = frozenset(
    {"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "StormService", "RoleSet"}
)
# Kinds whose controllers bring probes, ports or containers that answer on another one.
_BY_CONTROLLER: Final = frozenset(
    {"LLMInferenceService", "LLMInferenceServiceConfig"}
    | {"DynamoGraphDeployment", "DynamoComponentDeployment"}
)
_GRACE: Final = 30


@rule(
    id="kubernetes-liveness-before-start",
    title="The liveness probe kills the server while it starts",
    explanation="vLLM answers nothing until the weights are loaded, the model is compiled and its "
    "graphs are captured: minutes. A liveness probe that gives up before has the container killed, "
    "which then starts from the beginning, for ever.",
    remedy="Add a `startupProbe` with patience for the longest start; liveness begins after it.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SERVER,
    bad=(
        deployment(
            "org/70b",
            READY,
            f"livenessProbe: {{{_HEALTH}, initialDelaySeconds: 30, failureThreshold: 3}}",
        ),
    ),
    good=(
        deployment(
            "org/70b",
            READY,
            f"livenessProbe: {{{_HEALTH}}}",
            f"startupProbe: {{{_HEALTH}, periodSeconds: 10, failureThreshold: 180}}",
        ),
        deployment("org/7b", READY, f"livenessProbe: {{{_HEALTH}, initialDelaySeconds: 900}}"),
        deployment("org/7b", READY),
    ),
)
def liveness_before_start(config: ServeConfig) -> Iterator[Finding]:
    """Compare the liveness probe's patience with a start, where no startup probe holds it back."""
    workload = config.workload
    probe = _probe(workload, "livenessProbe")
    if workload is None or probe is None or _probe(workload, "startupProbe") is not None:
        return
    if workload.kind in _BY_CONTROLLER:
        return
    patience, needed = _patience(probe), _start_seconds(config)
    if patience < needed:
        yield liveness_before_start.finding(
            f"the liveness probe gives up after {patience} s and there is no startupProbe; a start "
            f"may take {needed} s",
            location=_place(workload, "livenessProbe"),
            evidence={"patience_s": patience, "start_s": needed},
        )


@rule(
    id="kubernetes-startup-budget",
    title="The startup probe has too little patience for the model",
    explanation="The container is killed where the startup probe has not succeeded after "
    "`initialDelaySeconds + periodSeconds x failureThreshold`. What a start takes is estimated: "
    "five minutes, and the weights at 1 GB a second. The size is that of config.json, or what the "
    "model's name says.",
    remedy="Raise `failureThreshold`; a start that is quicker does not wait for it.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SERVER,
    bad=(
        deployment(
            "org/m-405b",
            READY,
            f"startupProbe: {{{_HEALTH}, periodSeconds: 10, failureThreshold: 60}}",
        ),
        deployment("org/m", READY, f"startupProbe: {{{_HEALTH}}}"),
    ),
    good=(
        deployment("org/m-405b", READY, f"startupProbe: {{{_HEALTH}, failureThreshold: 180}}"),
        deployment("org/m-7b", READY, f"startupProbe: {{{_HEALTH}, failureThreshold: 60}}"),
    ),
)
def startup_budget(config: ServeConfig) -> Iterator[Finding]:
    """Compare the startup probe's patience with a start of this model."""
    workload = config.workload
    probe = _probe(workload, "startupProbe")
    if workload is None or probe is None:
        return
    patience, needed = _patience(probe), _start_seconds(config)
    if patience < needed:
        yield startup_budget.finding(
            f"an estimate: the startup probe gives up after {patience} s, and a start may take "
            f"{needed} s",
            location=_place(workload, "startupProbe"),
            evidence={"patience_s": patience, "start_s": needed},
        )


@rule(
    id="kubernetes-liveness-eager",
    title="The liveness probe gives a busy server no time",
    explanation="/health is answered by the process that reads, tokenizes and streams requests; "
    "under load it may take seconds. A liveness probe that gives up that soon has a working server "
    "killed, with all requests that it has.",
    remedy="Keep `periodSeconds x failureThreshold` at 30 s or more.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/entrypoints/serve/instrumentator/health.py::health",
    bad=(
        deployment(
            "m",
            READY,
            f"startupProbe: {{{_HEALTH}, failureThreshold: 180}}",
            f"livenessProbe: {{{_HEALTH}, periodSeconds: 2}}",
        ),
    ),
    good=(
        deployment(
            "m",
            READY,
            f"startupProbe: {{{_HEALTH}, failureThreshold: 180}}",
            f"livenessProbe: {{{_HEALTH}}}",
        ),
    ),
)
def liveness_eager(config: ServeConfig) -> Iterator[Finding]:
    """Look how long a server may be busy."""
    workload = config.workload
    probe = _probe(workload, "livenessProbe")
    if workload is None or probe is None:
        return
    patience = _seconds(probe, "periodSeconds", 10) * _seconds(probe, "failureThreshold", 3)
    if patience < _SHORT:
        yield liveness_eager.finding(
            f"the liveness probe kills the server after {patience} s without an answer",
            location=_place(workload, "livenessProbe"),
            evidence={"patience_s": patience},
        )


@rule(
    id="kubernetes-readiness-missing",
    title="Requests come before the model is loaded",
    explanation="Without a readiness probe a pod counts as ready when its process has started. "
    "Services and routers then send requests to a server that does not listen for minutes.",
    remedy="Add `readinessProbe: {httpGet: {path: /health, port: 8000}}`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SERVER,
    bad=(deployment("m"),),
    good=(
        deployment("m", READY),
        deployment("m --headless --data-parallel-size 2", note="it serves no requests itself"),
    ),
)
def readiness_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for a readiness probe where nobody else adds one."""
    workload = config.workload
    if workload is None or workload.kind not in _WRITTEN or config["headless"]:
        return
    if workload.container_path[:1] == ("initContainers",):
        return
    if _probe(workload, "readinessProbe") is None:
        yield readiness_missing.finding(
            "there is no readinessProbe: requests come before the model is loaded",
            location=workload.locate((*workload.container_path, "readinessProbe")),
        )


@rule(
    id="kubernetes-probe-port",
    title="A probe asks a port where the server does not listen",
    explanation="`--port` (8000 where it is not given) is where vLLM listens. A probe of another "
    "port never succeeds, in a pod that has nothing else which could listen there.",
    remedy="Let the probe and `--port` name the same port.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SERVER,
    bad=(deployment("m --port 8080", READY),),
    good=(
        deployment("m", READY),
        deployment(
            "m --port 8080",
            "readinessProbe: {httpGet: {path: /health, port: http}}",
            "ports: [{name: http, containerPort: 8080}]",
        ),
        deployment(
            "m --port 8001",
            READY,
            pod=("initContainers: [{name: gate, image: x/gate, restartPolicy: Always}]",),
            note="the other container may listen there",
        ),
    ),
)
def probe_port(config: ServeConfig) -> Iterator[Finding]:
    """Compare the ports of probes with the server's."""
    workload = config.workload
    if workload is None or _has_others(workload) or config["headless"]:
        return
    if workload.kind in _BY_CONTROLLER or is_multi_port(config):
        return  # with several ports there is a supervisor, which has its own
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        port = _probed_port(workload, name)
        if port is not None and port != config["port"]:
            yield probe_port.finding(
                f"{name} asks port {port}, and the server listens on {config['port']}",
                location=_place(workload, name),
                related=tuple(filter(None, [config.place("port")])),
                evidence={"probed": port, "port": config["port"]},
            )


@rule(
    id="kubernetes-termination-grace",
    title="The pod is killed before the server has ended",
    explanation="`terminationGracePeriodSeconds` (30 where it is not given) counts from the "
    "moment the pod is to end: the `preStop` hook runs first, and `--shutdown-timeout` is how long "
    "vLLM then waits for its requests. What is left when the time is over is cut off.",
    remedy="Let `terminationGracePeriodSeconds` be more than both together.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.shutdown_timeout",
    bad=(
        deployment("m --shutdown-timeout 120", READY),
        deployment(
            "m", READY, "lifecycle: {preStop: {sleep: {seconds: 45}}}", note="the hook alone"
        ),
    ),
    good=(
        deployment("m", READY),
        deployment("m --shutdown-timeout 120", READY, pod=("terminationGracePeriodSeconds: 180",)),
    ),
)
def termination_grace(config: ServeConfig) -> Iterator[Finding]:
    """Compare the grace period with what ending takes."""
    workload = config.workload
    if workload is None:
        return
    grace = workload.pod.get("terminationGracePeriodSeconds", _GRACE)
    timeout = config["shutdown_timeout"]
    if isinstance(grace, bool) or not isinstance(grace, int) or not isinstance(timeout, int):
        return
    hook = _at(workload.container, "lifecycle", "preStop", "sleep", "seconds")
    slept = hook if isinstance(hook, int) else 0
    if timeout + slept > 0 and timeout + slept >= grace:
        yield termination_grace.finding(
            f"the pod has {grace} s to end; preStop takes {slept} s of them and "
            f"--shutdown-timeout {timeout} s",
            location=workload.locate(("terminationGracePeriodSeconds",)),
            related=tuple(filter(None, [config.place("shutdown_timeout")])),
            evidence={"grace_s": grace, "pre_stop_s": slept, "shutdown_timeout_s": timeout},
        )


def _probe(workload: Workload | None, name: str) -> Mapping[str, Any] | None:
    found = None if workload is None else workload.container.get(name)
    return found if isinstance(found, Mapping) else None


def _place(workload: Workload, name: str) -> Any:
    return workload.locate((*workload.container_path, name))


def _patience(probe: Mapping[str, Any]) -> int:
    tries = _seconds(probe, "periodSeconds", 10) * _seconds(probe, "failureThreshold", 3)
    return _seconds(probe, "initialDelaySeconds", 0) + tries


def _seconds(probe: Mapping[str, Any], name: str, default: int) -> int:
    value = probe.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _start_seconds(config: ServeConfig) -> int:
    return _LEAST_PATIENCE + int(_weight_bytes(config) / _BYTES_A_SECOND)


def _weight_bytes(config: ServeConfig) -> float:
    """Estimate the weights' bytes, by config.json or else the model's name; 0 if neither says."""
    try:
        counted, widths = parameters(config), bytes_per_weight(config)
        plain = (counted.embedding + counted.towers) * widths.plain
        return plain + counted.dense * widths.dense + counted.experts * widths.experts
    except Abstain:
        pass
    named = named_weights(config)
    return 0.0 if named is None else named.bytes


def _has_others(workload: Workload) -> bool:
    """Whether something else of the pod may listen: they share its network."""
    starting = workload.pod.get("initContainers")
    containers = workload.pod.get("containers")
    stays = any(
        isinstance(c, Mapping) and c.get("restartPolicy") == "Always"
        for c in (starting if isinstance(starting, list) else ())
    )
    return stays or not isinstance(containers, list) or len(containers) > 1


def _probed_port(workload: Workload, name: str) -> int | None:
    port = _at(workload.container, name, "httpGet", "port")
    if isinstance(port, str) and port.isdecimal():
        return int(port)
    if isinstance(port, str):
        ports = workload.container.get("ports")
        for entry in ports if isinstance(ports, list) else ():
            if isinstance(entry, Mapping) and entry.get("name") == port:
                port = entry.get("containerPort")
    return port if isinstance(port, int) and not isinstance(port, bool) else None


def _at(value: Any, *steps: str) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value
