"""Parallel sizes against the devices of the machine, and which devices are used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from app.rules.configuration.parallel_models import DENSE, EXPERTS
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import is_moe, num_kv_heads, text_value, uses_mla
from app.rules.derived.parallel import (
    DP,
    EXECUTOR,
    PCP,
    PP,
    TP,
    VISIBLE,
    data_parallel_size,
    executor,
    is_multi_port,
    launch_of,
    nodes_within_rank,
    number,
    since,
    size,
    visible_devices,
    world_size,
)
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

AREA: Final = "parallel"
_IDS: Final = "device_ids"
_POST_INIT: Final = "vllm/config/parallel.py::ParallelConfig.__post_init__"
_RESOLVE: Final = "vllm/engine/arg_utils.py::EngineArgs._resolve_device_ids"
# `ray start`, `ray symmetric-run`, or a script that is told of the cluster (`--ray_cluster_size`).
_RAY: Final = re.compile(r"(?<![\w/])ray +(?:start|symmetric-run)\b|--ray_[a-z]")
_WORKER: Final = "vllm/v1/worker/gpu_worker.py::Worker.init_device"


@rule(
    id="parallel-world-exceeds-devices",
    title="One replica needs more GPUs than the node has",
    explanation="Where no executor is named, vLLM compares tensor x pipeline x prefill-context "
    "parallel size with the GPUs that it sees, `CUDA_VISIBLE_DEVICES` included. Data parallelism "
    "is not part of that check.",
    remedy="Lower the sizes, give the pod more GPUs, or say that several nodes take part: "
    "`--nnodes`, or `--distributed-executor-backend ray`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example(f"{VISIBLE}=0,1 vllm serve m -tp 4", model_config=DENSE),
        Example(f"{VISIBLE}=0,1 vllm serve m -tp 2 -pp 2", model_config=DENSE),
    ),
    good=(
        Example(f"{VISIBLE}=0,1 vllm serve m -tp 2", model_config=DENSE),
        Example("vllm serve m -tp 8", model_config=DENSE, gpu="NVIDIA H100"),
        Example(
            "vllm serve m -tp 16 --distributed-executor-backend mp",
            model_config=DENSE,
            gpu="NVIDIA H100",
            note="not compared where the executor is named; the workers then fail",
        ),
    ),
)
def world_exceeds(config: ServeConfig) -> Iterator[Finding]:
    """Compare one replica with the node."""
    needed = world_size(config)
    if needed == 1 or not _compares_devices(config):
        return
    present = visible_devices(config)
    if needed <= present:
        return
    yield world_exceeds.finding(
        f"{_product(config)} needs {needed} GPUs a replica, and the node has {present}",
        location=_place(config),
        fix=_over_ray(config, needed, present) or _fitting(config, present),
        engine_message=f"World size ({needed}) is larger than the number of available GPUs "
        f"({present}) in this node.",
        evidence={"needed": needed, "devices": present},
    )


def _compares_devices(config: ServeConfig) -> bool:
    return (
        config[EXECUTOR] is None
        and machine_of(config).is_cuda
        and size(config, "nnodes") == 1
        and launch_of(config) is not None
    )


def _product(config: ServeConfig) -> str:
    names = ((TP, "tensor"), (PP, "pipeline"), (PCP, "prefill-context"))
    parts = [f"{label} {size(config, dest)}" for dest, label in names if size(config, dest) > 1]
    return " x ".join(parts) or "one rank"


def _place(config: ServeConfig) -> Location | None:
    places = (config.place(dest) for dest in (TP, PP, PCP, DP))
    return next((place for place in places if place is not None), config.place("model"))


def _over_ray(config: ServeConfig, needed: int, present: int) -> Fix | None:
    """Name the executor where a container starts a Ray cluster over a group that has the GPUs."""
    workload = config.workload
    if workload is None or present * workload.group_size < needed:
        return None
    words = (workload.container.get(key) for key in ("command", "args"))
    texts = [text for part in words if isinstance(part, list) for text in part]
    if not any(isinstance(text, str) and _RAY.search(text) for text in texts):
        return None
    return Fix("spread the replica over the Ray cluster", (SetFlag(EXECUTOR, "ray"),), safe=True)


def _fitting(config: ServeConfig, present: int) -> Fix | None:
    others = size(config, PP) * size(config, PCP)
    room = present // others
    if room < 1:
        return None
    ranks = 1 << (room.bit_length() - 1)
    return Fix(f"use tensor parallel size {ranks}", (SetFlag(TP, ranks),), safe=False)


@rule(
    id="parallel-devices-short",
    title="The replicas on this node need more GPUs than it has",
    explanation="vLLM's configuration check does not count data-parallel ranks, nor anything where "
    "an executor is named. Each worker compares its own rank with the GPUs that it sees and "
    "stops, minutes into the start.",
    remedy="Lower the sizes, or give the pod data-parallel x tensor x pipeline GPUs.",
    severity=Severity.WARNING,
    area=AREA,
    source=_WORKER,
    bad=(
        Example("vllm serve m -tp 4 -dp 4", model_config=DENSE, gpu="NVIDIA H100"),
        Example("vllm serve m -tp 16 --distributed-executor-backend mp", gpu="NVIDIA H100"),
        Example(f"{VISIBLE}=0,1 vllm serve m -tp 2 -dp 2", model_config=DENSE),
    ),
    good=(
        Example("vllm serve m -tp 4 -dp 2", model_config=DENSE, gpu="NVIDIA H100"),
        Example("vllm serve m -tp 4 -dp 4 --data-parallel-size-local 2", gpu="NVIDIA H100"),
    ),
    covers=("visible-ordinal-range",),
)
def devices_short(config: ServeConfig) -> Iterator[Finding]:
    """Count what all replicas of this node need."""
    launch, span = launch_of(config), nodes_within_rank(config)
    ranks = data_parallel_size(config)
    if world_size(config) * ranks == 1 or launch is None or not span:
        return
    if executor(config) not in {"mp", "uni"} or config["data_parallel_backend"] == "ray":
        return
    replica = world_size(config) // span
    local = 1 if launch.external_lb and not is_multi_port(config) else launch.local_size
    if is_multi_port(config):
        local = number(config, "data_parallel_size_local") or 1
    present = visible_devices(config)
    if replica * local <= present or (_compares_devices(config) and world_size(config) > present):
        return
    yield devices_short.finding(
        f"this node starts {local} replica(s) of {replica} GPU(s), {replica * local} in all, and "
        f"has {present}: the workers beyond them stop when they start",
        location=_place(config),
        evidence={"needed": replica * local, "devices": present},
    )


@rule(
    id="parallel-device-ids",
    title="--device-ids names devices that it cannot",
    explanation="The ids are all numbers or all UUIDs, each once. Where `CUDA_VISIBLE_DEVICES` is "
    "set, numbers are positions in its list, not ids of the machine.",
    remedy="List each device once; with `CUDA_VISIBLE_DEVICES`, count from 0 in that list.",
    severity=Severity.ERROR,
    area=AREA,
    source=_RESOLVE,
    bad=(
        Example("vllm serve m --device-ids 0,0"),
        Example("vllm serve m --device-ids 0,GPU-1c2b"),
        Example(f"{VISIBLE}=4,5 vllm serve m -tp 2 --device-ids 4,5"),
    ),
    good=(
        Example("vllm serve m -tp 2 --device-ids 4,5"),
        Example(f"{VISIBLE}=4,5 vllm serve m -tp 2 --device-ids 0,1"),
    ),
    covers=("device-ids-duplicate", "device-ids-mixed", "device-ids-out-of-range"),
)
def device_ids(config: ServeConfig) -> Iterator[Finding]:
    """Check the list in vLLM's order."""
    ids = config[_IDS]
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int | str) for i in ids):
        return
    texts = [isinstance(i, str) for i in ids]
    if len(set(ids)) != len(ids):
        message = f"--device-ids lists a device twice: {ids}"
        engine = f"--device-ids must not contain duplicates: {ids}"
    elif all(texts):
        return
    elif any(texts):
        message = f"--device-ids mixes numbers and UUIDs: {ids}"
        engine = "--device-ids must not mix integer IDs and UUIDs"
    else:
        listed = config.variable(VISIBLE)
        if listed is None or not listed.value or not machine_of(config).is_cuda_alike:
            return
        count = len(listed.value.split(","))
        least = 0 if since(config, "0.32") else -count
        wrong = next((i for i in ids if not least <= i < count), None)
        if wrong is None:
            return
        message = (
            f"--device-ids {wrong} is no position in {VISIBLE}={listed.value}, which lists "
            f"{count} device(s)"
        )
        engine = (
            f"--device-ids index {wrong} is out of range for {VISIBLE}={listed.value} "
            f"({count} devices visible)"
        )
    yield device_ids.finding(
        message,
        location=config.place(_IDS),
        fix=Fix("drop --device-ids", (RemoveFlag(_IDS),), safe=False),
        engine_message=engine,
    )


