"""Shell text as people paste it, as a proposal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.errors import MalformedDocument, PayloadTooLarge, Problem
from app.proposal.positions import LineIndex
from app.proposal.proposal import Entrypoint, Form, Proposal, Variable, Word
from app.proposal.shell_lexer import SimpleCommand, lex
from app.proposal.shell_words import Expansion, Literal, RawWord
from app.verdict.finding import Finding, Severity

MAX_TEXT: Final = 1 << 18  # Linux takes no single word of more than half of it
MAX_WORDS: Final = 10_000
MAX_COMMANDS: Final = 1_000

_API_SERVER: Final = "vllm.entrypoints.openai.api_server"
_CLI_MODULES: Final = {"vllm", "vllm.entrypoints.cli.main"}
# Programs that run the command that follows, in this process's environment.
_WRAPPERS: Final = frozenset(
    {"exec", "env", "nohup", "sudo", "time", "command", "numactl", "taskset", "nice", "ionice"}
    | {"stdbuf", "uv", "uvx", "poetry", "pipenv", "conda", "pixi", "setsid", "chrt", "timeout"}
    | {"nsys", "ncu", "tini", "dumb-init", "gosu", "catchsegv", "srun", "accelerate"}
)
_EXPORTING: Final = {"export", "declare", "typeset"}
# Builtins and words that can change variables or the flow in ways we do not follow.
_UNFOLLOWED: Final = frozenset({"source", ".", "eval", "read", "alias", "trap", "local", "mapfile"})
_COMPOUND: Final = frozenset(
    {"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac"}
    | {"select", "function", "{", "}", "[[", "!"}
)
_OTHER_PROGRAMS: Final = frozenset(
    {"docker", "podman", "nerdctl", "bash", "sh", "zsh", "dash", "kubectl", "helm", "ray", "make"}
    | {"torchrun", "deepspeed", "sglang", "pip", "pip3", "git", "curl", "wget", "ssh", "npm", "cat"}
)
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class _Value:
    text: str
    unresolved: tuple[str, ...]
    raw: RawWord
    exported: bool


def parse_command(text: str, *, source: str = "command") -> Proposal:
    """Read the one `vllm serve` command in a shell text.

    Takes `vllm serve …`, `python -m vllm.entrypoints.openai.api_server …`, either behind `exec`,
    `env`, `nohup` and the like, or bare arguments; before it, assignments and `export` lines.
    `$VAR` is replaced if it was assigned earlier in the text. A here-document that `cat` writes
    to a file becomes one of the proposal's `files`.

    Raises:
        MalformedDocument: the text cannot be read, or has no or several such commands.
        PayloadTooLarge: more text or words than any command line has.
    """
    if len(text) > MAX_TEXT:
        raise PayloadTooLarge(f"a command of more than {MAX_TEXT} characters cannot be started")
    if "\0" in text:
        at = LineIndex(text, source).line_column(text.index("\0"))
        problem = Problem("nul-character", "NUL cannot be in a command", line=at[0], column=at[1])
        raise MalformedDocument("the shell text cannot be read", (problem,))
    if (len(text) - len(text.rstrip("\\"))) % 2:
        text = text[:-1]  # it continues nothing, and the shell drops it
    return _Reader(LineIndex(text, source)).read()


class _Reader:
    def __init__(self, index: LineIndex) -> None:
        self._index = index
        self._variables: dict[str, _Value] = {}
        self._files: dict[str, str] = {}
        self._used: set[str] = set()
        self._findings: list[Finding] = []
        self._served: Proposal | None = None
        self._unclear: list[SimpleCommand] = []

    def read(self) -> Proposal:
        commands = lex(self._index)
        if len(commands) > MAX_COMMANDS:
            raise PayloadTooLarge(f"a script of more than {MAX_COMMANDS} commands is not read")
        for command in commands:
            self._command(command)
        if self._served is None:
            self._served = self._bare_arguments()
        for name, value in self._variables.items():
            written = self._served.environment.get(name)
            if not value.exported and name not in self._used and written is not None:
                self._findings.append(_not_exported(written))
        return replace(self._served, files=self._files, findings=tuple(self._findings))

    # commands

    def _command(self, command: SimpleCommand) -> None:
        words = command.words
        if words and words[0].literal in {"$", "%"} and not words[0].quoted:
            words = words[1:]  # a pasted prompt
        count = next((i for i, w in enumerate(words) if w.assignment is None), len(words))
        assigned, rest = words[:count], words[count:]
        if not rest:
            for word in assigned:
                self._assign(word, exported=False)
            return
        program = rest[0].literal or ""
        if program in _COMPOUND and not rest[0].quoted:
            raise self._broken(
                "shell-compound-command",
                f"`{program}`: compound commands are not read; give the `vllm serve` command "
                "on its own",
                rest[0],
            )
        if program in _EXPORTING:
            self._export(rest[1:])
        elif program == "unset":
            for word in rest[1:]:
                self._variables.pop(word.literal or "", None)
        elif found := _find_server(rest):
            self._serve(assigned, rest, *found)
        elif program in _UNFOLLOWED:
            self._findings.append(self._not_followed(program, rest[0]))
        elif program == "cat" and len(rest) == 1:
            self._written_file(command)
        else:
            self._unclear.append(replace_words(command, words))

    def _serve(
        self,
        assigned: list[RawWord],
        words: list[RawWord],
        entrypoint: Entrypoint,
        name_at: int,
        first: int,
    ) -> None:
        if self._served is not None:
            raise self._broken(
                "several-commands",
                "this is a second server command; validate one command at a time",
                words[name_at],
            )
        environment = {name: self._variable(name, value) for name, value in self._variables.items()}
        for word in assigned:
            name, value = self._value(word)
            environment[name] = self._variable(name, value)
        self._env_wrapper(words[:name_at], environment)
        self._served = Proposal(
            form=Form.COMMAND,
            entrypoint=entrypoint,
            words=self._words(words[first:]),
            environment=environment,
            source=self._index.text,
            command=self._index.location((*assigned, *words)[0].start, words[first - 1].end),
        )

    def _bare_arguments(self) -> Proposal:
        commands = self._unclear
        if not commands:
            detail = "there is no `vllm serve` command in it"
            raise MalformedDocument(
                "the shell text has no command", (Problem("no-command", detail, line=1, column=1),)
            )
        command = commands[0]
        words = command.words
        count = next(i for i, w in enumerate(words) if w.assignment is None)
        head = words[count]
        program = (head.literal or "").rpartition("/")[2]
        following = words[count + 1].literal if len(words) > count + 1 else None
        if program == "vllm":
            raise self._broken(
                "not-serve",
                f"`vllm {following or ''}`".replace(" `", "`")
                + " starts no server; only `vllm serve …` is checked",
                head,
            )
        known = program in _OTHER_PROGRAMS or _PYTHON.fullmatch(program)
        if known or len(commands) > 1:
            raise self._broken(
                "no-command",
                f"no `vllm serve …` command was found; `{program}` is not read. Give the "
                "`vllm serve` command itself, or only its arguments",
                head,
            )
        environment = {name: self._variable(name, value) for name, value in self._variables.items()}
        for word in words[:count]:
            name, value = self._value(word)
            environment[name] = self._variable(name, value)
        return Proposal(
            form=Form.COMMAND,
            words=self._words(words[count:]),
            environment=environment,
            source=self._index.text,
            command=self._index.location(words[0].start, words[0].start),
        )

    def _env_wrapper(self, words: list[RawWord], environment: dict[str, Variable]) -> None:
        """Apply the assignments and `-i`, `-u` of an `env` before the command."""
        after_env = False
        skip = False
        for word in words:
            text = word.literal
            if skip:
                environment.pop(text or "", None)
                skip = False
            elif word.assignment is not None:
                name, value = self._value(word)
                environment[name] = self._variable(name, value)
            elif text == "env":
                after_env = True
            elif after_env and text in {"-i", "--ignore-environment", "-"}:
                environment.clear()
            elif after_env and text in {"-u", "--unset"}:
                skip = True

    def _export(self, words: list[RawWord]) -> None:
        for word in words:
            name = word.literal or ""
            if word.assignment is not None:
                self._assign(word, exported=True)
            elif name in self._variables:
                self._variables[name] = replace(self._variables[name], exported=True)

    def _written_file(self, command: SimpleCommand) -> None:
        """Remember what `cat > NAME <<EOF` writes, if nothing in it is expanded."""
        target = next((r for r in command.redirections if r.operator in {">", ">|"}), None)
        body = next((r for r in command.redirections if r.body is not None), None)
        if target is not None and body is not None and body.body is not None:
            name = target.target.literal
            if name is not None and body.body_is_literal:
                self._files[name] = body.body

    # expansion

    def _assign(self, word: RawWord, *, exported: bool) -> None:
        name, value = self._value(word)
        before = self._variables.get(name)
        exported = exported or (before is not None and before.exported)
        self._variables[name] = replace(value, exported=exported)

    def _value(self, word: RawWord) -> tuple[str, _Value]:
        name = word.assignment or ""
        fields = self._expand(word, split=False)
        text, unresolved = fields[0] if fields else (f"{name}=", ())
        return name, _Value(text[len(name) + 1 :], unresolved, word, exported=True)

    def _variable(self, name: str, value: _Value) -> Variable:
        location = self._index.location(value.raw.start, value.raw.end)
        return Variable(name, value.text, replace(location, variable=name), value.unresolved)

    def _words(self, raws: Iterable[RawWord]) -> tuple[Word, ...]:
        words: list[Word] = []
        for raw in raws:
            for text, unresolved in self._expand(raw, split=True):
                location = self._index.location(raw.start, raw.end, argv_index=len(words))
                words.append(Word(text, location, unresolved))
                if len(words) > MAX_WORDS:
                    raise PayloadTooLarge(f"a command of more than {MAX_WORDS} words")
        return tuple(words)

    def _expand(self, raw: RawWord, *, split: bool) -> list[tuple[str, tuple[str, ...]]]:
        """Give the words a raw word becomes, each with the variables left open in it."""
        fields: list[tuple[list[str], list[str]]] = []
        fresh = True  # the next text begins a new field
        size = 0
        for part in raw.parts:
            if isinstance(part, Literal):
                pieces, breaks = [part.text], False
                unresolved: tuple[str, ...] = ()
            else:
                text, unresolved = self._expansion(part)
                breaks = split and not part.quoted and not unresolved
                pieces = text.split() if breaks else [text]
                fresh = fresh or (breaks and text[:1].isspace())
                if not pieces:
                    continue
            for number, piece in enumerate(pieces):
                if fresh or number or not fields:
                    fields.append(([], []))
                fields[-1][0].append(piece)
                fields[-1][1].extend(unresolved)
                size += len(piece)
                fresh = False
            if size > MAX_TEXT:
                raise PayloadTooLarge("the variables expand to more than a command line holds")
            if breaks and isinstance(part, Expansion):
                fresh = self._expansion(part)[0][-1:].isspace()
        return [("".join(texts), tuple(dict.fromkeys(names))) for texts, names in fields]

    def _expansion(self, part: Expansion) -> tuple[str, tuple[str, ...]]:
        if part.name is None:
            return part.raw, (part.raw.removeprefix("$"),)
        self._used.add(part.name)
        value = self._variables.get(part.name)
        if value is None:
            return part.raw, (part.name,)
        operator, empty = part.operator or "", not value.text and ":" in (part.operator or "")
        if operator.endswith("+"):
            return ("" if empty else part.word), ()
        if operator.endswith("-") and empty:
            return part.word, ()
        return value.text, value.unresolved

    # messages

    def _not_followed(self, program: str, word: RawWord) -> Finding:
        return Finding(
            rule="shell-not-followed",
            severity=Severity.WARNING,
            message=(
                f"`{program}` may set variables that the server reads; what it does cannot be "
                "known from this text"
            ),
            location=self._index.location(word.start, word.end),
            undecided=True,
        )

    def _broken(self, code: str, detail: str, word: RawWord) -> MalformedDocument:
        line, column = self._index.line_column(word.start)
        problem = Problem(code, detail, line=line, column=column)
        return MalformedDocument("the shell text cannot be read", (problem,))


def replace_words(command: SimpleCommand, words: list[RawWord]) -> SimpleCommand:
    """Give the command with other words."""
    return SimpleCommand(words, command.redirections)


def _find_server(words: list[RawWord]) -> tuple[Entrypoint, int, int] | None:
    """Find the server's program; give how it is started, its index, and its first argument's."""
    texts: Mapping[int, str] = {i: w.literal or "" for i, w in enumerate(words)}
    for at, text in texts.items():
        program = text.rpartition("/")[2]
        if program == "vllm" and texts.get(at + 1) == "serve":
            return Entrypoint.SERVE, at, at + 2
        if _PYTHON.fullmatch(program):
            module = next((i for i in range(at + 1, len(words)) if texts[i] == "-m"), None)
            name = texts.get(module + 1) if module is not None else None
            if module is not None and name == _API_SERVER:
                return Entrypoint.API_SERVER, at, module + 2
            if module is not None and name in _CLI_MODULES and texts.get(module + 2) == "serve":
                return Entrypoint.SERVE, at, module + 3
            return None
        if at == 0 and program not in _WRAPPERS:
            return None
    return None


def _not_exported(variable: Variable) -> Finding:
    return Finding(
        rule="shell-not-exported",
        severity=Severity.WARNING,
        message=(
            f"{variable.name} is assigned on a line of its own; a shell passes it to the server "
            "only if it is exported. It was read as exported"
        ),
        location=variable.location,
    )
