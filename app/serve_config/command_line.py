"""What vLLM does to a command line before argparse sees it.

Source: `vllm/utils/argparse_utils.py::FlexibleArgumentParser.parse_args`, the same in 0.28.0 to
0.33.0: the model moved to the front, the config file put in, underscores turned into dashes,
`-O3` spelled out, dotted keys collected into JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.proposal.proposal import Entrypoint, Proposal, Word
from app.serve_config.config_file import ConfigFile, read_config_file
from app.serve_config.conversion import ConversionError, human_readable_int
from app.serve_config.diagnostics import finding
from app.serve_config.tokens import DottedPart, Token
from app.verdict.finding import Finding
from app.verdict.fix import Fix, ReplaceArgument
from app.verdict.location import Location

_MODEL: Final = re.compile(r"^--model(=.+|$)")
_CONFIG: Final = re.compile(r"^--config(=.+|$)")
_SERVED_NAME: Final = re.compile(r"^--served[-_]model[-_]name(=.+|$)")
_MAX_PARTS: Final = 64
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The words for argparse; `fatal` when vLLM ends before it gets there.

    `unseen` says in words what was not given along and may hold further settings.
    """

    tokens: tuple[Token, ...]
    findings: tuple[Finding, ...]
    config: ConfigFile | None = None
    unseen: str | None = None
    fatal: bool = False


