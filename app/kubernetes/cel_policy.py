"""The rules that CEL can express, as a ValidatingAdmissionPolicy.

`python -m app.kubernetes.cel_policy` writes it; `make manifests` puts it into the chart.
Kubernetes advises CEL where it suffices: no webhook to keep alive. CEL sees words, not vLLM's
grammar, so only conflicts of whole words are told, and nothing where a `--config` file, a shell or
an abbreviation could say more. What it refuses the gate refuses too; the tests hold it to that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

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

# A pod, what has a pod template, and what has a job template.
_SPEC: Final = (
    "object.kind == 'Pod' ? object.spec : "
    "object.kind == 'CronJob' ? object.spec.jobTemplate.spec.template.spec : "
    "object.spec.template.spec"
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
            "variables": [
                {"name": "spec", "expression": _SPEC},
                {"name": "commands", "expression": _commands()},
            ],
            "validations": [_validation(conflict) for conflict in CONFLICTS],
        },
    }


def _commands() -> str:
    """Give a text for each container that runs vLLM, a line a word.

    Lines let a pattern ask for an option and its value in one word or in two. A command with a
    `--config` file is left out: the file may say what the words do not.
    """
    words = "((has(c.command) ? c.command : []) + (has(c.args) ? c.args : []))"
    # A script in one word has lines of its own.
    text = f"'\\n' + {words}.map(w, w.replace('\\n', ' ')).join('\\n') + '\\n'"
    running = "variables.spec.containers.filter(c, has(c.image) && c.image.contains('vllm'))"
    return f"{running}.map(c, {text}).filter(l, !l.matches('\\n--config(\\n|=)'))"


def _validation(conflict: Conflict) -> dict[str, Any]:
    declaration = default_registry().by_id[conflict.rule]
    given = " && ".join(f"l.matches({_pattern(words)})" for words in conflict.given)
    unless = "".join(
        f" && !l.matches({_pattern(words, abbreviated=True)})" for words in conflict.unless
    )
    return {
        "expression": f"!variables.commands.exists(l, {given}{unless})",
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
    for group, resources in (
        ("", ["pods"]),
        ("apps", ["deployments", "statefulsets", "replicasets", "daemonsets"]),
        ("batch", ["jobs", "cronjobs"]),
    ):
        yield {
            "apiGroups": [group],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": resources,
        }


def policy_yaml() -> str:
    """Render it as the file in the chart."""
    text = yaml.safe_dump(policy(), sort_keys=False, width=96, allow_unicode=True)
    return f"# Generated by `make manifests` from app/kubernetes/cel_policy.py.\n{text}"


if __name__ == "__main__":
    sys.stdout.write(policy_yaml())
