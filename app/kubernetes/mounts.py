"""Files that ConfigMaps of the stream put into a container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.kubernetes.environment import named, texts_of
from app.kubernetes.manifest import Manifest, YamlPlaces
from app.kubernetes.paths import with_value_at
from app.kubernetes.yaml_edit import edited_yaml
from app.proposal.positions import LineIndex


@dataclass(frozen=True, slots=True)
class _File:
    """The key of a ConfigMap that holds a file."""

    held: Manifest
    key: str

    @property
    def text(self) -> str:
        return texts_of(self.held)[self.key]


class Mounted:
    """What the container finds at its mount paths, as far as the stream tells."""

    def __init__(
        self,
        pod: Mapping[str, Any],
        container: Mapping[str, Any],
        stream: Sequence[Manifest],
        namespace: str,
    ) -> None:
        """Find the files of the pod's volumes."""
        self._stream = stream
        self._namespace = namespace
        volumes = {
            volume["name"]: volume
            for volume in _mappings(pod.get("volumes"))
            if isinstance(volume.get("name"), str)
        }
        self._files: dict[str, _File] = {}
        for mount in _mappings(container.get("volumeMounts")):
            name, at = mount.get("name"), mount.get("mountPath")
            volume = volumes.get(name) if isinstance(name, str) else None
            if volume is not None and isinstance(at, str):
                self._files |= self._of(volume, at.rstrip("/"), mount.get("subPath"))

    def texts(self) -> dict[str, str]:
        """Give the texts by path in the container."""
        return {path: file.text for path, file in self._files.items()}

    def places(self) -> dict[str, LineIndex]:
        """Give those that are written in a text, as texts within it."""
        return {
            path: file.held.places.text(("data", file.key))
            for path, file in self._files.items()
            if isinstance(file.held.places, YamlPlaces)
        }

    def written(self, path: str, text: str) -> str:
        """Give the whole stream with another text in the place of a file of `places`.

        Raises:
            ValueError: it is none of those.
        """
        file = self._files[path]
        places, data = file.held.places, file.held.data
        if not isinstance(places, YamlPlaces):
            raise ValueError(f"{path} is not written in a text")
        return edited_yaml(places, data, with_value_at(data, ("data", file.key), text))

    def _of(self, volume: Mapping[str, Any], at: str, sub_path: object) -> dict[str, _File]:
        source = volume.get("configMap")
        if not isinstance(source, Mapping):
            return {}
        held = named(self._stream, "ConfigMap", source.get("name"), self._namespace)
        if held is None:
            return {}
        files = {key: _File(held, key) for key in texts_of(held)}
        items = source.get("items")
        if isinstance(items, list):
            files = {
                str(item["path"]): files[str(item["key"])]
                for item in _mappings(items)
                if "path" in item and str(item.get("key")) in files
            }
        if isinstance(sub_path, str):
            return {at: files[sub_path]} if sub_path in files else {}
        return {f"{at}/{name}": file for name, file in files.items()}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item
