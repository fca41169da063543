"""What only some drafts take, or can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.speculative_method import (
    AREA,
    DEEPSEEK,
    DENSE,
    NGRAM,
    SOURCE,
    command,
    without_speculation,
)
from app.rules.declaration import Example
from app.rules.facts import world_size
from app.rules.registry import rule
from app.rules.speculation import Speculation, speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_DRAFT: Final = {**DENSE, "vocab_size": 128256, "num_attention_heads": 32}
_MLP: Final = {
    "architectures": ["MLPSpeculatorPreTrainedModel"],
    "model_type": "mlp_speculator",
    "n_predict": 3,
}
_DRAFTED: Final = '"model": "draft", "num_speculative_tokens": 3'


@rule(
    id="speculative-mlp-unregistered",
    title="MLP speculators cannot be loaded",
    explanation="These versions still know the method `mlp_speculator` (and would run it on one "
    "GPU whatever the tensor parallel size), but no longer register the model class, so vLLM "
    "refuses the draft. 0.33 dropped the method.",
    remedy="Use another kind of draft.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/models/registry.py::ModelRegistry._raise_for_unsupported",
    versions=">=0.28,<0.33",
    covers=("mlp-speculator-tp",),
    bad=(Example(command(_DRAFTED, "-tp 2"), draft_model_config=_MLP),),
    good=(Example(command(_DRAFTED), draft_model_config=_DRAFT),),
)
def mlp_unregistered(config: ServeConfig) -> Iterator[Finding]:
    """Look for the kind of draft, and for its class among the registered ones."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        return
    if speculation.method != "mlp_speculator":
        return
    classes = speculation.draft.architectures
    if not classes or set(classes) & set(config.catalogue.registries.get("model_archs", ())):
        return
    yield mlp_unregistered.finding(
        f"the draft {speculation.draft_name} is an MLP speculator, whose class "
        f"{', '.join(classes)} vLLM {config.catalogue.vllm_version} does not register",
        location=speculation.place,
        fix=without_speculation(speculation),
        engine_message="are not supported for now.",
    )


@rule(
    id="speculative-index-share",
    title="Sharing indices between MTP steps needs MTP",
    explanation="`index_share_for_mtp_iteration` says whether later MTP steps reuse the sparse "
    "attention indices of the first. Whatever its value, vLLM refuses it with another method.",
    remedy="Drop the key.",
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.29",
    covers=("index-share-method",),
    bad=(
        Example(
            command(
                '"method": "ngram", "num_speculative_tokens": 3, '
                '"index_share_for_mtp_iteration": false'
            )
        ),
    ),
    good=(
        Example(
            command(
                '"method": "mtp", "num_speculative_tokens": 1, '
                '"index_share_for_mtp_iteration": false'
            ),
            model_config=DEEPSEEK,
        ),
    ),
)
def index_share(config: ServeConfig) -> Iterator[Finding]:
    """Look for the key with another method."""
    speculation = speculation_of(config)
    value = None if speculation is None else speculation.value("index_share_for_mtp_iteration")
    if speculation is None or value is None:
        return
    method = speculation.method
    if method == "mtp" and speculation.has_draft:
        return
    yield index_share.finding(
        f"index_share_for_mtp_iteration goes with the method mtp only, not with {method}",
        location=speculation.place,
        fix=Fix(
            "drop index_share_for_mtp_iteration",
            (RemoveFlag("speculative_config.index_share_for_mtp_iteration"),),
            safe=False,
        ),
        engine_message="index_share_for_mtp_iteration is only supported with method='mtp'",
    )


@rule(
    id="speculative-dspark-top-k",
    title="`dspark_draft_topk` does not fit the draft",
    explanation="The key limits the Markov projection of Qwen3 DSpark drafts to the best "
    "candidates. Other methods and other DSpark architectures refuse it, and it must be between 1 "
    "and the draft's vocabulary.",
    remedy="Drop the key, or use a Qwen3 DSpark draft.",
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("dspark-topk-method", "dspark-topk-range", "dspark-topk-arch"),
    bad=(
        Example(command(f'{_DRAFTED}, "dspark_draft_topk": 8'), draft_model_config=_DRAFT),
        Example(
            command(
                '"method": "dspark", "model": "draft", "num_speculative_tokens": 3, '
                '"dspark_draft_topk": 200000'
            ),
            draft_model_config={
                "architectures": ["Qwen3DSparkModel"],
                "model_type": "qwen3",
                "vocab_size": 151936,
            },
        ),
    ),
    good=(
        Example(command(_DRAFTED), draft_model_config=_DRAFT),
        Example(
            command('"method": "ngram", "num_speculative_tokens": 3, "dspark_draft_topk": 8'),
            note="without a draft model the key is not looked at",
        ),
    ),
)
def dspark_top_k(config: ServeConfig) -> Iterator[Finding]:
    """Compare with the method, the architecture and the vocabulary of the draft."""
    speculation = speculation_of(config)
    wanted = None if speculation is None else speculation.whole("dspark_draft_topk")
    if speculation is None or wanted is None or not speculation.has_draft:
        return
    problem = _top_k_problem(speculation, wanted)
    if problem is None:
        return
    text, engine_message = problem
    yield dspark_top_k.finding(
        f"dspark_draft_topk is {wanted}, {text}",
        location=speculation.place,
        fix=Fix(
            "drop dspark_draft_topk",
            (RemoveFlag("speculative_config.dspark_draft_topk"),),
            safe=False,
        ),
        engine_message=engine_message,
    )


