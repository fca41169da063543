"""What configuration classes and engine arguments say of a value."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import parser_rule
from app.verdict.finding import Severity

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    parser_rule(
        "unknown-key",
        Severity.ERROR,
        "A JSON setting has a key that this version does not know",
        "The configuration classes forbid unknown keys, and keys are renamed between versions. "
        "Dashes in keys are not turned into underscores.",
        "Use the key that the message suggests, or leave it out.",
        source="vllm/config/utils.py::config",
        bad="vllm serve org/model --compilation-config '{\"modee\": 3}'",
        covers=("cli-dotted-key-dashes", "yaml-nested-unknown-key"),
    ),
    parser_rule(
        "invalid-field-value",
        Severity.ERROR,
        "A setting has a value of the wrong kind",
        "The configuration classes check types and literal values.",
        "Use a value of the kind the message names.",
        source="vllm/config/utils.py::config",
        bad='vllm serve org/model --kv-transfer-config \'{"kv_role": "kv_all"}\'',
        covers=("json-flag-python-error", "union-dict-str"),
    ),
    parser_rule(
        "value-out-of-range",
        Severity.ERROR,
        "A number is outside the range of its setting",
        "The configuration classes bound it, and vLLM ends with a pydantic ValidationError.",
        "Use a number in the range that the message names.",
        source="vllm/config/utils.py::config",
        bad="vllm serve org/model --gpu-memory-utilization 1.5",
    ),
    parser_rule(
        "max-logprobs-range",
        Severity.ERROR,
        "max_logprobs is negative and not -1",
        "`max_logprobs` bounds the logprobs that a request may ask for; -1 allows the whole "
        "vocabulary, other negative numbers are refused.",
        "Use -1, or a number from 0 on.",
        source="vllm/config/model.py::ModelConfig.max_logprobs",
        bad="vllm serve org/model --max-logprobs -2",
        good="vllm serve org/model --max-logprobs -1",
    ),
    parser_rule(
        "kwargs-unknown",
        Severity.ERROR,
        "The engine does not take this argument",
        "`AsyncEngineArgs(**kwargs)` raises TypeError for a name that it has not.",
        "Use the name that the message suggests, or leave it out.",
        source="vllm/engine/arg_utils.py::AsyncEngineArgs",
        good="vllm serve org/model",
    ),
    parser_rule(
        "kwargs-serve-only",
        Severity.WARNING,
        "Only `vllm serve` takes this setting",
        "It belongs to the HTTP server and is no engine argument: `AsyncEngineArgs` raises "
        "TypeError for it. It was read as an option of `vllm serve`.",
        "Give it on the command line of `vllm serve`.",
        source="vllm/engine/arg_utils.py::AsyncEngineArgs",
        good="vllm serve org/model",
    ),
)
