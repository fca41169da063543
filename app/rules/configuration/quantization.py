"""The quantisation that was asked for against that of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.configuration.parallel_models import DENSE, LATENT
from app.rules.declaration import Example
from app.rules.derived.model import (
    checkpoint_quantization,
    hf_value,
    is_moe,
    requested_quantization,
    text_value,
)
from app.rules.derived.parallel import TP, since, size
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag, UnsetEnvironment

AREA: Final = "quantization"
DEST: Final = "quantization"
ALLOW: Final = "allow_deprecated_quantization"
_VERIFY: Final = "vllm/config/model.py::ModelConfig._verify_quantization"
_GET: Final = "vllm/model_executor/model_loader/weight_utils.py::get_quant_config"
_E8M0: Final = "VLLM_USE_DEEP_GEMM_E8M0"
WITHOUT: Final = Fix("take the checkpoint's own quantisation", (RemoveFlag(DEST),), safe=False)
# What vLLM takes for a checkpoint of a method; the lab tried each pair with each other method.
_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    "awq": frozenset({"awq", "auto_awq", "awq_marlin", "marlin", "moe_wna16", "humming"}),
    "gptq": frozenset({"gptq", "auto_gptq", "gptq_marlin", "marlin", "moe_wna16", "humming"}),
    "fp8": frozenset({"fp8", "deepseek_v4_fp8", "humming"}),
    "compressed-tensors": frozenset({"compressed-tensors", "humming"}),
}
_TRIED: Final = frozenset(
    {"awq", "auto_awq", "gptq", "auto_gptq", "fp8", "compressed-tensors", "torchao", "quark"}
    | {"experts_int8", "online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "inc"}
    | {"int8_per_channel_weight_only", "mxfp8", "mxfp4", "moe_wna16", "modelopt", "fbgemm_fp8"}
    | {"awq_marlin", "gptq_marlin", "deepseek_v4_fp8", "fp_quant", "gpt_oss_mxfp4"}
    | {"modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "nvfp4_per_token"}
)
# Methods whose settings come from the checkpoint alone.
_NEED_SETTINGS: Final = {
    "compressed-tensors": "CompressedTensorsConfig.__init__() missing",
    "torchao": "TorchAOConfig.__init__() missing",
    "quark": "QuarkConfig.__init__() missing",
    "fbgemm_fp8": "FBGEMMFp8Config.__init__() missing",
    "online": "OnlineQuantizationConfig.__init__() missing",
}
# Methods whose settings may stand in a file beside config.json (`get_config_filenames`).
_SETTINGS_FILES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("awq", "awq_marlin", "auto_awq"), "quantize_config.json or quant_config.json"),
    **dict.fromkeys(("gptq", "gptq_marlin", "auto_gptq", "moe_wna16"), "quantize_config.json"),
    **dict.fromkeys(
        ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"), "hf_quant_config.json"
    ),
    "inc": "quantization_config.json",
}
_AWQ: Final[dict[str, Any]] = {
    **DENSE,
    "quantization_config": {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm"}
    | {"zero_point": True},
}


def checkpoint_method(config: ServeConfig) -> str | None:
    """Give the checkpoint's method; None where it is not quantised.

    Raises:
        Abstain: config.json is not given.
    """
    found = checkpoint_quantization(config)
    return None if found is None else str(found["quant_method"]) or None


@rule(
    id="quantization-mismatch",
    title="The checkpoint is quantised by another method",
    explanation="`--quantization` can only repeat what config.json says of the weights, or choose "
    "another implementation of the same method (`awq_marlin` for AWQ). It does not convert.",
    remedy="Drop `--quantization`, or serve another checkpoint.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example("vllm serve m --quantization gptq", model_config=_AWQ),
        Example("vllm serve m --quantization fp8", model_config=_AWQ),
        Example("vllm serve m --quantization fp_quant", model_config=_AWQ),
        Example("vllm serve m --quantization modelopt_fp4", model_config=LATENT),
        Example("vllm serve m --quantization awq", model_config=LATENT),
    ),
    good=(
        Example("vllm serve m --quantization awq_marlin", model_config=_AWQ),
        Example("vllm serve m --quantization fp8", model_config=LATENT),
        Example("vllm serve m", model_config=_AWQ),
    ),
    covers=("quant-mismatch",),
)
def mismatch(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two methods, for pairs that the lab has tried."""
    asked = requested_quantization(config)
    if asked is None:
        return
    method = checkpoint_method(config)
    if method is None or method not in _TAKEN or asked in _TAKEN[method]:
        return
    known = config.catalogue.registries.get("quantization_methods", ())
    if asked in known and asked not in _TRIED:
        return
    if method == "fp8" and str(hf_value(config, "model_type")).startswith("deepseek_v4"):
        return
    yield mismatch.finding(
        f"--quantization {asked} does not go with a checkpoint that is quantised by {method}",
        location=config.place(DEST),
        fix=WITHOUT,
        engine_message=f"Quantization method specified in the model config ({method}) does not "
        f"match the quantization method specified in the `quantization` argument ({asked}).",
        evidence={"asked": asked, "checkpoint": method},
    )


