"""HiSparse: sparse attention whose KV cache rests on the host.

Source of most: `config/vllm.py::VllmConfig.__post_init__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.configuration.attention import AREA
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.attention import HISPARSE, HISPARSE_CONNECTOR, uses_hisparse
from app.rules.derived.compilation import GRAPHS
from app.rules.derived.cuda_graphs import FULL, asked_graphs, early_changes
from app.rules.derived.hardware import machine_of
from app.rules.derived.kv_transfer import TRANSFER, kv_transfer, supports_hybrid
from app.rules.derived.model import hf_value
from app.rules.derived.parallel import DCP, PP, since, size
from app.rules.registry import rule
from app.rules.runner import runner_variable
from app.rules.runner_features import RUNNER_VARIABLE
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Edit, Fix, RemoveFlag, SetFlag, UnsetEnvironment

_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_ON: Final = "-ac.hisparse_config '{}'"
_NO_MANAGER: Final = "disable_hybrid_kv_cache_manager"
_RESERVE: Final = "scheduler_reserve_full_isl"
# Connectors that vLLM has tried with it, as in each release from 0.30 to 0.33.
_TRIED: Final = frozenset({"NixlConnector", "MooncakeStoreConnector", "MultiConnector"})

SPARSE: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@rule(
    id="attention-hisparse-conflicts",
    title="HiSparse does not go with this option",
    explanation="HiSparse keeps the KV cache of sparse attention on the host. It needs Model "
    "Runner V2, the hybrid KV cache manager, `--scheduler-reserve-full-isl` (from 0.31 on), a "
    "CUDA graph mode other than FULL (from 0.32 on), and no pipeline stages nor decode context "
    "parallelism. It runs on NVIDIA GPUs only.",
    remedy="Drop the option, or HiSparse.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    versions=">=0.30",
    covers=(
        "hisparse-needs-v2",
        "hisparse-pp",
        "hisparse-dcp",
        "hisparse-full",
        "hisparse-isl",
        "hisparse-hma",
    ),
    bad=(
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m {_ON}", model_config=SPARSE, gpu="H100"),
        Example(f"vllm serve m {_ON} -pp 2", model_config=SPARSE, gpu="H100"),
        Example(f"vllm serve m {_ON} -tp 8 -dcp 2", model_config=SPARSE, gpu="H100"),
        Example(
            f"vllm serve m {_ON} -cc.cudagraph_mode=FULL",
            model_config=SPARSE,
            gpu="H100",
            versions=">=0.32",
        ),
        Example(
            f"vllm serve m {_ON} --no-scheduler-reserve-full-isl",
            model_config=SPARSE,
            gpu="H100",
            versions=">=0.31",
        ),
        Example(
            f"vllm serve m {_ON} --disable-hybrid-kv-cache-manager",
            model_config=SPARSE,
            gpu="H100",
        ),
    ),
    good=(
        Example(f"vllm serve m {_ON} -tp 8", model_config=SPARSE, gpu="H100"),
        Example(
            f"vllm serve m {_ON} -tp 8 -cc.cudagraph_mode=FULL_DECODE_ONLY",
            model_config=SPARSE,
            gpu="H100",
        ),
        Example("vllm serve m -tp 8 -dcp 2", model_config=SPARSE, gpu="H100"),
    ),
)
def conflicts(config: ServeConfig) -> Iterator[Finding]:
    """Look for each option that HiSparse does not go with."""
    if not uses_hisparse(config):
        return
    if runner_variable(config) is False:
        yield _conflict(
            config, f"{RUNNER_VARIABLE}=0", (UnsetEnvironment(RUNNER_VARIABLE),), "Model Runner V2"
        )
    if not machine_of(config).is_cuda:
        yield _conflict(config, "this hardware", (), "currently requires NVIDIA CUDA")
    for dest, name, message in _PARALLEL:
        if size(config, dest) > 1:
            text = f"{size(config, dest)} {name}"
            yield _conflict(config, text, (RemoveFlag(dest),), message, dest)
    if since(config, "0.32") and _is_full(config):
        edits = (SetFlag(GRAPHS, "FULL_AND_PIECEWISE"),)
        yield _conflict(config, "cudagraph_mode FULL", edits, "cudagraph_mode=FULL", GRAPHS)
    if since(config, "0.31") and config[_RESERVE] is False:
        edit = RemoveFlag(_RESERVE)
        name = "--no-scheduler-reserve-full-isl"
        yield _conflict(config, name, (edit,), "--scheduler-reserve-full-isl", _RESERVE)
    yield from _without_manager(config)


_PARALLEL: Final = (
    (PP, "pipeline stages", "HiSparse does not support pipeline parallelism"),
    (DCP, "decode context ranks", "HiSparse does not support decode context parallelism"),
)


def _conflict(
    config: ServeConfig, what: str, edits: tuple[Edit, ...], message: str, dest: str = HISPARSE
) -> Finding:
    place = config.place(dest) or config.place(HISPARSE) or config.place(TRANSFER)
    return conflicts.finding(
        f"HiSparse does not go with {what}",
        location=place,
        fix=Fix(f"drop {what}", edits, safe=False) if edits else None,
        engine_message=message,
    )


def _is_full(config: ServeConfig) -> bool:
    return asked_graphs(config) == FULL and not early_changes(config)


def _without_manager(config: ServeConfig) -> Iterator[Finding]:
    asked = config[_NO_MANAGER]
    message = "HiSparse requires the hybrid KV cache manager"
    if asked is True:
        name = "--disable-hybrid-kv-cache-manager"
        yield _conflict(config, name, (RemoveFlag(_NO_MANAGER),), message, _NO_MANAGER)
        return
    transfer = kv_transfer(config)
    if asked is None and transfer is not None and supports_hybrid(config, transfer) is False:
        text = f"{transfer.connector}, which turns the hybrid KV cache manager off"
        yield _conflict(config, text, (), message, TRANSFER)


@rule(
    id="attention-hisparse-model",
    title="HiSparse needs a model with a sparse indexer",
    explanation="Only models whose attention picks the tokens to attend to (`index_topk` in "
    "config.json, as in DeepSeek-V3.2) have something to keep on the host.",
    remedy="Drop HiSparse.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    versions=">=0.30",
    covers=("hisparse-model",),
    bad=(Example(f"vllm serve m {_ON}", model_config=DENSE, gpu="H100"),),
    good=(
        Example(f"vllm serve m {_ON} -tp 8", model_config=SPARSE, gpu="H100"),
        Example("vllm serve m", model_config=DENSE, gpu="H100"),
    ),
)
def of_model(config: ServeConfig) -> Iterator[Finding]:
    """Look for the indexer."""
    if uses_hisparse(config) and hf_value(config, "index_topk") is None:
        given = config[HISPARSE] is not None
        fix = Fix("drop HiSparse", (RemoveFlag(HISPARSE),), safe=False) if given else None
        yield of_model.finding(
            "HiSparse needs a model with index_topk in its config.json",
            location=config.place(HISPARSE) if given else config.place(TRANSFER),
            fix=fix,
            engine_message="HiSparse is only supported for DSA models with index_topk.",
        )


@rule(
    id="attention-hisparse-implied",
    title="The connector switches HiSparse on",
    explanation="HiSparseConnector, alone or in a MultiConnector, brings HiSparse with its "
    "defaults.",
    remedy="Nothing to do; set `hisparse_config` to choose its parameters.",
    severity=Severity.INFO,
    area=AREA,
    source=_POST_INIT,
    versions=">=0.30",
    covers=("hisparse-implied",),
    bad=(
        Example(
            "vllm serve m -tp 8 --kv-transfer-config "
            """'{"kv_connector": "HiSparseConnector", "kv_role": "kv_both", """
            """"kv_connector_extra_config": {"host_pool_gib": 64}}'""",
            model_config=SPARSE,
            gpu="H100",
        ),
    ),
    good=(Example(f"vllm serve m {_ON} -tp 8", model_config=SPARSE, gpu="H100"),),
)
def implied(config: ServeConfig) -> Iterator[Finding]:
    """Look for the connector without the configuration."""
    if config[TRANSFER] is not None and config[HISPARSE] is None and uses_hisparse(config):
        yield implied.finding(
            f"{HISPARSE_CONNECTOR} switches HiSparse on",
            location=config.place(TRANSFER),
            evidence={"dest": HISPARSE, "asked": None, "effective": {}},
        )


