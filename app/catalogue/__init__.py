"""Facts about each supported vLLM version, extracted from that vLLM."""

from app.catalogue.catalogue import Catalogue, ConfigClass, ConfigField, EnvironmentFact, Flag
from app.catalogue.library import CatalogueLibrary

__all__ = [
    "Catalogue",
    "CatalogueLibrary",
    "ConfigClass",
    "ConfigField",
    "EnvironmentFact",
    "Flag",
]
