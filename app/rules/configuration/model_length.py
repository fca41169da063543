"""How long a sequence may be: `--max-model-len` against what config.json allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.configuration.example_models import SLIDING
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.model import (
    allows_longer_max_model_len,
    declared_max_model_len,
    hf_config,
    hf_text_config,
    rope_parameters,
    text_value,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag, UnsetEnvironment

AREA: Final = "model"
LENGTH: Final = "max_model_len"
_LONG: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_SOURCE: Final = "vllm/config/model.py::_get_and_verify_max_len"
_LONGROPE: Final[dict[str, Any]] = {
    **DENSE,
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 0,
    "rope_scaling": {
        "type": "longrope",
        "long_factor": [1.0] * 64,
        "short_factor": [1.0] * 64,
    },
}


@rule(
    id="model-length-above-model",
    title="`--max-model-len` is above what the model allows",
    explanation="vLLM derives the longest sequence from config.json (`max_position_embeddings` and "
    "the like, times the rope factor where it is not yet in; the sliding window with "
    "`--disable-sliding-window`), and refuses more. Beyond it rotary embeddings give NaN and "
    "absolute ones read foreign memory.",
    remedy="Lower `--max-model-len`, or scale the rotary embedding with `--hf-overrides`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example("vllm serve m --max-model-len 16384", model_config=DENSE),
        Example("vllm serve m --max-model-len 8192 --disable-sliding-window", model_config=SLIDING),
    ),
    good=(
        Example("vllm serve m --max-model-len 8192", model_config=DENSE),
        Example(
            "vllm serve m --max-model-len 16384",
            model_config={**DENSE, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        Example(f"{_LONG}=1 vllm serve m --max-model-len 16384", model_config=DENSE),
    ),
    covers=("max-len-exceeds-model",),
)
def above_model(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two lengths."""
    length = config[LENGTH]
    if not isinstance(length, int) or length < 1:
        return
    declared = declared_max_model_len(config)
    if declared.allows(length) or allows_longer_max_model_len(config):
        return
    limit = int(declared.limit or 0)
    yield above_model.finding(
        f"--max-model-len is {length}; the model allows {limit} ({declared.key} in config.json)",
        location=config.place(LENGTH),
        fix=Fix(f"set --max-model-len {limit}", (SetFlag(LENGTH, limit),), safe=False),
        engine_message=f"User-specified max_model_len ({length}) is greater than the derived "
        "max_model_len",
        evidence={"asked": length, "limit": limit, "key": declared.key},
    )


@rule(
    id="model-length-above-model-allowed",
    title="A length above what the model allows is let through",
    explanation=f"`{_LONG}` lets any length through. Positions beyond what config.json allows give "
    "NaN with rotary embeddings, and an out-of-bounds access with absolute ones.",
    remedy="Scale the rotary embedding with `--hf-overrides` instead.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(Example(f"{_LONG}=1 vllm serve m --max-model-len 16384", model_config=DENSE),),
    good=(Example(f"{_LONG}=1 vllm serve m --max-model-len 4096", model_config=DENSE),),
    covers=("max-len-override-env",),
)
def above_model_allowed(config: ServeConfig) -> Iterator[Finding]:
    """Look for a length that only the variable allows."""
    length = config[LENGTH]
    if not isinstance(length, int) or length < 1 or not allows_longer_max_model_len(config):
        return
    declared = declared_max_model_len(config)
    if declared.allows(length):
        return
    limit, variable = int(declared.limit or 0), config.variable(_LONG)
    yield above_model_allowed.finding(
        f"--max-model-len is {length} and the model allows {limit}; {_LONG} lets it through, and "
        "later positions are likely to fail",
        location=config.place(LENGTH),
        related=tuple(v.location for v in (variable,) if v is not None and v.location is not None),
        fix=Fix(f"unset {_LONG}", (UnsetEnvironment(_LONG),), safe=False),
        evidence={"asked": length, "limit": limit, "key": declared.key},
    )


@rule(
    id="model-length-zero",
    title="`--max-model-len` is 0",
    explanation="A sequence has at least one token. `-1` or `auto` lets vLLM choose what fits the "
    "memory.",
    remedy="Give a positive number, `auto`, or nothing.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.validate_model_config_after",
    bad=(Example("vllm serve m --max-model-len 0"),),
    good=(Example("vllm serve m --max-model-len 1"), Example("vllm serve m --max-model-len -1")),
    covers=("max-model-len-not-positive",),
)
def zero(config: ServeConfig) -> Iterator[Finding]:
    """Look for 0; what is below -1 is out of range already."""
    length = config[LENGTH]
    if isinstance(length, int) and not isinstance(length, bool) and length == 0:
        yield zero.finding(
            "--max-model-len is 0, and vLLM takes 1 or more",
            location=config.place(LENGTH),
            fix=Fix("leave the length to the model", (RemoveFlag(LENGTH),), safe=False),
            engine_message="max_model_len must be a positive integer, got int: 0.",
        )


