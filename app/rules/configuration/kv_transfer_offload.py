"""KV caches kept on the host: what `--kv-offloading-size` replaces, and HiSparse's pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.configuration.kv_transfer import AREA, NIXL, transfer
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.kv_transfer import BACKEND, MULTI, OFFLOADING, TRANSFER, kv_transfer
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig._post_init_kv_transfer_config"
_HISPARSE: Final = "HiSparseConnector"
_POOL: Final = "host_pool_gib"
_POOLED: Final = transfer(
    '"kv_connector": "HiSparseConnector", "kv_role": "kv_both", '
    '"kv_connector_extra_config": {"host_pool_gib": 64}'
)
_NO_POOL: Final = transfer('"kv_connector": "HiSparseConnector", "kv_role": "kv_both"')
_NEGATIVE_POOL: Final = _POOLED.replace("64", "0")
_DSA: Final = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "hidden_size": 7168,
    "index_topk": 2048,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
_PUSH: Final = transfer('"kv_connector": "NixlPushConnector", "kv_role": "kv_producer"')
_STORE: Final = transfer('"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"')
# Connectors whose `supports_sleep_mode` of 0.33 is False whatever they are told.
_NEVER_SLEEP: Final = ("NixlPushConnector", "MooncakeStoreConnector", "MoRIIOConnector")


@rule(
    id="kv-transfer-offloading-replaces",
    title="`--kv-offloading-size` replaces the connector of `--kv-transfer-config`",
    explanation="vLLM has one connector. With an offloading size it takes that of the offloading "
    "backend, and the role `kv_both`, without a word: transfer between prefill and decode "
    "instances is lost.",
    remedy="Drop `--kv-offloading-size`, and put OffloadingConnector and the other into a "
    "MultiConnector if both are meant.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(Example(f"vllm serve m --kv-offloading-size 8 {NIXL}", model_config=DENSE),),
    good=(
        Example("vllm serve m --kv-offloading-size 8", model_config=DENSE),
        Example(f"vllm serve m {NIXL}", model_config=DENSE),
    ),
    covers=("kv-offload-replaces-connector",),
)
def offloading_replaces(config: ServeConfig) -> Iterator[Finding]:
    """Compare the connector that was asked for with the one that results."""
    moved = kv_transfer(config)
    if moved is None or not moved.offloads or moved.asked in (None, moved.connector):
        return
    yield offloading_replaces.finding(
        f"the connector will be {moved.connector}, not {moved.asked}, because "
        "--kv-offloading-size is given",
        location=config.place(OFFLOADING),
        related=tuple(p for p in (config.place(TRANSFER),) if p is not None),
        fix=Fix("drop --kv-offloading-size", (RemoveFlag(OFFLOADING),), safe=False),
        evidence={
            "asked": moved.asked,
            "effective": moved.connector,
            "dest": f"{TRANSFER}.kv_connector",
        },
    )


@rule(
    id="kv-transfer-offloading-size-unused",
    title="LMCache does not use the offloading size",
    explanation="With `--kv-offloading-backend lmcache` the size only switches offloading on. How "
    "much is kept is set where the LMCache server runs.",
    remedy="Set the capacity of the LMCache server.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(Example("vllm serve m --kv-offloading-size 8 --kv-offloading-backend lmcache"),),
    good=(
        Example("vllm serve m --kv-offloading-size 8"),
        Example("vllm serve m --kv-offloading-backend lmcache"),
    ),
    covers=("kv-offload-lmcache-size",),
)
def offloading_size_unused(config: ServeConfig) -> Iterator[Finding]:
    """Look for the backend that has its own capacity."""
    size = config[OFFLOADING]
    if size is not None and config[BACKEND] == "lmcache":
        yield offloading_size_unused.finding(
            f"--kv-offloading-size is {size}, but LMCache's own server decides how much is kept",
            location=config.place(OFFLOADING),
            evidence={"asked": size, "effective": None, "dest": OFFLOADING},
        )


@rule(
    id="kv-transfer-hisparse-pool",
    title="HiSparse needs one host pool above 0",
    explanation="HiSparseConnector keeps the sparse part of the KV cache in a pool on the host, "
    "and has no default for it: `host_pool_gib` in `kv_connector_extra_config`. There may be one "
    "such connector. The engine fails when it lays out the cache, after the weights are loaded.",
    remedy="Give `host_pool_gib` in GiB, once.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/kv_transfer.py::hisparse_host_pool_gib",
    versions=">=0.30",
    bad=(
        Example(f"vllm serve m {_NO_POOL}", model_config=_DSA),
        Example(f"vllm serve m {_NEGATIVE_POOL}", model_config=_DSA),
    ),
    good=(
        Example(f"vllm serve m {_POOLED}", model_config=_DSA),
        Example("vllm serve m", model_config=_DSA),
    ),
    covers=("hisparse-connector-twice", "hisparse-pool-missing", "hisparse-pool-nonpositive"),
)
def hisparse_pool(config: ServeConfig) -> Iterator[Finding]:
    """Look at each HiSparse connector's own settings."""
    moved = kv_transfer(config)
    if moved is None:
        return
    pools: list[object] = [moved.extra] if moved.connector == _HISPARSE else []
    pools += [
        child.get("kv_connector_extra_config")
        for child in moved.children
        if child.get("kv_connector") == _HISPARSE
    ]
    if not pools:
        return
    extra = pools[0] if isinstance(pools[0], Mapping) else {}
    pool = extra.get(_POOL)
    if len(pools) > 1:
        problem, said = f"{MULTI} has {len(pools)} of them", "Only one HiSparseConnector may be"
    elif pool is None:
        problem, said = f"{_POOL} is missing", "HiSparseConnector requires host_pool_gib"
    elif isinstance(pool, int | float) and pool <= 0:
        problem, said = f"{_POOL} is {pool}", "HiSparseConnector host_pool_gib must be positive"
    else:
        return
    yield hisparse_pool.finding(
        f"{_HISPARSE} fails when the engine starts: {problem}",
        location=config.place(TRANSFER) or config.place(OFFLOADING),
        engine_message=said,
    )