@rule(
    id="parallel-device-ids-few",
    title="--device-ids lists fewer devices than the ranks of this node need",
    explanation="Each data-parallel rank takes its share of the list. The rank that finds too few "
    "stops when it starts, after the configuration has been accepted.",
    remedy="List local data-parallel ranks x tensor x pipeline devices.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/v1/engine/utils.py::get_physical_gpu_ids_for_dp_rank",
    bad=(
        Example("vllm serve m -tp 2 --device-ids 0"),
        Example("vllm serve m -dp 2 --device-ids 0"),
    ),
    good=(
        Example("vllm serve m -tp 2 --device-ids 0,1"),
        Example("vllm serve m -dp 2 -tp 2 --device-ids 0,1,2,3"),
    ),
)
def device_ids_few(config: ServeConfig) -> Iterator[Finding]:
    """Count the list."""
    ids = config[_IDS]
    if not isinstance(ids, list) or not ids or is_multi_port(config):
        return
    launch, span = launch_of(config), nodes_within_rank(config)
    if launch is None or not span or executor(config) not in {"mp", "uni"}:
        return
    needed = world_size(config) // span * max(launch.local_size, 1)
    if len(ids) < needed:
        yield device_ids_few.finding(
            f"--device-ids lists {len(ids)} device(s), and the ranks of this node need {needed}",
            location=config.place(_IDS),
            evidence={"needed": needed, "devices": len(ids)},
        )


