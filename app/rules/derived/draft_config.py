"""The draft model's config.json as vLLM rewrites it before it asks what the draft is.

A checkpoint with multi-token-prediction layers is its own draft: vLLM gives it another
`model_type` (`deepseek_v3` becomes `deepseek_mtp`), from which the speculative method follows,
and notes how many tokens its layers predict.

Source: `config/speculative.py::SpeculativeConfig.hf_config_override`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.rules.derived.hf_config import number
from app.serve_config.serve_config import Abstain

_LAYERS: Final = "num_nextn_predict_layers"
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The rewritten configuration.

    Attributes:
        model_type: after rewriting.
        architectures: after rewriting, where vLLM replaces them; otherwise as written.
        values: the part of config.json that the draft is built from.
        layer_keys: where the number of predicted tokens is, in vLLM's order; empty if the
            draft was not rewritten.
        layers_absent: what vLLM takes where the first of them is missing.
    """

    model_type: str | None
    architectures: tuple[str, ...]
    values: Mapping[str, Any]
    layer_keys: tuple[str, ...] = ()
    layers_absent: Any = _ABSENT
    fixed_layers: int | None = None

    @property
    def n_predict(self) -> int | None:
        """Give the tokens that one pass of the draft predicts; None where nothing says so.

        Raises:
            Abstain: config.json leaves the number to its configuration class.
        """
        if self.fixed_layers is not None:
            return self.fixed_layers
        if not self.layer_keys:
            return number(self.values.get("n_predict"))
        for key in self.layer_keys:
            if key in self.values:
                return number(self.values[key])
        if self.layers_absent is _ABSENT:
            raise Abstain(f"`{self.layer_keys[0]}` in the draft's config.json")
        return number(self.layers_absent)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """One branch: which checkpoints it takes (`model_type`, or first architecture)."""

    becomes: str
    types: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    draft_class: str | None = None
    keys: tuple[str, ...] = (_LAYERS,)
    absent: Any = _ABSENT
    in_text: bool = False
    fixed: int | None = None

    def takes(self, model_type: str | None, first: str | None) -> bool:
        return model_type in (*self.types, self.becomes) or first in self.classes


