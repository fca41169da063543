"""The servers of a RayService: its Serve configuration is YAML in a string.

Source: Ray Serve LLM, `ray.serve.llm:build_openai_app`, whose `llm_configs` have `engine_kwargs`
for `AsyncEngineArgs`, and variables for the engine's processes in `runtime_env`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.errors import AdmissionError
from app.kubernetes.annotations import Annotations
from app.kubernetes.made_writer import written_into
from app.kubernetes.manifest import (
    Manifest,
    Path,
    YamlPlaces,
    pointer_of,
    read_documents,
    text_of,
)
from app.kubernetes.paths import value_at, with_value_at, without_at
from app.kubernetes.yaml_edit import edited_yaml
from app.proposal.changes import Change
from app.proposal.proposal import Entrypoint, Form, Hardware, Proposal, Variable
from app.verdict.location import Location

# It takes the HTTP server's settings among the engine's (`VLLMEngineConfig.from_llm_config`).
_PROGRAM: Final = "ray.serve.llm"
_SERVE: Final[Path] = ("spec", "serveConfigV2")
# Keys of `engine_kwargs` that Ray takes for itself.
_OF_RAY: Final = frozenset({"distributed_executor_backend"})
_VARIABLES: Final = ("runtime_env", "env_vars")
_MODELS: Final = ("model_source", "model_id")


def ray_servers(manifest: Manifest, *, editable: bool = True) -> Iterator[Proposal]:
    """Give the engines that a RayService starts."""
    if manifest.kind != "RayService" or not isinstance(manifest.at(_SERVE), str):
        return
    try:
        documents = read_documents(manifest.places.text(_SERVE))
    except AdmissionError:
        return  # it is Ray's to refuse
    for document in documents:
        for path, config in _configs(document):
            server = _server(manifest, document, path, config)
            if editable:
                writer = RayWriter(manifest, document, path, server)
                text = manifest.places.text(_SERVE)
                server = replace(server, source=text_of(manifest), writer=writer, text=text)
            yield server


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
    for name in _MODELS:
        model = loading.get(name) if isinstance(loading, Mapping) else None
        if isinstance(model, str) and "model" not in kwargs:
            kwargs["model"] = model
            places["model"] = _place(document, (*path, "model_loading_config", name))
    given = config.get("engine_kwargs")
    for key, value in given.items() if isinstance(given, Mapping) else ():
        if key not in _OF_RAY:
            kwargs[str(key)] = value
            places[str(key)] = _place(document, (*path, "engine_kwargs", str(key)))
    served = loading.get("model_id") if isinstance(loading, Mapping) else None
    annotations = Annotations(manifest, ())
    product = config.get("accelerator_type")
    return Proposal(
        form=Form.KUBERNETES,
        entrypoint=Entrypoint.ENGINE_ARGS,
        kwargs=kwargs,
        places=places,
        environment=dict(_variables(document, path)),
        command=_place(document, path),
        subject=f"{manifest.title} {served or path[-1]}",
        model_config=annotations.model_config,
        hardware=Hardware(gpu=product) if isinstance(product, str) else None,
        findings=tuple(annotations.findings),
        vllm_version=annotations.vllm_version,
        suppressions=tuple(annotations.suppressions()),
        program=_PROGRAM,
    )


def _variables(document: Manifest, path: Path) -> Iterator[tuple[str, Variable]]:
    """Give the variables of the application, and of the engine, which win."""
    for holder in ((*path[:2], *_VARIABLES), (*path, *_VARIABLES)):
        held = document.at(holder)
        for name, value in held.items() if isinstance(held, Mapping) else ():
            place = replace(_place(document, (*holder, str(name))), variable=str(name))
            yield str(name), Variable(str(name), str(value), place)


def _place(document: Manifest, path: Path) -> Location:
    """Give line and column of a value, and the pointer of the string that it stands in."""
    return replace(document.places.location(path), pointer=pointer_of(_SERVE))


class RayWriter:
    """Writes into one engine of a Serve configuration; gives all of the text around it."""

    def __init__(
        self, manifest: Manifest, document: Manifest, path: Path, server: Proposal
    ) -> None:
        """Keep where the engine is described, and what was read there."""
        self._manifest = manifest
        self._document = document
        self._path = path
        self._kwargs = server.kwargs or {}

    def kwargs(self, new: Mapping[str, Any]) -> str | None:
        """Write changed engine arguments."""
        data: Any = self._document.data
        engine: Path = (*self._path, "engine_kwargs")
        for key in self._kwargs.keys() | new.keys():
            if key in new and repr(new[key]) == repr(self._kwargs.get(key)):
                continue
            if key == "model":
                path = self._model()
                if path is None or key not in new:
                    return None
                data = with_value_at(data, path, new[key])
            elif key in new:
                data = with_value_at(data, (*engine, key), new[key])
            else:
                data = without_at(data, (*engine, key))
        return self._written(data)

    def words(self, proposal: Proposal, change: Change) -> str | None:  # noqa: ARG002 - as in Writer
        """Write nothing: there are no words."""
        return None

    def set_variable(self, proposal: Proposal, name: str, value: str) -> str | None:  # noqa: ARG002 - as in Writer
        """Write an environment variable of the engine."""
        path: Path = (*self._path, *_VARIABLES, name)
        return self._written(with_value_at(self._document.data, path, value))

    def unset_variable(self, proposal: Proposal, name: str) -> str | None:  # noqa: ARG002 - as in Writer
        """Take an environment variable out, wherever it is given."""
        data: Any = self._document.data
        for holder in ((*self._path[:2], *_VARIABLES), (*self._path, *_VARIABLES)):
            if name in (value_at(data, holder) or {}):
                data = without_at(data, (*holder, name))
        return None if data is self._document.data else self._written(data)

    def _model(self) -> Path | None:
        for name in _MODELS:
            path: Path = (*self._path, "model_loading_config", name)
            if isinstance(self._document.at(path), str):
                return path
        return None

    def _written(self, data: Any) -> str | None:
        places = self._document.places
        if not isinstance(places, YamlPlaces):
            return None
        text = edited_yaml(places, self._document.data, data)
        return written_into(self._manifest, with_value_at(self._manifest.data, _SERVE, text))