@rule(
    id="quantization-unknown",
    title="This version has no such quantisation",
    explanation="The command line does not check `--quantization`. Names come and go between "
    "versions: `bitsandbytes` and `gguf` are plugins of their own by now.",
    remedy="Use a method that the message lists.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example("vllm serve m --quantization fp88", model_config=DENSE),
        Example("vllm serve m --quantization int4", model_config=DENSE),
    ),
    good=(
        Example("vllm serve m --quantization fp8", model_config=DENSE),
        Example("vllm serve m --quantization FP8", model_config=DENSE),
    ),
    covers=("quant-unknown",),
)
def unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up, where no checkpoint's method comes first."""
    asked = requested_quantization(config)
    known = config.catalogue.registries.get("quantization_methods", ())
    if asked is None or not known or asked in known or checkpoint_method(config) is not None:
        return
    yield unknown.finding(
        f"--quantization {asked} is unknown to {config.catalogue.vllm_version}; it has "
        f"{', '.join(sorted(known))}",
        location=config.place(DEST),
        fix=Fix("serve without quantisation", (RemoveFlag(DEST),), safe=False),
        engine_message=f"Unknown quantization method: {asked}. Must be one of",
    )


@rule(
    id="quantization-needs-checkpoint",
    title="The method needs a checkpoint that is quantised by it",
    explanation="These methods read their settings from the checkpoint. With weights that are not "
    "quantised vLLM ends with a TypeError. (`online` needs `--quantization-config`.)",
    remedy="Serve a quantised checkpoint, or quantise while loading: `--quantization "
    "fp8_per_tensor`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_GET,
    bad=(
        Example("vllm serve m --quantization compressed-tensors", model_config=DENSE),
        Example("vllm serve m --quantization torchao", model_config=DENSE),
        Example("vllm serve m --quantization online", model_config=DENSE),
    ),
    good=(
        Example("vllm serve m --quantization fp8_per_tensor", model_config=DENSE),
        Example(
            "vllm serve m --quantization online --quantization-config.linear mxfp8",
            model_config=DENSE,
        ),
    ),
)
def needs_checkpoint(config: ServeConfig) -> Iterator[Finding]:
    """Look for a checkpoint's settings, or others that stand in for them."""
    asked = requested_quantization(config)
    if asked not in _NEED_SETTINGS or checkpoint_method(config) is not None:
        return
    if asked == "online" and config["quantization_config"] is not None:
        return
    if asked == "fbgemm_fp8" and not config[ALLOW]:
        return
    if _overrides_settings(config):
        return
    yield needs_checkpoint.finding(
        f"--quantization {asked} takes its settings from the checkpoint, which is not quantised",
        location=config.place(DEST),
        fix=Fix("serve without quantisation", (RemoveFlag(DEST),), safe=False),
        engine_message=_NEED_SETTINGS[asked],
    )