_REWRITES: Final = (
    _Rewrite("dots3_note_mtp", ("dots3_note",), (), "Dots3NoteMTPModel", absent=1),
    _Rewrite("deepseek_mtp", ("deepseek_v3",), (), "DeepSeekMTPModel"),
    _Rewrite("deepseek_mtp", ("deepseek_v32", "glm_moe_dsa"), (), "DeepseekV32MTPModel"),
    _Rewrite("deepseek_mtp", ("deepseek_v4",), (), "DeepSeekV4MTPModel"),
    _Rewrite("deepseek_mtp", ("deepseek_v41",)),
    _Rewrite("pangu_ultra_moe_mtp", ("pangu_ultra_moe",), (), "OpenPanguMTPModel"),
    _Rewrite("kimi_k3_mtp", ("kimi_k3",), (), "KimiK3MTPModel", in_text=True),
    _Rewrite("mimo_mtp", (), ("MiMoForCausalLM",), "MiMoMTPModel"),
    # vLLM runs the first of its layers only.
    _Rewrite("mimo_v2_mtp", (), ("MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM"), fixed=1),
    _Rewrite("mimo_v2_mtp", (), ("MiMoV2FlashForCausalLM",), "MiMoV2MTPModel", fixed=1),
    _Rewrite("glm4_moe_mtp", (), ("Glm4MoeForCausalLM",), "Glm4MoeMTPModel"),
    _Rewrite("glm4_moe_lite_mtp", (), ("Glm4MoeLiteForCausalLM",), "Glm4MoeLiteMTPModel"),
    _Rewrite("glm_ocr_mtp", (), ("GlmOcrForConditionalGeneration",), "GlmOcrMTPModel"),
    _Rewrite("ernie_mtp", ("ernie4_5_moe",), (), "ErnieMTPModel"),
    _Rewrite("qwen3_next_mtp", ("qwen3_next",), (), "Qwen3NextMTP"),
    _Rewrite(
        "qwen4_exp_mtp",
        ("qwen4_exp", "qwen4_exp_text"),
        (),
        "Qwen4ExpMTP",
        keys=("mtp_num_hidden_layers", _LAYERS),
        in_text=True,
    ),
    _Rewrite(
        "bailing_hybrid_v3_mtp",
        (),
        ("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration"),
        "BailingMoeV3MTPModel",
        in_text=True,
    ),
    _Rewrite(
        "bailing_hybrid_mtp",
        ("bailing_hybrid",),
        ("BailingMoeV2_5ForCausalLM",),
        "BailingMoeV25MTPModel",
    ),
    _Rewrite("exaone_moe_mtp", ("exaone_moe",), (), "ExaoneMoeMTP"),
    _Rewrite("exaone4_5_mtp", ("exaone4_5",), (), "Exaone4_5_MTP"),
    _Rewrite(
        "qwen3_5_mtp",
        ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"),
        (),
        keys=("mtp_num_hidden_layers",),
        in_text=True,
    ),
    _Rewrite(
        "qwen3_5_mtp",
        ("intern_s2_preview", "interns2_mobius"),
        (),
        keys=("mtp_num_hidden_layers",),
        in_text=True,
    ),
    _Rewrite("longcat_flash_mtp", ("longcat_flash",), (), "LongCatFlashMTPModel", absent=1),
    _Rewrite(
        "step3p5_mtp",
        ("step3p5", "step3p7"),
        ("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
        "Step3p5MTP",
        absent=1,
        in_text=True,
    ),
    _Rewrite(
        "step5_mtp",
        ("step5", "step5_vl"),
        ("Step5ForCausalLM", "Step5ForConditionalGeneration"),
        "Step5MTP",
        absent=1,
        in_text=True,
    ),
    _Rewrite("hy_v3_mtp", ("hy_v3",), (), "HYV3MTPModel"),
    _Rewrite("hy_v4_mtp", ("hy_v4",), (), "HYV4MTPModel"),
    _Rewrite(
        "gemma4_mtp",
        ("gemma4_assistant", "gemma4_unified_assistant"),
        (),
        "Gemma4MTPModel",
        fixed=1,
    ),
    _Rewrite(
        "minimax_m3_mtp",
        ("minimax_m3_vl",),
        ("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3MTP"),
        "MiniMaxM3MTP",
        keys=("num_mtp_modules",),
        absent=1,
        in_text=True,
    ),
    _Rewrite("glm5_next_mtp", ("glm5_next",), (), "Glm5NextMTPModel", in_text=True),
)
_NEMOTRON_OMNI: Final = ("NemotronH_Super_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3")
_NEMOTRON: Final = ("nemotron_h", "nemotron_h_puzzle")
_INKLING: Final = ("inkling_mm_model", "inkling_model")


def rewritten(raw: Mapping[str, Any], mtp_types: frozenset[str]) -> DraftConfig:
    """Rewrite a config.json as a version with these MTP types does.

    Raises:
        Abstain: config.json does not say what vLLM asks, or is in the format of the
            speculators library, which vLLM converts first.
    """
    if raw.get("speculators_config") or raw.get("speculators_model_type"):
        raise Abstain("what the speculators library makes of the draft's config.json")
    names = raw.get("architectures")
    classes = tuple(n for n in names if isinstance(n, str)) if isinstance(names, list) else ()
    given = raw.get("model_type")
    model_type = given if isinstance(given, str) else None
    first = classes[0] if classes else None
    special = _special(raw, model_type, first, mtp_types)
    if special is not None:
        return special
    for rewrite in _REWRITES:
        if rewrite.becomes in mtp_types and rewrite.takes(model_type, first):
            return DraftConfig(
                rewrite.becomes,
                (rewrite.draft_class,) if rewrite.draft_class else classes,
                text_part(raw) if rewrite.in_text else raw,
                rewrite.keys,
                rewrite.absent,
                rewrite.fixed,
            )
    return DraftConfig(model_type, classes, raw)


def _special(
    raw: Mapping[str, Any], model_type: str | None, first: str | None, mtp_types: frozenset[str]
) -> DraftConfig | None:
    """Rewrite where more than a name decides."""
    if first in _NEMOTRON_OMNI:
        raw = text_part(raw)
        model_type = raw.get("model_type")
    if model_type in _NEMOTRON and (number(raw.get(_LAYERS)) or 0) > 0:
        return DraftConfig("nemotron_h_mtp", ("NemotronHMTPModel",), raw, (_LAYERS,), 1)
    if model_type in _INKLING and "inkling_mtp" in mtp_types:
        return DraftConfig(
            "inkling_mtp",
            ("InklingMTPModel",),
            text_part(raw),
            fixed_layers=inkling_depths(raw),
        )
    if first == "RadioMBartPrefixForCausalLM" and "step5_mtp" in mtp_types:
        decoder = raw.get("decoder")
        if isinstance(decoder, Mapping) and decoder.get("causal_vision_prefix"):
            return DraftConfig("mtp", ("ParseAuxMTPModel",), raw, fixed_layers=1)
    return None


def inkling_depths(raw: Mapping[str, Any]) -> int:
    """Give how many MTP layers an Inkling checkpoint says it has."""
    mtp = raw.get("mtp_config")
    return (number(mtp.get(_LAYERS)) or 0) if isinstance(mtp, Mapping) else 0


def text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the language model's part of a config.json, or all of it."""
    part = raw.get("text_config")
    return part if isinstance(part, Mapping) else raw
