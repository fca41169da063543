"""Random scripts with compound commands: what is read of them is what shells run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from app.errors import AdmissionError
from app.proposal.positions import LineIndex
from app.proposal.proposal import Form, Proposal, Variable
from app.proposal.shell import read_shell
from app.verdict.location import Location

# By the program that they are: `sh` is one of the others in most places.
SHELLS: Final = list(
    {
        os.path.realpath(path): n for n in ("dash", "bash", "sh") if (path := shutil.which(n))
    }.values()
)
COUNT: Final = 300
# What the server's environment says and the proposal knows; ODD is never known, NONE never set.
GIVEN: Final = {
    "INDEX": "0",
    "ROLE": "a",
    "SIZE": "12",
    "EMPTY": "",
    "LONG": "x y",
    "V": "b",
    "W": "",
    "EA": "1",
    "EB": "a",
}
ODD: Final = ("0", "b c")
PLAIN: Final = ("V", "W", "ROLE", "INDEX")
EXPORTED: Final = ("EA", "EB", "SIZE")
VALUES: Final = ("0", "1", "a", "b", "12", "")
# Prints its words and what is exported, each ended by a NUL, then a line.
SERVER: Final = """\
#!/bin/sh
{ printf '%s\\0' "$@" "EA=${EA-unset}" "EB=${EB-unset}" "SIZE=${SIZE-unset}"; echo; } >>"$TOLD"
"""


class Script:
    """Draws a script. `presumes` tells whether a reader has to presume how something ends."""

    def __init__(self, seed: int, shell: str) -> None:
        self._bash = shell == "bash"
        self._draw = random.Random(seed)  # noqa: S311 - no secret
        self._servers = 0
        self.presumes = False
        lines = [self.statement(0) for _ in range(self._draw.randint(1, 4))]
        self.text = "\n".join([*lines, self.choosing(), *lines[:1], self.server()])

    def _is(self, chance: float) -> bool:
        return self._draw.random() < chance

    def word(self) -> str:
        names = [*PLAIN, *EXPORTED, "EMPTY", "LONG"]
        name = "ODD" if self._is(0.03) else self._draw.choice(names)
        kinds = [f'"${name}"', f'"${{{name}}}"', f'"${{{name}:-d}}"', f'"${{{name}+s}}"']
        kinds += [f"${name}"] if self._is(0.2) else []
        kinds = [kind for kind in kinds if "ODD" not in kind or "{" not in kind]
        return self._draw.choice([*kinds, '"${NONE:-0}"', "0", "a", "'b'", '"12"', '""'])

    def comparison(self) -> list[str]:
        strings = ["=", "=", "!=", "!=", *(["=="] if self._bash or self._is(0.1) else [])]
        integers = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"]
        kind = self._draw.random()
        if kind < 0.1:
            return [self.word()]
        if kind < 0.25:
            return [self._draw.choice(["-n", "-z"]), self.word()]
        if kind < 0.28:
            return [self._draw.choice(["-f", "-d", "-e"]), self._draw.choice(["/dev", "/nowhere"])]
        if kind < 0.5:
            numbers = ["$INDEX", '"$SIZE"', "${NONE:-7}", "0", "-3", "12", "12"]
            left, right = self._draw.choices(numbers, k=2)
            return [left, self._draw.choice(integers), right]
        return [self.word(), self._draw.choice([*strings, *integers[:1]]), self.word()]

    def test(self) -> str:
        words = [*(["!"] if self._is(0.1) else []), *self.comparison()]
        kind = self._draw.random()
        if kind < 0.55:
            return f"[ {' '.join(words)} ]"
        if kind < 0.65:
            return f"test {' '.join(words)}"
        if kind < 0.72 or not (self._bash or self._is(0.1)):
            return self._draw.choice(["true", "false", "true", "false", "ls /nowhere"])
        if self._is(0.4):
            words += [self._draw.choice(["&&", "||"]), *self.comparison()]
        if self._is(0.2):
            words = ["(", *words, ")", "&&", *self.comparison()]
        return f"[[ {' '.join(words)} ]]"

    def condition(self) -> str:
        negated = "! " if self._is(0.1) else ""
        text = negated + self.test()
        while self._is(0.2):
            text += self._draw.choice([" && ", " || "]) + self.test()
        return text + (" 2>/dev/null" if self._is(0.1) else "")

    def assignment(self) -> str:
        kind = self._draw.random()
        value = self._draw.choice([*VALUES, f'"${self._draw.choice(PLAIN)}"'])
        value = '"$ODD"' if self._is(0.03) else value
        if kind < 0.5:
            return f"{self._draw.choice(PLAIN)}={value}"
        if kind < 0.75:
            return f"export {self._draw.choice(EXPORTED)}={value}"
        name = self._draw.choice(PLAIN)
        return self._draw.choice(
            [
                f"unset {self._draw.choice(EXPORTED)}",
                f"unset {name}",
                f': "${{{name}:=v}}"',
                f"read {name} </dev/null",
                f"readonly_={value} true",
                f"{name}=1; {name}=$(({name} + 1))",
            ]
        )

    def server(self) -> str:
        self._servers += 1
        words = " ".join(f'--{name} "${name}"' for name in (*PLAIN, *EXPORTED))
        before = self._draw.choice(["", "exec ", "exec ", "exec ", "EA=own exec "])
        return f"{before}vllm serve m{self._servers} {words}"

    def simple(self) -> str:
        if self._is(0.75):
            return self.assignment()
        return self._draw.choice(["echo vllm serve >/dev/null", "mkdir -p /dev", ":", "sleep 0"])

    def statement(self, depth: int) -> str:
        kind = self._draw.random() + depth / 10
        if kind > 0.7:
            return self.simple()
        if kind < 0.35:
            return self.choosing(depth + 1)
        if kind < 0.5:
            return self.loop(depth + 1)
        body = "; ".join(self.statement(depth + 1) for _ in range(self._draw.randint(1, 2)))
        if kind < 0.58:
            return f"{{ {body}; }}" + self._draw.choice(["", " | cat", " >/dev/null", "\n:"])
        test = self.condition().replace("ls /nowhere", "[ -f /nowhere ]")
        operator = self._draw.choice(["&&", "||"])
        if kind < 0.62:
            self.presumes = True
            return f"{test} {operator} {{ {body}; }}"
        if self._is(0.2):
            self.presumes = True
            return f"{test} {operator} " + self._draw.choice([self.server(), "exit 1"])
        return f"{test} {operator} {self.assignment().partition(';')[0]}"

    def choosing(self, depth: int = 0) -> str:
        """Draw an `if`; the last one of a script mostly chooses what is started."""
        text = ""
        for number in range(self._draw.randint(1, 3)):
            gap = self._draw.choice(["; ", "\n"])
            text += f"{'elif' if number else 'if'} {self.condition()}{gap}then {self.body(depth)}"
        if self._is(0.6):
            text += f"else\n{self.body(depth)}"
        return text + "fi" + self._draw.choice(["", "", " >/dev/stdout", " # end\n:"])

    def body(self, depth: int) -> str:
        lines = [self.statement(depth + 1) for _ in range(self._draw.randint(0, 1))]
        if depth == 0 or self._is(0.1):
            last = self._draw.random()
            choices = self.server() if last < 0.8 else "exit 0" if last < 0.9 else "exec sleep 0"
            lines.append(choices)
        return "\n".join(lines or [self.simple()]) + "\n"

    def loop(self, depth: int) -> str:
        """Draw a loop that ends."""
        body = self.statement(depth + 1) if self._is(0.5) else self.simple()
        inner = f"if {self.test()}; then break; fi"
        name = self._draw.choice(PLAIN)
        return self._draw.choice(
            [
                f"for {name} in 1 2; do {body}\ndone",
                f"for k in $EMPTY; do\n{body}\ndone",
                f"for k in 1 2\ndo {inner}\n{body}\ndone",
                f"until {self.test()}; do {body}\nbreak; done",
                f'while [ "${name}" = 0 ]; do {name}=1; done',
                f'k=; until [ "$k" = 11 ]; do k="${{k}}1"; {inner}; done',
                f"while {self.condition()}\ndo\n{inner}\n{body}\nbreak\ndone",
                f"while read -r {name}; do {body}\ndone </dev/null",
                f"echo 1 | while read -r {name}; do {body}\ndone",
                'k=; while true; do if [ "$k" = 11 ]; then break; fi; k=1$k; done',
            ]
        )


@dataclass
class Run:
    """What a shell started: the words of each server, and what each had in its environment."""

    servers: list[tuple[list[str], dict[str, str]]]


def run(shell: str, text: str, stub: Path, odd: str) -> Run | None:
    """Run a script; None if it does not end."""
    told = stub / "told"
    told.write_text("")
    path = f"{stub}:{os.environ['PATH']}"
    environment = {**GIVEN, "ODD": odd, "PATH": path, "TOLD": str(told)}
    try:
        subprocess.run(
            [shell, "-c", text],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    servers = []
    for line in told.read_text().split("\0\n")[:-1]:
        words = line.split("\0")
        pairs = (word.partition("=") for word in words[-3:])
        servers.append((words[1:-3], {name: value for name, _, value in pairs}))
    return Run(servers)


def read(shell: str, text: str) -> Proposal | None:
    environment = {
        name: Variable(name, value, Location(variable=name)) for name, value in GIVEN.items()
    }
    try:
        proposal = read_shell(
            LineIndex(text, "sh"),
            form=Form.COMMAND,
            environment=environment,
            files={},
            dialect=shell,
        )
    except AdmissionError:
        return None
    return None if proposal.only_environment else proposal


def differs(proposal: Proposal, told: tuple[list[str], dict[str, str]]) -> str | None:
    """Tell how what was read is not what was run; what is open may be anything."""
    words, environment = told
    ours = [None if word.unresolved else word.text for word in proposal.words]
    if len(ours) != len(words):
        return f"{ours} {words}"
    for mine, theirs in zip(ours, words, strict=True):
        if mine is not None and mine != theirs:
            return f"{mine} is {theirs}"
    for name, value in environment.items():
        held = proposal.environment.get(name)
        mine = "unset" if held is None else held.value
        if mine != value and not (held is not None and held.unresolved):
            return f"{name}: {mine} is {value}"
    return None


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_read_is_what_is_run(shell: str, tmp_path: Path) -> None:
    stub = tmp_path / "vllm"
    stub.write_text(SERVER)
    stub.chmod(0o755)
    wrong, read_whole, opened = [], 0, 0
    for seed in range(COUNT):
        script = Script(seed, shell)
        proposal = read(shell, script.text)
        if proposal is None:
            continue
        any_open = any(word.unresolved for word in proposal.words)
        opened += any_open
        read_whole += not any_open
        for odd in ODD:
            told = run(shell, script.text, tmp_path, odd)
            assert told is not None, script.text
            if not told.servers:
                difference = None if script.presumes else "nothing is started"
            else:
                difference = differs(proposal, told.servers[0])
            if difference is not None:
                wrong.append((seed, difference, script.text))
    assert wrong == []
    assert read_whole > COUNT // 8 < opened