@rule(
    id="attention-hisparse-connector",
    title="HiSparse was not tried with this connector",
    explanation="vLLM has tried it with NixlConnector and MooncakeStoreConnector, and warns of "
    "others.",
    remedy="Use one of the two.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    versions=">=0.30",
    covers=("hisparse-connector",),
    bad=(
        Example(
            f"vllm serve m {_ON} -tp 8 --kv-transfer-config "
            """'{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", """
            """"kv_connector_extra_config": {"cpu_bytes_to_use": 1000000000}}'""",
            model_config=SPARSE,
            gpu="H100",
        ),
    ),
    good=(
        Example(
            f"vllm serve m {_ON} -tp 8 --kv-transfer-config "
            """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
            model_config=SPARSE,
            gpu="H100",
        ),
        Example(f"vllm serve m {_ON} -tp 8", model_config=SPARSE, gpu="H100"),
    ),
)
def connector(config: ServeConfig) -> Iterator[Finding]:
    """Compare the connector with those that vLLM has tried."""
    if config[TRANSFER] is None or not uses_hisparse(config):
        return
    transfer = kv_transfer(config)
    if transfer is not None and transfer.asked is not None and transfer.asked not in _TRIED:
        yield connector.finding(
            f"vLLM has not tried HiSparse with {transfer.asked}",
            location=config.place(TRANSFER),
        )