@rule(
    id="parallel-device-ids-ray",
    title="Ray ignores --device-ids",
    explanation="Ray places workers by its placement groups; vLLM only logs a warning.",
    remedy="Drop `--device-ids` and choose devices by placement groups.",
    severity=Severity.WARNING,
    area=AREA,
    source=_RESOLVE,
    bad=(Example("vllm serve m -tp 2 --device-ids 0,1 --distributed-executor-backend ray"),),
    good=(Example("vllm serve m -tp 2 --device-ids 0,1 --distributed-executor-backend mp"),),
    covers=("device-ids-ray",),
)
def device_ids_ray(config: ServeConfig) -> Iterator[Finding]:
    """Tell that the list has no effect."""
    if config[_IDS] and config[EXECUTOR] == "ray":
        yield device_ids_ray.finding(
            f"--device-ids {config[_IDS]} has no effect: Ray chooses the devices",
            location=config.place(_IDS),
            evidence={"asked": config[_IDS], "effective": None, "dest": _IDS},
        )


@rule(
    id="parallel-dimension-by-tensor",
    title="A part of the model cannot be split over the tensor-parallel GPUs",
    explanation="The configuration check looks at the query heads only. Building the model also "
    "splits the key-value heads (or copies them) and the intermediate size of the feed-forward "
    "layers, and stops where that leaves a rest.",
    remedy="Use a size that divides both, or `--enable-expert-parallel` for experts.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/distributed/utils.py::ensure_divisibility",
    bad=(
        Example(
            "vllm serve m -tp 4",
            model_config={
                **DENSE,
                "hidden_size": 5120,
                "num_attention_heads": 40,
                "num_key_value_heads": 10,
            },
        ),
        Example("vllm serve m -tp 4", model_config={**DENSE, "intermediate_size": 14338}),
        Example("vllm serve m -tp 8", model_config={**EXPERTS, "moe_intermediate_size": 772}),
    ),
    good=(
        Example("vllm serve m -tp 8", model_config=DENSE),
        Example("vllm serve m -tp 16", model_config=DENSE, note="copies key-value heads"),
    ),
    covers=("tp-dimension-divisible",),
)
def dimension(config: ServeConfig) -> Iterator[Finding]:
    """Divide key-value heads and intermediate sizes."""
    ranks = size(config, TP)
    if ranks == 1:
        return
    for name, value, splits in _dimensions(config, ranks):
        if not splits:
            yield dimension.finding(
                f"{name} ({value}) cannot be split over {ranks} tensor-parallel GPUs: vLLM stops "
                "while it builds the model",
                location=config.place(TP),
                evidence={"dimension": value, "tensor_parallel_size": ranks},
            )


