"""The rules that CEL can express, as a ValidatingAdmissionPolicy.

`python -m app.kubernetes.cel_policy` writes it; `make manifests` puts it into the chart.
Kubernetes advises CEL where it suffices: no webhook to keep alive. CEL sees words, not vLLM's
grammar, so only conflicts of whole words are told, and nothing where a `--config` file, a shell or
an abbreviation could say more. What it refuses the gate refuses too; the tests hold it to that.
Like the gate it leaves alone what is on its way out, what an object owns that is judged itself, and
on an update what was as wrong before: else a cluster could not replace the pods it already runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from app.kubernetes.exceptions import ANNOTATION
from app.rules.registry import default_registry

NAME: Final = "vllm-admission"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Words of one container that a rule refuses: all of `given`, and none of `unless`.

    A word is an option such as `--max-logprobs`, an option and its value, or `NAME=value` of an
    environment variable.
    """

    rule: str
    given: tuple[tuple[str, ...], ...]
    unless: tuple[tuple[str, ...], ...] = ()


_MASK: Final = ("--return-sampling-mask",)
_NO_MASK: Final = ("--no-return-sampling-mask",)

CONFLICTS: Final = (
    Conflict(
        "sampling-mask-logprobs-mode",
        given=(_MASK,),
        unless=(_NO_MASK, ("--logprobs-mode", "processed_logprobs")),
    ),
    Conflict(
        "sampling-mask-logits-processors",
        given=(_MASK, ("--logits-processors",)),
        unless=(_NO_MASK,),
    ),
    Conflict(
        "serve-auto-tool-choice",
        given=(("--enable-auto-tool-choice",),),
        unless=(("--no-enable-auto-tool-choice",), ("--tool-call-parser",)),
    ),
    Conflict(
        "serve-log-outputs",
        given=(("--enable-log-outputs",),),
        unless=(("--no-enable-log-outputs",), ("--enable-log-requests",)),
    ),
)

# Images whose entry point is `vllm serve`, and commands that are.
_IMAGES: Final = "(^|/)vllm/vllm-openai(-rocm|-cpu|-xpu)?(:|@|$)"
_PROGRAMS: Final = (
    "^\n([^\n]*/)?(vllm\nserve|python[0-9.]*\n-m\nvllm[.]entrypoints[.]openai[.]api_server)\n"
)
_TEMPLATE: Final = (
    "object.kind == 'Pod' ? {0} : "
    "object.kind == 'CronJob' ? {0}.spec.jobTemplate.spec.template : {0}.spec.template"
)
_RESOURCES: Final = (
    ("", ["pods", "replicationcontrollers"]),
    ("apps", ["deployments", "statefulsets", "replicasets", "daemonsets"]),
    ("batch", ["jobs", "cronjobs"]),
)
_OWNERS: Final = (
    "v1 ReplicationController",
    "apps/v1 Deployment",
    "apps/v1 StatefulSet",
    "apps/v1 ReplicaSet",
    "apps/v1 DaemonSet",
    "batch/v1 Job",
    "batch/v1 CronJob",
)


def policy() -> dict[str, Any]:
    """Give the ValidatingAdmissionPolicy as a Kubernetes object."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": NAME}},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": list(_resources())},
            "matchConditions": list(_conditions()),
            "variables": [
                {"name": "template", "expression": _TEMPLATE.format("object")},
                {"name": "excepted", "expression": _excepted()},
                {"name": "commands", "expression": f"variables.excepted ? [] : {_commands()}"},
                {
                    "name": "before",
                    "expression": f"oldObject == null ? [] : [{_TEMPLATE.format('oldObject')}]",
                },
                {"name": "commands_before", "expression": _commands_before()},
            ],
            "validations": [_validation(conflict) for conflict in CONFLICTS],
        },
    }


def _conditions() -> Iterator[dict[str, str]]:
    """Say which objects are looked at; the same as the gate's own (review.py)."""
    owners = ", ".join(f"'{owner}'" for owner in _OWNERS)
    mirror, owned = "object.metadata.annotations", "object.metadata.ownerReferences"
    judged = f"has(o.controller) && o.controller && (o.apiVersion + ' ' + o.kind) in [{owners}]"
    conditions = {
        "not-on-its-way-out": "!has(object.metadata.deletionTimestamp)",
        "not-a-mirror-pod": f"!has({mirror}) || !('kubernetes.io/config.mirror' in {mirror})",
        "not-of-a-judged-owner": f"!has({owned}) || !{owned}.exists(o, {judged})",
    }
    for name, expression in conditions.items():
        yield {"name": name, "expression": expression}


