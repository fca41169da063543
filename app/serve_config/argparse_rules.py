"""Handing words to options as Python's argparse does.

Reports everything that is wrong, where argparse ends at the first. Source: CPython 3.11 and 3.12
`argparse.ArgumentParser._parse_known_args`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from app.catalogue import Flag
from app.serve_config import absence
from app.serve_config.command_line import spelling_fix
from app.serve_config.config_file import rename_key
from app.serve_config.diagnostics import MAX_FINDINGS, finding, shorten
from app.serve_config.option_table import HELP, Match, OptionTable
from app.serve_config.serve_config import Origin
from app.serve_config.suggest import nearest, similarity
from app.serve_config.tokens import Occurrence, Token
from app.verdict.finding import Finding
from app.verdict.fix import Fix

_BOOLEAN_WORDS: Final = {"true", "false", "True", "False"}
_SURE: Final = 0.85


@dataclass(frozen=True, slots=True)
class Parsed:
    """The places that give each flag, in order, and what argparse refuses.

    `open_words` are unresolved words that may hold options themselves.
    """

    occurrences: tuple[Occurrence, ...]
    findings: tuple[Finding, ...]
    open_words: tuple[Token, ...] = ()


def parse(tokens: Sequence[Token], table: OptionTable) -> Parsed:
    """Hand the words to the parser's options and its one positional."""
    return _Parser(tokens, table).run()


