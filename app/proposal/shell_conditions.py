"""Whether a condition of a shell script holds, where its text alone tells.

Only what all shells agree on has a value. Source: POSIX.1-2024, XCU `test`; Bash Reference Manual
3.2.5.2 for `[[`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from app.proposal.positions import LineIndex
from app.proposal.shell_expand import Variables
from app.proposal.shell_lexer import SimpleCommand
from app.proposal.shell_words import Expansion, Literal, RawWord

_TextOf = Callable[[RawWord], str | None]
_MAX_DEPTH: Final = 16  # of `!` and parentheses in `[[ … ]]`
_EMPTINESS: Final = frozenset({"-n", "-z"})
_INTEGERS: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_STRINGS: Final = frozenset({"=", "==", "!="})
# What `test` may take for an operator where a word is meant; `[` gives such words no value.
_OPERATORS: Final = _EMPTINESS | _INTEGERS | _STRINGS | {"!", "(", ")", "-a", "-o", "<", ">", "]"}
_UNARY: Final = re.compile(r"-[A-Za-z]")
# Octal in `[[`, decimal in `[`, or no number for some: left open.
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
# What no shell splits, or takes for a pattern, outside quotes.
_PLAIN: Final = re.compile(r"[\w.,:/@%+=-]+", re.ASCII)
_PATTERN: Final = re.compile(r"[*?\[\]{}~\\()|!^]")
# Variables that shells set themselves.
_OF_THE_SHELL: Final = frozenset(
    {"PWD", "OLDPWD", "RANDOM", "SRANDOM", "SECONDS", "LINENO", "SHLVL", "IFS", "OPTIND", "OPTARG"}
    | {"PPID", "_", "UID", "EUID", "GROUPS", "REPLY", "BASHPID", "BASH_SUBSHELL", "FUNCNAME"}
    | {"EPOCHSECONDS", "EPOCHREALTIME", "PIPESTATUS", "BASH", "BASHOPTS", "SHELLOPTS", "DIRSTACK"}
)


def is_test(command: SimpleCommand) -> bool:
    """Whether a command only tells whether something holds."""
    first = command.words[0] if command.words else None
    return first is not None and first.literal in {"[", "test", "[[", "true", "false", ":"}


def tested(
    command: SimpleCommand, variables: Variables, index: LineIndex, *, bash: bool
) -> bool | None:
    """Tell whether a test holds; None if that is not known.

    Of a shell that may not be `bash` it is not known what `[[` and `==` are to it.
    """
    words = command.words
    if not is_test(command) or not all(_is_quiet(r.target) for r in command.redirections):
        return None
    program, quoted = words[0].literal, words[0].quoted
    if program in {"true", "false", ":"}:
        return (program != "false") if len(words) == 1 else None
    test = _Test(variables, index, bash=bash)
    if program == "test":
        return test.posix(words[1:])
    if words[-1].literal != "]" * len(program or ""):
        return None
    if program == "[":
        return test.posix(words[1:-1])
    return test.extended(words[1:-1]) if bash and not quoted else None


def hanging_on(words: Sequence[RawWord], variables: Variables) -> Iterator[str]:
    """Give the variables of the words whose values are not known."""
    for word in words:
        for part in word.parts:
            if isinstance(part, Expansion) and part.name is not None:
                yield from variables.value_of(part)[1]


def _is_quiet(target: RawWord) -> bool:
    return target.literal in {"/dev/null", "1", "2"}


class _Test:
    def __init__(self, variables: Variables, index: LineIndex, *, bash: bool) -> None:
        self._variables = variables
        self._index = index
        self._bash = bash

    # `[`, by the number of its words

    def posix(self, words: Sequence[RawWord]) -> bool | None:
        if len(words) > 1 and _operator(words[0]) == "!" and not words[0].quoted:
            if _operator(words[1]) == "!":
                return None
            rest = self.posix(words[1:])
            unlike = not self._bash and any(_operator(word) == "==" for word in words)
            return None if rest is None or unlike else not rest
        return self._compared(words, lambda word: self._text(word, split=True))

    def _compared(self, words: Sequence[RawWord], text_of: _TextOf) -> bool | None:
        """Tell what one comparison gives."""
        if len(words) == 1:
            text = text_of(words[0])
            return None if text is None or _misread(text) else text != ""
        if len(words) == 2:
            text = text_of(words[1])
            if text is None or _misread(text) or _operator(words[0]) not in _EMPTINESS:
                return None
            return (text == "") == (_operator(words[0]) == "-z")
        if len(words) != 3:
            return None
        operator = _operator(words[1])
        left, right = text_of(words[0]), text_of(words[2])
        if left is None or right is None or _misread(left) or _misread(right):
            return None
        if operator in _INTEGERS:
            return _ordered(operator, left, right)
        if operator == "==" and left == right and not self._bash:
            return None
        return (left == right) == (operator != "!=") if operator in _STRINGS else None

    # `[[`

    def extended(self, words: Sequence[RawWord]) -> bool | None:
        self._words, self._at, self._depth = words, 0, 0
        self._wrong = False
        value = self._either()
        self._refuse_if(self._at < len(words))
        return None if self._wrong else value

    def _refuse_if(self, wrong: bool) -> None:
        """Note that the words are no condition."""
        self._wrong = self._wrong or wrong

    def _next(self) -> str:
        if self._at >= len(self._words):
            return ""
        word = self._words[self._at]
        return "" if word.quoted else _operator(word)

    def _either(self) -> bool | None:
        value = self._both()
        while self._next() == "||":
            self._at += 1
            value = either(value, self._both())
        return value

    def _both(self) -> bool | None:
        value = self._negated()
        while self._next() == "&&":
            self._at += 1
            value = both(value, self._negated())
        return value

    def _negated(self) -> bool | None:
        self._depth += 1
        self._refuse_if(self._depth > _MAX_DEPTH)
        value: bool | None = None
        if self._wrong:
            pass
        elif self._next() == "!":
            self._at += 1
            inner = self._negated()
            value = None if inner is None else not inner
        elif self._next() == "(":
            self._at += 1
            value = self._either()
            self._refuse_if(self._next() != ")")
            self._at += 1
        else:
            begin = self._at
            while self._at < len(self._words) and self._next() not in {"&&", "||", ")"}:
                self._at += 1
            words = self._words[begin : self._at]
            self._refuse_if(not words)
            pattern = words[2] if len(words) == 3 and _operator(words[1]) in _STRINGS else None
            value = self._compared(words, lambda word: self._text(word, split=word is pattern))
        self._depth -= 1
        return value

    # words

    def _text(self, word: RawWord, *, split: bool) -> str | None:
        """Give the text of a word; None if it is not known, or may be several words or a pattern.

        Without `split` the shell neither splits it nor takes it for a pattern.
        """
        texts: list[str] = []
        if not self._bash and "$'" in self._index.text[word.start : word.end]:
            return None
        for part in word.parts:
            if isinstance(part, Literal):
                if _PATTERN.search(part.text) and not self._is_one_quote(word):
                    return None
                texts.append(part.text)
                continue
            of_the_shell = part.name in _OF_THE_SHELL
            if part.operator in {"?", ":?", "[@]", "[*]", "=", ":="} or of_the_shell:
                return None
            if part.name is None and part.arithmetic is None:
                return None
            text, unresolved = self._variables.value_of(part)
            if unresolved or "~" in text:  # which stands for a directory in places
                return None
            plain = _PLAIN.fullmatch(text) and "IFS" not in self._variables.values
            if split and not part.quoted and not plain:
                return None
            texts.append(text)
        return "".join(texts)

    def _is_one_quote(self, word: RawWord) -> bool:
        written = self._index.text[word.start : word.end]
        quote = written[:1]
        return len(written) > 1 and quote in "'\"" and written.find(quote, 1) == len(written) - 1


def either(left: bool | None, right: bool | None) -> bool | None:
    """Give what `||` makes of two values, of which either may not be known."""
    if left or right:
        return True
    return None if left is None or right is None else False


def both(left: bool | None, right: bool | None) -> bool | None:
    """Give what `&&` makes of two values, of which either may not be known."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _operator(word: RawWord) -> str:
    return word.literal or ""


def _misread(text: str) -> bool:
    return text in _OPERATORS or _UNARY.fullmatch(text) is not None


def _ordered(operator: str, left: str, right: str) -> bool | None:
    if not _INTEGER.fullmatch(left) or not _INTEGER.fullmatch(right):
        return None
    first, second = int(left), int(right)
    return {
        "-eq": first == second,
        "-ne": first != second,
        "-lt": first < second,
        "-le": first <= second,
        "-gt": first > second,
        "-ge": first >= second,
    }[operator]
