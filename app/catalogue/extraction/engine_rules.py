"""What the engine says about sampling replay, and what its choice of model runner depends on.

Sources: `config/vllm.py` (`VllmConfig._verify_sampling_replay_config`,
`_verify_trace_replay_config`, `_validate_batch_sharded_sampling`, `use_v2_model_runner` and the
methods it calls) and `v1/engine/input_processor.py` (`InputProcessor._validate_params`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from app.catalogue.extraction.syntax import (
    Condition,
    FunctionNode,
    Guarded,
    aliases,
    appended,
    condition,
    functions,
    guarded_statements,
    logged_text,
    raised_text,
    slug,
    string_collection,
    template,
)

# A text is named after what its condition looks at, so that a reworded one keeps its name;
# the first name that the condition mentions counts.
_NAMES = (
    ("use_v2_model_runner", "needs_v2_runner"),
    ("enable_adaptive_verification", "adaptive_verification"),
    ("speculative_config", "speculative_decoding"),
    ("is_diffusion", "diffusion"),
    ("logits_processors", "custom_logits_processors"),
    ("logprobs_mode", "processed_logprobs"),
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("max_num_seqs", "max_num_seqs"),
    ("tensor_parallel_size", "tensor_parallel_size"),
    ("max_logprobs", "max_logprobs"),
    ("return_sampling_mask", "sampling_mask"),
    ("is_rocm", "default_on_rocm"),
    ("hisparse_config", "hisparse"),
    ("watermark_config", "watermark"),
    ("HAS_TRITON", "needs_triton"),
    ("_get_v2_model_runner_unsupported_features", "unsupported"),
    ("_get_v1_model_runner_unsupported_features", "unsupported"),
    ("blockers", "blocked"),
)
_UNSUPPORTED = re.compile(r"_get_(\w+?)_(?:model_runner_)?unsupported_features")
_ARCHITECTURE_SET = re.compile(r"V2_MODEL_RUNNER|MODEL_RUNNER_V2|MRV1|MRV2")


def replay_facts(config: ast.Module, input_processor: ast.Module) -> dict[str, Any]:
    """Give `{"messages": {name: text}}` of the rules about sampling and trace replay.

    Names of trace replay start with `trace_`, those of batch-sharded sampling with
    `batch_sharded_`. A rule with an unknown condition is named after its text.
    """
    known = functions(config)
    messages: dict[str, str] = {}
    for method, prefix in (
        ("_verify_sampling_replay_config", ""),
        ("_verify_trace_replay_config", "trace_"),
        ("_validate_batch_sharded_sampling", "batch_sharded_"),
    ):
        if method in known:
            _collect(messages, prefix, known[method])
    request = functions(input_processor).get("_validate_params")
    if request is not None:
        _collect(messages, "", request, only_under="return_sampling_mask")
    return {"messages": messages}


def runner_facts(config: ast.Module) -> dict[str, Any]:
    """Give what `use_v2_model_runner` depends on.

    Members: `default_v2_architectures`, `rocm_v1_architectures`,
    `breakable_graph_architectures`; `decision`, the steps of the
    property in order, with what each reads and gives; `helpers`, the same of the private methods
    that it asks; `unsupported` {"v2", "v1", "dbo": features, each with its label and what it
    depends on}; `messages` {name: text}.
    """
    known = functions(config)
    sets = _architecture_sets(config)
    facts: dict[str, Any] = {
        "default_v2_architectures": sorted(
            {a for name, names in sets.items() if "ROCM" not in name for a in names}
        ),
        "rocm_v1_architectures": _rocm_v1_architectures(config, sets),
        "breakable_graph_architectures": _breakable_graph_architectures(config),
    }
    choice = known.get("use_v2_model_runner")
    facts["decision"] = _decision(choice) if choice is not None else []
    facts["unsupported"] = {
        match[1]: _features(function)
        for name, function in known.items()
        if (match := _UNSUPPORTED.fullmatch(name))
    }
    steps = [*facts["decision"], *(f for fs in facts["unsupported"].values() for f in fs)]
    asked = {read for step in steps for read in step.get("reads", ())}
    facts["helpers"] = {
        name: _decision(known[name])
        for name in sorted(asked)
        if name.startswith("_") and name in known and not _UNSUPPORTED.fullmatch(name)
    }
    messages: dict[str, str] = {}
    if choice is not None:
        _collect(messages, "choice_", choice)
    for method, prefix in (
        ("_validate_v2_model_runner", "v2_"),
        ("_validate_v1_model_runner", "v1_"),
    ):
        if method in known:
            _collect(messages, prefix, known[method])
    facts["messages"] = messages
    return facts


def expert_count_keys(convertor: ast.Module, *imported: ast.Module) -> list[str]:
    """Give the config.json keys from which vLLM takes the number of experts, in order.

    Source: `transformers_utils/model_arch_config_convertor.py::get_num_experts`; a model with
    more than zero experts is a mixture of experts (`ModelConfig.is_moe`). `imported` are modules
    whose tables the function may use.
    """
    function = functions(convertor).get("get_num_experts")
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign):
            keys = string_collection(node.value)
            if keys:
                return keys
            if isinstance(node.value, ast.Subscript):
                tables = (_subscripted(module, node.value) for module in (convertor, *imported))
                return next(filter(None, tables), [])
    return []


def _collect(
    messages: dict[str, str], prefix: str, function: FunctionNode, only_under: str | None = None
) -> None:
    known = aliases(function)
    for guarded in guarded_statements(function.body):
        text = _text(guarded)
        if text is None:
            continue
        about = condition(guarded.tests, known)
        if only_under is not None:
            if not about.mentions(only_under):
                continue
            about = about.without(only_under)
        messages.setdefault(_free(messages, prefix + _name(about, text), text), text)


def _text(guarded: Guarded) -> str | None:
    found = raised_text(guarded.statement) or logged_text(guarded.statement)
    if found is None and (call := appended(guarded.statement)) and call[0] == "append":
        return template(call[1])
    return found


def _name(about: Condition, text: str) -> str:
    parts = {part for read in about.reads for part in read.split(".")}
    return next((name for part, name in _NAMES if part in parts), slug(text))


def _free(messages: dict[str, str], name: str, text: str) -> str:
    """Two texts under one condition: the later one is named after its words."""
    return name if messages.get(name, text) == text else f"{name}_{slug(text)}"


def _decision(function: FunctionNode) -> list[dict[str, Any]]:
    known = aliases(function)
    steps = []
    for guarded in guarded_statements(function.body):
        if isinstance(guarded.statement, ast.Return):
            value = guarded.statement.value
            fact = condition(guarded.tests, known).as_fact()
            if isinstance(value, ast.Constant):
                fact["gives"] = value.value
            elif value is not None:
                fact["gives"] = condition((value,), known).as_fact()
            steps.append(fact)
    return steps


def _features(function: FunctionNode) -> list[dict[str, Any]]:
    known = aliases(function)
    features: list[dict[str, Any]] = []
    for guarded in guarded_statements(function.body):
        about = condition(guarded.tests, known).as_fact()
        call = appended(guarded.statement)
        labels: Iterable[str | None] = ()
        if call is not None and call[0] == "append":
            labels = (template(call[1]),)
        elif call is not None:
            included = condition((call[1],), known).reads
            names = [m[1] for read in included if (m := _UNSUPPORTED.fullmatch(read))]
            features.extend({"includes": name, **about} for name in names)
        elif isinstance(guarded.statement, ast.Return) and guarded.statement.value is not None:
            labels = string_collection(guarded.statement.value) or ()
        features.extend({"label": label, **about} for label in labels if label)
    return features


def _architecture_sets(config: ast.Module) -> dict[str, list[str]]:
    found = {}
    for name, value in _constants(config):
        names = string_collection(value)
        if names and _ARCHITECTURE_SET.search(name):
            found[name] = sorted(names)
    return found


def _breakable_graph_architectures(config: ast.Module) -> list[str]:
    """Architectures that run without compilation, in breakable CUDA graphs, unless told not to.

    A constant of the module, or a list in the condition that asks the variable.
    """
    for name, value in _constants(config):
        names = string_collection(value)
        if names and "BREAKABLE_CUDAGRAPH" in name:
            return sorted(names)
    for node in ast.walk(config):
        if isinstance(node, ast.If) and _asks(node.test, "VLLM_USE_BREAKABLE_CUDAGRAPH"):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Tuple | ast.Set) and (names := string_collection(part)):
                    return sorted(names)
    return []


def _asks(test: ast.expr, text: str) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == text for node in ast.walk(test))


def _rocm_v1_architectures(config: ast.Module, sets: dict[str, list[str]]) -> list[str]:
    """Architectures that run on V1 on ROCm only: a set of their own, or taken off another."""
    found = {a for name, names in sets.items() if "ROCM" in name for a in names}
    for node in ast.walk(config):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Sub)
            and isinstance(node.left, ast.Name)
            and node.left.id in sets
        ):
            found.update(string_collection(node.right) or ())
    return sorted(found)


def _constants(module: ast.Module) -> Iterable[tuple[str, ast.expr]]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value
        elif (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value is not None
        ):
            yield statement.target.id, statement.value


def _subscripted(module: ast.Module, node: ast.Subscript) -> list[str]:
    """Resolve `TABLE["key"]` where TABLE is a dict literal of the module."""
    if not isinstance(node.value, ast.Name) or not isinstance(node.slice, ast.Constant):
        return []
    table = dict(_constants(module)).get(node.value.id)
    if isinstance(table, ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == node.slice.value:
                return string_collection(value) or []
    return []
