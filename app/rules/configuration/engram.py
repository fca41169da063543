"""Where a model's n-gram embeddings are kept (`--engram-config`).

Source: `config/engram.py::EngramConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from packaging.version import Version

from app.rules.declaration import Example
from app.rules.derived.hf_config import text_value
from app.rules.derived.model import architectures
from app.rules.facts import world_size
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "engram"
ENGRAM: Final = "engram_config"
_SHARED: Final = f"{ENGRAM}.dp_shared_memory"
_PARALLEL: Final = "vllm/config/engram.py::EngramConfig.verify_parallel_config"
# Model class, and the key of the text config that lists its layers (`_NGRAM_LAYER_FIELDS`).
_LAYERS: Final = {
    "DeepseekV41ForCausalLM": "engram_layer_ids",
    "Qwen4ExpForCausalLM": "ple_layer_ids",
    "Qwen4ExpForConditionalGeneration": "ple_layer_ids",
}
_LOADERS: Final = ("auto", "safetensors", "pt")
_DEEPSEEK: Final = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "engram_layer_ids": [1, 2],
}


def _command(keys: str, options: str = "") -> str:
    return f"vllm serve m {options}{' ' if options else ''}--engram-config '{{{keys}}}'"


def _off(config: ServeConfig) -> bool:
    """Whether the tables are not kept in the host's memory."""
    given = config[f"{ENGRAM}.cpu_offload"]
    if given is None and config.catalogue.version < Version("0.31.0.dev0"):
        variable = config.variable("VLLM_PLE_CPU_OFFLOAD")
        return variable is not None and variable.value.strip() == "0"
    return given is False


@rule(
    id="engram-offload",
    title="Shared or huge-page tables need the host's memory",
    explanation="`dp_shared_memory` shares tables that lie in the host's memory, so it needs "
    "`cpu_offload`. `use_thp` backs private tables there with huge pages, so it needs "
    "`cpu_offload` without `dp_shared_memory`.",
    remedy="Leave `cpu_offload` on, and choose one of the two.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/engram.py::EngramConfig._validate_shared_memory",
    versions=">=0.30",
    covers=("engram-shm-needs-offload", "engram-thp"),
    bad=(
        Example(_command('"dp_shared_memory": true, "cpu_offload": false')),
        Example(_command('"use_thp": true, "cpu_offload": false'), versions=">=0.31"),
        Example(_command('"use_thp": true, "dp_shared_memory": true'), versions=">=0.31"),
    ),
    good=(Example("vllm serve m"),),
)
def offload(config: ServeConfig) -> Iterator[Finding]:
    """Look for what needs tables in the host's memory."""
    if config[ENGRAM] is None:
        return
    shared, pages = config[_SHARED], config[f"{ENGRAM}.use_thp"]
    if shared and _off(config):
        yield offload.finding(
            "dp_shared_memory needs cpu_offload, which is off",
            **_dropped(config),
            engine_message="dp_shared_memory requires cpu_offload=True",
        )
    if pages and (shared or _off(config)):
        yield offload.finding(
            "use_thp needs cpu_offload without dp_shared_memory, and "
            f"{'dp_shared_memory is on' if shared else 'cpu_offload is off'}",
            **_dropped(config),
            engine_message="use_thp requires cpu_offload=True and dp_shared_memory=False",
        )


def _dropped(config: ServeConfig) -> dict[str, Any]:
    return {
        "location": config.place(ENGRAM),
        "fix": Fix("drop --engram-config", (RemoveFlag(ENGRAM),), safe=False),
    }