@rule(
    id="model-length-assumed",
    title="The model's length is assumed to be 2048",
    explanation="config.json has none of the keys that tell the longest sequence, so vLLM assumes "
    "2048 tokens.",
    remedy="Say `--max-model-len`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example(
            "vllm serve m",
            model_config={"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"},
        ),
    ),
    good=(
        Example("vllm serve m", model_config=DENSE),
        Example(
            "vllm serve m --max-model-len 4096",
            model_config={"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"},
        ),
    ),
    covers=("max-len-not-derivable",),
)
def assumed(config: ServeConfig) -> Iterator[Finding]:
    """Look for a model without a length."""
    if config[LENGTH] not in (None, -1) or config.model_config is None:
        return
    declared = declared_max_model_len(config)
    if declared.limit is None:
        yield assumed.finding(
            f"config.json tells no length; vLLM will use {declared.default} tokens",
            location=config.place("model"),
            fix=Fix(
                f"say --max-model-len {declared.default}",
                (SetFlag(LENGTH, declared.default),),
                safe=True,
            ),
            evidence={"asked": None, "effective": declared.default, "dest": LENGTH},
        )


@rule(
    id="model-length-longrope",
    title="A long-rope model starts with its short context",
    explanation="Models with `longrope` (Phi-3 and -4 mini) are slower and less exact for short "
    "prompts once the long factors are used, so vLLM defaults to the original length, not the "
    "extended one.",
    remedy="Say `--max-model-len` to have the long context.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(Example("vllm serve m", model_config=_LONGROPE),),
    good=(
        Example("vllm serve m --max-model-len 131072", model_config=_LONGROPE),
        Example("vllm serve m", model_config=DENSE),
    ),
    covers=("longrope-original-len",),
)
def longrope(config: ServeConfig) -> Iterator[Finding]:
    """Look for a default that is below what config.json allows."""
    if config[LENGTH] not in (None, -1) or config.model_config is None:
        return
    if not any(rope["rope_type"] == "longrope" for rope in rope_parameters(config)):
        return
    declared = declared_max_model_len(config)
    if declared.limit is None or declared.default >= declared.limit:
        return
    yield longrope.finding(
        f"vLLM will use a length of {declared.default}, because the model has longrope; it allows "
        f"{int(declared.limit)}",
        location=config.place("model"),
        fix=Fix(
            f"say --max-model-len {declared.default}",
            (SetFlag(LENGTH, declared.default),),
            safe=True,
        ),
        evidence={"asked": None, "effective": declared.default, "dest": LENGTH},
    )