@rule(
    id="quantization-settings-file",
    title="The method needs a checkpoint that is quantised by it",
    explanation="config.json says nothing of quantisation, so vLLM looks for the settings of the "
    "method in a file beside it, and refuses where there is none. These methods do not quantise "
    "while loading. (Which files a checkpoint has is not known here; that is why this is a "
    "warning.)",
    remedy="Serve a quantised checkpoint, or quantise while loading: `--quantization "
    "fp8_per_tensor`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_GET,
    bad=(
        Example(
            "vllm serve m --quantization awq --allow-deprecated-quantization", model_config=DENSE
        ),
        Example("vllm serve m --quantization auto_gptq", model_config=DENSE),
    ),
    good=(
        Example("vllm serve m --quantization awq", model_config=_AWQ),
        Example("vllm serve m --quantization fp8_per_tensor", model_config=DENSE),
    ),
)
def settings_file(config: ServeConfig) -> Iterator[Finding]:
    """Name the file that has to be there."""
    asked = requested_quantization(config)
    if asked is None or asked not in _SETTINGS_FILES or checkpoint_method(config) is not None:
        return
    if (_deprecated_method(config) and not config[ALLOW]) or _overrides_settings(config):
        return
    yield settings_file.finding(
        f"--quantization {asked} needs {_SETTINGS_FILES[asked]} in the checkpoint, as config.json "
        "says nothing of quantisation; vLLM refuses without",
        location=config.place(DEST),
        fix=Fix("serve without quantisation", (RemoveFlag(DEST),), safe=False),
        engine_message=f"Cannot find the config file for {asked}",
    )


def _overrides_settings(config: ServeConfig) -> bool:
    overrides = config["hf_overrides"]
    return isinstance(overrides, Mapping) and any("quantization" in str(key) for key in overrides)


def _deprecated_method(config: ServeConfig) -> str | None:
    deprecated = config.catalogue.registries.get("deprecated_quantization", ())
    asked = requested_quantization(config)
    if asked is not None and asked not in deprecated:
        return None
    method = checkpoint_method(config)
    if asked is not None and method not in (None, asked):
        return None
    taken = asked or method
    return taken if taken in deprecated else None


@rule(
    id="quantization-deprecated",
    title="The quantisation is deprecated and refused",
    explanation="vLLM refuses methods that it is about to remove unless "
    "`--allow-deprecated-quantization` is given.",
    remedy="Use another method; for this release add `--allow-deprecated-quantization`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    bad=(Example("vllm serve m --quantization fbgemm_fp8", model_config=DENSE),),
    good=(Example("vllm serve m --quantization fp8_per_tensor", model_config=DENSE),),
    covers=("quant-deprecated",),
)
def deprecated(config: ServeConfig) -> Iterator[Finding]:
    """Look the method up among the deprecated ones."""
    if config[ALLOW]:
        return
    method = _deprecated_method(config)
    if method is None:
        return
    allow = Fix("allow it for now", (SetFlag(ALLOW, True),), safe=False)
    yield deprecated.finding(
        f"the quantisation {method} is deprecated, and --allow-deprecated-quantization is not "
        "given",
        location=config.place(DEST) or config.place("model"),
        fix=WITHOUT if checkpoint_method(config) is None else allow,
        engine_message="is deprecated and will be removed in future versions of vLLM. To bypass, "
        "set `--allow-deprecated-quantization`.",
    )


@rule(
    id="quantization-deprecated-allowed",
    title="The quantisation will be removed",
    explanation="It was allowed by `--allow-deprecated-quantization`; a later release will not "
    "have it.",
    remedy="Plan for another method.",
    severity=Severity.WARNING,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example(
            "vllm serve m --quantization fbgemm_fp8 --allow-deprecated-quantization",
            model_config={
                **DENSE,
                "quantization_config": {
                    "quant_method": "fbgemm_fp8",
                    "activation_scale_ub": 1200.0,
                    "modules_to_not_convert": ["lm_head"],
                },
            },
        ),
    ),
    good=(Example("vllm serve m --quantization fp8_per_tensor", model_config=DENSE),),
    covers=("quant-deprecated-allowed",),
)
def deprecated_allowed(config: ServeConfig) -> Iterator[Finding]:
    """Tell that it is deprecated."""
    if not config[ALLOW]:
        return
    method = _deprecated_method(config)
    if method is not None:
        yield deprecated_allowed.finding(
            f"the quantisation {method} is deprecated and will be removed",
            location=config.place(ALLOW),
        )


