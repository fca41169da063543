"""Custom resources that say in their own words what a server is to be.

Each reader gives objects with a pod as Kubernetes would have it, made from the resource. Sources:
the resources' own definitions (KServe `v1beta1`, `v1alpha1`; KubeAI `kubeai.org/v1`; llm-d's
`InferenceServerConfig`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from app.kubernetes.helm_values import app_template, values_in
from app.kubernetes.llm_service import Parallelism
from app.kubernetes.manifest import Manifest, Path
from app.kubernetes.members import as_list, as_text
from app.kubernetes.placed import Maker, Role
from app.kubernetes.presumed import is_telling
from app.kubernetes.stack import stack_runtime, stack_values

_MODELS: Final = "/mnt/models"
_RUNTIME: Final[Path] = ("spec", "runtime")
_ADDITIONAL: Final = "VLLM_ADDITIONAL_ARGS"
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
# Formats whose servers take vLLM's arguments, whatever runtime has them.
_FORMATS: Final = frozenset({"huggingface", "vllm"})
_HUGGING_FACE: Final = ("python3", "-m", "huggingfaceserver")


def made_of(manifest: Manifest, stream: Sequence[Manifest]) -> tuple[Manifest, ...] | None:
    """Give the objects that a custom resource stands for; None if it is none of these kinds."""
    if "servingEngineSpec" in manifest.data:
        return tuple(stack_values(manifest))
    reader = _READERS.get((manifest.group, manifest.kind))
    if reader is None:
        return None
    if "sglang" in str(manifest.at(_RUNTIME)):  # KServe's other engine
        return ()
    return tuple(reader(manifest, stream)) or None


def _helm(manifest: Manifest, _: Sequence[Manifest]) -> Iterator[Manifest]:
    """Read an object that has a chart installed, by the values it gives."""
    for at in values_in(manifest):
        yield from stack_values(manifest, at)
        yield from app_template(manifest, at)


def _kubeai(manifest: Manifest, _: Sequence[Manifest]) -> Iterator[Manifest]:
    """Read a Model of KubeAI."""
    if manifest.at(("spec", "engine")) != "VLLM":
        return
    maker = Maker(manifest)
    maker.set("image", manifest.at(("spec", "image")), ("spec", "image"))
    maker.set("command", ["vllm", "serve"], ("spec",))
    url = as_text(manifest.at(("spec", "url")))
    maker.word(url.removeprefix("hf://").partition("?")[0], ("spec", "url"))
    maker.plan.words = ("spec", "args")
    for i, word in enumerate(as_list(manifest.at(maker.plan.words))):
        maker.word(as_text(word), ("spec", "args", i), Role.ITEM)
    _named_variables(maker, manifest, ("spec", "env"))
    yield maker.made("server", ("spec",))


def _named_variables(maker: Maker, manifest: Manifest, at: Path) -> None:
    """Take variables from a mapping."""
    maker.plan.variables, maker.plan.named = at, True
    variables = manifest.at(at)
    if isinstance(variables, Mapping):
        listed = [{"name": name, "value": value} for name, value in variables.items()]
        maker.set("env", listed, at)
        maker.name_variables(variables, at)


def _server_config(manifest: Manifest, stream: Sequence[Manifest]) -> Iterator[Manifest]:
    """Read an InferenceServerConfig of llm-d's fast model actuation.

    A launcher starts the servers on its GPUs; those that sleep keep a part of the memory.
    """
    at: Path = ("spec", "modelServerConfig", "options")
    options = manifest.at(at)
    if not isinstance(options, str):
        return
    maker = Maker(manifest)
    maker.set("command", ["python3", "-m", "vllm.entrypoints.openai.api_server"], at)
    maker.plan.text = at
    for word in _split(options):
        maker.word(word, at, Role.TEXT)
    _named_variables(maker, manifest, ("spec", "modelServerConfig", "env_vars"))
    name = manifest.at(("spec", "launcherConfigName"))
    launcher = next((o for o in stream if o.kind == "LauncherConfig" and o.name == name), None)
    alone = launcher is not None and (
        launcher.at(("spec", "maxInstances")) == 1
        or launcher.at(("spec", "maxSleepingInstances")) == 0
    )
    if not alone:
        maker.annotate("dual-pods.llm-d.ai/inference-server-config", manifest.name, at)
    yield maker.made("server", at)


def _inference_service(manifest: Manifest, stream: Sequence[Manifest]) -> Iterator[Manifest]:
    """Read an InferenceService of KServe whose predictor names a runtime, or a format."""
    at: Path = ("spec", "predictor", "model")
    model = manifest.at(at)
    if not isinstance(model, Mapping):
        return
    runtime = _named_runtime(stream, model.get("runtime"))
    containers = None if runtime is None else runtime.at(("spec", "containers"))
    base = containers[0] if isinstance(containers, list) and containers else {}
    kind = manifest.at((*at, "modelFormat", "name"))
    words = [as_text(word) for word in as_list(model.get("args"))]
    known = str(kind).lower() in _FORMATS or any(map(is_telling, words))
    if not isinstance(base, Mapping) or not (base or known):
        return
    maker = Maker(manifest)
    for key in ("image", *_PROBES):
        own = model.get(key)
        maker.set(key, base.get(key) if own is None else own, (*at, key))
    given = base.get("command")
    if given is not None or not base:
        maker.set("command", list(given or _HUGGING_FACE), at)
    for held, where in ((base.get("args"), at), (model.get("args"), (*at, "args"))):
        for i, word in enumerate(held if isinstance(held, list) else ()):
            # `{{.Name}}` is what KServe puts there.
            if where is at:
                maker.word(as_text(word), at)
            else:
                maker.word(as_text(word), (*where, i), Role.ITEM)
    maker.plan.words, maker.plan.variables = (*at, "args"), (*at, "env")
    own_variables, variables = model.get("env"), base.get("env")
    listed = [*as_list(variables), *as_list(own_variables)]
    maker.set("env", listed or None, (*at, "env"))
    maker.set("resources", model.get("resources") or base.get("resources"), (*at, "resources"))
    mounts = [*as_list(base.get("volumeMounts")), *as_list(model.get("volumeMounts"))]
    maker.set("volumeMounts", mounts or None, (*at, "volumeMounts"))
    volumes = [] if runtime is None else as_list(runtime.at(("spec", "volumes")))
    predictor: Path = at[:-1]
    volumes = [*volumes, *as_list(manifest.at((*predictor, "volumes")))]
    maker.set_pod("volumes", volumes or None, (*predictor, "volumes"))
    for key in ("nodeSelector", "affinity", "schedulerName", "resourceClaims"):
        maker.set_pod(key, manifest.at((*predictor, key)), (*predictor, key))
    maker.plan.partial = not base
    yield maker.made("kserve-container", at)


def _named_runtime(stream: Sequence[Manifest], name: object) -> Manifest | None:
    kinds = {"ServingRuntime", "ClusterServingRuntime"}
    for other in stream:
        if other.kind in kinds and other.name == name:
            return other
    return None


_LLM_PODS: Final[tuple[Path, ...]] = (
    ("spec", "template"),
    ("spec", "worker"),
    ("spec", "prefill", "template"),
    ("spec", "prefill", "worker"),
)


def _llm_service(manifest: Manifest, _: Sequence[Manifest]) -> Iterator[Manifest]:
    """Read an LLMInferenceService of KServe, whose containers may leave their command to it.

    KServe's own command is `vllm serve /mnt/models … ${VLLM_ADDITIONAL_ARGS}`.
    """
    for at in _LLM_PODS:
        pod = manifest.at(at)
        containers = pod.get("containers") if isinstance(pod, Mapping) else None
        for i, container in enumerate(as_list(containers)):
            if not isinstance(container, Mapping) or container.get("name") != "main":
                continue
            maker, place = Maker(manifest), (*at, "containers", i)
            for key, value in container.items():
                if key not in {"name", "args"}:
                    maker.set(key, value, (*place, key))
            for key, value in pod.items():
                if key != "containers":
                    maker.set_pod(key, value, (*at, key))
            own, parallelism = bool(container.get("command")), Parallelism(manifest, at)
            maker.set_pod("podGroupSize", parallelism.group_size, parallelism.place)
            variables = as_list(container.get("env"))
            if own:
                maker.set("args", container.get("args"), (*place, "args"))
            else:
                variables = _llm_arguments(maker, container, place, parallelism)
                if "omni" in str(manifest.at(_RUNTIME)):
                    maker.word("--omni", _RUNTIME)
            maker.set_variables(
                variables, (*place, "env"), parallelism.variables(), parallelism.place
            )
            yield maker.made("-".join(map(str, at[1:])) + " main", place, direct=own)


def _llm_config(manifest: Manifest, stream: Sequence[Manifest]) -> Iterator[Manifest]:
    """Read an LLMInferenceServiceConfig that adds arguments to KServe's command.

    Those that KServe ships have a command of their own, and are read as any pod is.
    """
    if any(_adds_arguments(manifest.at((*at, "containers"))) for at in _LLM_PODS):
        yield from _llm_service(manifest, stream)


def _adds_arguments(containers: object) -> bool:
    mains = (c for c in as_list(containers) if isinstance(c, Mapping) and c.get("name") == "main")
    return any(
        bool(main.get("args"))
        or any(
            isinstance(e, Mapping) and e.get("name") == _ADDITIONAL
            for e in as_list(main.get("env"))
        )
        for main in mains
        if not main.get("command")
    )


def _llm_arguments(
    maker: Maker, container: Mapping[str, Any], place: Path, parallelism: Parallelism
) -> list[Any]:
    """Make the arguments that KServe itself gives, with those of the variable.

    Gives the entries of `env` that are left for vLLM.
    """
    maker.set("command", ["vllm", "serve"], place)
    maker.word(_MODELS, place)
    variables: list[Any] = list(as_list(container.get("env")))
    names = frozenset(str(entry.get("name")) for entry in variables if isinstance(entry, Mapping))
    for word, source in parallelism.words(names):
        maker.word(word, source)
    arguments: Path = (*place, "args")
    maker.plan.variables = (*place, "env")
    if container.get("args"):
        maker.plan.words = arguments
    else:
        maker.plan.text_variable = _ADDITIONAL
    for i, entry in enumerate(variables):
        if isinstance(entry, Mapping) and entry.get("name") == _ADDITIONAL:
            at: Path = (*place, "env", i, "value")
            if maker.plan.words is None:
                maker.plan.text, maker.plan.text_variable = at, None
            for word in _split(entry.get("value")):
                maker.word(word, at, Role.TEXT)
            variables[i] = None  # it is for the shell that KServe starts vLLM with
    for i, word in enumerate(as_list(container.get("args"))):
        maker.word(as_text(word), (*arguments, i), Role.ITEM)
    return variables


def _split(text: object) -> list[str]:
    try:
        return shlex.split(text) if isinstance(text, str) else []
    except ValueError:
        return []


_Reader: TypeAlias = Callable[[Manifest, Sequence[Manifest]], Iterator[Manifest]]
_READERS: Final[dict[tuple[str, str], _Reader]] = {
    ("production-stack.vllm.ai", "VLLMRuntime"): stack_runtime,
    ("kubeai.org", "Model"): _kubeai,
    ("helm.toolkit.fluxcd.io", "HelmRelease"): _helm,
    ("argoproj.io", "Application"): _helm,
    ("serving.kserve.io", "LLMInferenceService"): _llm_service,
    ("serving.kserve.io", "LLMInferenceServiceConfig"): _llm_config,
    ("serving.kserve.io", "InferenceService"): _inference_service,
    ("fma.llm-d.ai", "InferenceServerConfig"): _server_config,
}
