"""The value of `$((…))`. Source: POSIX.1-2024, XCU 1.1.2.1 and 2.6.4.

What shells disagree about, or C leaves open, has no value here: `**`, `,`, `++`, `--`, quotes,
other bases, numbers that do not fit 64 bits, and assignments, which are for `assigned_in` to tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

MAX_LENGTH: Final = 1_000
_MAX_DEPTH: Final = 20  # of parentheses, signs and choices in each other
_MOST: Final = (1 << 63) - 1
_BITS: Final = 64

# `=` alone, `++` and `--` are no tokens, so that whatever has them is not read.
_TOKEN: Final = re.compile(
    r"[ \t\n]*(?:(?P<number>[0-9]\w*)|(?P<name>[A-Za-z_]\w*)|"
    r"(?P<operator>\|\||&&|<<|>>|[<>=!]=|\+(?!\+)|-(?!-)|[*/%<>&^|!~?:()]))",
    re.ASCII,
)
_DIGITS: Final = r"0[xX][0-9a-fA-F]+|[1-9][0-9]*|0[0-7]*"
_NUMBER: Final = re.compile(_DIGITS)
# A shell takes the blanks, and one sign, of a variable's value too.
_VALUE: Final = re.compile(rf"[ \t\n]*([+-]?)({_DIGITS})[ \t\n]*")
_ASSIGNED: Final = re.compile(
    r"(?<!\w)(?:([A-Za-z_]\w*)[ \t\n]*(?:(?:[-+*/%&^|]|<<|>>)?=(?!=)|\+\+|--)|"
    r"(?:\+\+|--)[ \t\n]*([A-Za-z_]\w*))",
    re.ASCII,
)
_NAME: Final = re.compile(r"(?<!\w)[A-Za-z_]\w*", re.ASCII)
_PRECEDENCE: Final[Mapping[str, int]] = {
    operator: level
    for level, operators in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %")
    )
    for operator in operators.split()
}


class _NotReadError(Exception):
    """The expression is none, or has something that not every shell has."""


def evaluated(expression: str, value_of: Callable[[str], str | None]) -> int | tuple[str, ...]:
    """Give the value of an expression in which `$` is expanded already.

    Where it is not known, give the variables that it hangs on instead: none if the expression
    itself is the reason. `value_of` gives the text that a variable holds, None if not known.
    """
    try:
        reader = _Reader(expression, value_of)
        value = reader.read()
    except _NotReadError:
        return ()
    if reader.missing or reader.undefined:
        return tuple(dict.fromkeys(reader.missing))
    return value


def assigned_in(expression: str) -> set[str]:
    """Give the variables that an expression may change."""
    return {name for found in _ASSIGNED.findall(expression[:MAX_LENGTH]) for name in found if name}


def named_in(expression: str) -> set[str]:
    """Give the variables that an expression names, with `$` or without."""
    return set(_NAME.findall(expression[:MAX_LENGTH]))


class _Reader:
    """Works out the value while it reads, as the grammar of C has it.

    What has no value counts as 0 until all is read: `missing` are variables whose value is not
    known, `undefined` tells of a division by zero and the like. `_live` is off in what `&&`, `||`
    and `?:` pass over, where nothing of that matters.
    """

    def __init__(self, expression: str, value_of: Callable[[str], str | None]) -> None:
        self.missing: list[str] = []
        self.undefined = False
        self._tokens = _tokens(expression)
        self._at = 0
        self._depth = 0
        self._live = True
        self._value_of = value_of

    def read(self) -> int:
        value = self._choice()
        if self._at < len(self._tokens):
            raise _NotReadError
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, token: str) -> bool:
        if self._next() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise _NotReadError

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NotReadError

    def _choice(self) -> int:
        self._deeper()
        value = self._binary(0)
        if self._take("?"):
            live = self._live
            self._live = live and value != 0
            first = self._choice()
            self._expect(":")
            self._live = live and value == 0
            second = self._choice()
            self._live = live
            value = first if value else second
        self._depth -= 1
        return value

    def _binary(self, lowest: int) -> int:
        left = self._unary()
        while (level := _PRECEDENCE.get(self._next(), -1)) >= lowest:
            operator, live = self._next(), self._live
            self._at += 1
            if operator in {"&&", "||"}:
                self._live = live and (left != 0) == (operator == "&&")
            right = self._binary(level + 1)
            self._live = live
            left = self._fitting(_applied(operator, left, right)) if live else 0
        return left

    def _unary(self) -> int:
        symbol = self._next()
        self._at += 1
        if symbol in {"+", "-", "~", "!"}:
            self._deeper()
            value = self._unary()
            self._depth -= 1
            signed = {"+": value, "-": -value, "~": ~value, "!": int(not value)}[symbol]
            return self._fitting(signed)
        if symbol == "(":
            value = self._choice()
            self._expect(")")
            return value
        if symbol[:1].isdigit():
            return self._fitting(_number(symbol))
        if not symbol.isidentifier():
            raise _NotReadError
        return self._variable(symbol) if self._live else 0

    def _variable(self, name: str) -> int:
        held = self._value_of(name)
        if held is None:
            self.missing.append(name)
        match = _VALUE.fullmatch(held or "0") if len(held or "") <= MAX_LENGTH else None
        if match is None:  # bash reads it as an expression of its own, others do not
            return self._fitting(None)
        value = self._fitting(_number(match[2]))
        return -value if match[1] == "-" else value

    def _fitting(self, value: int | None) -> int:
        """Give the value, 0 if there is none or it is too large."""
        if value is not None and -_MOST - 1 <= value <= _MOST:
            return value
        self.undefined = self.undefined or self._live
        return 0


def _tokens(expression: str) -> list[str]:
    if len(expression) > MAX_LENGTH:
        raise _NotReadError
    tokens: list[str] = []
    end = expression.rstrip(" \t\n")
    at = 0
    while at < len(end):
        match = _TOKEN.match(end, at)
        if match is None:
            raise _NotReadError
        tokens.append(match[match.lastgroup or 0])
        at = match.end()
    return tokens


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _NotReadError
    octal = text[0] == "0" and text.isdigit()
    return int(text, 8 if octal else 0)


def _applied(operator: str, left: int, right: int) -> int | None:
    """Give what an operator makes; None where C does not say."""
    if operator in {"<<", ">>"} and 0 <= right < _BITS:
        return left << right if operator == "<<" else left >> right
    if operator in {"/", "%"} and right:
        # Towards zero, and the remainder has the sign of what is divided.
        quotient = abs(left) // abs(right) * (-1 if (left < 0) != (right < 0) else 1)
        fits = quotient <= _MOST
        return (quotient if operator == "/" else left - quotient * right) if fits else None
    made = _OPERATORS.get(operator)
    return None if made is None else int(made(left, right))


_OPERATORS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "||": lambda a, b: bool(a or b),
    "&&": lambda a, b: bool(a and b),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
