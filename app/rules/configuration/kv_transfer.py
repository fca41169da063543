"""Moving KV caches between instances: connectors, roles, and what they do not go with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from app.proposal.image import Image
from app.rules.configuration.example_models import SLIDING
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.cuda_graphs import Cause, connector_needs_pieces, graph_changes
from app.rules.derived.hardware import machine_of
from app.rules.derived.kv_transfer import (
    MULTI,
    OFFLOADING,
    TRANSFER,
    kv_transfer,
    supports_hybrid,
)
from app.rules.derived.model import is_hybrid, sliding_window, text_value, uses_mla
from app.rules.derived.parallel import DCP, PCP, TP, size
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag, UnsetEnvironment

AREA: Final = "kv-transfer"
_FACTORY: Final = (
    "vllm/distributed/kv_transfer/kv_connector/factory.py::KVConnectorFactory.get_connector_class"
)
_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_HYBRID: Final = "disable_hybrid_kv_cache_manager"
_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
_NEW_ALLOCATOR: Final = "PYTORCH_ALLOC_CONF"
_EXPANDABLE: Final = "expandable_segments:True"
_NIXL: Final = "NixlConnector"
_V0_30: Final = Version("0.30.0.dev0")


def transfer(keys: str) -> str:
    """Write the option of an example."""
    return f"--kv-transfer-config '{{{keys}}}'"


NIXL: Final = transfer('"kv_connector": "NixlConnector", "kv_role": "kv_both"')
_NO_ROLE: Final = transfer('"kv_connector": "NixlConnector"')
_NO_CONNECTOR: Final = transfer('"kv_role": "kv_both"')
_UNKNOWN: Final = transfer('"kv_connector": "Nixl", "kv_role": "kv_both"')
_LMCACHE: Final = '"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"'
_EXAMPLE: Final = '"kv_connector": "ExampleConnector", "kv_role": "kv_both"'
_MLA: Final = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 16384,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 102400,
}


@rule(
    id="kv-transfer-role-missing",
    title="A KV connector has no role",
    explanation="An instance produces KV caches, consumes them, or does both. vLLM has no default "
    "and refuses a connector without `kv_role`.",
    remedy="Add `kv_role`: `kv_producer`, `kv_consumer` or `kv_both`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/kv_transfer.py::KVTransferConfig.__post_init__",
    bad=(Example(f"vllm serve m {_NO_ROLE}"),),
    good=(Example(f"vllm serve m {NIXL}"),),
    covers=("kv-role-missing",),
)
def role_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for a connector without a role."""
    moved = kv_transfer(config)
    if moved is None or moved.asked is None or config[f"{TRANSFER}.kv_role"] is not None:
        return
    yield role_missing.finding(
        f"--kv-transfer-config names {moved.asked} without kv_role",
        location=config.place(TRANSFER),
        fix=Fix("set kv_role to kv_both", (SetFlag(f"{TRANSFER}.kv_role", "kv_both"),), safe=False),
        engine_message="Please specify kv_role when kv_connector is set, supported roles are",
    )