class _Parser:
    def __init__(self, tokens: Sequence[Token], table: OptionTable) -> None:
        self._tokens = tokens
        self._table = table
        self._matches: dict[int, Match] = {}
        self._pattern = self._classify()
        self._occurrences: list[Occurrence] = []
        self._findings: list[Finding] = []
        self._extras: list[int] = []
        self._model_taken = False
        self._model_at: int | None = None

    def _classify(self) -> str:
        pattern = []
        plain = False
        for i, token in enumerate(self._tokens):
            if plain:
                pattern.append("A")
            elif token.text == "--":
                plain = True
                pattern.append("-")
            else:
                match = self._table.classify(token.text)
                if match is None:
                    pattern.append("A")
                else:
                    self._matches[i] = match
                    pattern.append("O")
        return "".join(pattern)

    def run(self) -> Parsed:
        at, size = 0, len(self._tokens)
        while at < size:
            if at in self._matches:
                at = self._option(at, self._matches[at])
            else:
                at = self._positional(at)
        self._report_model()
        self._report_extras()
        open_words = tuple(self._tokens[i] for i in self._extras if self._tokens[i].unresolved)
        return Parsed(tuple(self._occurrences), tuple(self._findings), open_words)

    def _positional(self, at: int) -> int:
        """Take the model, or put the word with the extra ones; `--` is stepped over."""
        if self._pattern[at] == "-":
            return at + 1
        token = self._tokens[at]
        if self._model_taken and not self._may_hold_options(token):
            self._extras.append(at)
            return at + 1
        self._model_taken = True
        self._occurrences.append(Occurrence(self._table.positional, None, None, (token,)))
        self._model_at = at
        return at + 1

    def _may_hold_options(self, further: Token) -> bool:
        """Take a model back that is only a variable, where a word follows that is known.

        Unquoted it may be options, or nothing: it counts as an open word then.
        """
        at = self._model_at
        held = None if at is None else self._tokens[at]
        if at is None or held is None or further.unresolved:
            return False
        if not held.unresolved or not held.text.startswith("$"):
            return False
        self._occurrences = [o for o in self._occurrences if held not in o.values or o.option]
        insort(self._extras, at)
        return True

    def _report_model(self) -> None:
        """Tell of a word after a switch that argparse takes for the model."""
        if self._model_at is None:
            return
        token = self._tokens[self._model_at]
        switch = self._switch_before(self._model_at)
        if switch is None or token.text not in _BOOLEAN_WORDS:
            return
        if any(i not in self._matches for i in self._extras):
            self._report_switch_value(*switch, token)
            return
        option = switch[0]
        self._findings.append(
            finding(
                "cli-switch-value-as-model",
                f"{option.spelling} takes no value, so vLLM serves a model named {token.text!r}",
                location=token.location,
                related=(option.location,),
            )
        )

    def _switch_before(self, at: int) -> tuple[Token, Flag] | None:
        match = self._matches.get(at - 1)
        if match is None or match.flag is None or match.flag.nargs != 0:
            return None
        return self._tokens[at - 1], match.flag

    def _option(self, at: int, match: Match) -> int:
        token = self._tokens[at]
        flag = match.flag
        if match.ambiguous:
            self._report_ambiguous(token, match.ambiguous)
            return self._skip_values(at + 1, 1)
        if flag is None:
            self._extras.append(at)
            return at + 1
        if match.newer_python:
            self._findings.append(
                finding(
                    "cli-python-dependent",
                    f"older Pythons refuse {shorten(token.spelling)!r}, newer ones take it "
                    f"for {match.option}; write that",
                    location=token.location,
                    undecided=True,
                )
            )
        elif match.abbreviated and token.origin is Origin.ARGV:
            self._report_abbreviated(token, match)
        if flag is HELP:
            self._findings.append(
                finding("cli-help", "no server starts with --help", location=token.location)
            )
            return at + 1
        if match.explicit is not None:
            self._explicit(token, flag, match)
            return at + 1
        count = self._count(flag, at + 1)
        if count is None:
            self._report_missing(token, flag, match.option)
            return at + 1
        values = tuple(self._tokens[at + 1 : at + 1 + count])
        self._occurrences.append(Occurrence(flag, token, match.option, values))
        return at + 1 + count

    def _explicit(self, token: Token, flag: Flag, match: Match) -> None:
        if flag.nargs == 0 or (isinstance(flag.nargs, int) and flag.nargs > 1):
            self._report_switch_value(token, flag, None)
            return
        value = replace(token, text=match.explicit or "", written="")
        self._occurrences.append(Occurrence(flag, token, match.option, (value,), explicit=True))

    def _count(self, flag: Flag, start: int) -> int | None:
        """Give how many words the option takes; None if there are too few."""
        available = 0
        for kind in self._pattern[start:]:
            if kind != "A":
                break
            available += 1
        nargs = flag.nargs
        if nargs is None:
            return 1 if available else None
        if nargs == "?":
            return min(1, available)
        if nargs == "+":
            return available or None
        if nargs == "*":
            return available
        wanted = int(nargs)
        return wanted if available >= wanted else None

    def _skip_values(self, at: int, most: int) -> int:
        """Step over what is likely the value of an option that could not be told."""
        end = min(at + most, len(self._tokens))
        while at < end and self._pattern[at] == "A":
            at += 1
        return at

    # messages

    def _report_extras(self) -> None:
        if not self._extras:
            return
        engine = "unrecognized arguments: " + " ".join(
            self._tokens[i].spelling if self._tokens[i].dotted else self._tokens[i].text
            for i in self._extras[:MAX_FINDINGS]
        )
        engine = shorten(engine, 400)
        for group in islice(_groups(self._extras, self._matches), MAX_FINDINGS):
            first = self._tokens[group[0]]
            if first.unresolved and not first.text.startswith("--"):
                continue
            if group[0] in self._matches:
                self._report_unknown(first, engine)
            else:
                self._report_extra(first, group[0], engine)

    def _report_unknown(self, token: Token, engine: str) -> None:
        name, equals, value = token.text.partition("=")
        dotted, _, path = name.partition(".")
        names = nearest(name if not path else dotted, self._table.alternatives(name))
        tail, names = absence.tell(absence.option(self._table.catalogue, dotted), names)
        if name == "--task":  # vLLM itself says what to do instead
            tail = "; choose what the model does with --runner and --convert"
            engine = f"{engine} Hint: --task is not a vllm serve option."
        if token.origin is Origin.CONFIG_FILE:
            key = token.spelling.removeprefix("--")
            names = tuple(n.removeprefix("--") for n in names)
            self._findings.append(
                finding(
                    "yaml-unknown-key",
                    f"{shorten(key)!r} is no option of this version{tail}",
                    location=token.location,
                    engine_message=engine,
                    fix=_renamed(key, names),
                )
            )
            return
        fix: Fix | None = None
        if names and not token.dotted:
            new = f"{names[0]}{equals}{value}"
            sure = similarity(name, names[0]) >= _SURE and self._fits(names[0], token)
            fix = spelling_fix(token, new, f"write {names[0]}", safe=sure)
        self._findings.append(
            finding(
                "cli-unknown-flag",
                f"{shorten(name)} is no option of this version{tail}",
                location=token.location,
                engine_message=engine,
                fix=fix,
            )
        )

    def _fits(self, option: str, token: Token) -> bool:
        """Whether the option takes a value just where the misspelt one has one."""
        at = next(i for i, other in enumerate(self._tokens) if other is token)
        has_value = "=" in token.text or (self._pattern[at + 1 : at + 2] == "A")
        flag = self._table.flags.get(option)
        return flag is not None and has_value == (flag.nargs != 0)

    def _report_extra(self, token: Token, at: int, engine: str) -> None:
        switch = self._switch_before(at)
        if switch is not None and token.text in _BOOLEAN_WORDS:
            self._report_switch_value(*switch, token, engine)
            return
        advice = ""
        if token.text[:1] in "\u2013\u2014\u2212":
            advice = "; it begins with a typographic dash, write --"
        elif token.text[:1] in "{[\"'":
            advice = "; it looks like JSON that a shell split, put it in single quotes"
        elif token.text[:1] == "-" and len(token.text.split()) > 1:
            advice = "; it is one word, blanks and all: give the option and its value as two"
        model = next((o for o in self._occurrences if o.option is None), None)
        if model is not None and model.token.text in {"vllm", "serve"}:
            advice = f"; leave {model.token.text!r} out: arguments are what follows `vllm serve`"
        self._findings.append(
            finding(
                "cli-extra-argument",
                f"{shorten(token.spelling)!r} belongs to no option, and the model is given{advice}",
                location=token.location,
                related=() if model is None else (model.location,),
                engine_message=engine,
            )
        )

    def _report_ambiguous(self, token: Token, options: tuple[str, ...]) -> None:
        listed = ", ".join(options)
        self._findings.append(
            finding(
                "cli-ambiguous-flag",
                f"{shorten(token.spelling)} could be {listed}; write it in full",
                location=token.location,
                engine_message=f"ambiguous option: {shorten(token.text)} could match {listed}",
                evidence={"candidates": list(options)},
            )
        )

    def _report_abbreviated(self, token: Token, match: Match) -> None:
        text = match.option if match.explicit is None else f"{match.option}={match.explicit}"
        self._findings.append(
            finding(
                "cli-abbreviated-flag",
                f"{token.spelling.partition('=')[0]} is short for {match.option}; write it in full",
                location=token.location,
                fix=spelling_fix(token, text, f"write {match.option}", safe=True),
            )
        )

    def _report_missing(self, token: Token, flag: Flag, option: str) -> None:
        engine = "expected one argument"
        if flag.nargs == "+":
            engine = "expected at least one argument"
        elif flag.nargs is not None:
            engine = f"expected {flag.nargs} arguments"
        self._findings.append(
            finding(
                "cli-missing-value",
                f"{option} needs a value",
                location=token.location,
                engine_message=f"argument {argument_name(flag)}: {engine}",
            )
        )

    def _report_switch_value(
        self, option: Token, flag: Flag, value: Token | None, engine: str | None = None
    ) -> None:
        """Tell of a value given to a switch, in the same word or the next."""
        name = option.text.partition("=")[0]
        text = option.text.partition("=")[2] if value is None else value.text
        negative = next((o for o in flag.negative_options), None)
        advice = f"write {name} alone"
        if text.lower() == "false" and negative is not None:
            advice = f"write {negative}"
        if value is None:
            engine = f"argument {argument_name(flag)}: ignored explicit argument {shorten(text)!r}"
        self._findings.append(
            finding(
                "cli-unexpected-value",
                f"{name} takes no value; {advice}",
                location=(value or option).location,
                engine_message=engine,
                fix=self._switch_fix(option, value, name, text, negative),
            )
        )

    def _switch_fix(
        self, option: Token, value: Token | None, name: str, text: str, negative: str | None
    ) -> Fix | None:
        wanted = {"true": name, "1": name, "false": negative, "0": negative}.get(text.lower())
        if wanted is None or value is not None:
            return None
        return spelling_fix(option, wanted, f"write {wanted}", safe=True)


def argument_name(flag: Flag) -> str:
    """Name a flag as argparse does in its messages."""
    visible = [o for o in flag.options if o not in flag.hidden_options]
    return "/".join(visible) if visible else flag.dest


def _renamed(key: str, names: tuple[str, ...]) -> Fix | None:
    if not names:
        return None
    sure = similarity(key, names[0]) >= _SURE
    return rename_key((key,), names[0], f"write {names[0]}", safe=sure)


def _groups(extras: Sequence[int], matches: dict[int, Match]) -> Iterator[list[int]]:
    """Put the words that follow an unknown option directly with it."""
    group: list[int] = []
    for i in extras:
        if group and i == group[-1] + 1 and i not in matches and group[0] in matches:
            group.append(i)
            continue
        if group:
            yield group
        group = [i]
    if group:
        yield group
