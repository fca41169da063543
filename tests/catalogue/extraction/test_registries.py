"""Reading what a registry names without importing it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any, cast

from app.catalogue.extraction.installed import Vllm
from app.catalogue.extraction.registries import _READERS

FILES = {
    "connectors/whole.py": "class Base: ...\nclass Whole(Base, SupportsHMA): ...\n",
    "connectors/plain.py": "import missing_package\nclass Plain(Base): ...\n",
    "connectors/pull/base.py": "class PullBase(Base, SupportsHMA): ...\n",
    "connectors/pull/one.py": "class Puller(PullBase): ...\nPull = Puller\n",
}


def loader(module_path: str, class_name: str) -> Callable[[], Any]:
    return lambda: (module_path, class_name)


class FakeVllm:
    """Source files, and modules by name."""

    def __init__(self, **modules: Any) -> None:
        self.modules = modules

    def module(self, name: str) -> Any:
        return self.modules[name.rsplit(".", 1)[-1]]

    def files(self, pattern: str) -> list[str]:
        return [name for name in FILES if fnmatch(name, pattern)]

    def syntax_tree(self, relative: str) -> ast.Module:
        return ast.parse(FILES[relative])


def read(registry: str, /, **modules: Any) -> list[str]:
    return cast("list[str]", _READERS[registry](cast("Vllm", FakeVllm(**modules))))


def test_connectors_that_support_the_hybrid_manager_are_read_from_source() -> None:
    registered = {
        "Whole": loader("vllm.connectors.whole", "Whole"),
        "Plain": loader("vllm.connectors.plain", "Plain"),
        "Pull": loader("vllm.connectors.pull", "Pull"),
    }
    factory = SimpleNamespace(KVConnectorFactory=SimpleNamespace(_registry=registered))
    assert read("kv_connectors_hybrid", factory=factory) == ["Pull", "Whole"]


def test_model_types_are_those_of_transformers_and_vllm() -> None:
    found = read(
        "model_types",
        config=SimpleNamespace(_CONFIG_REGISTRY={"ovis": None}),
        transformers=SimpleNamespace(CONFIG_MAPPING={"llama": None}),
    )
    assert found == ["llama", "ovis"]


def test_given_up_architectures_are_looked_up_in_transformers() -> None:
    registry = SimpleNamespace(
        _PREVIOUSLY_SUPPORTED_MODELS={"OldForCausalLM": "0.9", "GoneForCausalLM": "0.8"},
        _OOT_SUPPORTED_MODELS={"BartModel": "https://example.org"},
    )
    transformers = SimpleNamespace(OldForCausalLM=object, BartModel=object)
    found = read("given_up_archs_in_transformers", registry=registry, transformers=transformers)
    assert found == ["BartModel", "OldForCausalLM"]
