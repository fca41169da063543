"""Which versions have a name, and what came in its place: computed from the catalogues.

For messages about a flag, key or variable that the asked version does not have:

    from app.catalogue.compare import shipped_history

    history = shipped_history()                              # read once, then kept
    history.option("--grpc-port", "0.28.0")                  # comes with 0.32.0
    history.option("--enable-bf16x3-router-gemm", "0.33.0")  # had until 0.29.0
    history.dest("enable_mamba_fine_grained_prefix_cache", "0.33.0")
    history.key("KVTransferConfig", "kv_ip", "0.33.0")
    history.variable("VLLM_KIMI_K3_GEMM_RS", "0.33.0")

Each gives None if no version has the name, or the one asked about has it. `Absence.said` is a
clause for a message: "vLLM had it until 0.30.0, and has --enable-… in its place".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from app.catalogue.catalogue import Catalogue, Converter, Flag
from app.catalogue.library import CatalogueLibrary

_Names = Callable[[Catalogue], Collection[str]]


@dataclass(frozen=True, slots=True)
class Absence:
    """A name that some versions have and the one asked about has not.

    `removed` tells whether an earlier version had it (else it comes later); `last` is then the
    last version before the asked one that had it, and `first` the first version of all. `gone`
    is the first version that no longer has it. `replacement` is what stands in its place.
    """

    name: str
    first: str
    last: str
    removed: bool
    gone: str | None = None
    replacement: str | None = None

    @property
    def said(self) -> str:
        """A clause for a message."""
        if not self.removed:
            return f"vLLM has it from {self.first} on"
        instead = f", and has {self.replacement} in its place" if self.replacement else ""
        return f"vLLM had it until {self.last}{instead}"


class History:
    """What each of several versions has, and what a name became."""

    def __init__(self, catalogues: Iterable[Catalogue]) -> None:
        """Keep the catalogues, in any order."""
        self._catalogues = tuple(sorted(catalogues, key=lambda c: c.version))

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions compared, oldest first."""
        return tuple(c.vllm_version for c in self._catalogues)

    @property
    def catalogues(self) -> tuple[Catalogue, ...]:
        """The catalogues compared, oldest first."""
        return self._catalogues

    def option(self, option: str, version: str) -> Absence | None:
        """Tell of an option string as vLLM spells it, such as `--no-enable-lora`."""
        return self._absence(option, version, lambda c: c.by_option, _option_instead)

    def dest(self, dest: str, version: str) -> Absence | None:
        """Tell of an argparse destination, which is the name of an engine argument too."""
        return self._absence(dest, version, lambda c: c.by_dest, _dest_instead)

    def key(self, cls: str, key: str, version: str) -> Absence | None:
        """Tell of a key of a JSON flag: a field of the class that it makes."""

        def fields(catalogue: Catalogue) -> Collection[str]:
            return _fields(catalogue, cls)

        return self._absence(
            key, version, fields, lambda name, then, now: _key_instead(cls, name, then, now)
        )

    def variable(self, name: str, version: str) -> Absence | None:
        """Tell of an environment variable."""
        return self._absence(name, version, lambda c: c.env_vars, _variable_instead)

    def _absence(
        self,
        name: str,
        version: str,
        names: _Names,
        instead: Callable[[str, Catalogue, Catalogue], str | None],
    ) -> Absence | None:
        asked = Version(version)
        having = [c for c in self._catalogues if name in names(c)]
        before = [c for c in having if c.version <= asked]
        if not having or any(c.version == asked for c in having):
            return None
        first = having[0].vllm_version
        if not before:
            return Absence(name, first, having[-1].vllm_version, removed=False)
        last = before[-1]
        now = next((c for c in self._catalogues if c.version > last.version), None)
        if now is None or now.version > asked:  # a version between two that have it
            return None
        found = instead(name, last, now)
        if found is not None and found in names(now):  # it may itself have been renamed since
            later = self._absence(found, version, names, instead)
            found = found if later is None else later.replacement
        return Absence(name, first, last.vllm_version, True, now.vllm_version, found)


