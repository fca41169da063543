"""The servers of a RayService: its Serve configuration is YAML in a string.

Source: Ray Serve LLM, `ray.serve.llm:build_openai_app`, whose `llm_configs` have `engine_kwargs`
for `AsyncEngineArgs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.errors import AdmissionError
from app.kubernetes.manifest import Manifest, Path, pointer_of, read_documents, text_of
from app.proposal.proposal import Entrypoint, Form, Proposal
from app.verdict.location import Location

_SERVE: Final[Path] = ("spec", "serveConfigV2")
# Keys of `engine_kwargs` that Ray takes for itself.
_OF_RAY: Final = frozenset({"distributed_executor_backend"})


def ray_servers(manifest: Manifest) -> Iterator[tuple[Manifest, Proposal]]:
    """Give the engines that a RayService starts, each with the document that describes it."""
    if manifest.kind != "RayService" or not isinstance(manifest.at(_SERVE), str):
        return
    try:
        documents = read_documents(manifest.places.text(_SERVE))
    except AdmissionError:
        return  # it is Ray's to refuse
    for document in documents:
        for path, config in _configs(document):
            yield document, _server(manifest, document, path, config)


def _configs(document: Manifest) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    applications = document.at(("applications",))
    for i in range(len(applications) if isinstance(applications, list) else 0):
        at: Path = ("applications", i, "args", "llm_configs")
        configs = document.at(at)
        for j, config in enumerate(configs if isinstance(configs, list) else ()):
            if isinstance(config, Mapping):
                yield (*at, j), config


def _server(
    manifest: Manifest, document: Manifest, path: Path, config: Mapping[str, Any]
) -> Proposal:
    kwargs: dict[str, Any] = {}
    places = {}
    loading = config.get("model_loading_config")
    for name in ("model_source", "model_id"):
        model = loading.get(name) if isinstance(loading, Mapping) else None
        if isinstance(model, str) and "model" not in kwargs:
            kwargs["model"] = model
            at = (*path, "model_loading_config", name)
            places["model"] = _place(document, at)
    given = config.get("engine_kwargs")
    for key, value in given.items() if isinstance(given, Mapping) else ():
        if key not in _OF_RAY:
            kwargs[str(key)] = value
            places[str(key)] = _place(document, (*path, "engine_kwargs", str(key)))
    served = loading.get("model_id") if isinstance(loading, Mapping) else None
    return Proposal(
        form=Form.KUBERNETES,
        entrypoint=Entrypoint.ENGINE_ARGS,
        kwargs=kwargs,
        places=places,
        subject=f"{manifest.title} {served or path[-1]}",
        source=text_of(manifest),
    )


def _place(document: Manifest, path: Path) -> Location:
    """Give line and column of a value, and the pointer of the string that it stands in."""
    return replace(document.places.location(path), pointer=pointer_of(_SERVE))
