"""Which speculative method a server gets, and what it needs for it.

Source of all: `config/speculative.py::SpeculativeConfig.__post_init__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.declaration import Example
from app.rules.derived.draft_config import inkling_depths
from app.rules.derived.hf_config import hf_config, number
from app.rules.derived.model import architectures, model_type
from app.rules.registry import rule
from app.rules.speculation import (
    NEED_MODEL,
    SHORTHANDS,
    Speculation,
    methods,
    mtp_types,
    speculation_of,
)
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "speculative"
SOURCE: Final = "vllm/config/speculative.py::SpeculativeConfig.__post_init__"
NGRAM: Final = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
DEEPSEEK: Final = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_nextn_predict_layers": 1,
}
DENSE: Final = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
_LLAMA: Final = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3_DSPARK: Final = {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    "vocab_size": 151936,
}
_QWEN4: Final = ("Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM")


def command(keys: str, options: str = "") -> str:
    """Write an example: a server with a speculative configuration."""
    more = f"{options} " if options else ""
    return f"vllm serve m {more}--speculative-config '{{{keys}}}'"


def without_speculation(speculation: Speculation) -> Fix:
    """Serve without speculative decoding, where nothing else is certain to do."""
    edits = tuple(RemoveFlag(dest) for dest in speculation.dests)
    return Fix("drop speculative decoding", edits, safe=False)


def set_key(speculation: Speculation, key: str, value: Any) -> SetFlag:
    """Give one key a value, in the flag that carries it."""
    short = next((d for d, k in SHORTHANDS.items() if k == key and d in speculation.dests), None)
    if short is None and "speculative_config" not in speculation.dests:
        short = next((d for d, k in SHORTHANDS.items() if k == key), None)
    return SetFlag(short or f"speculative_config.{key}", value)


@rule(
    id="speculative-key-given-twice",
    title="A part of speculative decoding is given twice",
    explanation="`--spec-method`, `--spec-model` and `--spec-tokens` each write one key of "
    "`--speculative-config`. vLLM refuses a flag whose key is in the JSON already, even with the "
    "same value.",
    remedy="Keep the flag or the key, not both.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/engine/arg_utils.py::EngineArgs.create_speculative_config",
    versions=">=0.28",
    covers=("spec-flag-and-json",),
    bad=(
        Example(f"vllm serve m {NGRAM} --spec-tokens 3"),
        Example(f"vllm serve m --spec-method ngram {NGRAM}"),
    ),
    good=(
        Example("vllm serve m --spec-method ngram --spec-tokens 3"),
        Example(command('"num_speculative_tokens": 3', "--spec-method ngram")),
    ),
)
def key_given_twice(config: ServeConfig) -> Iterator[Finding]:
    """Look for a flag whose key the JSON has."""
    whole = config["speculative_config"]
    if not isinstance(whole, dict):
        return
    for dest, key in SHORTHANDS.items():
        value = config[dest]
        if value is None or key not in whole:
            continue
        flag = config.catalogue.by_dest[dest].name
        same = whole[key] == value
        yield key_given_twice.finding(
            f"{flag} {value} and the key {key} of --speculative-config ({whole[key]}) exclude "
            "each other",
            location=config.place(dest),
            related=tuple(p for p in (config.place("speculative_config"),) if p is not None),
            fix=Fix(f"drop {flag}", (RemoveFlag(dest),), safe=same),
            engine_message=f"{flag} and --speculative-config['{key}'] are mutually exclusive",
        )


@rule(
    id="speculative-model-missing",
    title="The speculative method needs a draft model",
    explanation="`num_speculative_tokens` says how many tokens to draft, but not what drafts "
    "them. Without `method` vLLM takes `draft_model`; that, EAGLE, DFlash, Medusa, MLP "
    "speculators and `custom_class` all need `model`. N-gram, suffix, MTP and DSpark drafting "
    "do not.",
    remedy='Name the draft in `model`, or choose a method without one, such as `"ngram"`.',
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("spec-model-missing", "custom-class-model"),
    bad=(
        Example(command('"num_speculative_tokens": 3')),
        Example(command('"method": "eagle3", "num_speculative_tokens": 3')),
        Example(command('"method": "custom_class", "num_speculative_tokens": 3')),
        Example("vllm serve m --spec-tokens 3"),
    ),
    good=(Example(f"vllm serve m {NGRAM}"),),
)
def model_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for a method that needs a model and has none."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value("model") is not None:
        return
    tokens = speculation.value("num_speculative_tokens")
    if tokens is None or speculation.requested not in NEED_MODEL:
        return
    requested = speculation.requested
    given = speculation.value("method") is not None
    custom = "method='custom_class' requires 'model' to contain the custom proposer module path"
    yield model_missing.finding(
        f"{tokens} tokens are to be drafted by the method {requested}"
        f"{'' if given else ' (the default, as no method is given)'}, which needs a model, and "
        "none is given",
        location=speculation.place,
        fix=without_speculation(speculation),
        engine_message=custom
        if requested == "custom_class"
        else "num_speculative_tokens was provided but without speculative model.",
        evidence={"method": requested, "num_speculative_tokens": tokens},
    )


@rule(
    id="speculative-method-unsupported",
    title="The draft model is none for the speculative method",
    explanation="vLLM takes the method from the draft model: its name (`eagle-`, `eagle3`, "
    "`dflash`, `dspark`), its architecture, its `model_type`. Where these say nothing and the "
    "method asked for is `mtp`, `medusa` or `mlp_speculator`, it stops. With `mtp` and no "
    "`model` the served model is its own draft and must have MTP layers of a kind that this "
    "version knows.",
    remedy="Use a method that the draft fits, or a draft that fits the method.",
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("spec-method-unsupported",),
    bad=(
        Example(command('"method": "mtp", "num_speculative_tokens": 1'), model_config=DENSE),
        Example(
            command('"method": "mtp", "model": "draft", "num_speculative_tokens": 1'),
            draft_model_config=DENSE,
        ),
        Example(
            command('"method": "mlp_speculator", "model": "draft", "num_speculative_tokens": 1'),
            draft_model_config=DENSE,
            versions="<0.33",
        ),
    ),
    good=(
        Example(command('"method": "mtp", "num_speculative_tokens": 1'), model_config=DEEPSEEK),
        Example(
            command('"method": "mtp", "model": "draft", "num_speculative_tokens": 1'),
            draft_model_config=DEEPSEEK,
        ),
        Example(f"vllm serve m {NGRAM}"),
    ),
)
def method_unsupported(config: ServeConfig) -> Iterator[Finding]:
    """Compare the method with what the draft's config.json says."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft or speculation.fits:
        return
    requested, draft = speculation.requested, speculation.draft
    own = speculation.value("model") is None
    yield method_unsupported.finding(
        f"the method {requested} does not fit the {'served' if own else 'draft'} model "
        f"{speculation.draft_name}: its model_type is {draft.model_type}"
        f"{', which has no MTP layers that vLLM knows' if requested == 'mtp' else ''}",
        location=speculation.place,
        fix=without_speculation(speculation),
        engine_message=f"Unsupported speculative method: '{requested}'",
        evidence={"method": requested, "model_type": draft.model_type},
    )


