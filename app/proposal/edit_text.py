"""Writing changed words and variables into the text that a proposal came as."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from app.errors import AdmissionError
from app.proposal.changes import Change
from app.proposal.positions import LineIndex
from app.proposal.proposal import Form, Proposal, Variable, Word
from app.proposal.quoting import quote
from app.verdict.location import Location

# What says nothing but that a server is started.
_BARE: Final = "vllm serve"
_ENV_OPTION: Final = re.compile(r"(?:^|\s)((?:-e|--env)(?:[ \t]|\\\n|\\\r\n)*=?)$")


def changed(proposal: Proposal, change: Change) -> Proposal:
    """Give the proposal with the change made, in its own form.

    A change that cannot be written there, such as one that quotes around it forbid, is left out.
    """
    if not change:
        return proposal
    texts = change.applied(proposal.words)
    if proposal.form is not Form.ARGS:
        writer = proposal.writer
        text = edited_words(proposal, change) if writer is None else writer.words(proposal, change)
        edited = reread(proposal, text)
        return edited if [w.text for w in edited.words] == [t for t, _ in texts] else proposal
    words = tuple(
        Word(text, Location(argv_index=i, pointer=f"/args/{i}", text=text[:120]), unresolved)
        for i, (text, unresolved) in enumerate(texts)
    )
    return replace(proposal, words=words)


def edited_words(proposal: Proposal, change: Change) -> str:
    """Change the shell text at the places of the words; give the whole text."""
    index = innermost(proposal)
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
    return index.whole(text)


def reread(proposal: Proposal, text: str | None) -> Proposal:
    """Read an edited text again; give the proposal as it was if that is not possible."""
    if text is None or proposal.reread is None:
        return proposal
    try:
        edited = proposal.reread(text)
    except AdmissionError:  # the edit broke quotes around it
        return proposal
    source = innermost(proposal).source
    given = {n: t for n, t in proposal.files.items() if n not in proposal.file_texts}
    written = {n: v for n, v in edited.environment.items() if v.location.source == source}
    outside = {n: v for n, v in proposal.environment.items() if v.location.source != source}
    return replace(
        edited,
        environment={**written, **outside},
        files={**edited.files, **given},
        model_config=proposal.model_config,
        draft_model_config=proposal.draft_model_config,
        hardware=proposal.hardware,
    )


def innermost(proposal: Proposal) -> LineIndex:
    """Give the text that the words are written in."""
    return proposal.text or LineIndex(proposal.source or "", "command")


def _outermost(proposal: Proposal) -> LineIndex:
    return LineIndex(proposal.source or "", innermost(proposal).source)


def _bare_command(proposal: Proposal, index: LineIndex) -> str:
    """Give the command's name if the text was nothing but arguments, all of which go."""
    span = None if proposal.command is None else index.span(proposal.command)
    return _BARE if span is not None and span[0] == span[1] else ""


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
        before = index.text[:line_start].rstrip("\r\n")
        line_end = " \\\n" if before.endswith("\\") else "\n"
        return at, at, f"{line_end}{indent}{quoted}"
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


# environment


def set_variable(proposal: Proposal, name: str, value: str) -> Proposal:
    """Set an environment variable where it is written, else in front of the command.

    One that cannot be written there, for the quotes around it, is given beside the text, which
    wins over what the text says.
    """
    variable = proposal.environment.get(name)
    written = variable is not None and _written(proposal, variable)
    beside = proposal.form is Form.PYTHON and variable is None
    if beside or not _in_text(proposal) or (variable is not None and not written):
        return _with_given(proposal, name, value)
    if proposal.writer is not None:
        text = proposal.writer.set_variable(proposal, name, value)
    else:
        text = assigned_in_text(proposal, name, value)
    edited = reread(proposal, text)
    now = edited.environment.get(name)
    if now is not None and now.value == value:
        return edited
    return _with_given(proposal, name, value)


def unset_variable(proposal: Proposal, name: str) -> Proposal:
    """Take an environment variable out, however often the text assigns it."""
    while (variable := proposal.environment.get(name)) is not None:
        if not _in_text(proposal) or not _written(proposal, variable):
            rest = {key: v for key, v in proposal.environment.items() if key != name}
            return replace(proposal, environment=rest)
        if proposal.writer is not None:
            text = proposal.writer.unset_variable(proposal, name)
        else:
            text = _without_variable(proposal, variable)
        if text is not None and not text.strip() and proposal.only_environment:
            text = _BARE  # a text of nothing at all cannot be read
        edited = reread(proposal, text)
        if text is None or edited.environment.get(name) == variable:
            return proposal  # it cannot be taken out of the text
        proposal = edited
    return proposal


def _in_text(proposal: Proposal) -> bool:
    return proposal.reread is not None and proposal.command is not None


def _written(proposal: Proposal, variable: Variable) -> bool:
    return variable.location.source == innermost(proposal).source


def _with_given(proposal: Proposal, name: str, value: str) -> Proposal:
    """Set a variable that stands beside the text."""
    variable = proposal.environment.get(name)
    location = Location(pointer=f"/env/{name}", variable=name)
    if variable is not None and not _written(proposal, variable):
        location = variable.location
    environment = {**proposal.environment, name: Variable(name, value, location)}
    return replace(proposal, environment=environment)


def assigned_in_text(proposal: Proposal, name: str, value: str) -> str:
    """Write an assignment into the shell text; give the whole text."""
    assignment = f"{name}={quote(value)}"
    variable = proposal.environment.get(name)
    index, span = _place_of(proposal, variable)
    if span is not None:
        return index.whole(index.text[: span[0]] + assignment + index.text[span[1] :])
    if proposal.option_at is not None:
        at = _start(index, proposal.option_at)
        assignment = f"-e {assignment}"
    else:
        at = _start(index, proposal.command) if proposal.command is not None else 0
    return index.whole(f"{index.text[:at]}{assignment} {index.text[at:]}")


def _place_of(
    proposal: Proposal, variable: Variable | None
) -> tuple[LineIndex, tuple[int, int] | None]:
    """Give the text that a variable is written in, and its place there."""
    index = innermost(proposal)
    if variable is None:
        return index, None
    span = index.span(variable.location)
    if span is None:
        index = _outermost(proposal)
        span = index.span(variable.location)
    return index, span


def _without_variable(proposal: Proposal, variable: Variable) -> str | None:
    index, span = _place_of(proposal, variable)
    if span is None:
        return None
    option = _ENV_OPTION.search(index.text[: span[0]])
    if option is None:
        return index.whole(_without_assignment(index.text, *span))
    following = index.text[span[1] :]
    rest = _without_blanks(following)
    return index.whole(index.text[: option.start(1)] + rest)


def _without_assignment(text: str, start: int, end: int) -> str:
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    before, after = text[line_start:start].strip(), text[end:line_end].strip()
    if before in {"", "export", "declare -x"} and after in {"", ";"}:
        return text[:line_start] + text[line_end + 1 :]
    if before == "export" and after.startswith(";"):
        return text[:line_start] + text[end:line_end].lstrip(" ;") + text[line_end:]
    return text[:start] + _without_blanks(text[end:])


def _without_blanks(text: str) -> str:
    """Give the text without the blanks and continued line ends that it begins with."""
    while True:
        shorter = text.lstrip(" \t").removeprefix("\\\n").removeprefix("\\\r\n")
        if shorter == text:
            return text
        text = shorter