def _excepted() -> str:
    """Whether the object has exceptions. Which rules they name is for the gate to read."""
    places = ("object", "variables.template")
    return " || ".join(
        f"(has({place}.metadata) && has({place}.metadata.annotations) && "
        f"'{ANNOTATION}' in {place}.metadata.annotations)"
        for place in places
    )


def _commands(template: str = "variables.template") -> str:
    """Give a text for each container whose words are those of `vllm serve`, a line a word.

    Lines let a pattern ask for an option and its value in one word or in two. A command is left
    out if a `--config` file or a variable may say what its words do not.
    """
    own = f"has(c.image) && c.image.matches({json.dumps(_IMAGES)}) ? ['vllm', 'serve'] : []"
    command = f"(has(c.command) && size(c.command) > 0 ? c.command : {own})"
    # A script in one word has lines of its own.
    words = f"({command} + (has(c.args) ? c.args : [])).map(w, w.replace('\\n', ' '))"
    text = f"'\\n' + {words}.join('\\n') + '\\n'"
    known = (
        f"l.matches({json.dumps(_PROGRAMS)}) && !l.contains('$(') "
        "&& !l.matches('\\n--config(\\n|=)')"
    )
    return f"{template}.spec.containers.map(c, {text}).filter(l, {known})"


def _commands_before() -> str:
    return f"variables.before.map(t, {_commands('t')})"


def _validation(conflict: Conflict) -> dict[str, Any]:
    declaration = default_registry().by_id[conflict.rule]
    given = " && ".join(f"l.matches({_pattern(words)})" for words in conflict.given)
    unless = "".join(
        f" && !l.matches({_pattern(words, abbreviated=True)})" for words in conflict.unless
    )
    wrong = f".exists(l, {given}{unless})"
    return {
        "expression": f"!variables.commands{wrong} || "
        f"variables.commands_before.exists(b, b{wrong})",
        "message": f"{declaration.title}: {declaration.remedy} [{declaration.id}]",
        "reason": "Invalid",
    }


def _pattern(words: tuple[str, ...], *, abbreviated: bool = False) -> str:
    """Give the CEL string of a pattern for an option, with `-` or `_`, and its value.

    What excuses is also taken abbreviated, from its first part on: argparse would.
    """
    option, *value = words
    first, *rest = option.removeprefix("--").split("-")
    tail = "".join(f"-{part}" for part in rest)
    name = first + (_optional(tail) if abbreviated else tail).replace("-", "[-_]")
    ending = f"(\n|=){value[0]}\n" if value else "(\n|=)"
    return json.dumps(f"\n--{name}{ending}")


def _optional(tail: str) -> str:
    """Make each further letter optional: `ab` gives `(a(b)?)?`."""
    return f"({tail[0]}{_optional(tail[1:])})?" if tail else ""


def _resources() -> Iterator[dict[str, Any]]:
    for group, resources in _RESOURCES:
        yield {
            "apiGroups": [group],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": list(resources),
        }


def policy_yaml() -> str:
    """Render it as the file in the chart."""
    text = yaml.safe_dump(policy(), sort_keys=False, width=96, allow_unicode=True)
    return f"# Generated by `make manifests` from app/kubernetes/cel_policy.py.\n{text}"


if __name__ == "__main__":
    sys.stdout.write(policy_yaml())
