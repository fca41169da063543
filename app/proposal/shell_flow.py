"""Which commands of a shell script are run: branches whose conditions are known, no loops.

A loop, and a branch of which it is not known whether it is run, is passed over where all that it
can do is to set variables, which are open from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from app.errors import MalformedDocument
from app.proposal.positions import LineIndex
from app.proposal.shell_conditions import both, either, hanging_on, is_test, tested
from app.proposal.shell_effects import Effects, effects_of, set_by
from app.proposal.shell_expand import Variables
from app.proposal.shell_lexer import SimpleCommand
from app.proposal.shell_syntax import If, List, Loop, Node, Pipeline, simple_commands
from app.proposal.shell_words import Literal, RawWord
from app.verdict.location import Location

_SHOWN: Final = 60  # characters of a condition in a message
# What the values of two commands make, by what stands between them.
_JOINED: Final[Mapping[str, Callable[[bool | None, bool | None], bool | None]]] = {
    "&&": both,
    "||": either,
    "": lambda _, value: value,
}


class Host(Protocol):
    """Who reads the simple commands."""

    def command(self, command: SimpleCommand) -> None:
        """Carry out a command that is run."""

    def starts(self, command: SimpleCommand, words: Sequence[RawWord]) -> bool:
        """Whether a command, from its program on, may start a server."""

    def refuse(self, code: str, detail: str, word: RawWord) -> MalformedDocument:
        """Say that the script cannot be read, and where."""


class Flow:
    """Goes through a script as a shell does.

    Attributes:
        passed: whether anything is known not to be run.
        stopped: whether the script has ended.
        doubted: whether variables may have been set in ways that are not followed.
    """

    def __init__(self, host: Host, variables: Variables, index: LineIndex, *, bash: bool) -> None:
        """Begin with the variables as they are."""
        self.passed = False
        self.stopped = False
        self.doubted = False
        self._host = host
        self._variables = variables
        self._index = index
        self._bash = bash

    def run(self, body: List) -> None:
        """Carry out what is run of a list."""
        for entry in body:
            if self.stopped:
                self.passed = True
                return
            self._entry(entry)

    def _entry(self, entry: Sequence[Pipeline]) -> None:
        """Carry out pipelines that `&&` and `||` join.

        What follows a command whose success is not known is taken to be run, except that what
        only a test decides sets no variable.
        """
        status: bool | None = None
        presumed = doubtful = False
        causes: list[str] = []
        for pipeline in entry:
            if pipeline.after and status is not None and status != (pipeline.after == "&&"):
                self.passed = True
                continue
            presumed = presumed or (bool(pipeline.after) and status is None)
            found = self._pipeline(pipeline, presumed, causes if doubtful else None)
            status = _JOINED[pipeline.after](status, found)
            if found is None and self._is_test(pipeline):
                doubtful = True
                causes.extend(self._hanging_on((pipeline,)))
            if self.stopped:
                return

    def _is_test(self, pipeline: Pipeline) -> bool:
        node = pipeline.nodes[0]
        return len(pipeline.nodes) == 1 and isinstance(node, SimpleCommand) and is_test(node)

    def _pipeline(
        self, pipeline: Pipeline, presumed: bool, causes: Sequence[str] | None
    ) -> bool | None:
        """Carry out a pipeline; tell its status if it is known.

        `causes` are the variables that a test before it hangs on which decides whether it is run.
        """
        alone = len(pipeline.nodes) == 1 and not pipeline.background
        for node in pipeline.nodes:
            if not isinstance(node, SimpleCommand):
                self._compound(node, apart=presumed or not alone)
                continue
            names = set() if causes is None else self._set_by(node)
            if names:
                self._variables.open(names, causes or (), self._place(node.words[0]))
                continue
            self._host.command(node)
            if alone and not presumed and _ends(node):
                self.stopped = True
        if not alone:
            return None
        if _only_assigns(pipeline.nodes[0]):
            return not pipeline.negated
        return self._test(pipeline)[0] if self._is_test(pipeline) else None

    def _set_by(self, command: SimpleCommand) -> set[str]:
        """Give the variables that a command sets, if that is all it does."""
        effects = effects_of([((Pipeline((command,)),),)], self._host.starts)
        return effects.names if effects.prevented is None else set()

    # compound commands

    def _compound(self, node: Node, *, apart: bool) -> None:
        """Carry out a compound command; `apart` if it may not be run, or in a shell of its own."""
        before = dict(self._variables.values) if apart else {}
        if isinstance(node, If):
            self._if(node)
        elif isinstance(node, Loop):
            self._loop(node, waited_for=not apart)
        elif not isinstance(node, SimpleCommand):
            self.run(node.body)
        if not apart or isinstance(node, SimpleCommand):
            return
        self.stopped = False
        after = self._variables.values
        names = {n for n in {*before, *after} if before.get(n) is not after.get(n)}
        if names:
            self._variables.open(names, (), self._place(node.word))

    def _if(self, node: If) -> None:
        for number, (condition, body) in enumerate(node.branches):
            value, causes = self._condition(condition)
            if value is None:
                rest = [part for branch in node.branches[number:] for part in branch]
                self._uncertain(node, condition, [*rest, node.otherwise], causes)
                return
            if value:
                self.passed = True
                self.run(body)
                return
            self.passed = True
        self.run(node.otherwise)

    def _uncertain(
        self, node: If, condition: List, parts: Sequence[List], causes: Sequence[str]
    ) -> None:
        effects = effects_of(parts, self._host.starts)
        if effects.prevented is not None:
            raise self._prevented(
                f"whether `{self._written(condition)}` holds is not known, and what it decides",
                effects,
            )
        self._variables.open(effects.names, causes, self._place(node.word))

    def _loop(self, node: Loop, *, waited_for: bool) -> None:
        effects = effects_of([node.condition, node.body], self._host.starts)
        effects.names.update({node.variable} - {""}, set_by(node.words))
        if not node.variable:
            # It may be false from the start, even where the loop changes what it asks.
            value, _ = self._condition(node.condition)
            if value is (node.word.literal == "until"):
                self.passed = True
                return
        if effects.prevented is not None:
            raise self._prevented(f"this `{node.word.literal}` loop", effects)
        self._variables.open(effects.names, (), self._place(node.word))
        if node.variable or effects.leaves or not waited_for:
            return
        value, _ = self._condition(node.condition)
        if value is not None:
            detail = f"this `{node.word.literal}` loop does not end, so that nothing after it runs"
            raise self._host.refuse("shell-compound-command", detail, node.word)

    def _prevented(self, begin: str, effects: Effects) -> MalformedDocument:
        word = effects.prevented
        if word is None:
            raise AssertionError
        written = self._index.text[word.start : word.end][:_SHOWN]
        detail = f"{begin} is not passed over: `{written}` in it {effects.reason}"
        return self._host.refuse("shell-compound-command", detail, word)

    # conditions

    def _condition(self, condition: List) -> tuple[bool | None, tuple[str, ...]]:
        """Tell whether a condition holds; if that is not known, the variables it hangs on."""
        defaulted = dict(self._variables.defaulted)
        value: bool | None = None
        if len(condition) == 1:
            for pipeline in condition[0]:
                if pipeline.after and value is not None and value != (pipeline.after == "&&"):
                    continue
                found, certain = self._test(pipeline)
                if not certain:
                    value = None
                    break
                value = _JOINED[pipeline.after](value, found)
        self._variables.defaulted = defaulted if value is None else self._variables.defaulted
        causes = self._hanging_on(condition[0]) if value is None and condition else ()
        return value, causes

    def _hanging_on(self, pipelines: Sequence[Pipeline]) -> tuple[str, ...]:
        """Give the variables whose values would tell what tests give."""
        defaulted = dict(self._variables.defaulted)
        commands = simple_commands((tuple(pipelines),))
        names = [n for c in commands for n in hanging_on(c.words, self._variables)]
        self._variables.defaulted = defaulted
        return tuple(dict.fromkeys(names))

    def _test(self, pipeline: Pipeline) -> tuple[bool | None, bool]:
        """Tell what a test gives, and whether it does nothing but to give that."""
        node = pipeline.nodes[0]
        if (
            pipeline.background
            or not self._is_test(pipeline)
            or not isinstance(node, SimpleCommand)
        ):
            return None, False
        if any(set_by(node.words)):
            return None, False
        if self.doubted and any(word.literal is None for word in node.words):
            return None, True
        value = tested(node, self._variables, self._index, bash=self._bash)
        return None if value is None else value != pipeline.negated, True

    # messages

    def _written(self, condition: List) -> str:
        words = [word for command in simple_commands(condition) for word in command.words]
        text = self._index.text[words[0].start : words[-1].end] if words else ""
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

    def _place(self, word: RawWord) -> Location:
        return self._index.location(word.start, word.end)


def _only_assigns(node: Node) -> bool:
    """Whether a command does nothing but to assign what can be worked out, which does not fail."""
    if not isinstance(node, SimpleCommand) or node.redirections:
        return False
    parts = (part for word in node.words for part in word.parts)
    read = all(isinstance(part, Literal) or part.name is not None for part in parts)
    return read and all(w.assignment is not None and w.values is None for w in node.words)


def _ends(command: SimpleCommand) -> bool:
    """Whether a script does not go on behind a command."""
    words = [word.literal for word in command.words if word.assignment is None]
    return words[:1] == ["exit"] or (words[:1] == ["exec"] and len(words) > 1)