def _top_k_problem(speculation: Speculation, wanted: int) -> tuple[str, str] | None:
    if speculation.method != "dspark":
        return (
            f"and goes with the method dspark only, not with {speculation.method}",
            "dspark_draft_topk is only supported by DSpark",
        )
    draft = speculation.draft
    tokens = draft.values.get("draft_vocab_size") or draft.values.get("vocab_size")
    if isinstance(tokens, int) and not 1 <= wanted <= tokens:
        return (
            f"outside the {tokens} tokens of the draft",
            f"dspark_draft_topk must be between 1 and the draft vocabulary size ({tokens})",
        )
    qwen3 = "DSparkDraftModel" in draft.architectures and draft.model_type == "qwen3"
    if qwen3 or set(draft.architectures) & {"Qwen3DSparkModel", "Qwen3OmniDSparkModel"}:
        return None
    return (
        f"and goes with Qwen3 DSpark drafts only, not with {', '.join(draft.architectures)}",
        "dspark_draft_topk is only supported by Qwen3DSparkModel",
    )


@rule(
    id="speculative-draft-pipeline",
    title="The draft cannot be cut into pipeline stages",
    explanation="Up to 0.29 the draft has as many pipeline stages as the model, and vLLM refuses "
    "a draft whose class cannot be cut. MTP layers cannot. From 0.30 the draft runs on the last "
    "stage.",
    remedy="Serve with one pipeline stage, or use vLLM 0.30 or newer.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.verify_with_parallel_config",
    versions=">=0.28,<0.30",
    bad=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 1', "-pp 2"),
            model_config=DEEPSEEK,
        ),
    ),
    good=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 1'),
            model_config=DEEPSEEK,
        ),
        Example(command(_DRAFTED, "-pp 2"), draft_model_config=_DRAFT),
    ),
)
def draft_pipeline(config: ServeConfig) -> Iterator[Finding]:
    """Look for a draft class that cannot be cut."""
    stages = world_size(config, "pipeline_parallel_size")
    speculation = speculation_of(config) if stages > 1 else None
    if speculation is None or not speculation.has_draft:
        return
    if speculation.method not in {"mtp", "draft_model"}:
        raise Abstain("whether the draft's class can be cut into pipeline stages")
    classes = speculation.draft.architectures
    able = [config.catalogue.has_ability(name, "supports_pp") for name in classes]
    if not able or None in able:
        raise Abstain(f"whether {', '.join(classes)} can be cut into pipeline stages")
    if any(able):
        return
    yield draft_pipeline.finding(
        f"the draft {', '.join(classes)} cannot be cut into {stages} pipeline stages",
        location=speculation.place,
        fix=without_speculation(speculation),
        engine_message="Pipeline parallelism is not supported for this model.",
    )


@rule(
    id="speculative-draft-class",
    title="There is no drafting class for that model",
    explanation="For EAGLE and DFlash vLLM takes the class of the draft's config.json with the "
    "method in front: `LlamaForCausalLM` becomes `Eagle3LlamaForCausalLM`. An ordinary "
    "checkpoint of a family for which nobody wrote such a class is refused.",
    remedy="Use a checkpoint that was made for drafting, or the method `draft_model`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/models/registry.py::ModelRegistry._raise_for_unsupported",
    versions=">=0.28",
    bad=(
        Example(
            command('"method": "dflash", "model": "draft", "num_speculative_tokens": 3'),
            draft_model_config=DENSE,
        ),
    ),
    good=(
        Example(
            command('"method": "eagle3", "model": "draft", "num_speculative_tokens": 3'),
            draft_model_config={"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        ),
        Example(f"vllm serve m {NGRAM}"),
    ),
)
def draft_class(config: ServeConfig) -> Iterator[Finding]:
    """Look the prefixed class up."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        return
    prefix = _PREFIXES.get(speculation.method)
    if prefix is None:
        return
    draft = speculation.draft
    names = draft.architectures
    if draft.model_type == "eagle" or draft.values.get("auto_map") or not names:
        return
    if not all(name.endswith("ForCausalLM") for name in names):
        return
    classes = [name if name.startswith(prefix) else f"{prefix}{name}" for name in names]
    if set(classes) & set(config.catalogue.registries.get("model_archs", ())):
        return
    yield draft_class.finding(
        f"with the method {speculation.method} the draft {speculation.draft_name} would be a "
        f"{', '.join(classes)}, which vLLM {config.catalogue.vllm_version} does not have",
        location=speculation.place,
        fix=without_speculation(speculation),
        engine_message=f"Model architectures {classes} are not supported for now.",
        evidence={"architectures": classes},
    )


_PREFIXES: Final = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}
