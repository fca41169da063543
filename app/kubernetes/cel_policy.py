"""The rules that CEL can express, as a ValidatingAdmissionPolicy.

`python -m app.kubernetes.cel_policy` writes it; `make manifests` puts it into the chart.
Kubernetes advises CEL where it suffices: no webhook to keep alive. CEL sees words, not vLLM's
grammar, so only conflicts of whole words are told, and nothing where a `--config` file, a shell or
an abbreviation could say more. Values of options are told of for images of releases that have a
catalogue: others may take further ones. What it refuses the gate refuses too; the tests hold it to
that. Like the gate it leaves alone what is on its way out, what an object owns that is judged
itself, and on an update what was as wrong before: else a cluster could not replace the pods that it
already runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from app.catalogue import CatalogueLibrary
from app.catalogue.catalogue import Flag
from app.kubernetes.annotations import VERSION
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
    "^\n[^\n]*\n([^\n]*/)?"
    "(vllm\nserve|python[0-9.]*\n-m\nvllm[.]entrypoints[.]openai[.]api_server)\n"
)
_RELEASED: Final = "variables.released"
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
                {"name": "excepted", "expression": _annotated(ANNOTATION)},
                {"name": "versioned", "expression": _annotated(VERSION)},
                {"name": "commands", "expression": f"variables.excepted ? [] : {_commands()}"},
                {
                    "name": "before",
                    "expression": f"oldObject == null ? [] : [{_TEMPLATE.format('oldObject')}]",
                },
                {"name": "commands_before", "expression": _commands_before()},
                {"name": "released", "expression": _released()},
                {"name": "choices", "expression": json.dumps(_choices())},
            ],
            "validations": [*map(_validation, CONFLICTS), _no_choice(), _no_number()],
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


def _annotated(annotation: str) -> str:
    """Whether the object or its template has the annotation. What it says is for the gate."""
    places = ("object", "variables.template")
    return " || ".join(
        f"(has({place}.metadata) && has({place}.metadata.annotations) && "
        f"'{annotation}' in {place}.metadata.annotations)"
        for place in places
    )


def _commands(template: str = "variables.template") -> str:
    """Give a text for each container whose words are those of `vllm serve`: image, words.

    Each has a line, which lets a pattern ask for an option and its value in one word or in two. A
    command is left out if a `--config` file or a variable may say what its words do not.
    """
    own = f"has(c.image) && c.image.matches({json.dumps(_IMAGES)}) ? ['vllm', 'serve'] : []"
    command = f"(has(c.command) && size(c.command) > 0 ? c.command : {own})"
    # A script in one word has lines of its own.
    words = f"({command} + (has(c.args) ? c.args : [])).map(w, w.replace('\\n', ' '))"
    image = "(has(c.image) ? c.image : '')"
    text = f"'\\n' + {image} + '\\n' + {words}.join('\\n') + '\\n'"
    known = (
        f"l.matches({json.dumps(_PROGRAMS)}) && !l.contains('$(') "
        "&& !l.matches('\\n--config(\\n|=)')"
    )
    return f"{template}.spec.containers.map(c, {text}).filter(l, {known})"


def _commands_before() -> str:
    return f"variables.before.map(t, {_commands('t')})"


def _validation(conflict: Conflict) -> dict[str, Any]:
    given = " && ".join(f"l.matches({_pattern(words)})" for words in conflict.given)
    unless = "".join(
        f" && !l.matches({_pattern(words, abbreviated=True)})" for words in conflict.unless
    )
    return _told(conflict.rule, _unless_before(f"{given}{unless}"))


def _unless_before(wrong: str, commands: str = "variables.commands") -> str:
    """Say that no command `l` is wrong, or that one was before."""
    exists = f".exists(l, {wrong})"
    return f"(!{commands}{exists} || variables.commands_before.exists(b, b{exists}))"


def _told(rule: str, expression: str) -> dict[str, Any]:
    declaration = default_registry().by_id[rule]
    return {
        "expression": expression,
        "message": f"{declaration.title}: {declaration.remedy} [{declaration.id}]",
        "reason": "Invalid",
    }


def _choices() -> list[list[str]]:
    """Give the options with choices, and the choices of all versions, as patterns."""
    choices: dict[str, set[str]] = {}
    for flags in _common_flags():
        if all(flag.choices and flag.conv == "str" for flag in flags):
            allowed = {re.escape(str(choice)) for flag in flags for choice in flag.choices or ()}
            for option in _long_options(flags):
                choices[option] = choices.get(option, set()) | allowed
    return [[_spelt(option), "|".join(sorted(values))] for option, values in choices.items()]


def _no_choice() -> dict[str, Any]:
    """An option with a value that is none of its choices in any version."""
    there, right = "'\\n' + o[0] + '(\\n|=)'", "'\\n' + o[0] + '(\\n|=)(' + o[1] + ')\\n'"
    wrong = f"l.matches({there}) && !l.matches({right})"
    named = "o[0].replace('[-_]', '-') + ' takes ' + o[1].replace('|', ', ')"
    found = f"variables.choices.filter(o, {_RELEASED}.exists(l, {wrong})).map(o, {named})"
    every = f"variables.choices.all(o, {_unless_before(wrong, _RELEASED)})"
    return {
        **_told("cli-invalid-choice", every),
        "message": "An option has a value that it does not take [cli-invalid-choice]",
        "messageExpression": f"{found}.join('; ') + ' [cli-invalid-choice]'",
    }


def _no_number() -> dict[str, Any]:
    """An option that takes a whole number, with a value without any digit."""
    options = [
        _spelt(option)
        for flags in _common_flags()
        if all(flag.conv == "int" for flag in flags)
        for option in _long_options(flags)
    ]
    pattern = json.dumps(f"\n({'|'.join(options)})(\n|=)[ -/:-~]*\n")
    return {
        **_told("cli-invalid-value", _unless_before(f"l.matches({pattern})", _RELEASED)),
        "message": "An option that takes a whole number has another value [cli-invalid-value]",
    }


def _common_flags() -> Iterator[tuple[Flag, ...]]:
    """Give the options with one value that each version has, in all of them."""
    library = CatalogueLibrary()
    catalogues = [library.get(version) for version in library.versions]
    for flag in catalogues[0].flags:
        flags = [catalogue.by_dest.get(flag.dest) for catalogue in catalogues]
        found = tuple(other for other in flags if other is not None and other.nargs is None)
        if len(found) == len(flags):
            yield found


def _long_options(flags: tuple[Flag, ...]) -> list[str]:
    common = set.intersection(*(set(flag.options) for flag in flags))
    return sorted(option for option in common if option.startswith("--"))


def _released() -> str:
    """Give the commands in images of vLLM's for CUDA, of a release whose options are known."""
    versions = "|".join(version.replace(".", "[.]") for version in CatalogueLibrary().versions)
    pattern = f"^\n([^\n]*/)?vllm/vllm-openai:v?({versions})(-[^\n@]*)?(@|\n)"
    known = f"variables.commands.filter(l, l.matches({json.dumps(pattern)}))"
    return f"variables.versioned ? [] : {known}"


def _spelt(option: str) -> str:
    """Give the pattern of an option: with `-` or `_` between its parts."""
    return "--" + option.removeprefix("--").replace("-", "[-_]")


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
