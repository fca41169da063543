"""Proposals for the whole engine configuration, drawn with a fixed seed.

Each is a model of the lab, a machine, and one to three ingredients: a template of
`engine_templates.txt` (what operators write together), or plausible values for the flags that one
row of the rules' inventory names. Only proposals that pass our parser are kept: what the parser
refuses is `lab.parser_cases`' business.
"""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from app.catalogue import Catalogue, CatalogueLibrary, Flag
from app.proposal.envelope import read_envelope
from app.serve_config.class_rules import config_class_of
from app.serve_config.resolve import resolve
from app.serve_config.values import argument_converter
from app.verdict.finding import Severity
from lab.environment import CHECKOUT
from lab.oracle import MODELS, Case
from lab.seed_cases import CONFIGS

TEMPLATES: Final = Path(__file__).with_name("engine_templates.txt")
INVENTORY: Final = CHECKOUT / "tests" / "rules" / "inventory" / "inventory.csv"
GPU_NAMES: Final = {"a100": "NVIDIA A100-SXM4-80GB", "h100": "NVIDIA H100 80GB HBM3"}

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "dense": ("llama3-8b", "gpt2", "opt-125m"),
    "GQA": ("qwen3-0.6b", "qwen2.5-7b", "phi4"),
    "MoE": ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"),
    "MLA": ("deepseek-v3", "deepseek-v2-lite"),
    "hybrid": ("granite4-tiny", "jamba-mini", "falcon-h1"),
    "Mamba": ("mamba2-2.7b", "falcon-mamba-7b"),
    "sliding window": ("mistral-7b-swa", "gemma3-1b"),
    "AWQ, GPTQ": ("qwen2.5-7b-awq", "qwen2.5-7b-gptq"),
    "FP8, INT8, NVFP4": (
        *("llama3.1-8b-fp8", "qwen3-30b-a3b-fp8"),
        *("qwen3-8b-nvfp4", "llama3-8b-w8a8"),
    ),
    "rope scaled": ("llama3.1-8b", "qwen2.5-7b-yarn", "llama3-8b-linear"),
    "multimodal": ("gemma3-4b", "qwen2.5-vl-7b", "llava-1.5-7b", "llama4-scout"),
    "pooling": ("bge-base", "modernbert-base", "qwen2-classifier"),
    "encoder-decoder": ("whisper-small",),
    "Transformers backend": ("helium-1",),
}
# Where an area's conflicts are mostly found.
_AT_HOME: Final[Mapping[str, tuple[str, ...]]] = {
    "moe": ("MoE", "MLA"),
    "mamba": ("hybrid", "Mamba"),
    "multimodal": ("multimodal",),
    "pooling": ("pooling", "GQA"),
    "attention": ("MLA", "dense", "sliding window"),
    "quantization": ("AWQ, GPTQ", "FP8, INT8, NVFP4", "GQA"),
    "model": ("rope scaled", "sliding window", "pooling"),
}
_DRAFTS: Final = ("qwen3-0.6b", "qwen3-4b-draft", "llama3-8b", "llama3.1-8b", "deepseek-v2-lite")
_PLATFORMS: Final = (("cuda-h100", 50), ("cuda-a100", 27), ("cpu", 23))
_CHOICE: Final = re.compile(r"<([^<>]*)>")
_ASSIGNMENT: Final = re.compile(r"[A-Z][A-Z0-9_]*=")
# What depends on files, on the network or on packages that may or may not be installed.
_LEFT_OUT: Final = frozenset(
    {"model", "model_tag", "config", "chat_template", "log_config_file", "uds", "tokenizer"}
    | {"hf_config_path", "grpc", "grpc_port", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"}
    | {"api_key", "middleware", "tool_parser_plugin", "reasoning_parser_plugin", "host", "port"}
    | {"hf_token", "lora_modules", "revision", "code_revision", "tokenizer_revision", "task"}
    | {"io_processor_plugin", "log_level", "logging_config", "worker_extension_cls"}
)
_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "parallel_size": ("1", "2", "4"),
    "rank": ("0", "1", "2"),
    "len": ("512", "4096", "65536"),
    "tokens": ("64", "2048", "8192"),
    "size": ("1", "16", "64"),
    "port": ("13345",),
}


