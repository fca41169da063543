"""What was declared against what a backend says of itself.

Only what somebody gave, and the backend tells, is compared: a default that vLLM works out at
start is no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from app.serve_config.serve_config import Abstain, ServeConfig

_CACHE_INFO: Final = "vllm:cache_config_info"
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
# `vllm/config/cache.py::CacheConfig.metrics_info` gives every field as text. Fields that vLLM
# settles itself in spite of what was given (block_size of hybrid models) are not here.
_CACHE_LABELS: Final = {
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_dtype": "cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "prefix_caching_hash_algo": "prefix_caching_hash_algo",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
}
# Words with which vLLM is asked to choose for itself.
_CHOOSES: Final = frozenset({"auto", ""})
# Settled by vLLM even where it was given, compared from another source, or a secret.
_NOT_FROM_INFO: Final = frozenset(
    {"block_size", "hf_token", "max_model_len", "model", "served_model_name", "tokenizer"}
)
_SAME_DTYPE: Final = {"half": "float16", "float": "float32"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not as declared."""

    field: str
    declared: str
    running: str

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.field} is {self.running}, declared is {self.declared}"


@dataclass(frozen=True, slots=True)
class Running:
    """What a backend tells; None or empty where it does not.

    Attributes:
        version: from `/version`.
        models: `max_model_len` by name, from `/v1/models`; adapters are left out.
        cache: labels of `vllm:cache_config_info` from `/metrics`, a set for each engine.
        info: `vllm_config` of `/server_info`, which only servers in development mode have.
    """

    version: str | None = None
    models: Mapping[str, int | None] | None = None
    cache: tuple[Mapping[str, str], ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)


def models_of(document: Any) -> dict[str, int | None] | None:
    """Read the answer of `/v1/models`; None if it is none."""
    cards = document.get("data") if isinstance(document, dict) else None
    if not isinstance(cards, list):
        return None
    known = [card for card in cards if isinstance(card, dict) and card.get("parent") is None]
    lengths = {str(card.get("id")): card.get("max_model_len") for card in known}
    return {name: n if isinstance(n, int) else None for name, n in lengths.items()}


def cache_labels(exposition: str) -> tuple[dict[str, str], ...]:
    """Find the labels of `vllm:cache_config_info` in Prometheus text, for each engine."""
    return tuple(
        dict(_LABEL.findall(line))
        for line in exposition.splitlines()
        if line.startswith(_CACHE_INFO + "{")
    )


def differences(
    config: ServeConfig | None, version: str | None, running: Running
) -> Iterator[Difference]:
    """Compare; nothing is said about what either side leaves open.

    Args:
        config: what was declared; None where only a version was.
        version: of vLLM that was declared, if any.
        running: what the backend tells.
    """
    if version is not None and running.version is not None and not _same(version, running.version):
        yield Difference("vllm_version", version, running.version)
    if config is None:
        return
    compared = set()
    for found in (_models(config, running), _cache(config, running), _info(config, running)):
        for name, declared, told in found:
            if name not in compared and declared != told:
                yield Difference(name, declared, told)
            compared.add(name)


def _same(declared: str, running: str) -> bool:
    """Whether two versions are one release; a build's local part (`+cu129`) does not count."""
    try:
        return Version(declared).public == Version(running).public
    except InvalidVersion:
        return declared == running


_Pairs = Iterator[tuple[str, str, str]]


def _models(config: ServeConfig, running: Running) -> _Pairs:
    if running.models is None:
        return
    names = _given(config, "served_model_name") or _given(config, "model")
    if names is not None:
        declared = [names] if isinstance(names, str) else list(names)
        yield "served_model_name", _list(declared), _list(running.models)
    length = _given(config, "max_model_len")
    lengths = {known for known in running.models.values() if known is not None}
    if isinstance(length, int) and length > 0 and len(lengths) == 1:
        yield "max_model_len", str(length), str(lengths.pop())


def _cache(config: ServeConfig, running: Running) -> _Pairs:
    for dest, label in _CACHE_LABELS.items():
        value = _given(config, dest)
        told = {labels[label] for labels in running.cache if label in labels}
        if _comparable(value) and len(told) == 1:
            yield dest, _text(value), _text(_number(told.pop()))


def _info(config: ServeConfig, running: Running) -> _Pairs:
    """Compare with every field that one section of the configuration alone has."""
    sections = [part for part in running.info.values() if isinstance(part, Mapping)]
    for dest in config.settings:
        value = _given(config, dest)
        having = [part for part in sections if dest in part]
        if dest in _NOT_FROM_INFO or not _comparable(value) or len(having) != 1:
            continue
        told = having[0][dest]
        if _comparable(told):
            yield dest, _text(value), _text(told)


def _given(config: ServeConfig, dest: str) -> Any:
    try:
        return config[dest] if config.given(dest) else None
    except Abstain:
        return None


def _comparable(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() not in _CHOOSES
    return isinstance(value, bool | int | float)


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    """Write a value so that equal ones are equal: 1.0 as 1, `torch.bfloat16` as bfloat16."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    text = str(value).removeprefix("torch.")
    return _SAME_DTYPE.get(text, text)


def _list(names: Any) -> str:
    return ", ".join(sorted(names))
