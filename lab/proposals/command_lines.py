"""Command lines: several options in any order, each written as people write them."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from app.catalogue import Catalogue, Flag
from app.serve_config.class_rules import config_class_of
from app.serve_config.values import argument_converter
from lab.proposals.words import WRONG, Values, misspelt

MODEL: Final = "MODEL"
# What a value of these would be looked for on this machine.
SKIPPED: Final = frozenset({"config", "model", "model_tag", "chat_template", "log_config_file"})
_JSON: Final = frozenset({"json", "dataclass_json", "union_dict_and_str"})


class Writer:
    """Writes command lines for one version."""

    def __init__(self, catalogue: Catalogue, rng: random.Random) -> None:
        self.values = Values(catalogue, rng)
        self.flags = [f for f in catalogue.flags if f.options and f.dest not in SKIPPED]
        self._options = [o for flag in self.flags for o in flag.all_options]
        self._rng = rng
        self.catalogue = catalogue

    def command_line(self) -> list[str]:
        """Give what follows `vllm serve`."""
        rng = self._rng
        chosen = rng.sample(self.flags, rng.choice([1, 1, 1, 2, 2, 3, 5]))
        if rng.random() < 0.15:
            chosen.append(rng.choice(chosen))  # the same one again
        parts = [self.option(flag) for flag in chosen]
        parts = [self._spoilt(part) if rng.random() < 0.12 else part for part in parts]
        if rng.random() < 0.1:
            rng.shuffle(parts)
        model = self._model()
        if rng.random() < 0.85:
            parts.insert(0, model)
        else:
            parts.insert(rng.randrange(len(parts) + 1), model)
        if rng.random() < 0.04:
            parts.insert(rng.randrange(len(parts) + 1), [rng.choice([*WRONG, "--", "-", MODEL])])
        return [word for part in parts for word in part]

    def _model(self) -> list[str]:
        return self._rng.choice(
            [[MODEL]] * 30
            + [["--model", MODEL], [f"--model={MODEL}"], [], ["--model"], ["--mod", "x"]]
        )

    def option(self, flag: Flag) -> list[str]:
        """Give an option with its words, in one of the forms it has."""
        rng = self._rng
        name = self.spelling(flag)
        if flag.nargs == 0:
            return rng.choice(
                [[name]] * 12 + [[f"{name}=true"], [name, "true"], [name, "False"], [f"{name}="]]
            )
        dotted = self._dotted(flag)
        if dotted is not None:
            return dotted
        if flag.nargs == "?" and rng.random() < 0.4:
            return [name]
        if flag.nargs in {"+", "*"} or isinstance(flag.nargs, int):
            words = [self._element(flag) for _ in range(rng.choice([1, 1, 2, 3, 0]))]
            if len(words) == 1 and rng.random() < 0.3:
                return [f"{name}={words[0]}"]
            return [name, *words]
        word = self._element(flag)
        if rng.random() < 0.35:
            return [f"{name}={word}"]
        return [name, word] if rng.random() < 0.97 else [name]

    def spelling(self, flag: Flag) -> str:
        """Give one of its option strings: whole, with underscores, cut short or misspelt."""
        rng = self._rng
        name = rng.choice(flag.all_options)
        form = rng.random()
        if form < 0.12:
            return f"--{name.removeprefix('--').replace('-', '_')}" if name[:2] == "--" else name
        if form < 0.18 and len(name) > 5:
            return name[: rng.randrange(3, len(name))]
        if form < 0.23:
            return misspelt(name, rng)
        return name

    def _element(self, flag: Flag) -> str:
        rng = self._rng
        if flag.action == "LoRAParserAction":
            return rng.choice(
                [
                    *("a=b", "a=b=c", "a", "", "None", '{"name": "a", "path": "b"}', "a=b,c=d"),
                    *('{"name": "a"}', '{"name": "a", "path": "b", "x": 1}', "[]", "1", "{"),
                    '{"name": "a", "path": "b", "base_model_name": null}',
                    '{"name": 1, "path": "b"}',
                ]
            )
        if flag.dest == "optimization_level":
            return rng.choice(["0", "1", "2", "3", "4", "-1", "x", ""])
        return self.values.word(flag)

    def _dotted(self, flag: Flag) -> list[str] | None:
        """Give a JSON option key by key, as vLLM lets one."""
        rng = self._rng
        if argument_converter(flag).name not in _JSON or rng.random() > 0.4:
            return None
        name = rng.choice(flag.options)
        cls = config_class_of(flag)
        value: dict[str, Any] = {"a": {"b": 1}, "c": "x"}
        if cls is not None and cls in self.catalogue.config_classes:
            value = self.values.config(cls)
        words: list[str] = []
        for path, leaf in _leaves(value):
            key = ".".join((name, *path))
            if rng.random() < 0.05:
                key = key.replace("_", "-")
            if rng.random() < 0.06:
                key += rng.choice(["+", ".0", "+.x", ".", ".."])
            if isinstance(leaf, list) and leaf and rng.random() < 0.5:
                key, text = f"{key}+", ",".join(map(str, leaf))
            elif isinstance(leaf, str) and rng.random() < 0.8:
                text = leaf
            else:
                text = rng.choice([json.dumps(leaf), str(leaf), "1k", "4K"][: 3 - (leaf is None)])
            words += [f"{key}={text}"] if rng.random() < 0.5 else [key, text]
        return words or None

    def _spoilt(self, part: list[str]) -> list[str]:
        """Change the words of one option in a way that people do by mistake."""
        rng = self._rng
        if not part:
            return part
        return rng.choice(
            [
                [rng.choice(self._options)],
                [*part, rng.choice(WRONG)],
                part[:1],
                part[1:],
                [part[0], "=", *part[1:]],
                [f"{part[0]} {' '.join(part[1:])}"],
                [f"\u2013\u2013{part[0].lstrip('-')}", *part[1:]],
                [part[0].lstrip("-"), *part[1:]],
                [f"-{part[0].lstrip('-')}", *part[1:]],
                [f"-{part[0]}", *part[1:]],
                [*part, *part],
                [*part, "--", *part],
                ["-O3"],
                ["-O", rng.choice(["0", "1", "4", "{}", "x"])],
                [f"-O{rng.choice(['=2', '.mode=3', '.x', '', '=', '10'])}"],
            ]
        )


def _leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, str(key)))]
    return [(path, value)] if path else []
