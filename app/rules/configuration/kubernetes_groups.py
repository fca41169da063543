"""Pods of a group that are data-parallel ranks of one server: they have to agree on who answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.proposal.proposal import Proposal
from app.proposal.workload import Workload
from app.rules.configuration.kubernetes_examples import AREA
from app.rules.configuration.kubernetes_neighbours import neighbour_config
from app.rules.declaration import Example
from app.rules.derived.parallel import DP, Launch, is_headless, is_multi_port, launch_of, size
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_START: Final = "data_parallel_start_rank"
_HYBRID: Final = "data_parallel_hybrid_lb"
_MUST_NOT: Final = "must not use --headless in external or hybrid dp lb mode"
_MUST: Final = "must use --headless unless in external or hybrid dp lb mode"
_RANKS: Final = '-dp, "16", -dpl, "8", --data-parallel-address, $(LWS_LEADER_ADDRESS)'
_GROUP: Final = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: wide}}
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
        - name: leader
          image: vllm/vllm-openai:v0.32.0
          args: [m, {ranks}{leader}]
          readinessProbe: {{httpGet: {{path: /health, port: 8000}}}}
    workerTemplate:
      spec:
        containers:
        - name: worker
          image: vllm/vllm-openai:v0.32.0
          args: [m, {ranks}, --data-parallel-start-rank, "8"{worker}]
          readinessProbe: {{httpGet: {{path: /health, port: 8000}}}}
"""


def _group(leader: str, worker: str, note: str = "") -> Example:
    return Example(_GROUP.format(ranks=_RANKS, leader=leader, worker=worker), note=note)


@rule(
    id="kubernetes-group-headless",
    title="Pods of a group do not agree on who answers requests",
    explanation="Where vLLM itself spreads requests over all data-parallel ranks, the other pods "
    "are `--headless`. In hybrid or external load balancing each pod answers for its own ranks, "
    "and none may be. The first pod looks at that when the others report, and ends. A start rank "
    "beside `--data-parallel-size-local` makes the mode hybrid by itself, rank 0 too.",
    remedy="Leave `--data-parallel-start-rank` out at the first pod, or `--headless` at the "
    "others.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/v1/engine/utils.py::wait_for_engine_startup",
    bad=(
        _group(', --data-parallel-start-rank, "0"', ", --headless"),
        _group("", "", note="the other way about"),
    ),
    good=(
        _group("", ", --headless"),
        _group(', --data-parallel-start-rank, "0"', ""),
        _group(", --data-parallel-hybrid-lb", ", --data-parallel-hybrid-lb"),
    ),
)
def group_headless(config: ServeConfig) -> Iterator[Finding]:
    """Compare the pod with rank 0 with the others of its group."""
    workload, launch = config.workload, launch_of(config)
    if workload is None or workload.group_size == 1 or launch is None or is_headless(config):
        return
    ranks = size(config, DP)
    if launch.rank or launch.local_size >= ranks or not _is_plain(config):
        return
    for other in workload.neighbours:
        if other.workload is None or not _is_one_group(workload, other.workload):
            continue
        there = neighbour_config(other, config.catalogue)
        if there is None or size(there, DP) != ranks or not _is_plain(there):
            continue
        if is_headless(there) is launch.local_engines_only:
            place = config.place(_START) or config.place(_HYBRID) or config.place(DP)
            yield group_headless.finding(
                _told(other, headless=is_headless(there)),
                location=place or workload.locate((*workload.container_path, "args")),
                related=tuple(filter(None, [there.place("headless") or there.place(_START)])),
                fix=_fix(config, launch),
                engine_message=_MUST_NOT if is_headless(there) else _MUST,
            )


def _told(other: Proposal, *, headless: bool) -> str:
    if headless:
        return (
            f"{other.subject} is --headless, and here load balancing is hybrid or external, in "
            "which each pod answers requests: vLLM ends when that pod reports"
        )
    return (
        f"{other.subject} is not --headless, and here vLLM spreads requests over all ranks itself: "
        "it ends when that pod reports"
    )


def _fix(config: ServeConfig, launch: Launch) -> Fix | None:
    if not launch.local_engines_only or not config.given(_START) or config[_HYBRID]:
        return None
    return Fix("leave out the start rank", (RemoveFlag(_START),), safe=False)


def _is_plain(config: ServeConfig) -> bool:
    """Whether each pod starts the processes of its own ranks, and ranks are in one pod each."""
    ray = config["data_parallel_backend"] != "mp"
    return not ray and not is_multi_port(config) and size(config, "nnodes") == 1


def _is_one_group(workload: Workload, other: Workload) -> bool:
    own = (workload.kind, workload.namespace, workload.name, workload.group_size)
    if own != (other.kind, other.namespace, other.name, other.group_size):
        return False
    return _around(workload) == _around(other)


def _around(workload: Workload) -> str:
    """Give the place of what holds the pod's template beside those of its group."""
    container = workload.locate(workload.container_path).pointer or ""
    pod = container.rpartition("/containers/")[0].removesuffix("/spec")
    return pod.rpartition("/")[0]
