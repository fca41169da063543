"""Shell text as people paste it, as a proposal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from app.errors import AdmissionError, MalformedDocument, PayloadTooLarge, Problem
from app.proposal.env_file import read_env_file
from app.proposal.launch import WRAPPERS, Surroundings, launched
from app.proposal.pieces import Piece, numbered
from app.proposal.positions import LineIndex, NestedText
from app.proposal.proposal import Form, Proposal, Variable, Word
from app.proposal.quoting import encoder_at
from app.proposal.shell_conditions import is_test
from app.proposal.shell_effects import assigned_by, set_by
from app.proposal.shell_expand import MAX_EXPANDED, Field, Value, Variables
from app.proposal.shell_flow import Flow
from app.proposal.shell_lexer import Redirection, SimpleCommand, lex
from app.proposal.shell_programs import is_open, names_server
from app.proposal.shell_syntax import RESERVED, List, parse, parts_of, simple_commands
from app.proposal.shell_words import RawWord
from app.verdict.finding import Finding, Severity

MAX_TEXT: Final = MAX_EXPANDED
MAX_WORDS: Final = 10_000
MAX_COMMANDS: Final = 1_000
_MAX_DEPTH: Final = 8  # of scripts in the words of scripts

_EXPORTING: Final = {"export", "declare", "typeset"}
# Builtins and words that can change variables or the flow in ways we do not follow.
_UNFOLLOWED: Final = frozenset({"source", ".", "eval", "read", "alias", "trap", "local", "mapfile"})
_NAMING: Final = frozenset({"read", "local", "mapfile"})  # those that name what they set
NOT_STARTED: Final = "shell-not-started"
_SIGNALS: Final = frozenset({"EXIT", "0"}).union(
    *({name, f"SIG{name}"} for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CHLD"))
)
_OTHER_PROGRAMS: Final = frozenset(
    {"docker", "podman", "nerdctl", "bash", "sh", "zsh", "dash", "kubectl", "helm", "ray", "make"}
    | {"torchrun", "deepspeed", "sglang", "pip", "pip3", "git", "curl", "wget", "ssh", "npm", "cat"}
)
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
# A here-document is no quoted text: a backslash escapes these, and quotes are characters.
_BODY_EXPANSION: Final = re.compile(
    r"\\(?P<escaped>[$`\\\n])|\$(?:(?P<name>[A-Za-z_]\w*)|"
    r"\{(?P<braced>[A-Za-z_]\w*)(?:(?P<operator>:?-)(?P<word>[^$`'\"\\{}]*))?\})|"
    r"(?P<unknown>`|\$[({0-9@*#?!-])",
    re.ASCII,
)
_ASSIGNMENTS: Final = re.compile(r"\s*(?:(?:export[ \t]+)?[A-Za-z_]\w*=.*|#.*)?", re.ASCII)


def parse_command(
    text: str,
    *,
    source: str = "command",
    given: Mapping[str, Variable] | None = None,
    files: Mapping[str, str] | None = None,
) -> Proposal:
    """Read the one command in a shell text that starts a vLLM server.

    Takes `vllm serve …`, `python -m vllm.entrypoints.openai.api_server …`, either behind `exec`,
    `env`, `nohup` and the like, in `sh -c '…'`, or as `docker run … IMAGE …`; or bare arguments;
    before it, assignments and `export` lines. `$VAR` is replaced if it was assigned earlier in
    the text or is among the `given` variables. A here-document that `cat` writes to a file
    becomes one of the proposal's `files`; those given along are for `--env-file`. Text that only
    assigns variables is a proposal of these alone.

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
    proposal = read_shell(
        LineIndex(text, source),
        form=Form.COMMAND,
        environment=given or {},
        files=files or {},
        dialect="bash",
    )

    def reread(edited: str) -> Proposal:
        return parse_command(edited, source=source, given=given, files=files)

    return replace(proposal, source=text, reread=reread)


