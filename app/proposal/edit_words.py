"""Edits of a command line, as a list of words or as shell text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.catalogue import Catalogue, Flag
from app.proposal.edit_yaml import edit_config_text
from app.proposal.nested import with_value, without
from app.proposal.positions import LineIndex
from app.proposal.proposal import Entrypoint, Form, Proposal, Variable, Word
from app.proposal.quoting import quote
from app.proposal.shell import parse_command
from app.serve_config.conversion import ConversionError, expand_human_numbers
from app.serve_config.resolve import Resolution, resolve
from app.serve_config.serve_config import Origin
from app.serve_config.tokens import Occurrence
from app.verdict.fix import Edit, RemoveFlag, ReplaceArgument, SetFlag
from app.verdict.location import Location


@dataclass(slots=True)
class _Change:
    """Words to put in place of others (none to delete them), to add, and to put first."""

    replaced: dict[int, list[str]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)


def edit_words(proposal: Proposal, edit: Edit, catalogue: Catalogue) -> Proposal:
    """Apply one edit of a flag or word."""
    resolution = resolve(proposal, catalogue)
    if isinstance(edit, ReplaceArgument):
        if isinstance(edit.at, int):
            change = _Change({edit.at: [edit.text]})
            return _changed(proposal, change) if edit.at < len(proposal.words) else proposal
        return _edit_file(proposal, resolution, edit, catalogue)
    if isinstance(edit, SetFlag):
        return _changed(proposal, _Setter(proposal, resolution, catalogue).set(edit))
    if isinstance(edit, RemoveFlag):
        change = _Setter(proposal, resolution, catalogue).remove(edit.dest)
        return _edit_file(_changed(proposal, change), resolution, edit, catalogue)
    return proposal


def _edit_file(
    proposal: Proposal, resolution: Resolution, edit: Edit, catalogue: Catalogue
) -> Proposal:
    """Apply an edit to the config file that the command line names, if it was given along."""
    config = resolution.config_file
    if config is None or config.name not in proposal.files or config.broken is not None:
        return proposal
    text = edit_config_text(proposal.files[config.name], config.name, edit, catalogue)
    return replace(proposal, files={**proposal.files, config.name: text})


class _Setter:
    def __init__(self, proposal: Proposal, resolution: Resolution, catalogue: Catalogue) -> None:
        self._words = proposal.words
        self._serves = proposal.entrypoint is Entrypoint.SERVE
        self._resolution = resolution
        self._catalogue = catalogue

    def set(self, edit: SetFlag) -> _Change:
        dest, *path = edit.dest.split(".")
        flag = self._catalogue.by_dest.get(dest)
        if flag is None:
            return _Change()
        last = self._effective(dest)
        if path:
            return self._set_key(flag, path, edit.value, last)
        if flag.nargs == 0:
            return self._set_switch(flag, last, value=bool(edit.value))
        texts = _words_of(flag, edit.value)
        if last is not None:
            return self._set_value(flag, last, texts)
        if dest == "model" and self._serves:
            return _Change(first=texts)
        return _Change(added=[flag.name, *texts])

    def remove(self, dest: str) -> _Change:
        dest, *path = dest.split(".")
        change = _Change()
        for occurrence in self._given(dest):
            if path and not occurrence.token.dotted:
                self._remove_key(occurrence, path, change)
            elif path:
                for part in occurrence.token.dotted:
                    if list(part.path[: len(path)]) == path:
                        change.replaced.update((i, []) for i in part.argv)
            else:
                tokens = (occurrence.token, *occurrence.values)
                change.replaced.update((i, []) for token in tokens for i in token.argv)
        return change

    def _given(self, dest: str) -> list[Occurrence]:
        """Give the places on the command line; a positional model counts as the model."""
        dests = {dest, "model_tag"} if dest == "model" and self._serves else {dest}
        return [
            o
            for o in self._resolution.occurrences
            if o.flag.dest in dests and o.origin is Origin.ARGV
        ]

    def _effective(self, dest: str) -> Occurrence | None:
        """Give the place that wins: the positional model, or else the last one."""
        places = self._given(dest)
        positional = [place for place in places if place.option is None]
        return next(reversed(positional or places), None)

    def _set_switch(self, flag: Flag, last: Occurrence | None, *, value: bool) -> _Change:
        wanted = flag.name if value else _negative(flag)
        if wanted is None:  # a switch without a negative form
            return self.remove(flag.dest)
        if last is None:
            return _Change(added=[wanted])
        if last.value == value:
            return _Change()
        return _Change({last.token.argv[0]: [wanted]})

    def _set_value(self, flag: Flag, last: Occurrence, texts: list[str]) -> _Change:
        option = last.option
        if option is None:  # the model, perhaps moved here from --model
            argv = last.values[0].argv
            written = self._words[argv[0]].text
            if len(argv) == 1 and written.startswith("--model="):
                return _Change({argv[0]: [f"--model={texts[0]}"]})
            return _Change({argv[-1]: texts})
        if option.dotted or (last.values and last.values[0].argv == option.argv):
            name = flag.name if option.dotted else None
            if last.explicit and not option.dotted and len(texts) == 1:
                written = self._words[option.argv[0]].text.partition("=")[0]
                return _Change({option.argv[0]: [f"{written}={texts[0]}"]})
            if last.explicit and name is None:
                name = self._words[option.argv[0]].text.partition("=")[0]
            change = _Change({i: [] for i in option.argv})
            change.replaced[option.argv[0]] = [name or flag.name, *texts]
            return change
        change = _Change({i: [] for token in last.values for i in token.argv})
        if last.values:
            change.replaced[last.values[0].argv[0]] = texts
        else:
            change.replaced[option.argv[0]] = [self._words[option.argv[0]].text, *texts]
        return change

    def _set_key(self, flag: Flag, path: list[str], value: Any, last: Occurrence | None) -> _Change:
        if last is None:
            config = self._resolution.config
            setting = None if config is None else config.setting(flag.dest)
            base: Any = {}
            if setting is not None and setting.origin is Origin.CONFIG_FILE:
                base = setting.value
            return _Change(added=[flag.name, json.dumps(with_value(base, path, value))])
        if not last.token.dotted:
            whole = with_value(_json_of(last), path, value)
            return self._set_value(flag, last, [json.dumps(whole)])
        part = next((p for p in reversed(last.token.dotted) if list(p.path) == path), None)
        text = _dotted_text(value)
        if part is None:
            covered = [p for p in last.token.dotted if list(p.path) == path[: len(p.path)]]
            if covered:  # a key above it is given as a whole
                whole = with_value(_json_of(last), path, value)
                return self._set_value(flag, last, [json.dumps(whole)])
            prefix = self._words[last.token.argv[0]].text.partition(".")[0]
            return _Change(added=[f"{prefix}.{'.'.join(path)}", text])
        if len(part.argv) > 1:
            return _Change({part.argv[-1]: [text]})
        written = self._words[part.argv[0]].text.partition("=")[0]
        return _Change({part.argv[0]: [f"{written}={text}"]})

    def _remove_key(self, occurrence: Occurrence, path: list[str], change: _Change) -> None:
        whole = _json_of(occurrence)
        rest = without(whole, path)
        if rest == whole:
            return
        if rest:
            more = self._set_value(occurrence.flag, occurrence, [json.dumps(rest)])
            change.replaced.update(more.replaced)
            return
        tokens = (occurrence.token, *occurrence.values)
        change.replaced.update((i, []) for token in tokens for i in token.argv)


def _json_of(occurrence: Occurrence) -> Any:
    """Give the JSON as written, variables in it untouched."""
    try:
        return json.loads(expand_human_numbers(occurrence.values[0].text))
    except (ConversionError, ValueError, IndexError, RecursionError):
        return {}


def _words_of(flag: Flag, value: Any) -> list[str]:
    if flag.nargs == "+" and isinstance(value, Sequence) and not isinstance(value, str):
        return [_word_of(item) for item in value]
    return [_word_of(value)]


def _word_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "None" if value is None else json.dumps(value)


def _dotted_text(value: Any) -> str:
    """Write the value of a dotted key, which vLLM reads as JSON if it can, else as text."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)


