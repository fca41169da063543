"""How vLLM's argparse types turn one word into a value.

Source: `vllm/engine/arg_utils.py` (`optional_type`, `parse_type`, `union_dict_and_str`,
`parse_dataclass`) and `vllm/utils/argparse_utils.py` (`human_readable_int`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from app.catalogue.catalogue import Converter

_BRACES: Final = re.compile(r"(?s)^\s*{.*}\s*$")
_HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_BARE_HUMAN: Final = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_JSON_STRING: Final = re.compile(r'("(?:[^"\\]|\\.)*")')
_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class ConversionError(Exception):
    """The text is not a value of the type.

    `message` says it in our words; `engine` is the tail of argparse's own message where it does
    not contain a memory address.
    """

    def __init__(self, message: str, engine: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.engine = engine


def convert(converter: Converter, text: str) -> Any:
    """Convert one word.

    Raises:
        ConversionError: as argparse would refuse it.
    """
    name = converter.name
    if name == "optional":
        if text in {"", *converter.none_tokens}:
            return None
        return _wrapped(converter.of or Converter(), text)
    if name == "valueerror_to_argerror":
        return _wrapped(converter.of or Converter(), text)
    if name == "dataclass_json":
        return _dataclass(converter, text)
    return _CONVERTERS.get(name, str)(text)


def human_readable_int(text: str) -> int:
    """Read `25.6k` (powers of 1000) and `2K` (powers of 1024) and plain integers.

    Raises:
        ConversionError: it is none of these.
    """
    value = text.strip()
    if match := _HUMAN.fullmatch(value):
        number, suffix = match.groups()
        if suffix in _DECIMAL:
            try:
                return int(float(number) * _DECIMAL[suffix])
            except OverflowError:
                raise ConversionError("the number is too large") from None
        if "." in number:
            advice = f"{number}{suffix.lower()}"
            raise ConversionError(
                f"{suffix} counts in powers of 1024 and takes no decimals; use {advice}",
                f"Decimals are not allowed with binary suffixes like {suffix}. "
                f"Did you mean to use {advice} instead?",
            )
        try:
            whole = int(number) * _BINARY[suffix]
            str(whole)  # Python neither reads nor writes more than some thousand digits
        except ValueError:
            raise ConversionError("the number is too large") from None
        return whole
    try:
        return int(value)
    except ValueError:
        raise ConversionError(
            f"{text!r} is not an integer; it may end in one of k m g t (powers of 1000) or "
            "K M G T (powers of 1024)",
            f"invalid human_readable_int value: {text!r}",
        ) from None


def loads(text: str) -> Any:
    """Parse JSON as Python does.

    Raises:
        ConversionError: with the place in the text.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"at character {error.pos + 1}" if error.lineno == 1 else f"in line {error.lineno}"
        advice = _json_advice(text)
        raise ConversionError(f"not JSON: {error.msg} {where}{advice}") from None
    except RecursionError:
        raise ConversionError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise ConversionError(f"not JSON: {error}") from None


def expand_human_numbers(text: str) -> str:
    """Replace bare `80m` and `4K` outside the strings of a JSON text by plain integers."""
    parts = _JSON_STRING.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = _BARE_HUMAN.sub(lambda m: str(human_readable_int(m.group())), parts[i])
    return "".join(parts)


def _wrapped(inner: Converter, text: str) -> Any:
    """As `parse_type`: a ValueError is told with the type that failed."""
    try:
        return convert(inner, text)
    except ConversionError as error:
        if inner.name in {"int", "float"}:
            engine = f"Value {text} cannot be converted to <class '{inner.name}'>."
            raise ConversionError(error.message, engine) from None
        if error.engine and error.engine.startswith("invalid "):
            raise ConversionError(error.message) from None
        raise


def _dataclass(converter: Converter, text: str) -> Any:
    if converter.expands_human_numbers:
        text = expand_human_numbers(text)
    value = loads(text)
    if value is None:  # unlike an empty word or None, which mean unset
        raise ConversionError("must be a JSON object, not null")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        message = f"{text!r} is not an integer"
        raise ConversionError(message, f"invalid int value: {text!r}") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        message = f"{text!r} is not a number"
        raise ConversionError(message, f"invalid float value: {text!r}") from None


def _json(text: str) -> Any:
    try:
        return loads(text)
    except ConversionError as error:
        raise ConversionError(error.message, f"invalid loads value: {text!r}") from None


def _int_or_auto(text: str) -> int:
    if text.strip().lower() in {"-1", "auto"}:
        return -1
    try:
        return human_readable_int(text)
    except ConversionError as error:
        engine = error.engine
        if engine is not None:
            engine = engine.replace("human_readable_int ", "human_readable_int_or_auto ")
        raise ConversionError(error.message, engine) from None


def _dict_or_str(text: str) -> Any:
    return loads(text) if _BRACES.match(text) else text


def _device_ids(text: str) -> list[int | str]:
    parts = (part.strip() for part in text.split(","))
    return [_int(part) if part.isdigit() else part for part in parts]


def _json_advice(text: str) -> str:
    if re.match(r"^\s*[{\[]", text) and '"' not in text:
        if "'" in text:
            return "; JSON strings take double quotes"
        return "; it has no quotes, so a shell or template may have taken them: quote it once"
    if re.match(r"^\s*{{", text):
        return "; the doubled braces look like a template that was not rendered"
    if "True" in text or "False" in text or "None" in text:
        return "; JSON writes true, false, null"
    return ""


_CONVERTERS: Final[dict[str, Callable[[str], Any]]] = {
    "str": str,
    "int": _int,
    "float": _float,
    "json": _json,
    "human_readable_int": human_readable_int,
    "human_readable_int_or_auto": _int_or_auto,
    "union_dict_and_str": _dict_or_str,
    "comma_list_int_or_str": _device_ids,
    "none_to_empty": lambda text: "" if text.lower() == "none" else text,
    "lower_and_dash_to_underscore": lambda text: text.lower().replace("-", "_"),
}
