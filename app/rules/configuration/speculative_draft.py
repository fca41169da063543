"""What a draft model has to have in common with the model that it drafts for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from packaging.version import Version

from app.rules.configuration.speculative_method import (
    AREA,
    DENSE,
    NGRAM,
    command,
    set_key,
)
from app.rules.declaration import Example
from app.rules.derived.drafting import draft_tensor_parallel_size, draft_view
from app.rules.derived.model import (
    allows_longer_max_model_len,
    derived_max_model_len,
    max_model_len,
    num_attention_heads,
    rope_parameters,
    vocab_size,
)
from app.rules.facts import world_size
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.speculation import Speculation, speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

_VERIFY: Final = "vllm/config/speculative.py::SpeculativeConfig._verify_args"
_DRAFT_TP: Final = "vllm/config/speculative.py::SpeculativeConfig._verify_and_get_draft_tp"
_LENGTH: Final = "vllm/config/speculative.py::SpeculativeConfig._maybe_override_draft_max_model_len"
_DRAFT: Final = {**DENSE, "vocab_size": 128256, "num_attention_heads": 32}
_DRAFTED: Final = '"model": "draft", "num_speculative_tokens": 3'
# Rotary embeddings whose cache alone depends on the length (`_CACHE_ONLY_ROPE_TYPES`).
_CACHE_ONLY: Final = frozenset({"default", "linear", "llama3", "ntk", "proportional"})


@rule(
    id="speculative-draft-tensor-parallel",
    title="The draft is split over 1 GPU or as many as the model",
    explanation="The draft runs in the same processes as the model, so "
    "`draft_tensor_parallel_size` is 1 or the tensor parallel size. Left out, it is the latter.",
    remedy="Use 1 or the value of `--tensor-parallel-size`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_DRAFT_TP,
    versions=">=0.28",
    covers=("draft-tp",),
    bad=(
        Example(
            command(f'{_DRAFTED}, "draft_tensor_parallel_size": 2', "-tp 4"),
            draft_model_config=_DRAFT,
        ),
        Example(command(f'{_DRAFTED}, "draft_tensor_parallel_size": 2'), draft_model_config=_DRAFT),
    ),
    good=(
        Example(
            command(f'{_DRAFTED}, "draft_tensor_parallel_size": 1', "-tp 4"),
            draft_model_config=_DRAFT,
        ),
        Example(
            command(
                '"method": "ngram", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2'
            ),
            note="without a draft model the key is not looked at",
        ),
    ),
)
def draft_tensor_parallel(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two sizes."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        return
    given = speculation.whole("draft_tensor_parallel_size")
    target = world_size(config, "tensor_parallel_size")
    if given is None or given in (1, target):
        return
    yield draft_tensor_parallel.finding(
        f"draft_tensor_parallel_size is {given}, and must be 1"
        f"{'' if target == 1 else f' or {target}'}, as the tensor parallel size is {target}",
        location=speculation.place,
        related=tuple(p for p in (config.place("tensor_parallel_size"),) if p is not None),
        fix=Fix(
            "drop draft_tensor_parallel_size",
            (RemoveFlag("speculative_config.draft_tensor_parallel_size"),),
            safe=False,
        ),
        engine_message="cannot be other value than 1 or target model tensor_parallel_size",
        evidence={"draft_tensor_parallel_size": given, "tensor_parallel_size": target},
    )


@rule(
    id="speculative-tensor-parallel-key",
    title="The draft's tensor parallel size has another name",
    explanation="`tensor_parallel_size` inside the speculative configuration exists only to be "
    "refused: `draft_tensor_parallel_size` is meant.",
    remedy="Rename the key.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    versions=">=0.28",
    covers=("spec-tp-key",),
    bad=(
        Example(
            command('"method": "ngram", "num_speculative_tokens": 3, "tensor_parallel_size": 1')
        ),
    ),
    good=(Example(f"vllm serve m -tp 2 {NGRAM}"),),
)
def tensor_parallel_key(config: ServeConfig) -> Iterator[Finding]:
    """Look for the key."""
    speculation = speculation_of(config)
    value = None if speculation is None else speculation.value("tensor_parallel_size")
    if speculation is None or value is None:
        return
    edits = (
        RemoveFlag("speculative_config.tensor_parallel_size"),
        SetFlag("speculative_config.draft_tensor_parallel_size", value),
    )
    yield tensor_parallel_key.finding(
        f"tensor_parallel_size {value} inside the speculative configuration is refused; "
        "draft_tensor_parallel_size is meant",
        location=speculation.place,
        fix=Fix("rename it to draft_tensor_parallel_size", edits, safe=True),
        engine_message="'tensor_parallel_size' is not a valid argument in the speculative_config.",
    )


@rule(
    id="speculative-vocabulary",
    title="Draft and model must have vocabularies of one size",
    explanation="A draft model (method `draft_model`) proposes token ids of its own vocabulary, "
    "so vLLM demands that both have the same `vocab_size`, unless `use_heterogeneous_vocab` maps "
    "one to the other.",
    remedy="Use a draft of the same family, or set `use_heterogeneous_vocab` to true.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/speculative.py::SpeculativeConfig.verify_equal_vocab_size_if_draft_model",
    versions=">=0.28",
    covers=("draft-vocab-size",),
    bad=(
        Example(
            command(_DRAFTED),
            model_config={**DENSE, "vocab_size": 151936},
            draft_model_config={**DENSE, "vocab_size": 32000},
        ),
    ),
    good=(
        Example(
            command(_DRAFTED),
            model_config={**DENSE, "vocab_size": 151936},
            draft_model_config={**DENSE, "vocab_size": 151936},
        ),
        Example(
            command(f'{_DRAFTED}, "use_heterogeneous_vocab": true'),
            model_config={**DENSE, "vocab_size": 151936},
            draft_model_config={**DENSE, "vocab_size": 32000},
        ),
    ),
)
def vocabulary(config: ServeConfig) -> Iterator[Finding]:
    """Compare the sizes."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft or speculation.method != "draft_model":
        return
    if speculation.value("use_heterogeneous_vocab"):
        return
    target, draft = vocab_size(config), vocab_size(draft_view(config))
    if target == draft:
        return
    yield vocabulary.finding(
        f"the vocabulary of the model has {target} tokens, that of the draft "
        f"{speculation.draft_name} has {draft}",
        location=speculation.place,
        fix=Fix(
            "map one vocabulary to the other",
            (SetFlag("speculative_config.use_heterogeneous_vocab", value=True),),
            safe=False,
        ),
        engine_message="Target and draft model should have the same vocabulary size. "
        f"Target model vocab_size={target}. Draft model vocab_size={draft}.",
        evidence={"target": target, "draft": draft},
    )


