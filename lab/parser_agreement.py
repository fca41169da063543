"""Our reading of proposals beside that of vLLM's own parser.

    python -m lab.agreement parser VERSION... [--count 4000] [--seed 1] [--docs docs/agreement.md]

Prints a table; each disagreement is listed. Compared are the verdict of the parser and of
`validate_parsed_serve_args`, the stage that refuses, and the value of every destination.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from app.catalogue import Catalogue, CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.evaluate import judge_only
from app.serve_config.class_rules import config_class_of, typed_setting
from app.serve_config.field_check import typed_value
from app.serve_config.resolve import Resolution, resolve
from app.serve_config.serve_config import Origin, Unresolved
from app.serve_config.values import argument_converter, default_value
from app.verdict.finding import Finding, Severity
from lab.environment import Lab
from lab.parser_oracle import Answer, Question, ask_parser
from lab.proposals import proposals

_CLASS_RULES: Final = frozenset(
    {"unknown-key", "invalid-field-value", "value-out-of-range", "max-logprobs-range"}
)
_PARSER_RULES: Final = ("cli-", "yaml-", "kwargs-")
# What depends on files that only the server's machine has.
_FILE_RULES: Final = frozenset({"serve-chat-template-file", "serve-log-config-file"})
# What is checked when the API server is set up.
_LAUNCH_RULES: Final = frozenset({"serve-tool-parser", "serve-reasoning-parser", "serve-port"})


class Outcome(StrEnum):
    """How one reading relates to vLLM's."""

    SAME = "same"
    LEFT_OPEN = "left open"
    FALSE_REJECTION = "false rejection"
    MISSED = "missed refusal"
    STAGE = "other stage"
    VALUE = "other value"
    NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question, vLLM's answer, and what we say."""

    question: Question
    answer: Answer
    outcome: Outcome
    details: tuple[str, ...] = ()
    later: tuple[Finding, ...] = field(default=())
    """Errors of ours that belong to what vLLM does after parsing."""

    def __str__(self) -> str:
        said = self.answer.get("error", "")
        return (
            f"{self.outcome}: {json.dumps(self.question)[:400]}\n"
            f"    vLLM [{self.answer['stage']}]: {said[:300]}\n"
            f"    we: {'; '.join(self.details)[:500]}"
        )


def compare(
    catalogue: Catalogue,
    defaults: Mapping[str, Any],
    questions: Iterable[Question],
    answers: Iterable[Answer],
) -> Iterator[Comparison]:
    """Compare our reading of each question with the answer; `defaults` answers what they are."""
    reader = _Reader(catalogue, defaults)
    for question, answer in zip(questions, answers, strict=True):
        yield reader.compare(question, answer)


def envelope_of(question: Question) -> dict[str, Any]:
    """Give the same proposal as our service takes it."""
    if "kwargs" in question:
        return {"config": question["kwargs"]}
    if "variables" in question:
        return {"args": ["m"], "env": question["variables"]}
    given = {name: question[name] for name in ("files", "env") if question.get(name)}
    return {"args": question["args"], **given}


