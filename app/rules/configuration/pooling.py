"""What a pooling configuration may hold.

Source: `config/pooler.py::PoolerConfig`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.declaration import Example
from app.rules.derived.hf_config import hf_value
from app.rules.derived.model import architectures, is_pooling
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

AREA: Final = "pooling"
POOLER: Final = "pooler_config"
_CLASS: Final = "vllm/config/pooler.py::PoolerConfig.__post_init__"
_MODELS: Final = "vllm/model_executor/models/config.py"
_EMBEDDING: Final = {"architectures": ["BertModel"], "model_type": "bert"}
_BIDIRECTIONAL: Final = {
    "architectures": ["LlamaBidirectionalModel"],
    "model_type": "llama",
    "pooling": "avg",
}
_POOLINGS: Final = ("avg", "cls", "last")
_BIDIRECTIONAL_CLASSES: Final = frozenset(
    {"LlamaBidirectionalModel", "LlamaBidirectionalForSequenceClassification"}
)
_NEMOTRON_CLASSES: Final = frozenset(
    {"LlamaNemotronVLModel", "LlamaNemotronVLForSequenceClassification"}
)


def _command(keys: str) -> str:
    return f"vllm serve m --pooler-config '{{{keys}}}'"


@rule(
    id="pooling-type-twice",
    title="The pooling type is given twice",
    explanation="`pooling_type` is a shorthand that sets `seq_pooling_type` or "
    "`tok_pooling_type`, whichever has that value. vLLM refuses it together with either.",
    remedy="Give `seq_pooling_type` and `tok_pooling_type`, or `pooling_type` alone.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CLASS,
    versions=">=0.28",
    covers=("pooler-type-and-seq", "pooler-type-and-tok"),
    bad=(
        Example(_command('"pooling_type": "MEAN", "seq_pooling_type": "CLS"')),
        Example(_command('"pooling_type": "MEAN", "tok_pooling_type": "ALL"')),
    ),
    good=(
        Example(_command('"pooling_type": "MEAN"'), model_config=_EMBEDDING),
        Example("vllm serve m"),
    ),
)
def type_twice(config: ServeConfig) -> Iterator[Finding]:
    """Look for the shorthand beside what it sets."""
    for values, place, last in _occurrences(config):
        shorthand = values.get("pooling_type")
        if not shorthand:
            continue
        for key in ("seq_pooling_type", "tok_pooling_type"):
            if values.get(key) is not None:
                yield type_twice.finding(
                    f"pooling_type {shorthand} and {key} {values[key]} exclude each other",
                    location=place,
                    fix=_without("pooling_type", last=last),
                    engine_message=f"Cannot set both `pooling_type` and `{key}`",
                )


def _occurrences(
    config: ServeConfig,
) -> Iterator[tuple[Mapping[str, Any], Location | None, bool]]:
    """Give what counts and what a later option replaces: vLLM checks each where it reads it."""
    setting = config.setting(POOLER)
    if setting is None or setting.value is None:
        return
    whole = config[POOLER]
    if isinstance(whole, Mapping):
        yield {str(key): config[f"{POOLER}.{key}"] for key in whole}, setting.location, True
    for place in setting.overridden:
        try:
            values = json.loads((place.text or "").strip("'"))
        except ValueError:
            continue  # a dotted key, or too long to be kept
        if isinstance(values, dict):
            yield values, place, False


def _without(key: str, *, last: bool) -> Fix:
    if last:
        return Fix(f"drop {key}", (RemoveFlag(f"{POOLER}.{key}"),), safe=False)
    return Fix("drop --pooler-config", (RemoveFlag(POOLER),), safe=False)


@rule(
    id="pooling-logit-sigma",
    title="`logit_sigma` divides and may not be 0",
    explanation="Scores are calibrated as (logit - logit_mean) / logit_sigma.",
    remedy="Leave `logit_sigma` out, or give another number.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CLASS,
    versions=">=0.28",
    covers=("pooler-logit-sigma",),
    bad=(
        Example(_command('"logit_sigma": 0')),
        Example(
            _command('"logit_sigma": 0') + " --pooler-config.dimensions 64",
            note="each occurrence is checked where it is read",
        ),
    ),
    good=(Example(_command('"logit_sigma": 2.5'), model_config=_EMBEDDING),),
)
def logit_sigma(config: ServeConfig) -> Iterator[Finding]:
    """Compare with 0."""
    for values, place, last in _occurrences(config):
        sigma = values.get("logit_sigma")
        if isinstance(sigma, int | float) and sigma == 0:
            yield logit_sigma.finding(
                "logit_sigma is 0, and logits are divided by it",
                location=place,
                fix=_without("logit_sigma", last=last),
                engine_message="logit_sigma cannot be 0 (division by zero)",
            )


@rule(
    id="pooling-checkpoint-type",
    title="The checkpoint does not say how it pools",
    explanation="Bidirectional Llama models and Llama-Nemotron-VL take `pooling` from config.json: "
    "`avg`, `cls` or `last`. Without a known value vLLM would embed wrongly, and refuses.",
    remedy="""Add `--hf-overrides '{"pooling": "avg"}'`, with the value it was trained with.""",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_MODELS}::LlamaBidirectionalConfig.verify_and_update_model_config",
    versions=">=0.28",
    covers=(
        "bidirectional-pooling-missing",
        "bidirectional-pooling-unknown",
        "nemotron-vl-pooling-type",
        "nemotron-vl-pooling",
    ),
    bad=(
        Example("vllm serve m", model_config={**_BIDIRECTIONAL, "pooling": "max"}),
        Example("vllm serve m", model_config={**_BIDIRECTIONAL, "pooling": None}),
    ),
    good=(Example("vllm serve m", model_config=_BIDIRECTIONAL),),
)
def checkpoint_type(config: ServeConfig) -> Iterator[Finding]:
    """Look at the value in config.json."""
    if config.model_config is None:
        return
    names = set(architectures(config))
    nemotron = bool(names & _NEMOTRON_CLASSES)
    if not nemotron and not names & _BIDIRECTIONAL_CLASSES:
        return
    pooling = hf_value(config, "pooling")
    inner = hf_value(config, "llm_config")
    if nemotron and pooling is None and isinstance(inner, dict):
        pooling = inner.get("pooling", "avg")
    if pooling in _POOLINGS:
        return
    if pooling is None and "pooling" not in config.model_config:
        raise Abstain("`pooling` in the model's config.json")
    yield checkpoint_type.finding(
        f"pooling is {pooling!r} in config.json, and must be one of {', '.join(_POOLINGS)}",
        location=config.place("hf_overrides") or config.place("model_tag"),
        fix=Fix(
            'override pooling with "avg"', (SetFlag("hf_overrides.pooling", "avg"),), safe=False
        ),
        evidence={"pooling": pooling},
    )


@rule(
    id="pooling-reranker-tokens",
    title="The original Qwen3 reranker needs its two tokens",
    explanation="With `is_original_qwen3_reranker` vLLM makes a classifier of the language model's "
    "head, for which `classifier_from_token` must name two tokens.",
    remedy="""Add `"classifier_from_token": ["no", "yes"]` to `--hf-overrides`.""",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_MODELS}::Qwen3ForSequenceClassificationConfig.verify_and_update_model_config",
    versions=">=0.28",
    covers=("qwen3-reranker-tokens",),
    bad=(
        Example(
            """vllm serve m --hf-overrides '{"architectures": """
            """["Qwen3ForSequenceClassification"], "is_original_qwen3_reranker": true}'""",
            model_config={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        ),
    ),
    good=(
        Example(
            """vllm serve m --hf-overrides '{"architectures": """
            """["Qwen3ForSequenceClassification"], "is_original_qwen3_reranker": true, """
            """"classifier_from_token": ["no", "yes"]}'""",
            model_config={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        ),
        Example("vllm serve m"),
    ),
)
def reranker_tokens(config: ServeConfig) -> Iterator[Finding]:
    """Count the tokens."""
    if config.model_config is None and config["hf_overrides"] is None:
        return
    if not hf_value(config, "is_original_qwen3_reranker"):
        return
    if "Qwen3ForSequenceClassification" not in architectures(config):
        return
    tokens = hf_value(config, "classifier_from_token")
    count = len(tokens) if isinstance(tokens, list) else 0
    if count == 2:
        return
    yield reranker_tokens.finding(
        f"classifier_from_token names {count} tokens, and the original Qwen3 reranker needs 2",
        location=config.place("hf_overrides") or config.place("model_tag"),
        fix=Fix(
            'set classifier_from_token to ["no", "yes"]',
            (SetFlag("hf_overrides.classifier_from_token", ["no", "yes"]),),
            safe=False,
        ),
        engine_message="Try loading the original Qwen3 Reranker?",
    )