def _dimensions(config: ServeConfig, ranks: int) -> Iterator[tuple[str, int, bool]]:
    if not uses_mla(config):
        heads = num_kv_heads(config)
        if heads:
            whole = ranks % heads if ranks >= heads else heads % ranks
            yield "the number of key-value heads", heads, whole == 0
    if not is_moe(config):
        key, label = "intermediate_size", "the intermediate size"
    elif config["enable_expert_parallel"]:
        return
    else:
        key, label = "moe_intermediate_size", "the intermediate size of an expert"
    value = text_value(config, key)
    if isinstance(value, int) and not isinstance(value, bool):
        yield label, value, value % ranks == 0


@rule(
    id="parallel-layer-partition",
    title="VLLM_PP_LAYER_PARTITION does not fit the pipeline or the model",
    explanation="The variable lists the layers of each pipeline stage. It is read while the model "
    "is built, with one stage too: a list that is no numbers, has another length than "
    "`--pipeline-parallel-size`, or adds up to another number than the model's layers ends the "
    "start there.",
    remedy="Correct the list, or unset the variable to split the layers evenly.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/distributed/utils.py::get_pp_indices",
    bad=(
        Example("VLLM_PP_LAYER_PARTITION=10,x vllm serve m -pp 2"),
        Example("VLLM_PP_LAYER_PARTITION=10,12,10 vllm serve m -pp 2"),
        Example("VLLM_PP_LAYER_PARTITION=10,21 vllm serve m -pp 2", model_config=DENSE),
    ),
    good=(
        Example("VLLM_PP_LAYER_PARTITION=15,17 vllm serve m -pp 2", model_config=DENSE),
        Example("vllm serve m -pp 2"),
    ),
    covers=("pp-partition-text", "pp-partition-count", "pp-partition-sum"),
)
def layer_partition(config: ServeConfig) -> Iterator[Finding]:
    """Read the list as vLLM does."""
    variable = config.variable("VLLM_PP_LAYER_PARTITION")
    if variable is None:
        return
    stages, message = size(config, PP), None
    try:
        layers = [int(part) for part in variable.value.split(",")]
    except ValueError:
        layers, message = [], "is no list of numbers"
    if message is None and len(layers) != stages:
        message = f"has {len(layers)} entries for {stages} pipeline stage(s)"
    if message is None:
        total = text_value(config, "num_hidden_layers")
        if not isinstance(total, int):
            raise Abstain("`num_hidden_layers` in the model's config.json (`model_config`)")
        if sum(layers) != total:
            message = f"adds up to {sum(layers)} layers, and the model has {total}"
    if message is not None:
        yield layer_partition.finding(
            f"VLLM_PP_LAYER_PARTITION={variable.value} {message}: vLLM stops while it builds the "
            "model",
            location=variable.location,
        )
