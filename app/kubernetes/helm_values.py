"""Values of Helm charts in the objects that have them installed.

Sources: Flux, HelmRelease `spec.values`; Argo CD, Application `spec.source(s).helm.valuesObject`;
bjw-s-labs, the chart `app-template`, whose containers are a mapping by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.kubernetes.manifest import Manifest, Path
from app.kubernetes.placed import Maker, Role

_PROBES: Final = {
    "liveness": "livenessProbe",
    "readiness": "readinessProbe",
    "startup": "startupProbe",
}
_KEPT: Final = ("command", "envFrom", "resources", "workingDir")


def values_in(manifest: Manifest) -> Iterator[Path]:
    """Give the places of the values that an object gives to charts."""
    helm = "helm", "valuesObject"
    paths: list[Path] = [("spec", "values"), ("spec", "source", *helm)]
    sources = manifest.at(("spec", "sources"))
    count = len(sources) if isinstance(sources, list) else 0
    paths.extend(("spec", "sources", i, *helm) for i in range(count))
    yield from (path for path in paths if isinstance(manifest.at(path), Mapping))


def app_template(manifest: Manifest, values: Path) -> Iterator[Manifest]:
    """Read the containers of `app-template`'s controllers."""
    for name, _ in _members(manifest, (*values, "controllers")):
        at: Path = (*values, "controllers", name)
        for member in ("initContainers", "containers"):
            for called, container in _members(manifest, (*at, member)):
                if isinstance(container, Mapping):
                    place = (*at, member, called)
                    maker = Maker(manifest)
                    _pod(maker, manifest, ((*values, "defaultPodOptions"), (*at, "pod")))
                    direct = _container(maker, container, place)
                    yield maker.made(f"{name} {called}", place, direct=direct)


def _pod(maker: Maker, manifest: Manifest, places: tuple[Path, ...]) -> None:
    for place in places:
        for key, value in _members(manifest, place):
            maker.set_pod(key, value, (*place, key))


def _container(maker: Maker, container: Mapping[str, Any], place: Path) -> bool:
    """Take what the container says; say whether its words and variables stand there as a pod's."""
    image = container.get("image")
    if isinstance(image, Mapping) and image.get("repository"):
        tag = image.get("tag")
        text = f"{image['repository']}:{tag}" if tag else str(image["repository"])
        maker.set("image", text, (*place, "image", "tag" if tag else "repository"))
    for key in _KEPT:
        maker.set(key, container.get(key), (*place, key))
    arguments = container.get("args")
    for i, word in enumerate(arguments if isinstance(arguments, list) else ()):
        maker.word(word, (*place, "args", i), Role.ITEM)
    if isinstance(arguments, str):
        maker.word(arguments, (*place, "args"))
    variables = container.get("env")
    maker.plan.words, maker.plan.variables = (*place, "args"), (*place, "env")
    if isinstance(variables, Mapping):
        maker.plan.named = True
        maker.set("env", [_entry(*pair) for pair in variables.items()], (*place, "env"))
        maker.name_variables(variables, (*place, "env"))
    else:
        maker.set("env", variables, (*place, "env"))
    for probe, key in _PROBES.items():
        held: Any = container.get("probes")
        for step in (probe, "spec"):
            held = held.get(step) if isinstance(held, Mapping) else None
        maker.set(key, held, (*place, "probes", probe, "spec"))
    return not isinstance(variables, Mapping) and not isinstance(arguments, str)


def _entry(name: object, value: object) -> dict[str, Any]:
    """Give an entry of `env` for one of the mapping, whose numbers the chart writes as text."""
    if isinstance(value, Mapping):
        return {"name": str(name), **value}
    if isinstance(value, bool):
        value = str(value).lower()
    return {"name": str(name), "value": "" if value is None else str(value)}


def _members(manifest: Manifest, path: Path) -> Iterator[tuple[str, Any]]:
    held = manifest.at(path)
    for key, value in held.items() if isinstance(held, Mapping) else ():
        yield str(key), value
