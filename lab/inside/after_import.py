"""Runs a function on a module right after that module was executed."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# A patch sets attributes that only exist at run time, so it takes the module as Any.
Patch = Callable[[Any], None]
_patches: dict[str, list[Patch]] = {}
_looking_for: set[str] = set()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _patches or fullname in _looking_for:
            return None
        _looking_for.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            _looking_for.discard(fullname)
        if spec is not None and spec.loader is not None:
            _extend(spec.loader, _patches[fullname])
        return spec


def _extend(loader: Any, patches: list[Patch]) -> None:
    execute = loader.exec_module

    def execute_and_patch(module: ModuleType) -> None:
        execute(module)
        for patch in patches:
            patch(module)

    loader.exec_module = execute_and_patch


def patch_after_import(name: str, patch: Patch) -> None:
    """Have `patch` called with the module `name` once it is imported."""
    if not _patches:
        sys.meta_path.insert(0, _Finder())
    _patches.setdefault(name, []).append(patch)