@rule(
    id="model-rope-factor-null",
    title="A rope factor of null counts as 1",
    explanation='config.json (or `--hf-overrides`) has `"factor": null` in the rotary embedding. '
    "vLLM takes that for a mistake of the checkpoint and does not scale the length.",
    remedy="Give the factor, or leave the scaling out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example(
            "vllm serve m",
            model_config={**DENSE, "rope_scaling": {"rope_type": "linear", "factor": None}},
        ),
    ),
    good=(
        Example(
            "vllm serve m",
            model_config={**DENSE, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
    ),
    covers=("rope-factor-null",),
)
def rope_factor_null(config: ServeConfig) -> Iterator[Finding]:
    """Look for the factor of a rotary embedding that is scaled."""
    if config.model_config is None or "gemma3" in str(text_value(config, "model_type")):
        return
    scaled = config.catalogue.model_facts.scaled_rope_types
    for rope in rope_parameters(config):
        if rope["rope_type"] not in scaled and "factor" in rope and rope["factor"] is None:
            yield rope_factor_null.finding(
                f"the rope factor is null; vLLM takes 1 for {rope['rope_type']}",
                location=config.place("hf_overrides") or config.place("model"),
                evidence={"asked": None, "effective": 1.0, "dest": "hf_overrides"},
            )
            return


@rule(
    id="model-rope-type-conflict",
    title="The rotary embedding names two types",
    explanation="`type` is the older name of `rope_type`. Where both are there and differ (but for "
    "su and longrope, mrope and default) vLLM refuses, and so it does `mrope` without "
    "`mrope_section`.",
    remedy="Keep `rope_type`; give `mrope_section` with mrope.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/transformers_utils/config.py::patch_legacy_rope_type._patch_legacy_rope_type",
    bad=(
        Example(
            "vllm serve m",
            model_config={
                **DENSE,
                "rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0},
            },
        ),
        Example(
            "vllm serve m",
            model_config={**DENSE, "rope_scaling": {"type": "mrope", "factor": 2.0}},
        ),
    ),
    good=(
        Example(
            "vllm serve m",
            model_config={**DENSE, "rope_scaling": {"type": "linear", "factor": 2.0}},
        ),
        Example("vllm serve m", model_config=DENSE),
    ),
    covers=("rope-type-conflict", "mrope-section-missing"),
)
def rope_type_conflict(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two names."""
    if config.model_config is None:
        return
    for rope in _written(config):
        given, legacy = rope.get("rope_type"), rope.get("type")
        if legacy is not None and given is not None and legacy != given:
            if (legacy, given) in (("su", "longrope"), ("mrope", "default")):
                continue
            problem = f"rope_type is {given} and type is {legacy}"
            said = f"Found conflicts between 'rope_type={given}' (modern field) and"
        elif "mrope" in (legacy, given) and "mrope_section" not in rope:
            problem, said = "mrope has no mrope_section", "Legacy rope_type 'mrope' requires"
        else:
            continue
        yield rope_type_conflict.finding(
            f"the rotary embedding in config.json cannot be read: {problem}",
            location=config.place("hf_overrides") or config.place("model"),
            engine_message=said,
            evidence={"rope_type": given, "type": legacy},
        )
        return


def _written(config: ServeConfig) -> list[Mapping[str, Any]]:
    """Give the rotary embeddings as config.json has them, before older names are replaced.

    Empty where `--hf-overrides` replaces them: vLLM does that after it has looked at the names.
    """
    overrides = config["hf_overrides"]
    if isinstance(overrides, Mapping) and any(isinstance(v, Mapping) for v in overrides.values()):
        return []
    text = hf_text_config(config)
    given = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(given, Mapping):
        return []
    nested = [part for part in given.values() if isinstance(part, Mapping)]
    return nested if nested and len(nested) == len(given) else [given]


@rule(
    id="model-rope-override-type",
    title="An overridden rotary embedding does not say its type",
    explanation="`rope_scaling` in `--hf-overrides` replaces the model's after older names were "
    "translated, so that `type` is not read and `rope_type` must be there. vLLM stops at a "
    "KeyError.",
    remedy="Say `rope_type` instead of `type`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example(
            """vllm serve m --hf-overrides '{"rope_scaling": {"type": "linear", "factor": 2.0}}'""",
            model_config=DENSE,
        ),
    ),
    good=(
        Example(
            "vllm serve m --hf-overrides "
            """'{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'""",
            model_config=DENSE,
        ),
        Example(
            "vllm serve m",
            model_config={**DENSE, "rope_scaling": {"type": "linear", "factor": 2.0}},
            note="translated",
        ),
    ),
)
def rope_override_type(config: ServeConfig) -> Iterator[Finding]:
    """Look for the key in what replaces the rotary embedding."""
    overrides = config["hf_overrides"]
    if not isinstance(overrides, Mapping) or config.model_config is None:
        return
    dest = next((key for key in ("rope_scaling", "rope_parameters") if key in overrides), None)
    rope = None if dest is None else config[f"hf_overrides.{dest}"]
    if not isinstance(rope, Mapping) or not rope or "rope_type" in rope:
        return
    if any(isinstance(part, Mapping) for part in rope.values()):
        return
    # A model of several parts has its rotary embedding in one of them.
    if hf_text_config(config) is not hf_config(config):
        return
    if "gemma3" in str(text_value(config, "model_type")):
        return
    if config[LENGTH] is not None and declared_max_model_len(config).limit is None:
        return  # the length is taken as it is, and nothing is asked of the embedding
    edits: tuple[SetFlag | RemoveFlag, ...] = (RemoveFlag(f"hf_overrides.{dest}"),)
    kind, safe = rope.get("type"), False
    if isinstance(kind, str):
        edits = (SetFlag(f"hf_overrides.{dest}", _renamed(rope)),)
        safe = True
    yield rope_override_type.finding(
        f"--hf-overrides replaces {dest} without rope_type"
        + ("; type is not read there" if safe else ""),
        location=config.place("hf_overrides"),
        fix=Fix("say rope_type" if safe else f"drop {dest}", edits, safe=safe),
        engine_message="'rope_type'",
    )


def _renamed(rope: Mapping[str, Any]) -> dict[str, Any]:
    return {"rope_type" if key == "type" else key: value for key, value in rope.items()}
