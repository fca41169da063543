"""Naming the callables that argparse applies to one word.

vLLM builds most of them as closures (`engine/arg_utils.py::optional_type`, `parse_type`,
`get_kwargs`), so they are told apart by their code's name and what the closure holds; small
functions and lambdas by what they answer to a probe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NONE_TOKENS = ["", "None"]
_PLAIN = frozenset({"human_readable_int", "human_readable_int_or_auto", "union_dict_and_str"})
_PROBES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lower_and_dash_to_underscore", {"A-B": "a_b", "none": "none"}),
    ("comma_list_int_or_str", {"0,a": [0, "a"], "7": [7]}),
    ("none_to_empty", {"NoNe": "", "A-B": "A-B"}),
)


def converter_fact(convert: Callable[[str], Any] | None) -> dict[str, Any]:
    """Give `{"conv": name, …}` with what the conversion wraps; see `catalogue.Converter`.

    One that cannot be named has `conv` "unknown" and its function's name as `repr`.
    """
    if convert is None:
        return {"conv": "str"}
    name = str(getattr(convert, "__name__", type(convert).__name__))
    if isinstance(convert, type) or name in _PLAIN:
        return {"conv": name}
    if name == "loads":
        return {"conv": "json"}
    if name == "_optional_type":
        return {
            "conv": "optional",
            "none_tokens": _NONE_TOKENS,
            "of": converter_fact(closure(convert).get("return_type")),
        }
    if name == "_parse_type":
        wrapped = converter_fact(closure(convert).get("return_type"))
        return {"conv": "valueerror_to_argerror", "of": wrapped}
    if name == "parse_dataclass":
        (cls,) = getattr(convert, "__defaults__", None) or (object,)
        expands = "_expand_json_human_readable_numbers" in convert.__code__.co_names
        return {"conv": "dataclass_json", "cls": cls.__name__, "expands_human_numbers": expands}
    for probed, answers in _PROBES:
        if all(_answer(convert, word) == expected for word, expected in answers.items()):
            return {"conv": probed}
    return {"conv": "unknown", "repr": name}


def is_known(fact: dict[str, Any]) -> bool:
    """Whether every layer of a conversion has a name."""
    return fact["conv"] != "unknown" and ("of" not in fact or is_known(fact["of"]))


def closure(function: Any) -> dict[str, Any]:
    """Give the free variables of a function by name."""
    cells = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, (c.cell_contents for c in cells), strict=True))


def _answer(convert: Callable[[str], Any], word: str) -> Any:
    try:
        return convert(word)
    except Exception as error:  # a probe that does not fit may raise anything
        return error