@rule(
    id="kv-transfer-connector-missing",
    title="`--kv-transfer-config` names no connector",
    explanation="Without `kv_connector` there is nothing that moves KV caches. vLLM asks the "
    "connector whether it works with the hybrid KV cache manager and fails, unless "
    "`--disable-hybrid-kv-cache-manager` is given one way or the other; then the option is without "
    "effect.",
    remedy="Name a connector, or drop `--kv-transfer-config`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_FACTORY,
    bad=(
        Example(f"vllm serve m {_NO_CONNECTOR}"),
        Example("vllm serve m --kv-transfer-config '{}'"),
    ),
    good=(
        Example(f"vllm serve m {NIXL}"),
        Example(f"vllm serve m --kv-offloading-size 4 {_NO_CONNECTOR}"),
        Example(f"vllm serve m --disable-hybrid-kv-cache-manager {_NO_CONNECTOR}"),
    ),
    covers=("connector-name-missing",),
)
def connector_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for settings without a connector."""
    moved = kv_transfer(config)
    if moved is None or moved.connector is not None or config[_HYBRID] is not None:
        return
    if config[f"{TRANSFER}.kv_connector"] is not None:
        return  # of another type, which the parser refuses
    yield connector_missing.finding(
        "--kv-transfer-config has no kv_connector",
        location=config.place(TRANSFER),
        fix=Fix("drop --kv-transfer-config", (RemoveFlag(TRANSFER),), safe=False),
        engine_message="Connector name is not set in KVTransferConfig",
    )


@rule(
    id="kv-transfer-connector-unknown",
    title="This vLLM has no such KV connector",
    explanation="Names are those of vLLM's own registry, case counts. A class from elsewhere needs "
    "`kv_connector_module_path`, which must not be empty. (A plugin may register more names; this "
    "is not known here.)",
    remedy="Take a registered name, or give the module path.",
    severity=Severity.ERROR,
    area=AREA,
    source=_FACTORY,
    bad=(
        Example(f"vllm serve m {_UNKNOWN}"),
        Example(
            "vllm serve m "
            + transfer(
                '"kv_connector": "NixlConnector", "kv_role": "kv_both", '
                '"kv_connector_module_path": ""'
            )
        ),
    ),
    good=(
        Example(f"vllm serve m {NIXL}"),
        Example(f"vllm serve m --kv-offloading-size 4 {_NO_CONNECTOR}"),
    ),
    covers=("kv-connector-unknown", "connector-unknown", "connector-module-empty"),
)
def connector_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up."""
    moved = kv_transfer(config)
    if moved is None or moved.connector is None or moved.module_path:
        return
    known = config.catalogue.registries.get("kv_connectors", ())
    if moved.module_path is not None:
        problem = "kv_connector_module_path is empty"
        message = "kv_connector_module_path cannot be an empty string."
        fix = Fix(
            "drop kv_connector_module_path",
            (RemoveFlag(f"{TRANSFER}.kv_connector_module_path"),),
            safe=True,
        )
    elif known and moved.connector not in known:
        problem = f"{moved.connector} is none of the connectors of this vLLM: {', '.join(known)}"
        message = f"Unsupported connector type: {moved.connector}"
        fix = Fix("drop --kv-transfer-config", (RemoveFlag(TRANSFER),), safe=False)
        if not _is_plain(config):
            problem += "; the image may have a plugin that brings it"
    else:
        return
    # With the hybrid manager settled by an option, only the start of the engine asks.
    sure = config[_HYBRID] is None and (moved.module_path is not None or _is_plain(config))
    yield connector_unknown.finding(
        problem,
        severity=Severity.ERROR if sure else Severity.WARNING,
        location=config.place(TRANSFER) or config.place(OFFLOADING),
        fix=fix,
        engine_message=message,
    )


def _is_plain(config: ServeConfig) -> bool:
    """Whether it is vLLM as it is released, as far as a container's image tells."""
    image = None if config.workload is None else config.workload.container.get("image")
    return not isinstance(image, str) or Image(image).official is not None


@rule(
    id="kv-transfer-expandable-segments",
    title="Pinned KV caches do not go with expandable segments",
    explanation="`expandable_segments:True` lets PyTorch move memory that a connector has "
    "registered, so that transfers fail or read the wrong pages. vLLM refuses it with any "
    "connector (also that of `--kv-offloading-size`) unless the cumem allocator or sleep mode is "
    "on. It only looks at `PYTORCH_CUDA_ALLOC_CONF`: the newer name `PYTORCH_ALLOC_CONF` starts, "
    "and is as wrong.",
    remedy="Take it out of the variable, or add `--enable-cumem-allocator`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._verify_kv_transfer_compat",
    bad=(
        Example(f"{_ALLOCATOR}={_EXPANDABLE} vllm serve m {NIXL}"),
        Example(f"{_ALLOCATOR}={_EXPANDABLE} vllm serve m --kv-offloading-size 4"),
    ),
    good=(
        Example(f"{_ALLOCATOR}={_EXPANDABLE} vllm serve m"),
        Example(f"{_ALLOCATOR}={_EXPANDABLE} vllm serve m --enable-cumem-allocator {NIXL}"),
        Example(
            f"{_ALLOCATOR}={_EXPANDABLE} vllm serve m --enable-sleep-mode {NIXL}",
            versions="<0.33",
        ),
        Example(f"{_ALLOCATOR}=expandable_segments:False vllm serve m {NIXL}"),
    ),
    covers=("kv-connector-expandable-segments",),
)
def expandable_segments(config: ServeConfig) -> Iterator[Finding]:
    """Look at both names of the variable."""
    moved = kv_transfer(config)
    if moved is None or moved.connector is None or config["enable_cumem_allocator"]:
        return
    if config["enable_sleep_mode"] and machine_of(config).is_cuda_alike:
        return
    for name in (_ALLOCATOR, _NEW_ALLOCATOR):
        variable = config.variable(name)
        if variable is None or _EXPANDABLE not in variable.value:
            continue
        refused = name == _ALLOCATOR
        yield expandable_segments.finding(
            f"{name}={variable.value} does not go with {moved.connector}, whose KV cache must not "
            "move" + ("" if refused else "; vLLM does not look at this name and starts"),
            severity=Severity.ERROR if refused else Severity.WARNING,
            location=variable.location,
            fix=Fix(f"unset {name}", (UnsetEnvironment(name),), safe=False),
            engine_message=f"KV connector {moved.connector} is incompatible with "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            if refused
            else None,
        )


