"""What a draft's config.json makes of the method, the tokens and the batch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.rules.derived.draft_config import rewritten
from app.rules.derived.drafting import draft_tensor_parallel_size, draft_view
from app.rules.derived.model import derived_max_model_len, vocab_size
from app.rules.speculation import draft_slots, mtp_types, speculation_of
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig

LIBRARY = CatalogueLibrary()
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_nextn_predict_layers": 1,
}
DSPARK = {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "block_size": 7}


def config_of(
    keys: dict[str, Any],
    *options: str,
    version: str = "0.32.0",
    model: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
) -> ServeConfig:
    text = f"vllm serve m {' '.join(options)} --speculative-config '{json.dumps(keys)}'"
    proposal = replace(parse_command(text), model_config=model, draft_model_config=draft)
    config = resolve(proposal, LIBRARY.get(version)).config
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("keys", "draft", "method"),
    [
        ({"model": "draft"}, QWEN3, "draft_model"),
        ({"model": "draft"}, DEEPSEEK, "mtp"),
        ({"model": "draft"}, DSPARK, "dspark"),
        ({"model": "draft"}, {"model_type": "medusa"}, "medusa"),
        ({"model": "draft", "method": "medusa"}, {}, "medusa"),
        ({"model": "draft", "method": "eagle3"}, DEEPSEEK, "eagle3"),
        ({"model": "draft", "method": "mtp"}, DSPARK, "dspark"),
    ],
)
def test_the_draft_decides_the_method(
    keys: dict[str, Any], draft: dict[str, Any], method: str
) -> None:
    speculation = speculation_of(config_of({"num_speculative_tokens": 2, **keys}, draft=draft))
    assert speculation is not None
    assert speculation.method == method


def test_the_name_of_the_served_model_counts_where_it_is_its_own_draft() -> None:
    keys = {"method": "mtp", "num_speculative_tokens": 1}
    text = f"vllm serve org/model-dspark --speculative-config '{json.dumps(keys)}'"
    config = resolve(parse_command(text), LIBRARY.get("0.32.0")).config
    assert config is not None
    speculation = speculation_of(config)
    assert speculation is not None
    assert speculation.method == "dspark"


@pytest.mark.parametrize(
    ("keys", "draft", "tokens"),
    [
        ({"method": "suffix"}, None, 24),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 6}, None, 6),
        ({"method": "ngram"}, None, None),
        ({"method": "ngram", "num_speculative_tokens": "4"}, None, 4),
        ({"model": "draft"}, {**QWEN3, "n_predict": 3}, 3),
        ({"model": "draft"}, QWEN3, None),
        ({"model": "draft"}, DEEPSEEK, None),
        ({"model": "draft"}, DSPARK, 7),
    ],
)
def test_where_the_number_of_tokens_comes_from(
    keys: dict[str, Any], draft: dict[str, Any] | None, tokens: int | None
) -> None:
    speculation = speculation_of(config_of(keys, draft=draft))
    assert speculation is not None
    assert speculation.tokens == tokens


@pytest.mark.parametrize(
    ("raw", "model_type", "predicted"),
    [
        (DEEPSEEK, "deepseek_mtp", 1),
        ({"architectures": ["MiMoV2FlashForCausalLM"]}, "mimo_v2_mtp", 1),
        ({"model_type": "longcat_flash"}, "longcat_flash_mtp", 1),
        ({"model_type": "kimi_k3", "text_config": {"num_nextn_predict_layers": 3}}, None, 3),
        ({"model_type": "qwen3_5_moe", "mtp_num_hidden_layers": 2}, "qwen3_5_mtp", 2),
        ({"model_type": "nemotron_h", "num_nextn_predict_layers": 1}, "nemotron_h_mtp", 1),
        ({"model_type": "nemotron_h", "num_nextn_predict_layers": 0}, "nemotron_h", None),
        ({"model_type": "minimax_m3_vl", "text_config": {"num_mtp_modules": 4}}, None, 4),
        (
            {"model_type": "inkling_mm_model", "mtp_config": {"num_nextn_predict_layers": 2}},
            "inkling_mtp",
            2,
        ),
        ({"model_type": "gemma4_assistant"}, "gemma4_mtp", 1),
        (QWEN3, "qwen3", None),
    ],
)
def test_checkpoints_with_mtp_layers_are_rewritten(
    raw: dict[str, Any], model_type: str | None, predicted: int | None
) -> None:
    draft = rewritten(raw, mtp_types(config_of({"method": "ngram"})))
    assert model_type is None or draft.model_type == model_type
    assert draft.n_predict == predicted


def test_a_type_that_a_version_does_not_know_is_left_alone() -> None:
    old = mtp_types(config_of({"method": "ngram"}, version="0.28.0"))
    new = mtp_types(config_of({"method": "ngram"}, version="0.33.0"))
    raw = {"model_type": "step5", "num_nextn_predict_layers": 2}
    assert rewritten(raw, old).model_type == "step5"
    assert rewritten(raw, new).model_type == "step5_mtp"


def test_a_number_that_config_json_leaves_out_is_not_guessed() -> None:
    draft = rewritten({"model_type": "deepseek_v3"}, frozenset({"mtp", "deepseek_mtp"}))
    with pytest.raises(Abstain, match="num_nextn_predict_layers"):
        _ = draft.n_predict
    with pytest.raises(Abstain, match="speculators"):
        rewritten({"speculators_config": {"algorithm": "eagle3"}}, frozenset())


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        ({"method": "ngram", "num_speculative_tokens": 5}, 0),
        ({"model": "draft", "num_speculative_tokens": 5}, 1),
        ({"model": "draft", "num_speculative_tokens": 5, "parallel_drafting": True}, 5),
        ({"method": "dflash", "model": "draft", "num_speculative_tokens": 5}, 5),
        ({"method": "dspark", "model": "draft", "num_speculative_tokens": 5}, 4),
        (
            {
                "method": "eagle3",
                "model": "draft",
                "num_speculative_tokens": 5,
                "parallel_drafting": True,
            },
            4,
        ),
    ],
)
def test_the_rows_that_drafting_takes(keys: dict[str, Any], slots: int) -> None:
    assert draft_slots(config_of(keys, draft=QWEN3)) == slots


def test_the_draft_is_asked_like_a_model() -> None:
    keys = {"model": "draft", "num_speculative_tokens": 3, "max_model_len": 512}
    config = config_of(
        keys,
        "-tp 4",
        """--hf-overrides '{"vocab_size": 7}'""",
        model=QWEN3,
        draft={**QWEN3, "vocab_size": 32000, "max_position_embeddings": 2048},
    )
    view = draft_view(config)
    assert (vocab_size(config), vocab_size(view)) == (7, 32000)
    assert derived_max_model_len(view).limit == 2048
    assert draft_tensor_parallel_size(config) == 4
    with pytest.raises(Abstain, match="draft_model_config"):
        draft_view(config_of(keys, model=QWEN3))
