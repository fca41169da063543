"""Servers that hand the KV cache to each other, which have to agree about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.proposal.image import Image
from app.rules.configuration.kubernetes_examples import AREA
from app.rules.configuration.kubernetes_neighbours import neighbour_config
from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

_CONFIG: Final = "kv_transfer_config"
_SHARED: Final = ("block_size", "kv_cache_dtype")
# What NIXL compares at the handshake beside model and cache, where both sides give it.
_OF_NIXL: Final = ("dtype", "attention_backend", "disable_hybrid_kv_cache_manager")
_ENFORCED: Final = f"{_CONFIG}.kv_connector_extra_config.enforce_handshake_compat"
_PAIR: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: decode, namespace: models}}
spec: {{template: {{spec: {{containers: [
  {{name: d, image: vllm/vllm-openai:v0.32.0, args: [m, --block-size, "{0}",
   --kv-transfer-config, '{{"kv_connector": "NixlConnector", "kv_role": "{1}"}}'],
   readinessProbe: {{httpGet: {{path: /health, port: 8000}}}}}}]}}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: prefill, namespace: models}}
spec: {{template: {{spec: {{containers: [
  {{name: p, image: vllm/vllm-openai:v0.32.0, args: [m, --block-size, "32",
   --kv-transfer-config, '{{"kv_connector": "NixlConnector", "kv_role": "{2}"}}'],
   readinessProbe: {{httpGet: {{path: /health, port: 8000}}}}}}]}}}}}}
"""


def _pair(size: int, role: str, other: str, note: str = "") -> Example:
    return Example(_PAIR.format(size, role, other), note=note)


@rule(
    id="kubernetes-pair-differs",
    title="Prefill and decode servers do not agree about the KV cache",
    explanation="A server that gets its KV cache from another one reads it as its own. Model, "
    "connector, block size and the cache's data type have to be the same on both sides; where they "
    "differ, the connector refuses at the first handshake, or requests fail. NIXL compares the "
    "vLLM version, dtype and attention backend too, unless `enforce_handshake_compat` is false; "
    "the block size of the decode side may be a multiple of the other's.",
    remedy="Give both sides the same values.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/distributed/kv_transfer/kv_connector/v1/nixl",
    bad=(
        _pair(16, "kv_consumer", "kv_producer"),
        _pair(16, "kv_both", "kv_both", note="a pair by their names"),
    ),
    good=(
        _pair(32, "kv_consumer", "kv_producer"),
        _pair(64, "kv_consumer", "kv_producer", note="a multiple of the other's"),
        _pair(16, "kv_producer", "kv_producer", note="none reads what the other makes"),
    ),
)
def pair_differs(config: ServeConfig) -> Iterator[Finding]:
    """Compare a server with those of the stream that it gets its cache from."""
    workload, own = config.workload, config[_CONFIG]
    if workload is None or not isinstance(own, dict) or not workload.neighbours:
        return
    for other in workload.neighbours:
        if not any("kv-transfer" in w.text or "kv_transfer" in w.text for w in other.words):
            continue
        there = neighbour_config(other, config.catalogue)
        if there is None or not _are_a_pair(config, there):
            continue
        for dest, ours, theirs in _differences(config, there):
            yield pair_differs.finding(
                f"{dest} is {ours} here and {theirs} at {other.subject}, from which the KV cache "
                "comes",
                location=_place(config, dest),
                related=tuple(filter(None, [_place(there, dest)])),
                evidence={"setting": dest, "here": ours, "there": theirs},
            )


def _are_a_pair(config: ServeConfig, other: ServeConfig) -> bool:
    """Whether the second one makes what the first one reads: by role, in one namespace."""
    ours, theirs = config.workload, other.workload
    if ours is None or theirs is None or ours.namespace != theirs.namespace:
        return False
    roles = config[f"{_CONFIG}.kv_role"], other[f"{_CONFIG}.kv_role"]
    if roles == ("kv_consumer", "kv_producer"):
        return _models_of(config) == _models_of(other) or _is_one_object(config, other)
    if roles != ("kv_both", "kv_both"):
        return False
    if _is_one_object(config, other):
        return _says(ours.role, "decode") and _says(theirs.role, "prefill")
    # Two objects of one release are named alike.
    return "decode" in ours.name and ours.name.replace("decode", "prefill") == theirs.name


def _is_one_object(config: ServeConfig, other: ServeConfig) -> bool:
    ours, theirs = config.workload, other.workload
    if ours is None or theirs is None:
        return False
    return (ours.kind, ours.name, ours.namespace) == (theirs.kind, theirs.name, theirs.namespace)


def _says(role: str | None, word: str) -> bool:
    return role is not None and word in role.lower()


def _differences(config: ServeConfig, other: ServeConfig) -> Iterator[tuple[str, Any, Any]]:
    pairs = [("model", _models_of(config), _models_of(other))]
    pairs += [(dest, _value(config, dest), _value(other, dest)) for dest in _SHARED]
    connector = f"{_CONFIG}.kv_connector"
    pairs.append((connector, _value(config, connector), _value(other, connector)))
    is_nixl = str(_value(config, connector)).startswith("Nixl")
    if is_nixl and _value(config, _ENFORCED) is not False:
        both_give = (dest for dest in _OF_NIXL if config.given(dest) and other.given(dest))
        pairs += [(dest, _value(config, dest), _value(other, dest)) for dest in both_give]
        pairs.append(("the vLLM version", _version(config), _version(other)))
    for dest, ours, theirs in pairs:
        if ours is None or theirs is None or ours == theirs:
            continue
        if not (is_nixl and dest == "block_size" and _is_multiple(ours, theirs)):
            yield dest, ours, theirs


def _is_multiple(ours: Any, theirs: Any) -> bool:
    """Whether a block here is made of whole blocks there, which NIXL can split."""
    return isinstance(ours, int) and isinstance(theirs, int) and theirs > 0 and ours % theirs == 0


def _version(config: ServeConfig) -> str | None:
    """Give the vLLM version that the tag of the container's image tells."""
    image = None if config.workload is None else config.workload.container.get("image")
    return Image(image).vllm_version if isinstance(image, str) else None


def _models_of(config: ServeConfig) -> Any:
    return _value(config, "model_tag") or _value(config, "model")


def _value(config: ServeConfig, dest: str) -> Any:
    try:
        return config[dest]
    except Abstain:
        return None  # what is not known differs from nothing


def _place(config: ServeConfig, dest: str) -> Location | None:
    if config.place(dest) is not None:
        return config.place(dest)
    if dest == "model":
        return config.place("model_tag")
    return config.place(_CONFIG)