class _Stop(Exception):
    """vLLM raises here."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.message)
        self.found = found


def rewrite(proposal: Proposal, options: Iterable[str]) -> Rewritten:
    """Turn the proposal's words into those that argparse parses.

    `options` are the option strings of the parser, for the `--no-` form of a `false`.
    """
    return _Rewriter(proposal, options).run()


class _Rewriter:
    def __init__(self, proposal: Proposal, options: Iterable[str]) -> None:
        self._proposal = proposal
        self._options = options
        self._findings: list[Finding] = []
        self._config: ConfigFile | None = None
        self._unseen: str | None = None

    def run(self) -> Rewritten:
        tokens = [
            Token(word.text, _place(word, i), (i,), word.unresolved)
            for i, word in enumerate(self._proposal.words)
        ]
        fatal = False
        try:
            if self._proposal.entrypoint is Entrypoint.SERVE:
                tokens = self._move_model(tokens)
                self._check_served_name(tokens)
            tokens = self._config_file(tokens)
            tokens = self._dotted(self._spell(tokens))
        except _Stop as stop:
            self._findings.append(stop.found)
            tokens, fatal = [], True
        return Rewritten(tuple(tokens), tuple(self._findings), self._config, self._unseen, fatal)

    # the model and the config file

    def _move_model(self, tokens: list[Token]) -> list[Token]:
        at = next((i for i, t in enumerate(tokens) if _MODEL.match(t.text)), None)
        if at is None:
            return tokens
        option = tokens[at]
        self._findings.append(
            finding(
                "cli-model-flag",
                "give the model as the first word of `vllm serve`; --model will be removed",
                location=option.location,
            )
        )
        if option.text != "--model":
            model = replace(option, text=option.text.removeprefix("--model="))
            return [model, *tokens[:at], *tokens[at + 1 :]]
        if at + 1 == len(tokens):
            raise _Stop(
                finding(
                    "cli-missing-value",
                    "--model is the last word; the model is missing",
                    location=option.location,
                    engine_message="list index out of range",
                )
            )
        model = replace(tokens[at + 1], argv=(*option.argv, *tokens[at + 1].argv))
        return [model, *tokens[:at], *tokens[at + 2 :]]

    def _check_served_name(self, tokens: Sequence[Token]) -> None:
        if not tokens or not tokens[0].text.startswith("-"):
            return
        if any(_CONFIG.match(t.text) for t in tokens):
            return
        named = next((t for t in tokens if _SERVED_NAME.match(t.text)), None)
        if named is not None:
            raise _Stop(
                finding(
                    "cli-served-name-without-model",
                    "with --served-model-name the model must be the first word after `serve`",
                    location=named.location,
                    engine_message=(
                        "`model` should be provided as the first positional argument when using "
                        "`vllm serve`. i.e. `vllm serve <model> --<arg> <value>`."
                    ),
                )
            )

    def _config_file(self, tokens: list[Token]) -> list[Token]:
        for token in tokens:
            if token.text.startswith("--config="):
                self._ignored_config(token)
        places = [i for i, t in enumerate(tokens) if t.text == "--config"]
        if not places:
            return tokens
        option = tokens[places[0]]
        if len(places) > 1:
            raise _Stop(
                finding(
                    "cli-config-usage",
                    "--config is given more than once; vLLM reads one file",
                    location=tokens[places[1]].location,
                    related=(option.location,),
                    engine_message="More than one config file specified!",
                )
            )
        if places[0] == len(tokens) - 1:
            raise _Stop(
                finding(
                    "cli-config-usage",
                    "--config is the last word; the file is missing",
                    location=option.location,
                    engine_message=(
                        "No config file specified! Please check your command-line arguments."
                    ),
                )
            )
        path = tokens[places[0] + 1]
        before, after = tokens[: places[0]], tokens[places[0] + 2 :]
        given = self._read(path)
        if given is None:
            return [*before, *after]
        return self._insert(given, before, after, path)

    def _insert(
        self, given: list[Token], before: list[Token], after: list[Token], path: Token
    ) -> list[Token]:
        first = before[0] if before else None
        if self._proposal.entrypoint is Entrypoint.API_SERVER:
            if first is None or first.text.startswith("-"):
                return [*given, *before, *after]
            return [first, *given, *before[1:], *after]
        # When --config comes first, vLLM looks at the word itself, which begins with a dash.
        if first is not None and not first.text.startswith("-"):
            return [first, *given, *before[1:], *after]
        if not any(token.text == "--model" for token in given):
            if self._config is not None and self._config.alone:
                self._findings.append(
                    finding(
                        "yaml-no-model",
                        "the file names no model; start it as `vllm serve MODEL --config FILE`",
                        location=self._config.location,
                    )
                )
                return [*given, *before, *after]
            raise _Stop(
                finding(
                    "cli-config-usage",
                    "there is no model: give it right after `serve`, or as `model:` in the "
                    "config file",
                    location=path.location,
                    engine_message=(
                        "No model specified! Please specify model either as a positional "
                        "argument or in a config file."
                    ),
                )
            )
        return [*given, *before, *after]

    def _read(self, path: Token) -> list[Token] | None:
        if path.unresolved:
            self._unseen = f"the contents of {path.text}"
            self._not_given(path)
            return None
        alone = self._proposal.yaml is not None and path.text == self._proposal.yaml.name
        extension = path.text.split(".")[-1]
        if extension not in {"yaml", "yml"} and not alone:
            raise _Stop(
                finding(
                    "cli-config-usage",
                    f"the config file must end in .yaml or .yml, not {extension!r}",
                    location=path.location,
                    engine_message=(
                        f"Config file must be of a yaml/yml type. {extension} supplied"
                    ),
                )
            )
        yaml = self._proposal.yaml
        text = yaml.text if alone and yaml is not None else self._proposal.files.get(path.text)
        if text is None:
            self._unseen = f"the contents of {path.text}"
            self._not_given(path)
            return None
        negated = self._options if self._proposal.entrypoint is Entrypoint.API_SERVER else ()
        config = read_config_file(text, path.text, path.location, negated, alone=alone)
        self._config = config
        self._findings.extend(config.findings)
        if config.broken is not None:
            raise _Stop(config.broken)
        return list(config.tokens)

    def _ignored_config(self, token: Token) -> None:
        name = token.text.removeprefix("--config=")
        self._findings.append(
            finding(
                "cli-config-equals",
                f"vLLM does not read {name!r}: only `--config FILE` with a blank is read, so "
                "every setting of the file is lost",
                location=token.location,
            )
        )

    def _not_given(self, path: Token) -> None:
        self._findings.append(
            finding(
                "yaml-file-not-given",
                f"{path.text!r} was not given along, and its settings may decide; give its text "
                "under `files`",
                location=path.location,
                undecided=True,
            )
        )

    # spelling

    def _spell(self, tokens: list[Token]) -> list[Token]:
        """Turn underscores of option names into dashes, and `-O3` into its long form."""
        out: list[Token] = []
        for i, token in enumerate(tokens):
            text = token.text
            if text.startswith("--help="):
                out.append(replace(token, text="--help", written=text))
            elif text.startswith("--"):
                name, equals, value = text.partition("=")
                if "_" in name:
                    spelt = f"{_dashes(name)}{equals}{value}"
                    token = replace(token, text=spelt, written=text)
                out.append(token)
            elif text.startswith("-O") and text != "-O":
                level = text[3:] if text[2] == "=" else text[2:]
                out.append(replace(token, text="--optimization-level", written=text))
                out.append(replace(token, text=level, written=text))
            elif text == "-O" and i + 1 < len(tokens) and tokens[i + 1].text in set("0123"):
                out.append(replace(token, text="--optimization-level", written=text))
            else:
                out.append(token)
        return out

    # dotted keys

    def _dotted(self, tokens: list[Token]) -> list[Token]:
        """Collect `--option.key value` into one JSON word for each spelling of an option."""
        taken: set[int] = set()
        collected: dict[str, _Collected] = {}
        for i, token in enumerate(tokens):
            text = token.text
            if i in taken or not text.startswith("-") or "." not in text:
                continue
            if "." not in text.partition("=")[0]:
                continue
            name, equals, value = text.partition("=")
            source = token
            argv = token.argv
            if not equals:
                if i + 1 == len(tokens):
                    raise _Stop(
                        finding(
                            "cli-dotted-value",
                            f"{token.spelling!r} is read as a dotted key and has no value",
                            location=token.location,
                            engine_message="list index out of range",
                        )
                    )
                taken.add(i + 1)
                source = tokens[i + 1]
                value = source.text
                argv = (*token.argv, *source.argv)
            taken.add(i)
            name, appends = (name[:-1], True) if name.endswith("+") else (name, False)
            key, *path = name.split(".")
            if len(path) > _MAX_PARTS:
                path = [".".join(path)]
            part = DottedPart(tuple(path), argv, token.location, appends)
            if value in _PYTHON_WORDS and not appends:
                self._findings.append(
                    finding(
                        "cli-dotted-text",
                        f"{value} stays text in {name}; JSON writes {_PYTHON_WORDS[value]}",
                        location=source.location,
                    )
                )
            if key not in collected:
                collected[key] = _Collected(token)
            overwritten = collected[key].add(part, value, source.unresolved)
            for lost in overwritten:
                self._findings.append(
                    finding(
                        "cli-repeated-flag",
                        f"{key}.{lost} is given more than once; the last one wins",
                        location=token.location,
                    )
                )
        kept = [token for i, token in enumerate(tokens) if i not in taken]
        for key, entry in collected.items():
            kept.extend(entry.tokens(key))
        return kept


class _Collected:
    """The dotted keys of one spelling of an option."""

    def __init__(self, first: Token) -> None:
        self._first = first
        self._value: dict[str, Any] = {}
        self._parts: list[DottedPart] = []
        self._unresolved: list[str] = []

    def add(self, part: DottedPart, text: str, unresolved: tuple[str, ...]) -> set[str]:
        """Merge one key in; give the keys that it overwrote."""
        if part.appends:
            text = json.dumps(text.split(","))
        nested: Any = _dotted_value(text)
        for key in reversed(part.path):
            nested = {key: nested}
        self._parts.append(part)
        self._unresolved.extend(unresolved)
        return _merge(self._value, nested) if isinstance(nested, dict) else set()

    def tokens(self, key: str) -> tuple[Token, Token]:
        """Give the two words that stand for all of them at the end of the command line."""
        argv = tuple(i for part in self._parts for i in part.argv)
        option = replace(
            self._first, text=key, written=key, argv=argv, unresolved=(), dotted=tuple(self._parts)
        )
        value = replace(
            option,
            text=json.dumps(self._value),
            written="",
            unresolved=tuple(dict.fromkeys(self._unresolved)),
        )
        return option, value


def _dotted_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return human_readable_int(text)
    except ConversionError:
        return text


def _merge(into: dict[str, Any], update: dict[str, Any]) -> set[str]:
    overwritten: set[str] = set()
    for key, value in update.items():
        existing = into.get(key)
        if isinstance(value, dict) and isinstance(existing, dict):
            overwritten |= {f"{key}.{lost}" for lost in _merge(existing, value)}
        elif isinstance(value, list) and isinstance(existing, list):
            existing += value
        else:
            if key in into:
                overwritten.add(key)
            into[key] = value
    return overwritten


def _dashes(name: str) -> str:
    """Turn underscores into dashes up to the first dot."""
    head, dot, tail = name.partition(".")
    return f"{head.replace('_', '-')}{dot}{tail}"


def _place(word: Word, index: int) -> Location:
    at = word.location
    return Location(
        source=at.source,
        argv_index=index,
        pointer=at.pointer,
        variable=at.variable,
        line=at.line,
        column=at.column,
        end_line=at.end_line,
        end_column=at.end_column,
        text=at.text,
    )


def spelling_fix(token: Token, text: str, description: str, *, safe: bool) -> Fix | None:
    """Give the fix that writes a word otherwise; None for what a config file gave."""
    if len(token.argv) != 1:
        return None
    return Fix(description, (ReplaceArgument(token.argv[0], text),), safe)
