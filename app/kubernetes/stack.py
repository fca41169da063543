"""Servers of production-stack, which its values and its VLLMRuntime describe in their own words.

Sources: the chart's `templates/deployment-vllm-multi.yaml` and `values.yaml`, and the operator's
`vllmruntime_controller.go`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from app.kubernetes.manifest import Manifest, Path
from app.kubernetes.members import as_list, as_text
from app.kubernetes.placed import Maker, Role

# What vLLM has as options; switches have no value.
_OPTIONS: Final = {
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxNumSeqs": "--max-num-seqs",
    "maxLoras": "--max-loras",
}
_SWITCHES: Final = {
    "enablePrefixCaching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "enableChunkedPrefill": ("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
}
# What is beside `vllmConfig`: in the chart's `modelSpec`, and in the operator's `model`.
_MODEL_OPTIONS: Final = {"toolCallParser": "--tool-call-parser"}
_MODEL_SWITCHES: Final = {
    "enableTool": ("--enable-auto-tool-choice", ""),
    "enableLoRA": ("--enable-lora", ""),
}
_RUNTIME_OPTIONS: Final = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "maxNumSeqs": "--max-num-seqs",
    "chatTemplate": "--chat-template",
}
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
# What the chart gives where the values are silent.
_CHART_PROBE: Final[dict[str, Any]] = {"httpGet": {"path": "/health", "port": 8000}}


def stack_values(manifest: Manifest, at: Path = ()) -> Iterator[Manifest]:
    """Read the values of the chart."""
    engine: Path = (*at, "servingEngineSpec")
    models = manifest.at((*engine, "modelSpec"))
    for i, model in enumerate(models if isinstance(models, list) else ()):
        if isinstance(model, Mapping):
            yield _of_chart(manifest, (*engine, "modelSpec", i), model, engine)


def _of_chart(manifest: Manifest, at: Path, model: Mapping[str, Any], engine: Path) -> Manifest:
    maker = Maker(manifest)
    maker.plan.partial = False
    repository, tag = model.get("repository"), model.get("tag")
    if isinstance(repository, str) and isinstance(tag, str):
        maker.set("image", f"{repository}:{tag}", (*at, "tag"))
    maker.set("command", ["vllm", "serve"], at)
    maker.word(str(model.get("modelURL", "")), (*at, "modelURL"), Role.VALUE)
    _options(maker, manifest, engine, {"containerPort": "--port"})
    _options(maker, manifest, at, _MODEL_OPTIONS, _MODEL_SWITCHES)
    _options(maker, manifest, (*at, "vllmConfig"), _OPTIONS, _SWITCHES)
    _cache(maker, manifest, (*at, "lmcacheConfig"))
    _further(maker, manifest, (*at, "vllmConfig", "extraArgs"))
    maker.set("env", model.get("env"), (*at, "env"))
    maker.plan.variables = (*at, "env")
    count = model.get("requestGPU")
    if isinstance(count, int):
        maker.set("resources", {"limits": {"nvidia.com/gpu": count}}, (*at, "requestGPU"))
    for name in _PROBES:
        probe, where = model.get(name), (*at, name)
        if probe is None:
            probe, where = manifest.at((*engine, name)), (*engine, name)
        if name == "readinessProbe" and probe is None:
            probe = _CHART_PROBE
        maker.set(name, probe, where)
    if model.get("shmSize") is not None:
        _shared_memory(maker, model["shmSize"], (*at, "shmSize"))
    return maker.made(str(model.get("name", at[-1])), at)


def stack_runtime(manifest: Manifest, _: Sequence[Manifest]) -> Iterator[Manifest]:
    """Read a VLLMRuntime."""
    maker = Maker(manifest)
    image = manifest.at(("spec", "deploymentConfig", "image"))
    if isinstance(image, Mapping) and isinstance(image.get("name"), str):
        registry = image.get("registry")
        name = f"{registry}/{image['name']}" if registry else image["name"]
        maker.set("image", name, ("spec", "deploymentConfig", "image", "name"))
    maker.set("command", ["vllm", "serve"], ("spec",))
    model, config = ("spec", "model"), ("spec", "vllmConfig")
    maker.word(str(manifest.at((*model, "modelURL"))), (*model, "modelURL"), Role.VALUE)
    _options(maker, manifest, model, {**_MODEL_OPTIONS, **_RUNTIME_OPTIONS}, _MODEL_SWITCHES)
    _options(maker, manifest, config, {"port": "--port", **_OPTIONS}, _SWITCHES)
    if manifest.at((*config, "v1")) is True:
        _cache(maker, manifest, ("spec", "lmCacheConfig"))
    _further(maker, manifest, (*config, "extraArgs"))
    resources = manifest.at(("spec", "deploymentConfig", "resources"))
    gpu = resources.get("gpu") if isinstance(resources, Mapping) else None
    if gpu is not None:
        limits = {"limits": {"nvidia.com/gpu": gpu}}
        maker.set("resources", limits, ("spec", "deploymentConfig", "resources", "gpu"))
    maker.plan.variables = (*config, "env")
    maker.set("env", manifest.at(maker.plan.variables), maker.plan.variables)
    yield maker.made("vllm", ("spec",))


def _options(
    maker: Maker,
    manifest: Manifest,
    at: Path,
    options: Mapping[str, str],
    switches: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Add what members of a mapping stand for; 0 and "" are as if they were not given."""
    held = manifest.at(at)
    for key, value in held.items() if isinstance(held, Mapping) else ():
        if key in options and value not in (None, 0, ""):
            maker.word(options[key], (*at, key), Role.FLAG)
            maker.word(as_text(value), (*at, key), Role.VALUE)
        elif switches and key in switches and isinstance(value, bool):
            option = switches[key][0 if value else 1]
            if option:
                maker.word(option, (*at, key), Role.SWITCH, switches[key])


def _further(maker: Maker, manifest: Manifest, at: Path) -> None:
    maker.plan.words = at
    for i, word in enumerate(as_list(manifest.at(at))):
        maker.word(as_text(word), (*at, i), Role.ITEM)


def _cache(maker: Maker, manifest: Manifest, at: Path) -> None:
    """Add the connector of LMCache, which both the chart and the operator write themselves."""
    if manifest.at((*at, "enabled")) is True:
        role = as_text(manifest.at((*at, "kvRole"))) or "kv_both"
        connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": role}
        maker.word("--kv-transfer-config", (*at, "enabled"))
        maker.word(json.dumps(connector), (*at, "enabled"))


def _shared_memory(maker: Maker, limit: Any, at: Path) -> None:
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}
    maker.set_pod("volumes", [volume], at)
    maker.set("volumeMounts", [{"name": "shm", "mountPath": "/dev/shm"}], at)  # noqa: S108 - no file of ours