@rule(
    id="speculative-mtp-alias",
    title="A model-specific MTP method is read as `mtp`",
    explanation="Names such as `deepseek_mtp` are old spellings of `mtp`; vLLM logs a "
    "deprecation and goes on.",
    remedy='Write `"method": "mtp"`.',
    severity=Severity.WARNING,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("mtp-alias-deprecated",),
    bad=(
        Example(
            command('"method": "deepseek_mtp", "num_speculative_tokens": 1'),
            model_config=DEEPSEEK,
        ),
    ),
    good=(Example(command('"method": "mtp", "num_speculative_tokens": 1'), model_config=DEEPSEEK),),
)
def mtp_alias(config: ServeConfig) -> Iterator[Finding]:
    """Look for an old spelling."""
    speculation = speculation_of(config)
    given = None if speculation is None else speculation.value("method")
    if speculation is None or not isinstance(given, str) or given == "mtp":
        return
    if given not in mtp_types(config):
        return
    yield mtp_alias.finding(
        f"the method {given} is deprecated and replaced with mtp",
        location=speculation.place,
        fix=Fix("write mtp", (set_key(speculation, "method", "mtp"),), safe=True),
        evidence={"asked": given, "effective": "mtp", "dest": "speculative_config.method"},
    )


@rule(
    id="speculative-method-overridden",
    title="The name of the draft model overrides the speculative method",
    explanation="Unless the method is `eagle`, `eagle3`, `dflash` or `dspark`, vLLM looks at the "
    "name of the draft model first: `eagle-`, `eagle3`, `dflash` or `dspark` anywhere in the "
    "path decide, whatever the method says.",
    remedy="Give the method that the draft is for, or rename the directory.",
    severity=Severity.WARNING,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("spec-method-guessed",),
    bad=(
        Example(
            command(
                '"method": "draft_model", "model": "org/eagle3-llama", "num_speculative_tokens": 3'
            ),
            draft_model_config=_LLAMA,
        ),
    ),
    good=(
        Example(
            command('"method": "eagle3", "model": "draft", "num_speculative_tokens": 3'),
            draft_model_config=_LLAMA,
        ),
        Example(
            command('"method": "draft_model", "model": "draft", "num_speculative_tokens": 3'),
            draft_model_config={**DENSE, "vocab_size": 128256},
        ),
    ),
)
def method_overridden(config: ServeConfig) -> Iterator[Finding]:
    """Compare the given method with what the name decides."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value("method") is None or not speculation.has_draft:
        return
    if speculation.requested not in {"draft_model", "mtp", "medusa", "mlp_speculator"}:
        return
    hinted = speculation.hinted_method
    if hinted is None or hinted == speculation.requested:
        return
    yield method_overridden.finding(
        f"the method is {speculation.value('method')}, but vLLM will use {hinted}, because of "
        f"the name of the draft model, {speculation.draft_name}",
        location=speculation.place,
        evidence={
            "asked": speculation.value("method"),
            "effective": hinted,
            "dest": "speculative_config.method",
        },
    )


@rule(
    id="speculative-custom-proposer",
    title="Custom proposers are experimental",
    explanation="A dotted import path as `model` makes vLLM load a proposer class of the "
    "operator's. The interface may change with any release.",
    remedy="Test the class with each vLLM version before it serves.",
    severity=Severity.WARNING,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("custom-proposer",),
    bad=(Example(command('"model": "pkg.module.Proposer", "num_speculative_tokens": 3')),),
    good=(Example(f"vllm serve m {NGRAM}"),),
)
def custom_proposer(config: ServeConfig) -> Iterator[Finding]:
    """Look for the method."""
    speculation = speculation_of(config)
    if speculation is None or speculation.requested != "custom_class":
        return
    if speculation.value("model") is not None:
        yield custom_proposer.finding(
            f"vLLM will load the proposer {speculation.value('model')}; that interface is "
            "experimental and may break with a release",
            location=speculation.place,
        )


@rule(
    id="speculative-deepseek-v41-mtp",
    title="DeepSeek V4.1 has no classic MTP draft",
    explanation="Its checkpoints carry DSpark stages under `mtp.*` and no MTP layers. vLLM "
    "refuses `mtp` for it.",
    remedy='Use `"method": "dspark"`.',
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.30",
    covers=("deepseek41-mtp",),
    bad=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 1'),
            model_config={
                "architectures": ["DeepseekV41ForCausalLM"],
                "model_type": "deepseek_v41",
                "num_nextn_predict_layers": 3,
            },
        ),
    ),
    good=(Example(command('"method": "mtp", "num_speculative_tokens": 1'), model_config=DEEPSEEK),),
)
def deepseek_v41(config: ServeConfig) -> Iterator[Finding]:
    """Look for MTP on that model."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft or speculation.method != "mtp":
        return
    if model_type(config) != "deepseek_v41":
        return
    yield deepseek_v41.finding(
        "the model is DeepSeek V4.1, whose checkpoints have DSpark stages and no MTP layers",
        location=speculation.place,
        fix=Fix("use dspark", (set_key(speculation, "method", "dspark"),), safe=False),
        engine_message="DeepSeek V4.1 has no classic-MTP draft",
    )