@rule(
    id="kv-transfer-nixl-context-parallel",
    title="NIXL and decode context parallelism",
    explanation="With NixlConnector a KV cache is either whole on every rank or split over all of "
    "them: decode context parallelism is 1 or the larger of tensor and prefill-context "
    "parallelism, and above 1 only for models with multi-head latent attention. 0.29 has no "
    "prefill-context parallelism with NIXL and no hybrid models.",
    remedy="Set `--decode-context-parallel-size` to 1 or the full size.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    versions=">=0.29",
    bad=(
        Example(f"vllm serve m -tp 4 -dcp 2 {NIXL}", model_config=_MLA),
        Example(
            f"vllm serve m -tp 4 -dcp 4 {NIXL}",
            model_config={**DENSE, "num_key_value_heads": 1},
        ),
    ),
    good=(
        Example(f"vllm serve m -tp 4 -dcp 4 {NIXL}", model_config=_MLA),
        Example(f"vllm serve m -tp 4 {NIXL}", model_config=DENSE),
        Example("vllm serve m -tp 4 -dcp 2", model_config=_MLA),
    ),
    covers=("nixl-dcp-size", "nixl-dcp-mla"),
)
def nixl_context_parallel(config: ServeConfig) -> Iterator[Finding]:
    """Compare the parallel sizes."""
    moved = kv_transfer(config)
    if moved is None or not moved.has(_NIXL):
        return
    decode, prefill, tensor = size(config, DCP), size(config, PCP), size(config, TP)
    older = config.catalogue.version < _V0_30
    whole = tensor if older else max(tensor, prefill)
    if older and prefill > 1:
        problem = f"NIXL has no prefill-context parallelism here, and {PCP} is {prefill}"
        said = "NIXL does not support prefill context parallelism."
    elif decode not in (1, whole):
        problem = f"{DCP} is {decode}, and NIXL takes 1 or {whole}"
        said = f"decode_context_parallel_size={decode} must be 1 or equal to"
    elif decode > 1 and not uses_mla(config):
        problem = f"{DCP} is {decode}, and this model has no multi-head latent attention"
        said = "PD with decode_context_parallel_size > 1 is only supported for MLA models."
    elif decode > 1 and older and is_hybrid(config):
        problem = f"{DCP} is {decode}, and this model is hybrid"
        said = "PD with decode_context_parallel_size > 1 is not supported for hybrid Mamba/SSM"
    else:
        return
    dest = PCP if problem.startswith("NIXL has") else DCP
    yield nixl_context_parallel.finding(
        problem,
        location=config.place(dest) or config.place(TRANSFER),
        related=tuple(p for p in (config.place(TRANSFER),) if p is not None),
        fix=Fix(f"set {dest} to 1", (SetFlag(dest, 1),), safe=False),
        engine_message=said,
        evidence={DCP: decode, PCP: prefill, TP: tensor},
    )