def read_shell(
    index: LineIndex,
    *,
    form: Form,
    environment: Mapping[str, Variable],
    files: Mapping[str, str],
    depth: int = 0,
    open_names: Sequence[str] = (),
    dialect: str = "sh",
) -> Proposal:
    """Read shell text that is part of something else, such as a container's command.

    `open_names` are variables that what is around it would have put in before a shell reads it:
    what the text assigns to them does not count. `dialect` names the shell that reads it: of any
    but `bash` only what all of them do is known.

    Raises: as `parse_command`.
    """
    if depth > _MAX_DEPTH:
        problem = Problem("shell-depth", "scripts in scripts in scripts are not followed further")
        raise MalformedDocument("the shell text cannot be read", (problem,))
    return _Reader(index, form, environment, files, depth, open_names, dialect).read()


class _Reader:
    def __init__(
        self,
        index: LineIndex,
        form: Form,
        environment: Mapping[str, Variable],
        files: Mapping[str, str],
        depth: int,
        open_names: Sequence[str],
        dialect: str,
    ) -> None:
        self._index = index
        self._around = Surroundings(form, index, self._read_script, files)
        self._depth = depth
        self._given = environment
        self._variables = Variables(index, frozenset(open_names))
        for name, variable in environment.items():
            self._variables.values[name] = Value(
                variable.value, variable.unresolved, variable.location, exported=True
            )
        self._files: dict[str, str] = {}
        self._findings: list[Finding] = []
        self._served: Proposal | None = None
        self._unclear: list[SimpleCommand] = []
        self._assigned = False
        self._bash = dialect == "bash"
        self._flow = Flow(self, self._variables, index, bash=self._bash)

    def read(self) -> Proposal:
        commands = lex(self._index)
        if len(commands) > MAX_COMMANDS:
            raise PayloadTooLarge(f"a script of more than {MAX_COMMANDS} commands is not read")
        script = parse(commands, self.refuse, bash=self._bash)
        self._flow.run(script)
        served = self._served
        if served is None:
            self._tell_of_what_is_passed_over(script)
            served = self._environment_alone() or self._bare_arguments(script)
        if not served.only_environment:
            self._tell_of_variables(served)
        return replace(
            served,
            files={**served.files, **self._files},
            findings=(*served.findings, *self._findings),
        )

    def _tell_of_variables(self, served: Proposal) -> None:
        for name, value in self._variables.values.items():
            written = served.environment.get(name)
            unseen = not value.exported and name not in self._variables.used
            if unseen and written is not None and written.location == value.location:
                self._findings.append(_not_exported(written))
        for name, place in self._variables.defaulted.items():
            self._findings.append(
                Finding(
                    rule="shell-default-taken",
                    severity=Severity.INFO,
                    message=f"{name} is not assigned here, so its default was taken",
                    location=place,
                )
            )

    def _tell_of_what_is_passed_over(self, script: List) -> None:
        """Refuse a script that has a server and is known not to start it."""
        if not self._flow.passed or self._flow.doubted:
            return
        held = [c for c in simple_commands(script) if self._may_start(c)]
        if held and not any(map(self._may_start, self._unclear)):
            detail = "what is run of this script does not start this server"
            raise self.refuse(NOT_STARTED, detail, held[0].words[0])

    def _may_start(self, command: SimpleCommand) -> bool:
        rest = [word for word in command.words if word.assignment is None]
        return bool(rest) and (rest[0].literal is None or self.starts(command, rest))

    # commands

    def command(self, command: SimpleCommand) -> None:
        """Carry out a command that is run."""
        words = command.words
        if words and words[0].literal in {"$", "%"} and not words[0].quoted:
            words = words[1:]  # a pasted prompt
        count = next((i for i, w in enumerate(words) if w.assignment is None), len(words))
        assigned, rest = words[:count], words[count:]
        if not rest:
            self._assigned = self._assigned or bool(assigned)
            for word in assigned:
                self._variables.assign(word, exported=False)
            return
        program = rest[0].literal or ""
        if program in RESERVED and not rest[0].quoted:
            raise self.refuse("shell-compound-command", f"`{program}` cannot stand here", rest[0])
        if program in _EXPORTING:
            self._export(rest[1:])
        elif program == "unset":
            for word in rest[1:]:
                self._variables.values.pop(word.literal or "", None)
        elif _sets_nothing(rest):
            pass
        elif program in _UNFOLLOWED:
            self._findings.append(self._not_followed(program, rest[0]))
            self._flow.doubted = self._flow.doubted or program not in _NAMING
            self._set_by(command)
        elif program == "cat" and len(rest) == 1:
            self._written_file(command)
        elif not self._serves(assigned, rest):
            self._unclear.append(SimpleCommand(words, command.redirections))
            self._set_by(command)

    def _set_by(self, command: SimpleCommand) -> None:
        """Leave open what a command sets that is not carried out here."""
        if names := assigned_by(command):
            first = command.words[0] if command.words else command.redirections[0].target
            self._variables.open(names, (), self._index.location(first.start, first.end))

    def starts(self, command: SimpleCommand, words: Sequence[RawWord]) -> bool:
        """Whether a command, from its program on, may start a server; where not, it is passed."""
        if is_test(command):
            return False
        variables = self._variables
        used, defaulted = set(variables.used), dict(variables.defaulted)
        values = dict(variables.values) if any(set_by(words)) else None
        try:
            return self._may_serve(words)
        except AdmissionError:
            return True
        finally:
            variables.used, variables.defaulted = used, defaulted
            variables.values = variables.values if values is None else values

    def _may_serve(self, words: Sequence[RawWord]) -> bool:
        if is_open(words, self._variables):
            return True
        pieces = self._pieces(words)
        told = names_server(words, " ".join(piece.text for piece in pieces))
        return launched(pieces, {}, self._around) is not None if told is None else told

    def _serves(self, assigned: list[RawWord], words: list[RawWord]) -> bool:
        """Read the command as one that starts a server; say whether it is."""
        used, defaulted = set(self._variables.used), dict(self._variables.defaulted)
        pieces = self._pieces(words)
        proposal = launched(pieces, self._environment(assigned), self._around) if pieces else None
        if proposal is None:
            self._variables.used, self._variables.defaulted = used, defaulted
            return False
        if self._served is not None:
            raise self.refuse(
                "several-commands",
                "this is a second server command; validate one command at a time",
                words[0],
            )
        command = proposal.command
        if assigned and command is not None and proposal.text is self._index:
            span = self._index.span(command)
            if span is not None:
                command = self._index.location(assigned[0].start, span[1])
        self._served = replace(proposal, command=command)
        return True

    def _environment(self, assigned: list[RawWord]) -> dict[str, Variable]:
        environment = self._variables.environment()
        for word in assigned:
            name, value = self._variables.value(word)
            environment[name] = value.as_variable(name)
        return environment

    def _read_script(
        self,
        text: LineIndex,
        environment: Mapping[str, Variable],
        open_names: Sequence[str],
        dialect: str,
    ) -> Proposal:
        return read_shell(
            text,
            form=self._around.form,
            environment=environment,
            files=self._around.files,
            depth=self._depth + 1,
            open_names=open_names,
            dialect=dialect,
        )

    def _environment_alone(self) -> Proposal | None:
        """Take text that only assigns variables for the environment of a server.

        In a file of such, a value may have blanks, which a shell would take for a command.
        """
        text = self._index.text
        environment = self._variables.environment()
        if self._unclear or not self._assigned:
            if "=" not in text or not all(map(_ASSIGNMENTS.fullmatch, text.splitlines())):
                return None
            read = read_env_file(text, self._index.source, self._given, quotes=True)
            environment.update({variable.name: variable for variable in read})
        self._findings.append(
            Finding(
                rule="shell-environment-only",
                severity=Severity.INFO,
                message="no server command is in this; only the variables were checked",
            )
        )
        return Proposal(
            form=self._around.form,
            environment=environment,
            source=text,
            command=self._index.location(len(text), len(text)),
            text=self._index,
            only_environment=True,
        )

    def _bare_arguments(self, script: List) -> Proposal:
        commands = self._unclear
        if not commands:
            detail = "there is no `vllm serve` command in it"
            line, column = self._index.line_column(0)
            problem = Problem("no-command", detail, line=line, column=column)
            raise MalformedDocument("the shell text has no command", (problem,))
        words = commands[0].words
        count = next(i for i, w in enumerate(words) if w.assignment is None)
        head = words[count]
        program = (head.literal or "").rpartition("/")[2]
        following = words[count + 1].literal if len(words) > count + 1 else None
        if program == "vllm":
            raise self.refuse(
                "not-serve",
                f"`vllm {following or ''}`".replace(" `", "`")
                + " starts no server; only `vllm serve …` is checked",
                head,
            )
        known = program in _OTHER_PROGRAMS or program in WRAPPERS or _PYTHON.fullmatch(program)
        compound = any(parts_of(n) for entry in script for p in entry for n in p.nodes)
        if known or compound or len(commands) > 1:
            raise self.refuse(
                "no-command",
                f"no `vllm serve …` command was found; `{program}` is not read. Give the "
                "`vllm serve` command itself, or only its arguments",
                head,
            )
        return Proposal(
            form=self._around.form,
            words=numbered(self._pieces(words[count:])),
            environment=self._environment(words[:count]),
            source=self._index.text,
            command=self._index.location(words[0].start, words[0].start),
            text=self._index,
        )

    def _export(self, words: list[RawWord]) -> None:
        for word in words:
            name = word.literal or ""
            if word.assignment is not None:
                self._assigned = True
                self._variables.assign(word, exported=True)
            elif name in self._variables.values:
                value = self._variables.values[name]
                self._variables.values[name] = replace(value, exported=True)

    # files

    def _written_file(self, command: SimpleCommand) -> None:
        """Remember what `cat > NAME <<EOF` writes, if all of it is known."""
        target = next((r for r in command.redirections if r.operator in {">", ">|"}), None)
        body = next((r for r in command.redirections if r.body is not None), None)
        if target is None or body is None:
            return
        name = self._variables.expand(target.target, split=False)
        text = self._body(body)
        if len(name) == 1 and not name[0].unresolved and text is not None:
            self._files[name[0].text] = text

    def _body(self, redirection: Redirection) -> str | None:
        """Expand the text of a here-document; None if something in it is not known."""
        text = redirection.body or ""
        if redirection.target.quoted:
            return text
        out: list[str] = []
        at = 0
        for match in _BODY_EXPANSION.finditer(text):
            out.append(text[at : match.start()])
            at = match.end()
            if match["escaped"] is not None:
                out.append(match["escaped"].removesuffix("\n"))
                continue
            value = self._variables.values.get(match["name"] or match["braced"] or "")
            self._variables.used.add(match["name"] or match["braced"] or "")
            if value is not None and not value.unresolved and (value.text or not match["operator"]):
                out.append(value.text)
            elif match["operator"] is not None and (value is None or not value.unresolved):
                out.append(match["word"])
            else:
                return None
        return "".join(out) + text[at:]

    # words

    def _pieces(self, raws: Sequence[RawWord]) -> list[Piece]:
        pieces: list[Piece] = []
        for raw in raws:
            for found in self._variables.expand(raw):
                location = self._index.location(raw.start, raw.end)
                word = Word(found.text, location, found.unresolved)
                pieces.append(Piece(word, self._nesting(raw, found), raw.quoted))
                if len(pieces) > MAX_WORDS:
                    raise PayloadTooLarge(f"a command of more than {MAX_WORDS} words")
        return pieces

    def _nesting(self, raw: RawWord, found: Field) -> _Nesting:
        return _Nesting(self._index, raw, found)

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

    def refuse(self, code: str, detail: str, word: RawWord) -> MalformedDocument:
        """Say that the script cannot be read, and where."""
        line, column = self._index.line_column(word.start)
        problem = Problem(code, detail, line=line, column=column)
        return MalformedDocument("the shell text cannot be read", (problem,))


def _sets_nothing(words: Sequence[RawWord]) -> bool:
    """Whether a command that may set variables sets none that a server reads.

    A virtual environment's script sets PATH, VIRTUAL_ENV and the prompt; what a trap does is done
    when a signal comes.
    """
    program, *given = [word.literal or "" for word in words]
    if program in {"source", "."}:
        return len(given) == 1 and given[0].endswith("/bin/activate")
    return program == "trap" and len(given) > 1 and _SIGNALS.issuperset(given[1:])


class _Nesting:
    """The text of a word as something to read and edit."""

    def __init__(self, index: LineIndex, raw: RawWord, found: Field) -> None:
        self._index = index
        self._raw = raw
        self._found = found

    def __call__(self) -> LineIndex:
        encode = encoder_at(self._index.text, self._raw.start, self._found.offsets[0])
        return NestedText(self._index, self._found.text, self._found.offsets, encode)


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
