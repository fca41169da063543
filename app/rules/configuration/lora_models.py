"""Which models and kernels take adapters.

Source: `engine/arg_utils.py::EngineArgs.create_engine_config` and
`config/lora.py::LoRAConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.derived.model import (
    architectures,
    has_ability,
    model_class,
    supports_lora,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetEnvironment

AREA: Final = "lora"
_DENSE: Final = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
_WITHOUT: Final = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}
_INKLING: Final = {
    "architectures": ["InklingForConditionalGeneration"],
    "model_type": "inkling_mm_model",
}


@rule(
    id="lora-inkling-all-reduce",
    title="LoRA on Inkling needs the plain all-reduce",
    explanation="Inkling's fused all-reduce bypasses the layers that carry adapters in small "
    "batches, so vLLM demands `INKLING_MULTIMEM_AR=0`.",
    remedy="Set `INKLING_MULTIMEM_AR=0`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/lora.py::LoRAConfig.verify_with_model_config",
    versions=">=0.28",
    covers=("lora-inkling-multimem",),
    bad=(Example("vllm serve m --enable-lora", model_config=_INKLING),),
    good=(
        Example("INKLING_MULTIMEM_AR=0 vllm serve m --enable-lora", model_config=_INKLING),
        Example("vllm serve m --enable-lora", model_config=_DENSE),
    ),
)
def inkling_all_reduce(config: ServeConfig) -> Iterator[Finding]:
    """Look for the model without the variable."""
    if not config["enable_lora"] or not any("Inkling" in n for n in architectures(config)):
        return
    variable = config.variable("INKLING_MULTIMEM_AR")
    if variable is not None and variable.value == "0":
        return
    yield inkling_all_reduce.finding(
        "LoRA on Inkling needs INKLING_MULTIMEM_AR=0, as the fused all-reduce drops adapters",
        location=config.place("enable_lora"),
        fix=Fix(
            "set INKLING_MULTIMEM_AR=0",
            (SetEnvironment("INKLING_MULTIMEM_AR", "0"),),
            safe=True,
        ),
        engine_message="Inkling LoRA requires INKLING_MULTIMEM_AR=0",
    )


@rule(
    id="lora-model-unsupported",
    title="The model takes no adapters",
    explanation="The model class does not implement LoRA. From 0.33 vLLM refuses that while it "
    "reads the configuration.",
    remedy="Drop `--enable-lora`, or merge the adapter into the weights.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/lora.py::LoRAConfig.verify_with_model_config",
    versions=">=0.33",
    covers=("lora-model-unsupported",),
    bad=(Example("vllm serve m --enable-lora", model_config=_WITHOUT),),
    good=(Example("vllm serve m --enable-lora", model_config=_DENSE),),
)
def model_unsupported(config: ServeConfig) -> Iterator[Finding]:
    """Look at the abilities of the class."""
    if not config["enable_lora"] or supports_lora(config):
        return
    name = model_class(config)
    yield model_unsupported.finding(
        f"--enable-lora is not possible: {name} takes no adapters",
        location=config.place("enable_lora"),
        fix=Fix("drop --enable-lora", (RemoveFlag("enable_lora"),), safe=False),
        engine_message=f"LoRA is not supported for {name}",
    )


@rule(
    id="lora-model-fails-late",
    title="The model takes no adapters, which the engine finds out",
    explanation="Up to 0.32 the configuration is accepted, and the engine stops once the weights "
    "are loaded (`create_lora_manager`), minutes later.",
    remedy="Drop `--enable-lora`, or merge the adapter into the weights.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/lora/model_manager.py::create_lora_manager",
    versions=">=0.28,<0.33",
    covers=("lora-model-unsupported",),
    bad=(Example("vllm serve m --enable-lora", model_config=_WITHOUT),),
    good=(Example("vllm serve m --enable-lora", model_config=_DENSE),),
)
def model_fails_late(config: ServeConfig) -> Iterator[Finding]:
    """Look at the abilities of the class."""
    if config["enable_lora"] and not supports_lora(config):
        yield model_fails_late.finding(
            f"{model_class(config)} takes no adapters: the engine stops after the weights are "
            "loaded",
            location=config.place("enable_lora"),
            fix=Fix("drop --enable-lora", (RemoveFlag("enable_lora"),), safe=False),
        )


@rule(
    id="lora-tower-text-model",
    title="Adapters for towers need a multimodal model",
    explanation="`--enable-tower-connector-lora` puts adapters into vision towers and connectors. "
    "A model without them ignores it.",
    remedy="Drop `--enable-tower-connector-lora`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/lora/model_manager.py::LoRAModelManager._maybe_init_mm",
    versions=">=0.28",
    covers=("lora-tower-unsupported",),
    bad=(Example("vllm serve m --enable-lora --enable-tower-connector-lora", model_config=_DENSE),),
    good=(Example("vllm serve m --enable-lora", model_config=_DENSE),),
)
def tower_text_model(config: ServeConfig) -> Iterator[Finding]:
    """Look for the option on a text model."""
    if not config["enable_lora"] or not config["enable_tower_connector_lora"]:
        return
    if has_ability(config, "supports_multimodal"):
        return
    yield tower_text_model.finding(
        f"--enable-tower-connector-lora has no effect: {model_class(config)} has no tower",
        location=config.place("enable_tower_connector_lora"),
        fix=Fix(
            "drop --enable-tower-connector-lora",
            (RemoveFlag("enable_tower_connector_lora"),),
            safe=True,
        ),
        evidence={"asked": True, "effective": False, "dest": "enable_tower_connector_lora"},
    )


@rule(
    id="lora-mega-moe",
    title="MegaMoE backends carry no adapters",
    explanation="From 0.33 vLLM refuses LoRA with the fused MoE backends `deep_gemm_mega_moe`, "
    "`aiter_mega_moe` and those of FlashInfer's expert-parallel kernels.",
    remedy="Choose another `--moe-backend`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/lora.py::LoRAConfig.verify_with_kernel_config",
    versions=">=0.33",
    bad=(
        Example(
            "vllm serve m --enable-lora --moe-backend deep_gemm_mega_moe --enable-expert-parallel",
            model_config={"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        ),
    ),
    good=(
        Example(
            "vllm serve m --enable-lora",
            model_config={"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        ),
    ),
)
def mega_moe(config: ServeConfig) -> Iterator[Finding]:
    """Look for such a backend."""
    if not config["enable_lora"]:
        return
    backend = config["moe_backend"] or config["kernel_config.moe_backend"]
    if backend not in _MEGA_MOE:
        return
    dest = "moe_backend" if config["moe_backend"] else "kernel_config"
    yield mega_moe.finding(
        f"--enable-lora does not go with the MoE backend {backend}",
        location=config.place(dest),
        fix=Fix("drop --enable-lora", (RemoveFlag("enable_lora"),), safe=False),
        engine_message=f"LoRA is not supported with moe_backend='{backend}'.",
    )


_MEGA_MOE: Final = ("deep_gemm_mega_moe", "aiter_mega_moe")