@rule(
    id="speculative-heterogeneous-vocabulary",
    title="Mapped vocabularies go with greedy drafts of a draft model only",
    explanation="`use_heterogeneous_vocab` restricts the draft's logits to the tokens that both "
    "vocabularies have. vLLM does that for the method `draft_model` and greedy drafting, and from "
    "0.33 not together with `use_local_argmax_reduction`, which never has all logits. EAGLE, MTP, "
    "n-gram and the others refuse it; a draft whose name contains `eagle3`, `dflash` or `dspark` "
    "is not a `draft_model`.",
    remedy="Drop `use_heterogeneous_vocab`, or use a draft model with greedy drafting.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    versions=">=0.28",
    covers=("hetero-vocab-method", "hetero-vocab-sampling"),
    bad=(
        Example(
            command(
                '"method": "ngram", "num_speculative_tokens": 3, "use_heterogeneous_vocab": true'
            )
        ),
        Example(
            command(
                f'{_DRAFTED}, "use_heterogeneous_vocab": true, '
                '"draft_sample_method": "probabilistic"'
            ),
            draft_model_config=_DRAFT,
        ),
        Example(
            command(
                f'{_DRAFTED}, "use_heterogeneous_vocab": true, "use_local_argmax_reduction": true'
            ),
            draft_model_config=_DRAFT,
            versions=">=0.33",
        ),
    ),
    good=(
        Example(command(f'{_DRAFTED}, "use_heterogeneous_vocab": true'), draft_model_config=_DRAFT),
        Example(f"vllm serve m {NGRAM}"),
    ),
)
def heterogeneous_vocabulary(config: ServeConfig) -> Iterator[Finding]:
    """Look for what the mapping does not go with."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.value("use_heterogeneous_vocab"):
        return
    problem = _mapping_problem(config, speculation)
    if problem is None:
        return
    text, engine_message = problem
    yield heterogeneous_vocabulary.finding(
        f"use_heterogeneous_vocab goes with {text}",
        location=speculation.place,
        fix=Fix(
            "drop use_heterogeneous_vocab",
            (RemoveFlag("speculative_config.use_heterogeneous_vocab"),),
            safe=False,
        ),
        engine_message=engine_message,
    )


def _mapping_problem(config: ServeConfig, speculation: Speculation) -> tuple[str, str] | None:
    sampling = speculation.value("draft_sample_method")
    if sampling not in (None, "greedy"):
        return (
            f"draft_sample_method greedy only, not {sampling}",
            "use_heterogeneous_vocab currently only supports greedy draft sampling.",
        )
    local = speculation.value("use_local_argmax_reduction")
    if local and config.catalogue.version >= Version("0.33.0.dev0"):
        return (
            "full draft logits only, which use_local_argmax_reduction never makes",
            "use_heterogeneous_vocab is not compatible with use_local_argmax_reduction",
        )
    method = speculation.method
    if method == "draft_model":
        return None
    return (
        f"the method draft_model only, and vLLM takes {method}",
        "use_heterogeneous_vocab only works with method='draft_model'",
    )


@rule(
    id="speculative-draft-length",
    title="The draft is to be longer than its config.json allows",
    explanation="`max_model_len` in the speculative configuration is for tests in which long "
    "sequences skip drafting. It may not exceed what the draft's config.json allows, unless "
    "`VLLM_ALLOW_LONG_MAX_MODEL_LEN` is set.",
    remedy="Lower it, or leave it out.",
    severity=Severity.ERROR,
    area=AREA,
    source=_LENGTH,
    versions=">=0.28",
    covers=("draft-len-exceeds-draft",),
    bad=(
        Example(
            command(f'{_DRAFTED}, "max_model_len": 4096'),
            draft_model_config={**_DRAFT, "max_position_embeddings": 2048},
        ),
    ),
    good=(
        Example(
            command(f'{_DRAFTED}, "max_model_len": 1024'),
            draft_model_config={**_DRAFT, "max_position_embeddings": 2048},
        ),
    ),
)
def draft_length(config: ServeConfig) -> Iterator[Finding]:
    """Compare the length with what the draft allows."""
    speculation = speculation_of(config)
    wanted = None if speculation is None else speculation.whole("max_model_len")
    if speculation is None or wanted is None or not speculation.has_draft:
        return
    limit = derived_max_model_len(draft_view(config))
    if limit.limit is None or limit.allows(wanted) or allows_longer_max_model_len(config):
        return
    allowed = int(limit.limit)
    yield draft_length.finding(
        f"max_model_len of the draft is {wanted}, above what its config.json allows, {allowed} "
        f"({limit.key})",
        engine_message=f"User-specified max_model_len ({wanted}) is greater than the derived",
        evidence={"max_model_len": wanted, "allowed": allowed},
        **_shorter(speculation, allowed),
    )


@rule(
    id="speculative-draft-longer",
    title="The draft is to be longer than the model",
    explanation="`max_model_len` in the speculative configuration may not exceed the length of "
    "the model.",
    remedy="Lower it, or leave it out.",
    severity=Severity.ERROR,
    area=AREA,
    source=_LENGTH,
    versions=">=0.28",
    covers=("draft-len-exceeds-target",),
    bad=(
        Example(
            command(f'{_DRAFTED}, "max_model_len": 2048', "--max-model-len 1024"),
            draft_model_config={**_DRAFT, "max_position_embeddings": 4096},
        ),
    ),
    good=(
        Example(
            command(f'{_DRAFTED}, "max_model_len": 1024', "--max-model-len 2048"),
            draft_model_config={**_DRAFT, "max_position_embeddings": 4096},
        ),
    ),
)
def draft_longer(config: ServeConfig) -> Iterator[Finding]:
    """Compare the length with that of the model."""
    speculation = speculation_of(config)
    wanted = None if speculation is None else speculation.whole("max_model_len")
    if speculation is None or wanted is None or not speculation.has_draft:
        return
    target = max_model_len(config)
    if wanted <= target:
        return
    yield draft_longer.finding(
        f"max_model_len of the draft is {wanted}, above that of the model, {target}",
        engine_message=f"speculative_max_model_len={wanted} cannot be larger than "
        f"target_max_model_len={target}",
        evidence={"max_model_len": wanted, "target": target},
        **_shorter(speculation, target),
    )


def _shorter(speculation: Speculation, length: int) -> dict[str, Any]:
    edit = set_key(speculation, "max_model_len", length)
    return {
        "location": speculation.place,
        "fix": Fix(f"set it to {length}", (edit,), safe=False),
    }


@rule(
    id="speculative-length-lowered",
    title="A short draft shortens the model",
    explanation="Model Runner V2 cannot skip drafting for sequences that are longer than the "
    "draft's positions. From 0.33 vLLM lowers `--max-model-len` to what the draft can do, unless "
    "the draft shares the model's positions (EAGLE, MTP and so on with plain rotary embeddings).",
    remedy="Use a draft with as many positions, or ask for the shorter length.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._maybe_limit_max_model_len_to_draft",
    versions=">=0.33",
    bad=(
        Example(
            command(_DRAFTED, "--max-model-len 8192"),
            model_config={
                **DENSE,
                "vocab_size": 128256,
                "max_position_embeddings": 8192,
            },
            draft_model_config={**_DRAFT, "max_position_embeddings": 2048},
        ),
    ),
    good=(
        Example(
            command(_DRAFTED, "--max-model-len 2048"),
            model_config={
                **DENSE,
                "vocab_size": 128256,
                "max_position_embeddings": 8192,
            },
            draft_model_config={**_DRAFT, "max_position_embeddings": 2048},
        ),
    ),
)
def length_lowered(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two lengths where V2 runs."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        return
    view = draft_view(config)
    if speculation.method != "draft_model":
        kinds = {rope.get("rope_type", "default") for rope in rope_parameters(view)}
        if kinds <= _CACHE_ONLY:
            return
    target = max_model_len(config)
    draft = speculation.whole("max_model_len")
    if draft is None:
        draft = min(derived_max_model_len(view).default, target)
    if draft >= target or decide_runner(config).version is not Runner.V2:
        return
    yield length_lowered.finding(
        f"the model's length is {target}, but vLLM will use {draft}, because the draft "
        f"{speculation.draft_name} has no more positions",
        location=config.place("max_model_len") or speculation.place,
        fix=Fix(f"set --max-model-len {draft}", (SetFlag("max_model_len", draft),), safe=False),
        evidence={"asked": target, "effective": draft, "dest": "max_model_len"},
    )


@rule(
    id="speculative-draft-heads",
    title="The draft's attention heads cannot be split equally",
    explanation="The draft is split over `draft_tensor_parallel_size` GPUs, by default as many as "
    "the model; its attention heads must be a multiple of that.",
    remedy='Set `"draft_tensor_parallel_size": 1`.',
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.verify_with_parallel_config",
    versions=">=0.28",
    bad=(
        Example(
            command(_DRAFTED, "-tp 8"),
            draft_model_config={**_DRAFT, "num_attention_heads": 12, "num_key_value_heads": 4},
        ),
    ),
    good=(
        Example(
            command(f'{_DRAFTED}, "draft_tensor_parallel_size": 1', "-tp 8"),
            draft_model_config={**_DRAFT, "num_attention_heads": 12, "num_key_value_heads": 4},
        ),
        Example(f"vllm serve m -tp 8 {NGRAM}"),
    ),
)
def draft_heads(config: ServeConfig) -> Iterator[Finding]:
    """Divide the heads of the draft."""
    speculation = speculation_of(config)
    if speculation is None or not speculation.has_draft:
        return
    size = draft_tensor_parallel_size(config)
    if size <= 1 or speculation.value("model") is None:
        return  # its own draft has the heads of the model
    heads = num_attention_heads(draft_view(config))
    if heads % size == 0:
        return
    yield draft_heads.finding(
        f"the draft {speculation.draft_name} has {heads} attention heads, which cannot be split "
        f"over {size} GPUs",
        location=speculation.place,
        fix=Fix(
            "run the draft on one GPU",
            (SetFlag("speculative_config.draft_tensor_parallel_size", 1),),
            safe=False,
        ),
        engine_message=f"Total number of attention heads ({heads}) must be divisible by tensor "
        f"parallel size ({size}).",
        evidence={"heads": heads, "draft_tensor_parallel_size": size},
    )