@rule(
    id="pooling-attention-contract",
    title="ColQwen3.5 must say which attention it was trained with",
    explanation="A ColQwen3.5 checkpoint declares `retrieval_attention_contract` as `causal` or "
    "`bidirectional`, the same wherever it stands. vLLM refuses to guess.",
    remedy="Add the declaration to config.json, or with `--hf-overrides`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_MODELS}::ColQwen3_5Config.verify_and_update_model_config",
    versions=">=0.28",
    covers=("colqwen-contract", "colqwen-contract-bad"),
    bad=(
        Example(
            "vllm serve m",
            model_config={
                "architectures": ["ColQwen3_5"],
                "model_type": "qwen3_5",
                "retrieval_attention_contract": "sideways",
            },
        ),
        Example(
            "vllm serve m", model_config={"architectures": ["ColQwen3_5"], "model_type": "qwen3_5"}
        ),
    ),
    good=(
        Example(
            "vllm serve m",
            model_config={
                "architectures": ["ColQwen3_5"],
                "model_type": "qwen3_5",
                "retrieval_attention_contract": "bidirectional",
            },
        ),
        Example("vllm serve m"),
    ),
)
def attention_contract(config: ServeConfig) -> Iterator[Finding]:
    """Collect the declarations."""
    if config.model_config is None or "ColQwen3_5" not in architectures(config):
        return
    text = hf_value(config, "text_config")
    inner = text.get("retrieval_attention_contract") if isinstance(text, dict) else None
    found = [c for c in (hf_value(config, "retrieval_attention_contract"), inner) if c is not None]
    if found and all(c == found[0] for c in found) and found[0] in ("causal", "bidirectional"):
        return
    yield attention_contract.finding(
        "config.json declares no retrieval_attention_contract"
        if not found
        else f"config.json declares retrieval_attention_contract as {found}",
        location=config.place("hf_overrides") or config.place("model_tag"),
        fix=Fix(
            "declare it bidirectional",
            (SetFlag("hf_overrides.retrieval_attention_contract", "bidirectional"),),
            safe=False,
        )
        if inner is None
        else None,
    )


@rule(
    id="pooling-pad-token",
    title="`use_pad_token` has another name",
    explanation="vLLM still reads the key from config.json and warns.",
    remedy="Rename it to `use_sep_token`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.use_sep_token",
    versions=">=0.28",
    covers=("use-pad-token",),
    bad=(Example("vllm serve m", model_config={**_EMBEDDING, "use_pad_token": True}),),
    good=(Example("vllm serve m", model_config=_EMBEDDING),),
)
def pad_token(config: ServeConfig) -> Iterator[Finding]:
    """Look for the old key of a pooling model."""
    if config.model_config is None or hf_value(config, "use_pad_token") is None:
        return
    if is_pooling(config):
        yield pad_token.finding(
            "config.json has use_pad_token, which is deprecated; use_sep_token is its name",
            location=config.place("model_tag"),
        )