@rule(
    id="quantization-fp8-name",
    title="--quantization fp8 is an old name for quantising while loading",
    explanation="On weights that are not quantised, `fp8` means `fp8_per_tensor` and logs that "
    "the name is deprecated.",
    remedy="Write `--quantization fp8_per_tensor`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_GET,
    versions=">=0.31",
    bad=(Example("vllm serve m --quantization fp8", model_config=DENSE),),
    good=(
        Example("vllm serve m --quantization fp8_per_tensor", model_config=DENSE),
        Example("vllm serve m --quantization fp8", model_config=LATENT),
    ),
    covers=("quant-fp8-online-deprecated",),
)
def fp8_name(config: ServeConfig) -> Iterator[Finding]:
    """Tell the new name."""
    if requested_quantization(config) == "fp8" and checkpoint_method(config) is None:
        yield fp8_name.finding(
            "--quantization fp8 means fp8_per_tensor for this checkpoint; the old name is "
            "deprecated",
            location=config.place(DEST),
            fix=Fix("use fp8_per_tensor", (SetFlag(DEST, "fp8_per_tensor"),), safe=True),
            evidence={"asked": "fp8", "effective": "fp8_per_tensor", "dest": DEST},
        )


@rule(
    id="quantization-block-by-tensor",
    title="The blocks of an FP8 checkpoint do not fit the tensor-parallel size",
    explanation="Weights in blocks (usually of 128 x 128) can only be cut between blocks. Where "
    "the intermediate size per GPU is no multiple of the block, vLLM stops while it builds the "
    "model.",
    remedy="Lower `--tensor-parallel-size`, or add `--enable-expert-parallel` for experts.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/model_executor/layers/quantization/utils/fp8_utils.py::validate_fp8_block_shape",
    bad=(Example("vllm serve m -tp 8", model_config={**LATENT, "moe_intermediate_size": 768}),),
    good=(
        Example("vllm serve m -tp 8", model_config=LATENT),
        Example(
            "vllm serve m -tp 8 --enable-expert-parallel",
            model_config={**LATENT, "moe_intermediate_size": 768},
        ),
    ),
    covers=("fp8-block-n", "fp8-block-k"),
)
def block_by_tensor(config: ServeConfig) -> Iterator[Finding]:
    """Divide the intermediate size per GPU by the block."""
    ranks = size(config, TP)
    if ranks == 1:
        return
    settings = checkpoint_quantization(config)
    blocks = None if settings is None else settings.get("weight_block_size")
    if not isinstance(blocks, list) or not all(isinstance(b, int) and b > 0 for b in blocks):
        return
    experts = is_moe(config)
    if experts and config["enable_expert_parallel"]:
        return
    key = "moe_intermediate_size" if experts else "intermediate_size"
    width = text_value(config, key)
    if not isinstance(width, int) or width % ranks:
        return
    block = next((b for b in blocks if (width // ranks) % b), None)
    if block is not None:
        yield block_by_tensor.finding(
            f"{key} {width} over {ranks} GPUs is {width // ranks}, no multiple of the block of "
            f"{block}: vLLM stops while it builds the model",
            location=config.place(TP),
            evidence={"per_gpu": width // ranks, "block": block},
        )


@rule(
    id="quantization-scales-disabled",
    title="The checkpoint's scale format is switched off",
    explanation="The checkpoint asks for UE8M0 scales (`scale_fmt`), for which vLLM would enable "
    f"DeepGEMM's kernels; `{_E8M0}=0` keeps them off.",
    remedy=f"Unset `{_E8M0}`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/transformers_utils/config.py::get_config",
    bad=(
        Example(
            f"{_E8M0}=0 vllm serve m",
            model_config={
                **LATENT,
                "quantization_config": {**LATENT["quantization_config"], "scale_fmt": "ue8m0"},
            },
        ),
    ),
    good=(Example(f"{_E8M0}=0 vllm serve m", model_config=LATENT),),
    covers=("ue8m0-disabled",),
)
def scales_disabled(config: ServeConfig) -> Iterator[Finding]:
    """Compare the checkpoint and the variable."""
    variable = config.variable(_E8M0)
    if variable is None or variable.value.strip() != "0":
        return
    settings = checkpoint_quantization(config)
    if settings is not None and settings.get("scale_fmt") == "ue8m0":
        yield scales_disabled.finding(
            f"the checkpoint asks for UE8M0 scales, and {_E8M0}=0 switches them off",
            location=variable.location,
            fix=Fix(f"unset {_E8M0}", (UnsetEnvironment(_E8M0),), safe=False),
            evidence={"asked": "ue8m0", "effective": None, "dest": _E8M0},
        )


def is_newer_composition(config: ServeConfig) -> bool:
    """Whether settings are laid over a checkpoint's own quantisation (0.30 and newer)."""
    return since(config, "0.30")
