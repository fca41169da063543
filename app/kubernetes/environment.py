"""The environment of a container: `env`, and `envFrom` as far as its sources are in the stream.

Source: Kubernetes, `pkg/kubelet/kubelet_pods.go::makeEnvironmentVariables`: `envFrom` first, in
order, then `env`, in order; later ones win, and `$(NAME)` sees what came before.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.kubernetes.expansion import Expanded, Room
from app.kubernetes.manifest import OBJECT, JsonPlaces, Manifest, Path, pointer_of
from app.proposal.proposal import Variable
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

# What a variable is open for whose value comes from elsewhere: it names no shell variable.
_ELSEWHERE = "secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef"

_GROUP = "leaderWorkerTemplate"  # of a LeaderWorkerSet, or of what makes them (DisaggregatedSet)
POD_INDEX = "LWS_WORKER_INDEX"
_PAIR = 2  # a leader and one worker, whose index is then known


class Environment:
    """Reads a container's variables; `findings` are what came up.

    `indices` are those of pods of a group that the container is started in with each its own:
    of the first ones and the last.
    """

    def __init__(
        self,
        manifest: Manifest,
        container: Path,
        stream: Sequence[Manifest],
        index: int | None = None,
    ) -> None:
        """Take the container; `index` is the pod's in its group, where one is looked at alone."""
        self._manifest = manifest
        self._path = container
        self._stream = stream
        self._index = index
        self.indices: tuple[int, ...] = ()
        self.room = Room()
        self._entries = pointer_of((*container, "env"))
        self.findings: list[Finding] = []

    def read(self) -> dict[str, Variable]:
        """Give the variables by name, as the container's process gets them."""
        variables: dict[str, Variable] = {}
        for variable in self._sources():
            variables[variable.name] = variable
        group = {variable.name: variable for variable in self._group()}
        variables.update(group)
        entries = self._manifest.at((*self._path, "env"))
        for i, entry in enumerate(entries if isinstance(entries, list) else ()):
            name = entry.get("name") if isinstance(entry, Mapping) else None
            if isinstance(name, str) and name and name not in group:
                variables[name] = self._entry(name, entry, (*self._path, "env", i), variables)
        return variables

    def _group(self) -> Iterator[Variable]:
        """Give what a LeaderWorkerSet's webhook sets, before the container's own `env`.

        Source: LeaderWorkerSet, `pkg/utils/pod/pod_utils.go::AddLWSVariables`: its own win.
        """
        if _GROUP not in self._path[:-1]:
            return
        depth = self._path.index(_GROUP) + 1
        template = self._path[:depth]
        size = self._manifest.at((*template, "size"))
        known = 1 if size is None else size  # the default of the API
        if not isinstance(known, int) or isinstance(known, bool) or known < 1:
            known = None
        index = self._index
        leads = isinstance(self._manifest.at((*template, "leaderTemplate")), Mapping)
        if self._path[depth] == "leaderTemplate" or known == 1:
            index = 0
        elif known == _PAIR and leads:
            index = 1
        elif index is None and known is not None:
            first = 1 if leads else 0
            self.indices = tuple(dict.fromkeys((first, first + 1, known - 1)))
        place: Path = (*template, "size") if size is not None else template
        values = {"LWS_LEADER_ADDRESS": None, "LWS_GROUP_SIZE": known, POD_INDEX: index}
        for name, value in values.items():
            at = replace(self._manifest.places.location(place), variable=name)
            if value is None:
                yield Variable(name, f"$({name})", at, (name,))
            else:
                yield Variable(name, str(value), at)

    def _entry(
        self, name: str, entry: Mapping[str, Any], path: Path, variables: Mapping[str, Variable]
    ) -> Variable:
        place = self._place(path, name)
        if (source := entry.get("valueFrom")) is not None:
            known = self._looked_up(source)
            if known is not None:
                return Variable(name, known, place)
            return Variable(name, f"$({name})", place, (name,))
        value = entry.get("value")
        if value is not None and not isinstance(value, str):
            self.findings.append(not_a_string(self._manifest, (*path, "value"), value))
            return Variable(name, _as_written(value), place)
        if not value:
            return Variable(name, "", place)
        if "$" not in value:
            return Variable(name, value, place)
        text = self._manifest.places.text((*path, "value"))
        expanded = Expanded(text, variables, self.room)
        return Variable(name, expanded.text.text, place, expanded.unresolved)

    def _place(self, path: Path, name: str) -> Location:
        if isinstance(self._manifest.places, JsonPlaces):  # quicker: there may be hundreds
            return Location(source=OBJECT, pointer=f"{self._entries}/{path[-1]}", variable=name)
        return replace(self._manifest.places.location(path), variable=name)

    def _looked_up(self, source: object) -> str | None:
        """Give the value of a key of a ConfigMap or Secret in the stream."""
        if not isinstance(source, Mapping):
            return None
        for member, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            reference = source.get(member)
            if isinstance(reference, Mapping):
                held = self._named(kind, reference.get("name"))
                return None if held is None else texts_of(held).get(str(reference.get("key")))
        return None

    def _sources(self) -> Iterator[Variable]:
        sources = self._manifest.at((*self._path, "envFrom"))
        for i, source in enumerate(sources if isinstance(sources, list) else ()):
            path: Path = (*self._path, "envFrom", i)
            if not isinstance(source, Mapping):
                continue
            for member, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                reference = source.get(member)
                if isinstance(reference, Mapping):
                    yield from self._all_of(kind, reference, path, str(source.get("prefix") or ""))

    def _all_of(
        self, kind: str, reference: Mapping[str, Any], path: Path, prefix: str
    ) -> Iterator[Variable]:
        name = reference.get("name")
        held = self._named(kind, name)
        place = self._manifest.places.location(path)
        if held is None:
            self.findings.append(
                Finding(
                    rule="kubernetes-environment-unseen",
                    severity=Severity.INFO,
                    message=(
                        f"the variables of {kind} {name!r} are not known: it is not among the "
                        "objects that were given"
                    ),
                    location=place,
                )
            )
            return
        for key, value in texts_of(held).items():
            # What a Secret holds is not to be shown: its place is that of its name.
            at = held.places.location(("data", key)) if kind == "ConfigMap" else place
            yield Variable(f"{prefix}{key}", value, replace(at, variable=f"{prefix}{key}"))

    def _named(self, kind: str, name: object) -> Manifest | None:
        return named(self._stream, kind, name, self._manifest.namespace)


def named(stream: Sequence[Manifest], kind: str, name: object, namespace: str) -> Manifest | None:
    """Find an object of the core group by its name, in the namespace if both say theirs."""
    for manifest in stream:
        here = not namespace or manifest.namespace in {"", namespace}
        if here and (manifest.group, manifest.kind, manifest.name) == ("", kind, name):
            return manifest
    return None


def texts_of(held: Manifest) -> dict[str, str]:
    """Give the texts that a ConfigMap or Secret holds, by key; what is no text is left out."""
    texts = {}
    for member in ("data", "stringData"):
        values = held.data.get(member)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, str):
                text = _decoded(value) if (held.kind, member) == ("Secret", "data") else value
                if text is not None:
                    texts[str(key)] = text
    return texts


def _decoded(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def not_a_string(manifest: Manifest, path: Path, value: object) -> Finding:
    """Say that Kubernetes refuses a number or boolean where a string has to be."""
    return Finding(
        rule="kubernetes-not-a-string",
        severity=Severity.ERROR,
        message=f"Kubernetes refuses {_as_written(value)} here: it is no string; put it in quotes",
        location=manifest.places.location(path),
    )


def _as_written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
