"""Whatever JSON somebody sends, a rule neither crashes nor takes the gate down."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.evaluate import judge_only, validate
from app.verdict.render.github import render_github
from app.verdict.render.junit import render_junit
from app.verdict.render.sarif import render_sarif
from app.verdict.render.text import render_text

LIBRARY = CatalogueLibrary()
# What the rules read.
READ = (
    "return_sampling_mask",
    "logprobs_mode",
    "max_logprobs",
    "logits_processors",
    "speculative_config",
    "spec_method",
    "compilation_config",
    "attention_config",
    "watermark_config",
    "hf_overrides",
    "override_generation_config",
    "generation_config",
    "runner",
    "convert",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "ubatch_size",
    "enable_dbo",
    "max_num_seqs",
    "enable_batch_sharded_sampling",
    "enable_trace_replay",
    "mamba_cache_mode",
    "async_scheduling",
    "spec_model",
    "spec_tokens",
    "enable_lora",
    "max_cpu_loras",
    "default_mm_loras",
    "pooler_config",
    "structured_outputs_config",
    "engram_config",
    "attention_backend",
    "cudagraph_capture_sizes",
    "max_cudagraph_capture_size",
    "kv_transfer_config",
    "mamba_backend",
    "mamba_ssm_cache_dtype",
    "mamba_block_size",
    "mamba_ssu_algorithm",
    "use_replayssm",
    "replayssm_buffer_len",
    "optimization_level",
)
KEYS = (
    *("method", "model", "mode", "pass_config", "enable_sp", "fuse_gemm_comms", "top_k"),
    *("num_speculative_tokens", "synthetic_acceptance_rates", "rejection_sample_method"),
    *("cudagraph_mode", "custom_ops", "splitting_ops", "compile_sizes", "backend"),
    *("cudagraph_capture_sizes", "hisparse_config", "kv_connector", "kv_role"),
    *("max_model_len", "suffix_decoding_min_token_prob", "dspark_draft_topk", "key"),
)
MODEL_KEYS = (
    "architectures",
    "layer_types",
    "text_config",
    "canvas_length",
    "num_experts",
    "rejection",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.floats(width=16),
    st.sampled_from(["ngram", "medusa", "a.b.C", "eagle3", "auto", "all", "x/y", "", "\x00\u202e"]),
    st.sampled_from(["Qwen3MoeForCausalLM", "MixtralForCausalLM", "BertModel", "NoSuchModel"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS + MODEL_KEYS), inner, max_size=4),
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(KEYS + MODEL_KEYS), JSON, max_size=5)
PROPOSALS = st.fixed_dictionaries(
    {
        "config": st.dictionaries(st.sampled_from(READ), st.one_of(JSON, OBJECTS), max_size=6).map(
            lambda settings: {"model": "m", **settings}
        )
    },
    optional={
        "model_config": OBJECTS,
        "draft_model_config": OBJECTS,
        "hardware": st.fixed_dictionaries({"gpu": st.sampled_from(["cpu", "H100", "MI300X", "?"])}),
        "env": st.fixed_dictionaries(
            {"VLLM_USE_V2_MODEL_RUNNER": st.sampled_from(["0", "1", "", "yes", "²"])}
        ),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PROPOSALS, st.sampled_from(LIBRARY.versions))
def test_no_rule_crashes_on_any_json(envelope: dict[str, Any], version: str) -> None:
    verdict = judge_only(read_envelope(envelope).proposal, LIBRARY.get(version))
    json.dumps(verdict.as_json(), allow_nan=False)
    crashed = [f.evidence for f in verdict.findings if f.rule == "internal-rule-error"]
    assert crashed == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PROPOSALS, st.sampled_from(LIBRARY.versions))
def test_every_verdict_can_be_rendered_and_a_correction_is_accepted(
    envelope: dict[str, Any], version: str
) -> None:
    catalogue = LIBRARY.get(version)
    verdict = validate(read_envelope(envelope).proposal, catalogue)
    for render in (render_text, render_sarif, render_junit, render_github):
        assert isinstance(render([verdict]), str)
    if verdict.corrected is not None:
        facts: dict[str, Any] = {
            k: envelope[k]
            for k in ("model_config", "draft_model_config", "hardware")
            if k in envelope
        }
        forms = {k: v for k, v in verdict.corrected.items() if k in ("config", "env")}
        assert judge_only(read_envelope({**facts, **forms}).proposal, catalogue).accepted
