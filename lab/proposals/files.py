"""`--config` files, and where the option stands on the command line."""

from __future__ import annotations

import json
import random
from typing import Any

import yaml

from app.catalogue import Flag
from app.serve_config.class_rules import config_class_of
from lab.parser_oracle import Question
from lab.proposals.command_lines import MODEL, Writer
from lab.proposals.words import misspelt

_ODD_LINES = (
    *("x: {", "- a", "8000: x", "null: 1", "true: 1", "? [a]\n: b", "a: b: c", "port: !!int 1"),
    *("<<: {port: 1}", "port: 0o17", "port: 017", "port: 0x1f", "port: 1_000", "port: 1:30"),
    *("port: ~", "port:", "seed: .nan", "seed: 1.0", "port: 2001-01-01", "port: '8000'"),
    *("enforce-eager: yes", "enforce-eager: Off", "enforce-eager: 'yes'", "enforce-eager: 1"),
    *("no-enforce-eager: false", "no-enforce-eager: true", "--port: 1", "-tp: 2", "tp: 2"),
    *("served-model-name: [a, [b]]", "served-model-name: [null]", "served-model-name: ''"),
    *("compilation-config: [1]", "compilation-config: {1: 2}", "compilation-config: {mode: .nan}"),
    *("compilation-config.mode: 3", "compilation-config.pass_config: {fuse_norm_quant: true}"),
    *("model: other", "model_tag: other", "config: d.yaml", "help: true", "omni: true", "h: true"),
    *("a b: c", "port=1: 2", "'': 1", "lora-modules: [{name: a, path: b}]", "O: 3", "O3: true"),
    *("optimization-level: 3", "hf-overrides: {a: {b: [1, null]}}", "hf-token: true", "&a x: *a"),
    *("port: 1\nport: 2", "%YAML 1.1\n---\nport: 1", "port: 1\n---\nport: 2", "\tport: 1", "é: 1"),
    *(
        "speculative-config: {method: ngram, num_speculative_tokens: 3}",
        "port: [1]",
        "port: [1, 2]",
    ),
)


def config_file(writer: Writer, rng: random.Random) -> Question:
    """Give a command line with a `--config` file."""
    settings: dict[str, Any] = {}
    for flag in rng.sample(writer.flags, rng.choice([1, 2, 3, 3])):
        settings[_key(flag, writer, rng)] = _value(flag, writer, rng)
    text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=rng.random() < 0.2)
    if rng.random() < 0.25:
        text += rng.choice(_ODD_LINES) + "\n"
    if rng.random() < 0.25:
        text += f"model: {MODEL}\n"
    if rng.random() < 0.04:
        text = rng.choice(["", "# nothing\n", "text\n", "- a\n", "{}\n", "[]\n", "a: [1\n"])
    name = rng.choice(["c.yaml"] * 30 + ["c.yml", "c.json", "c.YAML", "c", "d/c.yaml"])
    option = rng.choice([["--config", name]] * 20 + [[f"--config={name}"], ["--conf", name]])
    other = writer.option(rng.choice(writer.flags)) if rng.random() < 0.4 else []
    form = rng.random()
    if form < 0.6:
        args = [MODEL, *option, *other]
    elif form < 0.7:
        args = [MODEL, *other, *option]
    elif form < 0.85:
        args = [*option, *other]
    elif form < 0.9:
        args = [*other, *option, MODEL]
    else:
        args = rng.choice(
            [[*option, *option, MODEL], [MODEL, "--config"], [*option, "--model", MODEL, *other]]
        )
    return {"args": args, "files": {name: text}}


def _key(flag: Flag, writer: Writer, rng: random.Random) -> str:
    name = rng.choice(flag.options).lstrip("-")
    form = rng.random()
    if form < 0.3:
        return name.replace("-", "_")
    if form < 0.35:
        return misspelt(name, rng)
    if form < 0.4 and flag.negative_options:
        return flag.negative_options[0].lstrip("-")
    return name


def _value(flag: Flag, writer: Writer, rng: random.Random) -> Any:
    form = rng.random()
    if form < 0.07:
        return rng.choice([None, True, False, [], {}, "", "None", "true", [None], [[1]], {"a": 1}])
    if flag.nargs == 0:
        return rng.choice([True, True, False, "true", 1, None, "yes"])
    if flag.nargs in {"+", "*"}:
        words = [writer.values.word(flag) for _ in range(rng.choice([1, 2, 2]))]
        return rng.choice([words, words[0], [_scalar(word) for word in words]])
    name = config_class_of(flag)
    if name is not None and name in writer.catalogue.config_classes and form < 0.7:
        return writer.values.config(name)
    word = writer.values.word(flag)
    return rng.choice([word, _scalar(word)])


def _scalar(word: str) -> Any:
    """Give what YAML would read in the word, where it is plain data."""
    try:
        value = yaml.safe_load(word)
        json.dumps(value)
    except (yaml.YAMLError, TypeError, ValueError):
        return word
    return value