@rule(
    id="engram-parallel",
    title="The n-gram tables cannot be shared that way",
    explanation="`dp_shared_memory` shares tables between data-parallel replicas, so there must "
    "be more than one, and their number may not change (elastic expert parallelism). "
    "`embedding_across_dp` does not go with elastic expert parallelism either. In 0.30 shared "
    "tables need one of the load formats auto, safetensors and pt.",
    remedy="Drop the key, or serve several replicas of a fixed number.",
    severity=Severity.ERROR,
    area=AREA,
    source=_PARALLEL,
    versions=">=0.30",
    covers=("engram-shm-needs-dp", "engram-shm-elastic", "engram-dp-embedding-elastic"),
    bad=(
        Example(_command('"dp_shared_memory": true'), model_config=_DEEPSEEK),
        Example(
            _command('"dp_shared_memory": true', "-dp 2 --enable-elastic-ep"),
            model_config=_DEEPSEEK,
        ),
        Example(
            _command('"embedding_across_dp": true', "-dp 2 --enable-elastic-ep"),
            model_config=_DEEPSEEK,
        ),
    ),
    good=(Example("vllm serve m"),),
)
def parallel(config: ServeConfig) -> Iterator[Finding]:
    """Compare with the number of replicas."""
    if config[ENGRAM] is None:
        return
    replicas, elastic = world_size(config, "data_parallel_size"), config["enable_elastic_ep"]
    shared = config[_SHARED]
    if shared and replicas <= 1:
        yield parallel.finding(
            "dp_shared_memory needs more than one data-parallel replica, and there is one",
            **_dropped(config),
            engine_message="dp_shared_memory requires data_parallel_size > 1.",
        )
    elif shared and elastic:
        yield parallel.finding(
            "dp_shared_memory does not go with --enable-elastic-ep",
            **_dropped(config),
            engine_message="dp_shared_memory is not supported with elastic EP.",
        )
    if config[f"{ENGRAM}.embedding_across_dp"] and replicas > 1 and elastic:
        yield parallel.finding(
            "embedding_across_dp does not go with --enable-elastic-ep",
            **_dropped(config),
            engine_message="Engram embedding_across_dp is not supported with elastic EP yet.",
        )
    loader = config["load_format"] or "auto"
    if shared and loader not in _LOADERS and config.catalogue.version < Version("0.31.0.dev0"):
        yield parallel.finding(
            f"dp_shared_memory needs the load format auto, safetensors or pt, and it is {loader}",
            **_dropped(config),
            engine_message="dp_shared_memory requires load_format 'auto', 'safetensors' or 'pt'",
        )


@rule(
    id="engram-model",
    title="The model has no n-gram embeddings",
    explanation="`--engram-config` is refused for a model without n-gram layers: it must be "
    "DeepSeek V4.1 with `engram_layer_ids`, or Qwen4-Exp with `ple_layer_ids`.",
    remedy="Drop `--engram-config`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/engram.py::EngramConfig.verify_model_config",
    versions=">=0.30",
    covers=("engram-model",),
    bad=(
        Example(
            _command('"cpu_offload": true'),
            model_config={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        ),
    ),
    good=(
        Example(_command('"cpu_offload": true'), model_config=_DEEPSEEK),
        Example("vllm serve m"),
    ),
)
def model(config: ServeConfig) -> Iterator[Finding]:
    """Look for the layers."""
    if config[ENGRAM] is None:
        return
    names = architectures(config)
    key = next((_LAYERS[name] for name in names if name in _LAYERS), None)
    if key is not None:
        layers = text_value(config, key)
        if layers is None:
            raise Abstain(f"`{key}` in the model's config.json")
        if layers:
            return
    yield model.finding(
        f"--engram-config is for models with n-gram layers, and {', '.join(names)} has none",
        **_dropped(config),
        engine_message="EngramConfig requires a model with supported Engram embeddings",
    )


@rule(
    id="engram-microbatches",
    title="N-gram embeddings of DeepSeek V4.1 do not go with microbatches",
    explanation="A model with n-gram layers cannot split its batches: `--enable-dbo` and "
    "`--ubatch-size` above 1 are refused, with or without `--engram-config`.",
    remedy="Drop `--enable-dbo` and `--ubatch-size`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._resolve_and_verify_engram_config",
    versions=">=0.30",
    covers=("engram-dbo",),
    bad=(Example("vllm serve m --ubatch-size 2", model_config=_DEEPSEEK),),
    good=(Example("vllm serve m", model_config=_DEEPSEEK),),
)
def microbatches(config: ServeConfig) -> Iterator[Finding]:
    """Look for split batches on that model."""
    size = config["ubatch_size"]
    split = isinstance(size, int) and size > 1
    if not split and not config["enable_dbo"]:
        return
    if "DeepseekV41ForCausalLM" not in architectures(config):
        return
    if not text_value(config, "engram_layer_ids"):
        return
    dest = "enable_dbo" if config["enable_dbo"] else "ubatch_size"
    yield microbatches.finding(
        "the n-gram layers of DeepSeek V4.1 do not go with "
        f"{'--enable-dbo' if config['enable_dbo'] else f'--ubatch-size {size}'}",
        location=config.place(dest),
        fix=Fix(
            "do not split batches",
            (RemoveFlag("enable_dbo"), SetFlag("ubatch_size", 0)),
            safe=False,
        ),
        engine_message="DeepSeek V4.1 Engram does not support DBO or microbatching.",
    )