@rule(
    id="speculative-qwen4-method",
    title="Qwen4-Exp takes MTP and n-gram drafting only",
    explanation="The model's per-layer embeddings need the exact tokens of a step; vLLM refuses "
    "other speculative methods.",
    remedy='Use `"mtp"`, `"ngram"` or `"ngram_gpu"`.',
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/models/config.py"
    "::Qwen4ExpForConditionalGenerationConfig.verify_and_update_config",
    versions=">=0.29",
    covers=("qwen4exp-spec",),
    bad=(
        Example(
            command('"method": "eagle3", "model": "draft", "num_speculative_tokens": 3'),
            model_config={
                "architectures": ["Qwen4ExpForConditionalGeneration"],
                "model_type": "qwen4_exp",
            },
        ),
    ),
    good=(
        Example(
            f"vllm serve m {NGRAM}",
            model_config={
                "architectures": ["Qwen4ExpForConditionalGeneration"],
                "model_type": "qwen4_exp",
            },
        ),
    ),
)
def qwen4_method(config: ServeConfig) -> Iterator[Finding]:
    """Look for another method on that model."""
    speculation = speculation_of(config)
    if speculation is None:
        return
    if not set(architectures(config)) & set(_QWEN4):
        return
    method = speculation.method
    if method in {"mtp", "ngram", "ngram_gpu"}:
        return
    yield qwen4_method.finding(
        f"the model is Qwen4-Exp, with which the method {method} does not go",
        location=speculation.place,
        fix=without_speculation(speculation),
        evidence={"method": method},
    )