@dataclass(frozen=True, slots=True)
class EngineCase:
    """A case for the oracle, and what is known of how it was made."""

    case: Case
    model: str
    areas: tuple[str, ...]
    draft: str | None = None

    @property
    def family(self) -> str:
        return family_of(self.model)

    def envelope(self) -> dict[str, Any]:
        """Tell the gate all that the oracle is told, the models and the machine."""
        gpu = self.case.platform.removeprefix("cuda-")
        cuda = gpu != self.case.platform
        envelope: dict[str, Any] = {
            "args": list(self.case.args),
            "env": dict(self.case.env),
            "hardware": {"gpu": GPU_NAMES[gpu], "count": self.case.gpus}
            if cuda
            else {"gpu": "cpu", "count": 0},
            "model_config": models()[self.model]["config.json"],
        }
        if self.draft is not None:
            envelope["draft_model_config"] = models()[self.draft]["config.json"]
        return envelope

    def as_json(self) -> dict[str, Any]:
        """Render as a recorded case does."""
        case = self.case
        body: dict[str, Any] = {"args": list(case.args), "model": self.model}
        body |= {"platform": case.platform, "gpus": case.gpus, "areas": list(self.areas)}
        body |= {"env": dict(case.env)} if case.env else {}
        return body | ({"draft": self.draft} if self.draft else {})

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> EngineCase:
        draft = body.get("draft")
        case = Case(
            args=tuple(body["args"]),
            env=body.get("env", {}),
            platform=body["platform"],
            gpus=body["gpus"],
            files=_draft_files(draft),
        )
        return cls(case, body["model"], tuple(body["areas"]), draft)


@cache
def models() -> dict[str, dict[str, Any]]:
    """Give the files of each of the lab's models."""
    found: dict[str, dict[str, Any]] = json.loads(CONFIGS.read_text())
    return found


def family_of(model: str) -> str:
    """Give the family of a model of the lab."""
    return next(family for family, names in FAMILIES.items() if model in names)


def engine_cases(version: str, count: int, *, seed: int = 1) -> list[EngineCase]:
    """Give `count` proposals that our parser takes, always the same for a version and seed."""
    catalogue = CatalogueLibrary().get(version)
    draw = random.Random(f"{version}/{seed}")  # noqa: S311 - not for secrets
    found: list[EngineCase] = []
    seen: set[str] = set()
    while len(found) < count:
        case = _case(catalogue, draw)
        key = json.dumps(case.as_json(), sort_keys=True)
        if key not in seen and _passes(case, catalogue):
            seen.add(key)
            found.append(case)
    return found


def _passes(case: EngineCase, catalogue: Catalogue) -> bool:
    resolution = resolve(read_envelope(case.envelope()).proposal, catalogue)
    errors = (f for f in resolution.findings if f.severity is Severity.ERROR)
    return resolution.config is not None and next(errors, None) is None


def _case(catalogue: Catalogue, draw: random.Random) -> EngineCase:
    templates = _templates()
    ingredients = draw.choices((1, 2, 3), (35, 40, 25))[0]
    areas, words, env = [], [], {}
    first: str | None = None
    for _ in range(ingredients):
        area = draw.choice(sorted(templates))
        if first in templates and draw.random() < 0.4:
            area = first
        if draw.random() < 0.3:
            area, more = _from_inventory(catalogue, draw, first)
        else:
            more = _filled(draw.choice(templates[area]), draw)
        first = first or area
        areas.append(area)
        for word in more:
            if _ASSIGNMENT.match(word):
                name, _, value = word.partition("=")
                env[name] = value
            else:
                words.append(word)
    model = _model(areas[0], draw)
    draft = draw.choice(_DRAFTS) if any('"draft"' in w or w == "draft" for w in words) else None
    platform = draw.choices([p for p, _ in _PLATFORMS], [w for _, w in _PLATFORMS])[0]
    case = Case(
        args=(f"{MODELS}/{model}", *words),
        env=env,
        platform=platform,
        gpus=draw.choice((1, 2, 4, 8, 8, 8)) if platform != "cpu" else 0,
        files=_draft_files(draft),
    )
    return EngineCase(case, model, tuple(dict.fromkeys(areas)), draft)


def _draft_files(draft: str | None) -> dict[str, str]:
    if draft is None:
        return {}
    return {f"draft/{name}": json.dumps(content) for name, content in models()[draft].items()}


def _model(area: str, draw: random.Random) -> str:
    families = _AT_HOME.get(area, ())
    family = draw.choice(families if families and draw.random() < 0.6 else sorted(FAMILIES))
    return draw.choice(FAMILIES[family])


@cache
def _templates() -> dict[str, list[str]]:
    areas: dict[str, list[str]] = {}
    area: list[str] = []
    for line in TEMPLATES.read_text().splitlines():
        if line.startswith("["):
            area = areas.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            area.append(line)
    return areas


def _filled(template: str, draw: random.Random) -> list[str]:
    while (match := _CHOICE.search(template)) is not None:
        value = draw.choice(match[1].split("|"))
        template = template[: match.start()] + value + template[match.end() :]
    return shlex.split(template)