@rule(
    id="kv-transfer-piecewise",
    title="A layer-wise connector lowers CUDA graphs to PIECEWISE",
    explanation="LMCache with `use_layerwise` waits for each layer's cache, which cannot be "
    "captured in a CUDA graph, so vLLM gives up full graphs.",
    remedy="Set the mode to PIECEWISE, or leave `use_layerwise` out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example(
            "vllm serve m "
            + transfer(f'{_LMCACHE}, "kv_connector_extra_config": {{"use_layerwise": true}}'),
            model_config=DENSE,
        ),
    ),
    good=(
        Example(f"vllm serve m {transfer(_LMCACHE)}", model_config=DENSE),
        Example(
            "vllm serve m --enforce-eager "
            + transfer(f'{_LMCACHE}, "kv_connector_extra_config": {{"use_layerwise": true}}'),
            model_config=DENSE,
        ),
    ),
    covers=("connector-needs-piecewise",),
)
def piecewise(config: ServeConfig) -> Iterator[Finding]:
    """Look for a layer-wise connector and full graphs."""
    moved = kv_transfer(config)
    if moved is None or moved.role is None or not connector_needs_pieces(config):
        return
    change = next((c for c in graph_changes(config) if c.cause is Cause.CONNECTOR), None)
    if change is None or config["enforce_eager"]:
        return
    dest = "compilation_config.cudagraph_mode"
    yield piecewise.finding(
        f"the CUDA graph mode is {change.before}, but vLLM will use {change.after}, because "
        "LMCache works layer by layer (use_layerwise)",
        location=config.place(TRANSFER),
        fix=Fix(
            f"set cudagraph_mode to {change.after}", (SetFlag(dest, change.after),), safe=False
        ),
        evidence={"asked": change.before, "effective": change.after, "dest": dest},
    )


@rule(
    id="kv-transfer-hybrid-manager",
    title="A connector turns the hybrid KV cache manager off",
    explanation="Some connectors (ExampleConnector, LMCache, FlexKV, 3FS, and a MultiConnector "
    "with one of them) only know one kind of KV cache. vLLM then keeps every layer's cache at full "
    "length: models with sliding windows need far more memory, and hybrid Mamba models fail at "
    "start. With `--no-disable-hybrid-kv-cache-manager` the engine fails instead.",
    remedy="Take a connector that supports it, or leave `--no-disable-hybrid-kv-cache-manager` "
    "out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example(f"vllm serve m {transfer(_EXAMPLE)}", model_config=SLIDING),
        Example(
            f"vllm serve m --no-disable-hybrid-kv-cache-manager {transfer(_EXAMPLE)}",
            model_config=DENSE,
        ),
    ),
    good=(
        Example(f"vllm serve m {NIXL}", model_config=SLIDING),
        Example(f"vllm serve m {transfer(_EXAMPLE)}", model_config=DENSE),
        Example(
            f"vllm serve m --disable-hybrid-kv-cache-manager {transfer(_EXAMPLE)}",
            model_config=SLIDING,
        ),
    ),
    covers=("hma-connector-off", "connector-hma"),
)
def hybrid_manager(config: ServeConfig) -> Iterator[Finding]:
    """Ask whether the connector supports it, and whether that matters for the model."""
    moved = kv_transfer(config)
    if moved is None or config[_HYBRID] is True or supports_hybrid(config, moved) is not False:
        return
    name = moved.connector if moved.connector != MULTI else f"a connector in {MULTI}"
    place = config.place(TRANSFER) or config.place(OFFLOADING)
    if config[_HYBRID] is False:
        yield hybrid_manager.finding(
            f"{name} does not support the hybrid KV cache manager, which "
            "--no-disable-hybrid-kv-cache-manager keeps on; the engine will not start",
            location=config.place(_HYBRID),
            fix=Fix("leave the choice to vLLM", (RemoveFlag(_HYBRID),), safe=False),
            engine_message="does not support HMA but HMA is enabled. Please set "
            "`--disable-hybrid-kv-cache-manager`.",
        )
        return
    if is_hybrid(config):
        effect = "this hybrid model will fail at start"
    elif sliding_window(config) or text_value(config, "layer_types"):
        effect = "the layers with a sliding window keep their cache at full length"
    else:
        return
    yield hybrid_manager.finding(
        f"the hybrid KV cache manager will be off because {name} does not support it: {effect}",
        location=place,
        evidence={"asked": None, "effective": True, "dest": _HYBRID},
    )
