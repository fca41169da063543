"""Compilation mode, CUDA graph mode and sizes; the sizes are vLLM's own answers in the lab."""

from __future__ import annotations

from typing import Any

import pytest

from app.proposal.proposal import Hardware
from app.rules.derived.compilation import compilation_mode
from app.rules.derived.cuda_graphs import (
    Cause,
    capture_sizes,
    early_changes,
    graph_changes,
    graph_mode,
)
from app.serve_config.serve_config import Abstain
from tests.rules.derived.deriving import H100, LLAMA, config_of

KIMI = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear"}
BERT = {"architectures": ["BertModel"], "model_type": "bert"}
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "is_encoder_decoder": True,
}
BOTH = "FULL_AND_PIECEWISE"
OLD, NEW = "0.29.0", "0.30.0"
LAYERWISE = (
    """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", """
    """"kv_connector_extra_config": {"use_layerwise": true}}'"""
)


@pytest.mark.parametrize(
    ("options", "model", "mode"),
    [
        ("", LLAMA, "VLLM_COMPILE"),
        ("-O0", LLAMA, "NONE"),
        ("-O0 -cc.mode=2", LLAMA, "DYNAMO_TRACE_ONCE"),
        ("-cc.mode=stock_torch_compile", LLAMA, "STOCK_TORCH_COMPILE"),
        ("--enforce-eager -cc.mode=3", LLAMA, "NONE"),
        ("TORCH_COMPILE_DISABLE=1 -cc.mode=3", LLAMA, "NONE"),
        ("TORCH_COMPILE_DISABLE=true -cc.mode=3", LLAMA, "VLLM_COMPILE"),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=1", LLAMA, "NONE"),
        ("", KIMI, "NONE"),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=0", KIMI, "VLLM_COMPILE"),
    ],
)
def test_the_model_is_compiled_unless_something_turns_it_off(
    options: str, model: dict[str, Any], mode: str
) -> None:
    assert compilation_mode(config_of(options, model, H100)) == mode


def test_without_the_model_only_what_it_cannot_change_is_known() -> None:
    with pytest.raises(Abstain):
        compilation_mode(config_of(""))
    assert compilation_mode(config_of("--enforce-eager")) == "NONE"


@pytest.mark.parametrize(
    ("options", "model", "version", "mode"),
    [
        ("", LLAMA, NEW, BOTH),
        ("-O1", LLAMA, NEW, "PIECEWISE"),
        ("-O0", LLAMA, NEW, "NONE"),
        ("-cc.mode=0", LLAMA, NEW, "FULL_DECODE_ONLY"),
        ("-cc.mode=0", LLAMA, OLD, "NONE"),
        ("-cc.mode=0 -cc.cudagraph_mode=FULL", LLAMA, NEW, "FULL"),
        ("", KIMI, NEW, BOTH),
        ("", BERT, NEW, "PIECEWISE"),
        ("-cc.mode=0 -cc.cudagraph_mode=FULL", BERT, NEW, "NONE"),
        ("-cc.mode=0 -cc.cudagraph_mode=FULL", BERT, OLD, "PIECEWISE"),
        ("", WHISPER, NEW, "FULL_DECODE_ONLY"),
        (LAYERWISE, LLAMA, NEW, "PIECEWISE"),
        ("-cc.splitting_ops=[]", LLAMA, NEW, "FULL"),
        ("-cc.splitting_ops=[] -O1", LLAMA, NEW, "NONE"),
        ("-cc.mode=1", LLAMA, "0.32.0", "NONE"),
        ("VLLM_USE_V2_MODEL_RUNNER=0 -cc.mode=1", LLAMA, "0.32.0", "FULL_DECODE_ONLY"),
    ],
)
def test_the_graph_mode_is_lowered_step_by_step(
    options: str, model: dict[str, Any], version: str, mode: str
) -> None:
    assert graph_mode(config_of(options, model, H100, version)) == mode


def test_each_step_says_what_it_changed() -> None:
    config = config_of("-cc.mode=0 -cc.cudagraph_mode=FULL", BERT, H100, NEW)
    assert [(c.cause, c.before, c.after) for c in graph_changes(config)] == [
        (Cause.POOLING, "FULL", "PIECEWISE"),
        (Cause.COMPILATION, "PIECEWISE", "NONE"),
    ]
    assert early_changes(config) == ()


def test_a_cpu_has_no_graphs() -> None:
    assert graph_mode(config_of("", LLAMA, Hardware("cpu"))) == "NONE"
    assert capture_sizes(config_of("", LLAMA, Hardware("cpu"))) is None


def _ngram(tokens: int) -> str:
    return f"""--speculative-config '{{"method": "ngram", "num_speculative_tokens": {tokens}}}'"""


@pytest.mark.parametrize(
    ("options", "version", "sizes"),
    [
        ("--max-num-seqs 7", OLD, [1, 2, 4, 8]),
        ("--max-num-seqs 7", "0.33.0", [1, 2, 4, 7, 8]),
        ("--max-num-seqs 3 --max-num-batched-tokens 5 --max-model-len 4", NEW, [1, 2, 4, 5]),
        (f"--max-num-seqs 2 {_ngram(2)}", "0.28.0", [1, 2, 4, 8]),
        (f"--max-num-seqs 2 {_ngram(2)}", NEW, [1, 2, 3, 4, 6, 8]),
        ("--max-cudagraph-capture-size 6", NEW, [1, 2, 4]),
        ("--cudagraph-capture-sizes 9 1 5 9", NEW, [1, 5, 9]),
        (
            "--performance-mode interactivity --max-cudagraph-capture-size 10",
            NEW,
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        ),
    ],
)
def test_sizes_are_those_of_vllm(options: str, version: str, sizes: list[int]) -> None:
    settled = capture_sizes(config_of(options, LLAMA, H100, version))
    assert settled is not None
    assert list(settled.sizes) == sizes
    assert settled.largest == sizes[-1]
