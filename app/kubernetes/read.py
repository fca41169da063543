"""A stream of manifests, such as `kubectl kustomize` and `helm template` give it, as proposals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from app.errors import InvalidEnvelope, PayloadTooLarge, Problem
from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import read_manifests
from app.proposal.proposal import Proposal

# Keys at the left margin that neither a compose file nor a `--config` file has.
_KEYS: Final = re.compile(
    r"""^["']?(apiVersion|kind|containers|servingEngineSpec)["']?[ \t]*:""", re.MULTILINE
)
_MARKS: Final = frozenset({"kind", "containers", "servingEngineSpec"})
_SHOWN: Final = 8
_SERVERS: Final = 1000


def looks_like_manifests(text: str) -> bool:
    """Whether YAML text has what only Kubernetes objects (or parts of them) have."""
    return any(match.group(1) in _MARKS for match in _KEYS.finditer(text))


def is_manifest(data: Mapping[str, Any]) -> bool:
    """Whether decoded JSON is an object of Kubernetes, or part of one."""
    return bool(_MARKS & data.keys())


def read_kubernetes(text: str, *, source: str = "kubernetes") -> tuple[Proposal, ...]:
    """Read every vLLM server that the objects of a stream start, in their order.

    Raises:
        MalformedDocument: not YAML.
        InvalidEnvelope: none of the objects starts vLLM.
        PayloadTooLarge: it is larger than any stream of manifests, or has more servers.
    """
    manifests = read_manifests(text, source)
    servers = servers_in(manifests, at_most=_SERVERS + 1)
    if len(servers) > _SERVERS:
        raise PayloadTooLarge(f"manifests with more than {_SERVERS} vLLM servers are not read")
    if not servers:
        titles = [manifest.title for manifest in manifests]
        shown = ", ".join(titles[:_SHOWN]) + (", …" if len(titles) > _SHOWN else "")
        detail = f"none of the objects ({shown or 'there are none'}) starts vLLM"
        raise InvalidEnvelope("the manifests have no vLLM server", (Problem("no-server", detail),))
    return servers