@cache
def _rows() -> tuple[tuple[str, tuple[str, ...]], ...]:
    with INVENTORY.open(newline="") as file:
        rows = [(row["area"], tuple(row["flags"].split(","))) for row in csv.DictReader(file)]
    left_out = {"cli", "cli-frontend", "cli-yaml", "env", "logging"}
    return tuple((area, flags) for area, flags in rows if area not in left_out)


def _from_inventory(
    catalogue: Catalogue, draw: random.Random, area: str | None
) -> tuple[str, list[str]]:
    rows = _rows()
    near = [row for row in rows if row[0] == area]
    row = draw.choice(near if near and draw.random() < 0.4 else rows)
    words: list[str] = []
    for flag in row[1]:
        words.extend(_option(flag.strip(), catalogue, draw))
    return row[0], words


def _option(name: str, catalogue: Catalogue, draw: random.Random) -> list[str]:
    if _ASSIGNMENT.match(f"{name}=") and name in catalogue.env_vars:
        fact = catalogue.env_vars[name]
        choices = [str(choice) for choice in fact.choices] or ["0", "1"]
        return [f"{name}={draw.choice(choices)}"]
    option, _, path = name.partition(".")
    flag = catalogue.by_option.get(option)
    if flag is None or flag.dest in _LEFT_OUT:
        return []
    if path:
        value = _field_value(config_class_of(flag), path, catalogue, draw)
        return [] if value is None else [f"{name}={value}"]
    if flag.nargs == 0:
        negative = flag.negative_options and draw.random() < 0.2
        return [flag.negative_options[0] if negative else option]
    value = _value(flag, catalogue, draw)
    return [] if value is None else [option, value]


def _value(flag: Flag, catalogue: Catalogue, draw: random.Random) -> str | None:
    if flag.choices:
        return str(draw.choice([c for c in flag.choices if c is not None]))
    name = config_class_of(flag)
    if name is not None and name in catalogue.config_classes:
        fields = catalogue.config_classes[name].fields
        chosen = draw.sample(sorted(fields), min(draw.choice((1, 2, 3)), len(fields)))
        values = {f: _field_json(fields[f].type, f, catalogue, draw) for f in chosen}
        return json.dumps({f: v for f, v in values.items() if v is not None})
    kind = argument_converter(flag).name
    if kind in {"int", "human_readable_int", "human_readable_int_or_auto"}:
        return draw.choice(_numbers(flag.dest))
    return draw.choice(("0.1", "0.9", "1.0")) if kind == "float" else None


def _numbers(name: str) -> tuple[str, ...]:
    return next((v for k, v in _NUMBERS.items() if name.endswith(k)), ("1", "2", "8"))


def _field_value(
    name: str | None, path: str, catalogue: Catalogue, draw: random.Random
) -> str | None:
    *inner, last = path.split(".")
    for step in inner:
        found = catalogue.config_classes.get(name or "")
        field = found.fields.get(step) if found is not None else None
        name = _class_in(field.type) if field is not None else None
    found = catalogue.config_classes.get(name or "")
    field = found.fields.get(last) if found is not None else None
    if field is None:
        return None
    value = _field_json(field.type, last, catalogue, draw)
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _class_in(tree: Mapping[str, Any]) -> str | None:
    for part in tree.get("of", [tree]) if tree.get("t") == "union" else [tree]:
        if part.get("t") == "dataclass":
            return str(part.get("name"))
    return None


def _field_json(
    tree: Mapping[str, Any], name: str, catalogue: Catalogue, draw: random.Random, depth: int = 0
) -> Any:
    """Give a value of a field's type, or None where none can be made up."""
    kind = tree.get("t")
    if kind == "union":
        parts = [part for part in tree["of"] if part.get("t") != "none"]
        return _field_json(draw.choice(parts), name, catalogue, draw, depth)
    if kind == "literal":
        return draw.choice(tree["values"])
    if kind == "bool":
        return draw.choice((True, True, False))
    if kind == "int":
        return int(draw.choice(_numbers(name)))
    if kind == "float":
        return draw.choice((0.1, 0.5, 1.0))
    if kind == "enum":
        members = tree.get("members") or tree.get("values") or ()
        return draw.choice(sorted(members, key=str)) if members else None
    if kind == "list" and depth == 0:
        of = tree.get("of")
        inner = of[0] if isinstance(of, list) and of else of
        item = _field_json(inner, name, catalogue, draw, 1) if isinstance(inner, Mapping) else None
        return None if item is None else [item]
    if kind == "dataclass" and depth == 0:
        fields = catalogue.config_classes[tree["name"]].fields
        chosen = draw.choice(sorted(fields))
        value = _field_json(fields[chosen].type, chosen, catalogue, draw, 1)
        return None if value is None else {chosen: value}
    return None
