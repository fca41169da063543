"""What a cluster puts into a server's environment, and what should not stand there in the open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from app.proposal.workload import Workload
from app.rules.configuration.kubernetes_examples import AREA, READY, deployment
from app.rules.registry import rule
from app.serve_config.serve_config import Origin, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

_SERVICE: Final = "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: models}\n%s"
_SECRETS: Final = frozenset(
    {"VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY"}
    | {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "VLLM_ADMISSION_TOKEN"}
)
# A variable, or what is to be filled in before the manifest is used: `$TOKEN`, `<your token>`.
_PLACEHOLDER: Final = re.compile(r"\$\(|^\$\w+$|^\$\{[^{}]*\}$|^<[^<>]*>$|\{\{.*\}\}")


@rule(
    id="kubernetes-service-named-vllm",
    title="A Service called vllm sets VLLM_PORT to a URL",
    explanation="Kubernetes gives every container variables for the Services of its namespace. For "
    "one called `vllm` that is `VLLM_PORT=tcp://…`, which vLLM reads as its own setting and "
    "refuses, at the next start at the latest.",
    remedy="Call the Service otherwise, or set `enableServiceLinks: false` in the pod.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/envs.py::get_vllm_port",
    bad=(deployment("m", READY, after=_SERVICE % ("vllm", "")),),
    good=(
        deployment("m", READY, after=_SERVICE % ("qwen", "")),
        deployment("m", READY, after=_SERVICE % ("vllm", "spec: {clusterIP: None}\n")),
        deployment("m", READY, pod=("enableServiceLinks: false",), after=_SERVICE % ("vllm", "")),
        deployment(
            "m",
            READY,
            'env: [{name: VLLM_PORT, value: "8100"}]',
            after=_SERVICE % ("vllm", ""),
            note="what the container says itself counts more",
        ),
    ),
)
def service_named_vllm(config: ServeConfig) -> Iterator[Finding]:
    """Look for the Service among the objects that were given."""
    workload = config.workload
    if workload is None or "vllm" not in workload.services:
        return
    if workload.pod.get("enableServiceLinks") is False or "VLLM_PORT" in config.environment:
        return
    yield service_named_vllm.finding(
        "the Service vllm of this namespace sets VLLM_PORT=tcp://…, with which vLLM does not "
        "start; set enableServiceLinks: false",
        location=workload.locate(("enableServiceLinks",)),
    )


@rule(
    id="kubernetes-secret-in-the-open",
    title="A secret stands in the manifest",
    explanation="Arguments and variables of a pod can be read by everybody who may read pods, and "
    "manifests are kept in repositories. The value is not repeated here.",
    remedy="Keep it in a Secret, and take it from there: `valueFrom: {secretKeyRef: …}`, and "
    "`$(NAME)` in arguments; for the key of the API the variable `VLLM_API_KEY` suffices.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/envs.py::VLLM_API_KEY",
    bad=(
        deployment("m --api-key sk-1234", READY),
        deployment("m", READY, "env: [{name: HF_TOKEN, value: hf_1234}]"),
    ),
    good=(
        deployment(
            "m --api-key $(KEY)",
            READY,
            "env: [{name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
        ),
        deployment("m", READY),
    ),
)
def secret_in_the_open(config: ServeConfig) -> Iterator[Finding]:
    """Look for secrets written as they are."""
    workload = config.workload
    if workload is None:
        return
    given = config.setting("api_key")
    if (
        given is not None
        and given.origin is Origin.ARGV
        and not _is_variable(given.location, workload)
    ):
        yield secret_in_the_open.finding(
            "the value of --api-key stands in the manifest; take it from a Secret",
            location=_unquoted(given.location),
        )
    entries = workload.container.get("env")
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not isinstance(entry, Mapping) or str(entry.get("name")) not in _SECRETS:
            continue
        value = entry.get("value")
        if isinstance(value, str) and value and not _PLACEHOLDER.search(value):
            place = workload.locate((*workload.container_path, "env", i, "value"))
            yield secret_in_the_open.finding(
                f"the value of {entry['name']} stands in the manifest; take it from a Secret",
                location=_unquoted(place),
            )


def _is_variable(location: Location | None, workload: Workload) -> bool:
    """Whether a value is taken from a variable, by how it is written."""
    if location is None:
        return True
    if location.text is not None:
        return "$" in location.text
    *_, member, number = (location.pointer or "//").split("/")
    words = workload.container.get(member)
    if not isinstance(words, list) or not number.isdecimal() or int(number) >= len(words):
        return True
    return "$" in str(words[int(number)])


def _unquoted(location: Location | None) -> Location | None:
    """Give the place without what stands there."""
    return None if location is None else replace(location, text=None)
