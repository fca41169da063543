"""Keys of the speculative configuration that only some drafts take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.speculative_method import AREA, DEEPSEEK, DENSE, SOURCE, command
from app.rules.declaration import Example
from app.rules.facts import world_size
from app.rules.registry import rule
from app.rules.speculation import Speculation, speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_DRAFT_TP: Final = "vllm/config/speculative.py::SpeculativeConfig._verify_and_get_draft_tp"
_DRAFT: Final = {**DENSE, "vocab_size": 128256, "num_attention_heads": 32}
_DRAFTED: Final = '"model": "draft", "num_speculative_tokens": 3'


@rule(
    id="speculative-mlp-single-gpu",
    title="MLP speculators run on one GPU",
    explanation="An `mlp_speculator` draft is not split: with a tensor parallel size above 1 vLLM "
    "sets `draft_tensor_parallel_size` to 1.",
    remedy="Nothing, or say `draft_tensor_parallel_size` 1.",
    severity=Severity.WARNING,
    area=AREA,
    source=_DRAFT_TP,
    versions=">=0.28,<0.33",
    covers=("mlp-speculator-tp",),
    bad=(
        Example(
            command(_DRAFTED, "-tp 2"),
            draft_model_config={
                "architectures": ["MLPSpeculatorModel"],
                "model_type": "mlp_speculator",
                "n_predict": 3,
            },
        ),
    ),
    good=(
        Example(
            command(_DRAFTED),
            draft_model_config={
                "architectures": ["MLPSpeculatorModel"],
                "model_type": "mlp_speculator",
                "n_predict": 3,
            },
        ),
    ),
)
def mlp_single_gpu(config: ServeConfig) -> Iterator[Finding]:
    """Look for a tensor parallel size above 1."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        return
    target = world_size(config, "tensor_parallel_size")
    given = speculation.value("draft_tensor_parallel_size")
    if target > 1 and given is None and speculation.method == "mlp_speculator":
        yield mlp_single_gpu.finding(
            f"the tensor parallel size is {target}, but vLLM will run the MLP speculator on one "
            "GPU",
            location=speculation.place,
            evidence={
                "asked": target,
                "effective": 1,
                "dest": "speculative_config.draft_tensor_parallel_size",
            },
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