def _negative(flag: Flag) -> str | None:
    visible = [o for o in flag.options if o in flag.negative_options]
    return next(iter(visible or flag.negative_options), None)


# words


def _changed(proposal: Proposal, change: _Change) -> Proposal:
    if not (change.replaced or change.added or change.first):
        return proposal
    if proposal.form is Form.COMMAND:
        return _reparsed(proposal, _edited_text(proposal, change))
    stop = next((i for i, w in enumerate(proposal.words) if w.text == "--"), None)
    texts: list[tuple[str, tuple[str, ...]]] = [(text, ()) for text in change.first]
    for i, word in enumerate(proposal.words):
        if i == stop:
            texts.extend((text, ()) for text in change.added)
        if i in change.replaced:
            texts.extend((text, word.unresolved) for text in change.replaced[i])
        else:
            texts.append((word.text, word.unresolved))
    if stop is None:
        texts.extend((text, ()) for text in change.added)
    words = tuple(
        Word(text, Location(argv_index=i, pointer=f"/args/{i}", text=text[:120]), unresolved)
        for i, (text, unresolved) in enumerate(texts)
    )
    return replace(proposal, words=words)


def _edited_text(proposal: Proposal, change: _Change) -> str:
    """Change the shell text at the places of the words."""
    index = _index_of(proposal)
    spans = [index.span(word.location) or (0, 0) for word in proposal.words]
    splices: list[tuple[int, int, str]] = []
    for span in dict.fromkeys(spans[i] for i in change.replaced if i < len(spans)):
        texts = []
        for i, word in enumerate(proposal.words):
            if spans[i] != span:
                continue
            for text in change.replaced.get(i, [word.text]):
                open_in = tuple(n for n in word.unresolved if n in text)
                texts.append(quote(text, open_in))
        splices.append((*span, " ".join(texts)))
    if (
        proposal.words
        and all(not new for _, _, new in splices)
        and len(splices) == len(dict.fromkeys(spans))
    ):
        splices[0] = (*splices[0][:2], _bare_command(proposal, index))
    if change.first:
        splices.append(_in_front(proposal, index, change.first))
    if change.added:
        splices.append(_addition(proposal, index, spans, change.added))
    text = index.text
    for start, end, new in sorted(splices, reverse=True):
        if not new:  # a deleted word takes the blanks before it along
            start = len(_without_trailing_blanks(text[:start]))
        text = text[:start] + new + text[end:]
    return text