class _Reader:
    def __init__(self, catalogue: Catalogue, defaults: Mapping[str, Any]) -> None:
        self._catalogue = catalogue
        self._defaults = defaults

    def compare(self, question: Question, answer: Answer) -> Comparison:
        if answer["accepted"] is None:
            return Comparison(question, answer, Outcome.NO_ANSWER)
        proposal = read_envelope(envelope_of(question)).proposal
        resolution = resolve(proposal, self._catalogue)
        if "variables" in question:
            return self._variables(question, answer, resolution)
        findings = judge_only(proposal, self._catalogue).findings
        errors = [f for f in findings if f.severity is Severity.ERROR]
        early = [f for f in errors if self._stage(f, "kwargs" in question) != "later"]
        if "kwargs" in question and answer["accepted"]:
            # Not every object is looked at before the configuration is built.
            early = [f for f in early if f.rule not in _CLASS_RULES]
        late = tuple(f for f in errors if f not in early)
        said = tuple(f"{f.rule}: {f.message}" for f in early)
        if not errors and any(f.undecided for f in findings):
            open_ = tuple(f.message for f in findings if f.undecided)
            return Comparison(question, answer, Outcome.LEFT_OPEN, open_)
        if answer["accepted"] and early:
            return Comparison(question, answer, Outcome.FALSE_REJECTION, said)
        if not answer["accepted"] and not errors:
            files = tuple(f.message for f in findings if f.rule in _FILE_RULES)
            missing = "exist" in answer["error"] and bool(files)
            outcome = Outcome.LEFT_OPEN if missing else Outcome.MISSED
            return Comparison(question, answer, outcome, files)
        if not answer["accepted"] and not early:
            # A rule about the object that one option makes, which vLLM applies while it parses.
            return Comparison(question, answer, Outcome.SAME, later=late)
        if not answer["accepted"]:
            stages = {self._stage(f, "kwargs" in question) for f in early}
            outcome = Outcome.SAME if answer["stage"] in stages else Outcome.STAGE
            return Comparison(question, answer, outcome, said if outcome is Outcome.STAGE else ())
        base = "kwargs" if "kwargs" in question else "serve"
        different = tuple(self._different_values(answer["values"], resolution, base))
        return Comparison(
            question, answer, Outcome.VALUE if different else Outcome.SAME, different, late
        )

    def _stage(self, found: Finding, kwargs: bool) -> str:
        """Give the stage in which vLLM would say it."""
        if found.rule.startswith(_PARSER_RULES):
            return "engine-args" if kwargs else "argparse"
        if found.rule.startswith("serve-") and found.rule not in _LAUNCH_RULES:
            return "serve-args"
        if found.rule in _CLASS_RULES:
            name = found.message.partition(" ")[0].rstrip(":").partition(".")[0]
            flag = self._catalogue.by_option.get(name)
            if flag is not None and argument_converter(flag).cls is not None:
                return "engine-args" if kwargs else "argparse"
        return "later"

    def _different_values(
        self, values: Mapping[str, Any], resolution: Resolution, base: str
    ) -> Iterator[str]:
        config = resolution.config
        if config is None:
            yield "no configuration"
            return
        for dest, default in self._defaults[base].items():
            setting = config.settings.get(dest)
            if dest == "model" and base == "serve":
                continue  # `vllm serve` copies model_tag into it once it runs
            if setting is None:
                if dest in values:
                    yield f"{dest}: unknown to us, {values[dest]!r} in vLLM"
                continue
            if setting.origin is Origin.DEFAULT and (dest not in values or base == "kwargs"):
                continue  # `EngineArgs.__post_init__` sets some arguments by others
            expected = values.get(dest, default)
            if not self._equal(dest, setting.value, expected, default):
                yield f"{dest}: {setting.value!r}, in vLLM {expected!r}"

    def _equal(self, dest: str, ours: Any, expected: Any, default: Any) -> bool:
        flag = self._catalogue.by_dest.get(dest)
        name = None if flag is None else config_class_of(flag)
        if isinstance(expected, dict) and "$class" not in expected and name is not None:
            # A program's object, or one without a class, stays as it is until it is needed.
            typed = typed_setting(flag, expected, self._catalogue) if flag else expected
            return _same(ours, expected) or _same(ours, typed)
        if isinstance(expected, dict) and "$class" in expected and isinstance(ours, dict):
            name = expected["$class"]
            base = default if isinstance(default, dict) else {}
            return self._equal_object(name, ours, expected, base)
        if flag is not None and isinstance(expected, dict) and "$class" in expected:
            return False
        if flag is not None and expected == default and ours == default_value(flag):
            return True  # given as it is by default, where 0 is as good as 0.0
        return _same(ours, expected)

    def _equal_object(
        self,
        name: str,
        ours: Mapping[str, Any],
        expected: Mapping[str, Any],
        base: Mapping[str, Any],
    ) -> bool:
        """Compare the keys that were given; the others are vLLM's own to fill."""
        fields = self._catalogue.config_classes[name].fields
        for key, value in ours.items():
            theirs = expected.get(key, base.get(key))
            if key in fields:
                value = typed_value(fields[key], value)
            if isinstance(theirs, dict) and "$class" in theirs and isinstance(value, dict):
                if not self._equal_object(theirs["$class"], value, theirs, {}):
                    return False
            elif not _same(value, theirs):
                return False
        return True

    def _variables(self, question: Question, answer: Answer, resolution: Resolution) -> Comparison:
        """Compare what of each variable is refused, unknown, or counts as off."""
        told: dict[str, set[str]] = {}
        for found in resolution.findings:
            for name in question["variables"]:
                if found.location is not None and found.location.variable == name:
                    told.setdefault(name, set()).add(found.rule)
        different = []
        for name, value in answer["values"].items():
            rules = told.get(name, set())
            refused = isinstance(value, dict) and "$error" in value
            unknown = isinstance(value, dict) and "$unknown" in value
            if refused and "/" in question["variables"][name]:
                continue  # a file of the server's machine
            if refused != ("env-invalid-value" in rules):
                different.append(f"{name}: {value}, we say {rules}")
            if unknown and name.startswith("VLLM_") and "env-unknown" not in rules:
                different.append(f"{name}: unknown, we say {rules}")
            if "env-ignored-value" in rules and value is not False and name[:5] == "VLLM_":
                different.append(f"{name}: {value}, we say it counts as off")
        outcome = Outcome.VALUE if different else Outcome.SAME
        return Comparison(question, answer, outcome, tuple(different))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Unresolved):
        return False
    if isinstance(theirs, dict):
        if "$float" in theirs:
            return isinstance(ours, float) and str(ours) == theirs["$float"]
        if "$member" in theirs:
            return ours in (theirs["$member"], theirs["value"]) or (
                isinstance(ours, str) and ours.upper() == theirs["$member"]
            )
        if "$class" in theirs and isinstance(ours, Mapping):
            return all(_same(value, theirs.get(key)) for key, value in ours.items())
        return (
            isinstance(ours, Mapping)
            and len(ours) == len(theirs)
            and all(str(k) in theirs and _same(v, theirs[str(k)]) for k, v in ours.items())
        )
    if isinstance(theirs, list):
        items = list(ours) if isinstance(ours, list | tuple) else None
        return (
            items is not None
            and len(items) == len(theirs)
            and all(_same(a, b) for a, b in zip(items, theirs, strict=True))
        )
    if isinstance(ours, float) and math.isnan(ours):
        return False
    return type(ours) is type(theirs) and bool(ours == theirs)


def summary(comparisons: Sequence[Comparison]) -> Counter[Outcome]:
    """Count the outcomes."""
    return Counter(c.outcome for c in comparisons)


def main(arguments: Sequence[str]) -> int:
    """Print a table per version and every disagreement; 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m lab.agreement parser", description=__doc__)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", type=int, default=40, help="disagreements listed per version")
    options = parser.parse_args(arguments)
    failed = False
    for version in options.versions or Lab.default().versions():
        catalogue = CatalogueLibrary().get(version)
        questions = proposals(catalogue, options.seed, options.count)
        head, *answers = ask_parser(version, [{"defaults": True}, *questions])
        compared = list(compare(catalogue, head["values"], questions, answers))
        counts = summary(compared)
        print(f"vLLM {version}: {len(compared)} proposals: {dict(counts)}", flush=True)
        wrong = [c for c in compared if c.outcome not in {Outcome.SAME, Outcome.LEFT_OPEN}]
        failed |= bool(wrong)
        for comparison in wrong[: options.list]:
            print(f"  {comparison}")
    return int(failed)