@rule(
    id="kv-transfer-sleep-mode",
    title="A connector does not go with sleep mode",
    explanation="Sleep mode takes the memory of the KV cache away, and a connector has to register "
    "it again. From 0.33 vLLM refuses those that cannot: NixlPushConnector, MooncakeStore, MoRIIO, "
    "NIXL with another backend than UCX, and Mooncake over another protocol than RDMA.",
    remedy="Leave `--enable-sleep-mode` out, or take another connector.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._verify_kv_transfer_compat",
    versions=">=0.33",
    bad=(
        Example(f"vllm serve m --enable-sleep-mode {_PUSH}"),
        Example(f"vllm serve m --enable-sleep-mode {_STORE}"),
    ),
    good=(
        Example(f"vllm serve m --enable-sleep-mode {NIXL}"),
        Example(f"vllm serve m {_PUSH}"),
    ),
)
def sleep_mode(config: ServeConfig) -> Iterator[Finding]:
    """Ask each connector."""
    moved = kv_transfer(config) if config["enable_sleep_mode"] else None
    if moved is None or moved.module_path or not machine_of(config).is_cuda_alike:
        return
    parts: list[tuple[object, object]] = [(moved.connector, moved.extra)]
    if moved.connector == MULTI:
        parts = [
            (child.get("kv_connector"), child.get("kv_connector_extra_config"))
            for child in moved.children
            if not child.get("kv_connector_module_path")
        ]
    refused = next((name for name, extra in parts if _cannot_sleep(name, extra)), None)
    if refused is None:
        return
    yield sleep_mode.finding(
        f"{refused} cannot register its KV cache again after sleep mode"
        + ("" if refused == moved.connector else f" (in {MULTI})"),
        location=config.place("enable_sleep_mode"),
        related=tuple(p for p in (config.place(TRANSFER),) if p is not None),
        fix=Fix("drop --enable-sleep-mode", (RemoveFlag("enable_sleep_mode"),), safe=False),
        engine_message=f"{moved.connector} does not support sleep mode.",
    )


def _cannot_sleep(name: object, settings: object) -> bool:
    extra: Mapping[str, Any] = settings if isinstance(settings, Mapping) else {}
    if name in ("NixlConnector", "NixlPullConnector"):
        return bool(extra.get("backends", ["UCX"]) != ["UCX"])
    if name == "MooncakeConnector":
        return bool(extra.get("mooncake_protocol", "rdma") != "rdma")
    return name in _NEVER_SLEEP