def _bare_command(proposal: Proposal, index: LineIndex) -> str:
    """Give the command's name if the text was nothing but arguments, all of which go."""
    span = None if proposal.command is None else index.span(proposal.command)
    return "vllm serve" if span is not None and span[0] == span[1] else ""


def _addition(
    proposal: Proposal, index: LineIndex, spans: list[tuple[int, int]], added: list[str]
) -> tuple[int, int, str]:
    """Place new words after the last one (before a `--`), on a line of their own if it is so."""
    stop = next((i for i, w in enumerate(proposal.words) if w.text == "--"), len(spans))
    quoted = " ".join(quote(text) for text in added)
    if stop == 0:
        return _in_front(proposal, index, added)
    at = spans[stop - 1][1]
    line_start = index.text.rfind("\n", 0, at) + 1
    first = spans[0][0]
    if line_start > first or (proposal.command and line_start > _start(index, proposal.command)):
        line = index.text[line_start:at]
        indent = line[: len(line) - len(line.lstrip())]
        return at, at, f" \\\n{indent}{quoted}"
    return at, at, f" {quoted}"


def _in_front(proposal: Proposal, index: LineIndex, added: list[str]) -> tuple[int, int, str]:
    """Place new words before the first one."""
    quoted = " ".join(quote(text) for text in added)
    span = None if proposal.command is None else index.span(proposal.command)
    start, end = span or (0, 0)
    return end, end, f"{quoted} " if start == end else f" {quoted}"


def _start(index: LineIndex, location: Location) -> int:
    span = index.span(location)
    return span[0] if span is not None else 0


def _without_trailing_blanks(text: str) -> str:
    while True:
        shorter = text.rstrip(" \t\r")
        if shorter.endswith("\\\n"):
            shorter = shorter[:-2]
        elif shorter.endswith("\\\r\n"):
            shorter = shorter[:-3]
        else:
            return shorter
        text = shorter


def _index_of(proposal: Proposal) -> LineIndex:
    source = proposal.command.source if proposal.command is not None else None
    return LineIndex(proposal.source or "", source or "command")


def _reparsed(proposal: Proposal, text: str) -> Proposal:
    index = _index_of(proposal)
    edited = parse_command(text, source=index.source)
    outside = {
        name: variable
        for name, variable in proposal.environment.items()
        if variable.location.source != index.source
    }
    return replace(
        edited,
        environment={**edited.environment, **outside},
        files={**edited.files, **proposal.files},
        model_config=proposal.model_config,
        hardware=proposal.hardware,
    )


# environment


def set_variable(proposal: Proposal, name: str, value: str) -> Proposal:
    """Set an environment variable where it is written, else in front of the command."""
    variable = proposal.environment.get(name)
    in_text = proposal.form is Form.COMMAND and proposal.command is not None
    index = _index_of(proposal)
    written = variable is not None and variable.location.source == index.source
    if not in_text or (variable is not None and not written):
        location = (
            variable.location
            if variable is not None
            else Location(pointer=f"/env/{name}", variable=name)
        )
        environment = {**proposal.environment, name: Variable(name, value, location)}
        return replace(proposal, environment=environment)
    assignment = f"{name}={quote(value)}"
    if variable is not None and (span := index.span(variable.location)) is not None:
        return _reparsed(proposal, index.text[: span[0]] + assignment + index.text[span[1] :])
    at = _start(index, proposal.command) if proposal.command is not None else 0
    return _reparsed(proposal, f"{index.text[:at]}{assignment} {index.text[at:]}")


def unset_variable(proposal: Proposal, name: str) -> Proposal:
    """Take an environment variable out, however often the text assigns it."""
    while (variable := proposal.environment.get(name)) is not None:
        index = _index_of(proposal)
        span = index.span(variable.location) if proposal.form is Form.COMMAND else None
        if span is None:
            rest = {key: v for key, v in proposal.environment.items() if key != name}
            return replace(proposal, environment=rest)
        proposal = _reparsed(proposal, _without_assignment(index.text, *span))
    return proposal


def _without_assignment(text: str, start: int, end: int) -> str:
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    before, after = text[line_start:start].strip(), text[end:line_end].strip()
    if before in {"", "export", "declare -x"} and after in {"", ";"}:
        return text[:line_start] + text[line_end + 1 :]
    if before == "export" and after.startswith(";"):
        return text[:line_start] + text[end:line_end].lstrip(" ;") + text[line_end:]
    blanks = end
    while blanks < len(text) and (text[blanks] in " \t" or text.startswith("\\\n", blanks)):
        blanks += 2 if text[blanks] == "\\" else 1
    return text[:start] + text[blanks:]
