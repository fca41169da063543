"""Our reading of proposals beside that of vLLM's own parser.

    python -m lab.parser_agreement VERSION... [--count N] [--seed N] [--docs FILE] [--record DIR]

Prints a table; each disagreement is listed. Compared are the verdict of the parser and of
`validate_parsed_serve_args`, the stage that refuses, and the value of every destination.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
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
from lab.environment import Lab, LabError
from lab.parser_oracle import Answer, Question, known_answers
from lab.proposals import proposals
from lab.proposals.found import found

_CLASS_RULES: Final = frozenset(
    {"unknown-key", "invalid-field-value", "value-out-of-range", "max-logprobs-range"}
)
_PARSER_RULES: Final = ("cli-", "yaml-", "kwargs-")
# What depends on files that only the server's machine has.
_FILE_RULES: Final = frozenset({"serve-chat-template-file", "serve-log-config-file"})
# Classes of which a name stands for an object.
_NAMED: Final = frozenset({"QuantKey", "QuantSpec"})
# What is checked when the API server is set up.
_LAUNCH_RULES: Final = frozenset({"serve-tool-parser", "serve-reasoning-parser", "serve-port"})


COUNT: Final = 4000
RECORDED: Final = 220
GOAL: Final = 0.999
_BEGIN: Final = "<!-- parser agreement: begin -->"
_END: Final = "<!-- parser agreement: end -->"


class Outcome(StrEnum):
    """How one reading relates to vLLM's."""

    SAME = "same"
    LEFT_OPEN = "left open"
    FALSE_REJECTION = "false rejection"
    MISSED = "missed refusal"
    STAGE = "other stage"
    VALUE = "other value"
    NO_ANSWER = "no answer"


_FINE: Final = frozenset({Outcome.SAME, Outcome.LEFT_OPEN})


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
        config_class = self._catalogue.config_classes[name]
        fields = config_class.fields
        for key, value in ours.items():
            theirs = expected.get(key, base.get(key))
            if key in fields:
                value = typed_value(fields[key], value)
            if value is None and config_class.post_init:
                continue  # the class may fill in what is null, and add to an object
            if isinstance(value, dict) and isinstance(theirs, dict) and "$class" not in theirs:
                theirs = {name: item for name, item in theirs.items() if name in value}
            if isinstance(theirs, dict) and "$class" in theirs and isinstance(value, dict):
                if not self._equal_object(theirs["$class"], value, theirs, {}):
                    return False
            elif not _same(value, theirs):
                return False
        return True

    def _variables(self, question: Question, answer: Answer, resolution: Resolution) -> Comparison:
        """Compare what of each variable is refused, unknown, or counts as off."""
        told: dict[str, set[str]] = {}
        for told_of in resolution.findings:
            for name in question["variables"]:
                if told_of.location is not None and told_of.location.variable == name:
                    told.setdefault(name, set()).add(told_of.rule)
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
        if theirs.get("$class") in _NAMED and isinstance(ours, str):
            return True  # an object that was given by its name
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


def write_docs(page: Path, tables: str) -> None:
    """Put the table between the markers of a page."""
    before, _, rest = page.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n\n{tables}\n{_END}{after}")


def table(compared: Mapping[str, Sequence[Comparison]]) -> str:
    """Give a line for each version, as Markdown."""
    lines = [
        (
            "| vLLM | proposals | vLLM refuses | agree | false rejections | other values "
            "| missed refusals | left open | agreement |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for version, those in compared.items():
        n = summary(those)
        judged = len(those) - n[Outcome.LEFT_OPEN] - n[Outcome.NO_ANSWER]
        refused = sum(c.answer["accepted"] is False for c in those)
        lines.append(
            f"| {version} | {len(those)} | {refused} | {n[Outcome.SAME]} "
            f"| {n[Outcome.FALSE_REJECTION]} | {n[Outcome.VALUE]} "
            f"| {n[Outcome.MISSED] + n[Outcome.STAGE]} | {n[Outcome.LEFT_OPEN]} "
            f"| {n[Outcome.SAME] / judged:.2%} |"
        )
    return "\n".join(lines) + "\n"


def record(
    path: Path,
    questions: Sequence[Question],
    answers: Sequence[Answer],
    defaults: Mapping[str, Any],
    *,
    count: int = RECORDED,
) -> None:
    """Keep a sample of answers for `make test`: what once differed, and every tenth or so."""
    once = [question for question in found() if question in questions]
    others = [i for i, question in enumerate(questions) if question not in once]
    step = max(1, len(others) // (count - len(once)))
    kept = sorted([questions.index(question) for question in once] + others[::step])
    with path.open("w") as lines:
        lines.write(json.dumps({"defaults": defaults}, separators=(",", ":")) + "\n")
        for i in kept:
            answer = {**answers[i]}
            if "error" in answer:
                answer["error"] = answer["error"][:160]
            row = {"question": questions[i], "answer": answer}
            lines.write(json.dumps(row, separators=(",", ":")) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and every disagreement; 1 if there is a false rejection or too many others."""
    parser = argparse.ArgumentParser(prog="python -m lab.parser_agreement", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--count", type=int, default=COUNT, help="proposals for each version")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", type=int, default=40, help="disagreements listed per version")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="page to put the table into")
    parser.add_argument("--record", type=Path, metavar="DIR", help="keep a sample of the answers")
    options = parser.parse_args(arguments)
    compared: dict[str, list[Comparison]] = {}
    try:
        for version in options.versions or Lab.default().versions():
            catalogue = CatalogueLibrary().get(version)
            questions = proposals(catalogue, options.seed, options.count)
            head, *answers = known_answers(version, [{"defaults": True}, *questions])
            compared[version] = list(compare(catalogue, head["values"], questions, answers))
            if options.record is not None:
                record(options.record / f"{version}.jsonl", questions, answers, head["values"])
            wrong = [c for c in compared[version] if c.outcome not in _FINE]
            print(f"vLLM {version}: {dict(summary(compared[version]))}", flush=True)
            for comparison in wrong[: options.list]:
                print(f"  {comparison}")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    tables = table(compared)
    print(tables)
    if options.docs is not None:
        write_docs(options.docs, tables)
    return int(not all(_is_good(those) for those in compared.values()))


def _is_good(compared: Sequence[Comparison]) -> bool:
    counts = summary(compared)
    judged = len(compared) - counts[Outcome.LEFT_OPEN]
    hurtful = counts[Outcome.FALSE_REJECTION] + counts[Outcome.VALUE]
    return not hurtful and counts[Outcome.SAME] >= GOAL * judged


if __name__ == "__main__":
    sys.exit(main())
