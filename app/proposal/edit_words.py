"""Edits of a command line: which words change, in terms of its flags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.catalogue import Catalogue, Flag
from app.proposal.changes import Change
from app.proposal.edit_text import changed, reread
from app.proposal.edit_yaml import edit_config_text
from app.proposal.nested import with_value, without
from app.proposal.proposal import Entrypoint, Proposal
from app.serve_config.conversion import ConversionError, expand_human_numbers
from app.serve_config.resolve import Resolution, resolve
from app.serve_config.serve_config import Origin
from app.serve_config.tokens import Occurrence
from app.verdict.fix import Edit, RemoveFlag, ReplaceArgument, SetFlag


def replaced_words(proposal: Proposal, words: Mapping[int | str, str]) -> Proposal:
    """Write words, by their index, in another spelling: all at once, or else each that can be."""
    known = {at: [text] for at, text in words.items() if isinstance(at, int)}
    known = {at: texts for at, texts in known.items() if at < len(proposal.words)}
    edited = changed(proposal, Change(known))
    if edited is not proposal or len(known) < 2:
        return edited
    for at, texts in known.items():
        proposal = changed(proposal, Change({at: texts}))
    return proposal


def edit_words(proposal: Proposal, edit: Edit, catalogue: Catalogue) -> Proposal:
    """Apply one edit of a flag or word."""
    resolution = resolve(proposal, catalogue, judged=False)
    if isinstance(edit, ReplaceArgument):
        return _edit_file(proposal, resolution, edit, catalogue)
    if isinstance(edit, SetFlag):
        return changed(proposal, _Setter(proposal, resolution, catalogue).set(edit))
    if isinstance(edit, RemoveFlag):
        change = _Setter(proposal, resolution, catalogue).remove(edit.dest)
        return _edit_file(changed(proposal, change), resolution, edit, catalogue)
    return proposal


def edit_words_at_once(
    proposal: Proposal, edits: Sequence[Edit], catalogue: Catalogue
) -> Proposal | None:
    """Apply edits of different settings in one go; None where they need one after the other."""
    dests = [e.dest.partition(".")[0] for e in edits if isinstance(e, SetFlag | RemoveFlag)]
    # The model moves words; two edits of one setting depend on each other.
    if len(set(dests)) < len(edits) or "model" in dests:
        return None
    resolution = resolve(proposal, catalogue, judged=False)
    if resolution.config_file is not None:
        return None
    setter = _Setter(proposal, resolution, catalogue)
    whole = Change()
    for edit in edits:
        if isinstance(edit, SetFlag):
            change = setter.set(edit)
        elif isinstance(edit, RemoveFlag):
            change = setter.remove(edit.dest)
        else:
            return None
        whole.replaced.update(change.replaced)
        whole.added.extend(change.added)
    edited = changed(proposal, whole)
    return None if edited is proposal else edited


def _edit_file(
    proposal: Proposal, resolution: Resolution, edit: Edit, catalogue: Catalogue
) -> Proposal:
    """Apply an edit to the config file that the command line names, if it was given along."""
    config = resolution.config_file
    if config is None or config.name not in proposal.files or config.broken is not None:
        return proposal
    text = edit_config_text(proposal.files[config.name], config.name, edit, catalogue)
    if config.name in proposal.file_texts and proposal.write_file is not None:
        edited = reread(proposal, proposal.write_file(config.name, text))
        return edited if edited.files.get(config.name) == text else proposal
    return replace(proposal, files={**proposal.files, config.name: text})


class _Setter:
    def __init__(self, proposal: Proposal, resolution: Resolution, catalogue: Catalogue) -> None:
        self._words = proposal.words
        self._serves = proposal.entrypoint is Entrypoint.SERVE
        self._resolution = resolution
        self._catalogue = catalogue

    def set(self, edit: SetFlag) -> Change:
        dest, *path = edit.dest.split(".")
        flag = self._catalogue.by_dest.get(dest)
        if flag is None:
            return Change()
        last = self._effective(dest)
        if path:
            return self._set_key(flag, path, edit.value, last)
        if flag.nargs == 0:
            return self._set_switch(flag, last, value=bool(edit.value))
        texts = _words_of(flag, edit.value)
        if last is not None:
            return self._set_value(flag, last, texts)
        if dest == "model" and self._serves:
            return Change(first=texts)
        return Change(added=[flag.name, *texts])

    def remove(self, dest: str) -> Change:
        dest, *path = dest.split(".")
        change = Change()
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

    def _set_switch(self, flag: Flag, last: Occurrence | None, *, value: bool) -> Change:
        wanted = flag.name if value else _negative(flag)
        if wanted is None:  # a switch without a negative form
            return self.remove(flag.dest)
        if last is None:
            return Change(added=[wanted])
        if last.value == value:
            return Change()
        return Change({last.token.argv[0]: [wanted]})

    def _set_value(self, flag: Flag, last: Occurrence, texts: list[str]) -> Change:
        option = last.option
        if option is None:  # the model, perhaps moved here from --model
            argv = last.values[0].argv
            written = self._words[argv[0]].text
            if len(argv) == 1 and written.startswith("--model="):
                return Change({argv[0]: [f"--model={texts[0]}"]})
            return Change({argv[-1]: texts})
        if option.dotted or (last.values and last.values[0].argv == option.argv):
            name = flag.name if option.dotted else None
            if last.explicit and not option.dotted and len(texts) == 1:
                written = self._words[option.argv[0]].text.partition("=")[0]
                return Change({option.argv[0]: [f"{written}={texts[0]}"]})
            if last.explicit and name is None:
                name = self._words[option.argv[0]].text.partition("=")[0]
            change = Change({i: [] for i in option.argv})
            change.replaced[option.argv[0]] = [name or flag.name, *texts]
            return change
        change = Change({i: [] for token in last.values for i in token.argv})
        if last.values:
            change.replaced[last.values[0].argv[0]] = texts
        else:
            change.replaced[option.argv[0]] = [self._words[option.argv[0]].text, *texts]
        return change

    def _set_key(self, flag: Flag, path: list[str], value: Any, last: Occurrence | None) -> Change:
        if last is None:
            config = self._resolution.config
            setting = None if config is None else config.setting(flag.dest)
            base: Any = {}
            if setting is not None and setting.origin is Origin.CONFIG_FILE:
                base = setting.value
            return Change(added=[flag.name, json.dumps(with_value(base, path, value))])
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
            return Change(added=[f"{prefix}.{'.'.join(path)}", text])
        if len(part.argv) > 1:
            return Change({part.argv[-1]: [text]})
        written = self._words[part.argv[0]].text.partition("=")[0]
        return Change({part.argv[0]: [f"{written}={text}"]})

    def _remove_key(self, occurrence: Occurrence, path: list[str], change: Change) -> None:
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
