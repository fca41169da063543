"""Values for options and fields: the right kind, the edges, and the wrong kinds."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Final

from app.catalogue import Catalogue, Flag
from app.catalogue.catalogue import ConfigField
from app.serve_config.class_rules import config_class_of
from app.serve_config.values import argument_converter

Tree = Mapping[str, Any]

WRONG: Final = (
    *("", "None", "none", "null", "zz", "1.5", "-1", "-1.5", "true", "True", "false", "0", "1k"),
    *("1K", "[]", "{}", " 1", "1 ", "1_0", "+1", "0x10", "1e3", "nan", "inf", "-inf", "auto", "é"),
    *("{", "{x}", "{'a': 1}", "a b", "a,b", "a=b", "a.b", "-", "--", "-x", "--x", "[1]", '"1"'),
    *('{"a": 1}', "9" * 30, "1.0", "²", "NaN", "Infinity", "1e400", "\t1", "yes", "no", "on"),
)
_WRONG_JSON: Final[tuple[Any, ...]] = (
    *(1, 0, -1, "1", "zz", True, False, "true", "True", 1.5, 1.0, None, [], {}, [1], ["a"]),
    *({"a": 1}, "auto", "", " 1 ", "1.0", "1e3", "yes", "off", 10**20, [None], {"a": None}),
)
_SAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "int": ("1", "2", "8", "0", "1024", "-1", " 7", "1_000"),
    "float": ("0.5", "1", "2.5", "1e-3", ".5", "0", "1."),
    "json": ("{}", '["a"]', '{"a": 1}', "1", '"x"', "[]", '{"a": {"b": [1, 2]}}'),
    "union_dict_and_str": ("{}", "x", '{"a": 1}', ' {"a": 1} ', "a b"),
    "human_readable_int": ("1k", "2048", "2K", "1.5k", "1m", "1M", "3g", "1G", "0.1k"),
    "human_readable_int_or_auto": ("2048", "auto", "-1", "AUTO", "4k", "4K", "1.2m", " 8k "),
    "comma_list_int_or_str": ("0", "0,1", "GPU-1,2", "a", "0, 1", ""),
    "str": ("x", "auto", "a/b", "a:b", "1", "org/model", "a=b"),
    "none_to_empty": ("None", "none", "x", "qwen3"),
}
_HUMAN_JSON: Final = ("80m", "4K", "1.5k", "2G")


class Values:
    """Draws values for the options and classes of one version."""

    def __init__(self, catalogue: Catalogue, rng: random.Random) -> None:
        self.catalogue = catalogue
        self.rng = rng

    def word(self, flag: Flag) -> str:
        """Give one word for an option: mostly one that it takes."""
        rng = self.rng
        if rng.random() < 0.12:
            return rng.choice(WRONG)
        if flag.choices:
            choice = str(rng.choice([c for c in flag.choices if c is not None]))
            return rng.choice([choice] * 6 + [choice.upper(), choice[:-1], choice + "x"])
        name = config_class_of(flag)
        if name is not None and name in self.catalogue.config_classes:
            return self.json_text(self.config(name))
        inner = argument_converter(flag).name
        bound = self._bound(flag)
        if bound is not None and rng.random() < 0.5:
            return str(bound)
        return rng.choice(_SAMPLES.get(inner, _SAMPLES["str"]))

    def json_text(self, value: Any) -> str:
        """Write JSON, now and then as people get it wrong."""
        rng = self.rng
        text = json.dumps(value)
        if rng.random() < 0.08:
            text = rng.choice(
                [
                    text.replace('"', "'"),
                    text.replace('"', ""),
                    text[:-1],
                    text + "}",
                    text.replace("}", ",}"),
                    f"'{text}'",
                    text.replace("true", "True").replace("null", "None"),
                    text.replace(":", "="),
                ]
            )
        elif rng.random() < 0.06:
            text = json.dumps({"x": "@"}).replace('"@"', rng.choice(_HUMAN_JSON))
        elif rng.random() < 0.1:
            text = json.dumps(value, indent=1)
        return text

    def config(self, name: str, depth: int = 0) -> dict[str, Any]:
        """Give an object for a configuration class."""
        rng = self.rng
        fields = self.catalogue.config_classes[name].fields
        names = sorted(fields)
        given: dict[str, Any] = {}
        for key in rng.sample(names, min(rng.choice([0, 1, 1, 1, 2, 3]), len(names))):
            given[key] = self.field_value(fields[key], depth)
        for key, field in fields.items():
            if field.required and rng.random() < 0.8:
                given.setdefault(key, self.field_value(field, depth))
        if names and rng.random() < 0.08:
            given[misspelt(rng.choice(names), rng)] = rng.choice(_WRONG_JSON)
        return given

    def field_value(self, field: ConfigField, depth: int = 0) -> Any:
        """Give a value for one field: of its type, at its bounds, or wrong."""
        rng = self.rng
        if rng.random() < 0.25:
            return rng.choice(_WRONG_JSON)
        bounds = [v for k, v in field.constraints.items() if k in {"ge", "gt", "le", "lt"}]
        if bounds and rng.random() < 0.5:
            bound = rng.choice(bounds)
            return bound + rng.choice([0, 0, 1, -1, 0.5] if isinstance(bound, int) else [0, 0.01])
        return self.typed(field.type, depth)

    def typed(self, tree: Tree, depth: int = 0) -> Any:
        """Give a value of a type; a plain word for one that is not described."""
        rng = self.rng
        kind = tree.get("t")
        members = tree.get("of")
        if kind == "union":
            return self.typed(rng.choice(list(members or ())), depth)
        if kind == "literal":
            value = rng.choice(list(tree["values"]))
            return rng.choice([value] * 8 + [f"{value}x", str(value).upper()])
        if kind == "enum":
            name = rng.choice(list(tree["members"]))
            values = tree.get("values") or [name]
            return rng.choice([name, name.lower(), rng.choice(values), f"{name}X", name.title()])
        if kind == "dataclass" and depth < 3 and tree.get("name") in self.catalogue.config_classes:
            return self.config(str(tree["name"]), depth + 1)
        if kind in {"list", "set", "tuple"} and depth < 4:
            inner = members if isinstance(members, Mapping) else (members or [{"t": "str"}])[0]
            return [self.typed(inner, depth + 1) for _ in range(rng.randrange(3))]
        if kind == "dict" and depth < 4:
            value = (members or [{}, {"t": "any"}])[-1] if isinstance(members, list) else {}
            return {
                rng.choice("abc"): self.typed(value, depth + 1) for _ in range(rng.randrange(3))
            }
        simple: dict[str, tuple[Any, ...]] = {
            "bool": (True, False, 1, "yes"),
            "int": (1, 2, 16, "3", 4.0),
            "float": (0.5, 1, "0.25", 1e-3),
            "str": ("x", "a/b", "auto"),
            "none": (None,),
            "dict": ({}, {"a": 1}),
            "list": ([], ["a"]),
        }
        return rng.choice(simple.get(str(kind), ("x", 1)))

    def _bound(self, flag: Flag) -> float | None:
        config_class = self.catalogue.config_classes.get(flag.config_class or "")
        field = config_class and config_class.fields.get(flag.config_field or "")
        bounds = (
            [v for k, v in field.constraints.items() if isinstance(v, int | float)] if field else []
        )
        if not bounds:
            return None
        bound: float = self.rng.choice(bounds)
        step = 1 if isinstance(bound, int) else 0.01
        return self.rng.choice([bound, bound - step, bound + step])


def misspelt(word: str, rng: random.Random) -> str:
    """Drop, add, swap or double a letter."""
    at = rng.randrange(min(3, len(word) - 1), len(word)) if len(word) > 1 else 0
    return rng.choice(
        [
            word[:at] + word[at + 1 :],
            f"{word[:at]}x{word[at:]}",
            f"{word}s",
            word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
            word.replace("-", "_", 1),
            word.upper(),
        ]
    )