@rule(
    id="speculative-mtp-checkpoint",
    title="The checkpoint's MTP layers do not fit vLLM",
    explanation="Dots3-Note must name a type for each MTP layer (`mtp_layer_types`), and an "
    "Inkling checkpoint must have MTP layers (`mtp_config.num_nextn_predict_layers`), before "
    "the model can draft for itself.",
    remedy="Use a checkpoint with MTP layers, or another method.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/speculative.py::SpeculativeConfig.hf_config_override",
    versions=">=0.28",
    covers=("dots3-mtp-layers", "inkling-no-mtp"),
    bad=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 1'),
            model_config={
                "architectures": ["InklingForConditionalGeneration"],
                "model_type": "inkling_mm_model",
                "mtp_config": {"num_nextn_predict_layers": 0},
            },
        ),
    ),
    good=(Example(command('"method": "mtp", "num_speculative_tokens": 1'), model_config=DEEPSEEK),),
)
def mtp_checkpoint(config: ServeConfig) -> Iterator[Finding]:
    """Look at the two kinds of checkpoints."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft or speculation.requested == "medusa":
        return
    raw = config.draft_model_config
    if raw is None:
        if speculation.value("model") is not None:
            raise Abstain("the draft model's config.json (`draft_model_config`)")
        raw = hf_config(config)
    kind = raw.get("model_type")
    members: dict[str, Any] = {
        "location": speculation.place,
        "fix": without_speculation(speculation),
    }
    if kind == "dots3_note":
        layers = number(raw.get("num_nextn_predict_layers", 1))
        types = raw.get("mtp_layer_types")
        if isinstance(types, list) and layers is not None and len(types) != layers:
            yield mtp_checkpoint.finding(
                f"config.json names {len(types)} mtp_layer_types for {layers} MTP layers",
                engine_message="mtp_layer_types must have one entry per MTP layer: "
                f"got {len(types)} for {layers} layers",
                **members,
            )
    known = kind in ("inkling_mm_model", "inkling_model") and "inkling_mtp" in methods(config)
    if known and inkling_depths(raw) < 1:
        yield mtp_checkpoint.finding(
            "the checkpoint has no MTP layers (mtp_config.num_nextn_predict_layers)",
            engine_message="The Inkling checkpoint does not contain MTP weights",
            **members,
        )
