"""Facts about each supported vLLM version, extracted from that vLLM.

The names are imported on first use: `app.catalogue.extract` runs in vLLM's own environment,
where this project's dependencies need not be.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.catalogue.catalogue import (
        Catalogue,
        ConfigClass,
        ConfigField,
        EnvironmentFact,
        Flag,
        ModelTypeFacts,
        ReplayFacts,
        RunnerFacts,
        RunnerStep,
    )
    from app.catalogue.library import CatalogueLibrary

__all__ = [
    "Catalogue",
    "CatalogueLibrary",
    "ConfigClass",
    "ConfigField",
    "EnvironmentFact",
    "Flag",
    "ModelTypeFacts",
    "ReplayFacts",
    "RunnerFacts",
    "RunnerStep",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "library" if name == "CatalogueLibrary" else "catalogue"
    return getattr(import_module(f"{__name__}.{module}"), name)