@functools.cache
def shipped_history() -> History:
    """Give the history over the catalogues that are shipped with the project."""
    library = CatalogueLibrary()
    return History(library.get(version) for version in library.versions)


def option_instead(flag: Flag, option: str, now: Catalogue) -> str | None:
    """Give the spelling that `now` has for what `option` of an older flag said; None if none."""
    current = now.by_dest.get(flag.dest)
    if current is None:
        return None
    if option not in flag.negative_options:
        return current.name
    shown = (o for o in current.options if o in current.negative_options)
    return next(shown, next(iter(current.negative_options), None))


def json_class(flag: Flag) -> str | None:
    """Give the class whose fields are the keys of a JSON flag; None if it is no such flag."""
    converter: Converter | None = flag.converter
    while converter is not None:
        if converter.cls is not None:
            return converter.cls
        converter = converter.of
    return None


def _option_instead(option: str, then: Catalogue, now: Catalogue) -> str | None:
    flag = then.by_option[option]
    if flag.dest in now.by_dest:
        return option_instead(flag, option, now)
    became = _dest_instead(flag.dest, then, now)
    current = now.by_dest.get(became or "")
    if current is None:
        return became
    if option not in flag.negative_options:
        return current.name
    return next(iter(current.negative_options), None)


def _dest_instead(dest: str, then: Catalogue, now: Catalogue) -> str | None:
    """Give the flag that took its place, or the JSON key that still sets its field."""
    current = now.by_dest.get(_successor(dest, list(then.by_dest), list(now.by_dest)) or "")
    before = then.by_dest[dest]
    if current is not None and _alike(before, current):
        return current.dest
    cls, name = before.config_class, before.config_field
    if cls is not None and name is not None and name in _fields(now, cls):
        holder = next((f for f in now.flags if json_class(f) == cls), None)
        return None if holder is None else f"{holder.name}.{name}"
    return None


def _alike(before: Flag, after: Flag) -> bool:
    return (before.nargs, before.conv, before.choices) == (after.nargs, after.conv, after.choices)


def _key_instead(cls: str, key: str, then: Catalogue, now: Catalogue) -> str | None:
    became = _successor(key, list(_fields(then, cls)), list(_fields(now, cls)))
    if became is not None:
        before, after = _fields(then, cls)[key], _fields(now, cls)[became]
        return became if before == after else None
    moved = [
        flag
        for flag in now.flags
        if (holder := json_class(flag)) is not None
        and key in _fields(now, holder)
        and key not in _fields(then, holder)
    ]
    return f"{moved[0].name}.{key}" if len(moved) == 1 else None


def _variable_instead(name: str, then: Catalogue, now: Catalogue) -> str | None:
    became = _successor(name, list(then.env_vars), list(now.env_vars))
    if became is not None:
        return became
    flag = now.by_dest.get(name.removeprefix("VLLM_").lower())
    return None if flag is None or not flag.options else flag.name


def _fields(catalogue: Catalogue, cls: str) -> Mapping[str, object]:
    known = catalogue.config_classes.get(cls)
    return {} if known is None else known.fields


def _successor(name: str, before: Sequence[str], after: Sequence[str]) -> str | None:
    """Give the one new name between the neighbours that the old name had.

    vLLM declares flags, fields and variables in an order of its own; what is renamed keeps its
    place, while what is removed leaves none.
    """
    at, kept, old = before.index(name), set(after), set(before)
    left = next((other for other in reversed(before[:at]) if other in kept), None)
    right = next((other for other in before[at + 1 :] if other in kept), None)
    start = 0 if left is None else after.index(left) + 1
    end = len(after) if right is None else after.index(right)
    fresh = [other for other in after[start:end] if other not in old]
    return fresh[0] if len(fresh) == 1 and end - start == 1 else None
