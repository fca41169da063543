"""What a model's source says of its class."""

from __future__ import annotations

import ast

from app.catalogue.extraction.model_syntax import (
    ModelSources,
    pooling_facts,
    registered,
    with_source,
)

FILES = {
    "model_executor/models/registry.py": (
        '_TEXT = {"A": ("a", "AForCausalLM"), "B": ("b", "BModel"), "C": ("vllm.models.c", "C")}\n'
    ),
    "model_executor/models/interfaces.py": (
        "class IsHybrid:\n    is_hybrid: ClassVar[Literal[True]] = True\n"
        "class SupportsMRoPE:\n    supports_mrope = True\n"
    ),
    "model_executor/models/a.py": (
        "from .interfaces import IsHybrid as Hybrid\n"
        "class Base(Hybrid):\n    pass\n"
        "class AForCausalLM(Base, Generic[T]):\n    pass\n"
    ),
    "model_executor/models/b.py": (
        '@attn_type("encoder_only")\n@default_pooling_type(seq_pooling_type="CLS")\n'
        "class BModel(BModel):\n    supports_mrope = False\n"
    ),
    "models/c/__init__.py": "from .inner import C\n",
    "models/c/inner.py": (
        "from vllm.model_executor.models.interfaces import SupportsMRoPE\n"
        "class C(SupportsMRoPE):\n    pass\n"
    ),
}
SOURCES = ModelSources(lambda name: ast.parse(FILES[name]) if name in FILES else None)
MODELS = registered(ast.parse(FILES["model_executor/models/registry.py"]))


def test_inherited_attributes_tell_what_could_not_be_inspected() -> None:
    inspected = {"is_hybrid": ["B"], "supports_mrope": [], "not_inspected": ["A", "C"]}
    assert with_source(inspected, SOURCES, MODELS) == {
        "is_hybrid": ["A", "B"],
        "supports_mrope": ["C"],
        "not_inspected": ["A", "C"],
        "read_in_source": ["is_hybrid", "supports_mrope"],
    }


def test_decorators_tell_how_a_model_pools() -> None:
    assert pooling_facts(SOURCES, MODELS) == {
        "B": {"default_seq_pooling_type": "CLS", "attn_type": "encoder_only"}
    }


def test_a_model_without_source_has_nothing() -> None:
    assert SOURCES.attributes("model_executor.models.gone", "Gone") == {}
