"""The whole catalogue of the vLLM that runs here."""

from __future__ import annotations

import platform
from typing import Any

from app.catalogue.extraction.attention_backends import attention_backend_matrix
from app.catalogue.extraction.config_classes import config_class_facts
from app.catalogue.extraction.engine_rules import expert_count_keys, replay_facts, runner_facts
from app.catalogue.extraction.environment import environment_facts
from app.catalogue.extraction.flags import build_parser, flag_facts, parser_facts
from app.catalogue.extraction.installed import Vllm
from app.catalogue.extraction.model_abilities import model_ability_facts
from app.catalogue.extraction.model_configs import model_config_facts
from app.catalogue.extraction.model_facts import model_facts
from app.catalogue.extraction.model_syntax import (
    REGISTRY,
    ModelSources,
    pooling_facts,
    registered,
    with_source,
)
from app.catalogue.extraction.registries import registry_facts
from app.catalogue.extraction.requests import request_facts


def capture(vllm: Vllm, *, version: str | None = None, models: bool = True) -> dict[str, Any]:
    """Give the catalogue as plain JSON values; see `app.catalogue.catalogue.Catalogue`.

    Args:
        vllm: the installed vLLM.
        version: what to call it, where the installed name is not the one users give.
        models: whether to import every model class for its abilities (a minute or more).
    """
    parser, tied = build_parser(vllm)
    flags = flag_facts(vllm, parser)
    engine_args = vllm.module("vllm.engine.arg_utils").AsyncEngineArgs
    config_source = vllm.syntax_tree("config/vllm.py")
    convertor = vllm.syntax_tree("transformers_utils/model_arch_config_convertor.py")
    envs = environment_facts(vllm.syntax_tree("envs.py"))
    for name, fact in envs.items():
        if fact["parse"] == "unknown":
            vllm.note(f"environment variable {name}: parsing not recognised")
    registries = registry_facts(vllm)
    registries["attention_backend_matrix"] = attention_backend_matrix(vllm)
    sources = ModelSources(vllm.source_tree)
    classes = registered(vllm.syntax_tree(REGISTRY))
    catalogue = {
        "vllm_version": version or vllm.version,
        "captured_on_platform": vllm.platform,
        "captured_on_device": vllm.device,
        "python": platform.python_version(),
        "parser": parser_facts(parser),
        "flags": flags,
        "config_classes": config_class_facts(vllm, [*tied, engine_args]),
        "env_vars": envs,
        "registries": registries,
        "replay": replay_facts(config_source, vllm.syntax_tree("v1/engine/input_processor.py")),
        "runner": runner_facts(config_source),
        "requests": request_facts(vllm),
        "expert_count_keys": expert_count_keys(
            convertor, vllm.syntax_tree("transformers_utils/config.py")
        ),
        "model_facts": model_facts(convertor, vllm.syntax_tree("config/model.py")),
        "model_configs": model_config_facts(vllm),
        "model_abilities": (
            with_source(model_ability_facts(vllm), sources, classes) if models else {}
        ),
        "model_pooling": pooling_facts(sources, classes),
    }
    catalogue["not_captured"] = vllm.not_captured
    return catalogue
