"""What Dynamo's operator adds to the pods of a graph.

Source: ai-dynamo/dynamo, `deploy/operator/internal/dynamo/backend_vllm.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from app.kubernetes.manifest import Manifest
from app.kubernetes.workloads import EXTRA, PodPlace
from app.proposal.proposal import Proposal, Word

_GROUP: Final = "nvidia.com"
_KINDS: Final = frozenset({"DynamoGraphDeployment", "DynamoComponentDeployment"})
_TENSOR: Final = frozenset({"--tensor-parallel-size", "-tp"})
_PIPELINE: Final = frozenset({"--pipeline-parallel-size", "-pp"})
_DATA: Final = frozenset({"--data-parallel-size", "-dp"})
_LOCAL: Final = frozenset({"--data-parallel-size-local", "-dpl"})
_ELASTIC: Final = frozenset({"--enable-elastic-ep"})


def is_dynamo(manifest: Manifest, pod: PodPlace) -> bool:
    """Whether a pod is one that Dynamo's operator completes: /dev/shm, probes, a command."""
    known = manifest.group == _GROUP and manifest.kind in _KINDS
    return known or EXTRA in pod.path


def with_ranks(proposal: Proposal, manifest: Manifest, pod: PodPlace, gpus: int | None) -> Proposal:
    """Give the server with the options of data parallelism that its first node gets.

    The operator adds them where the ranks do not fit into one of several nodes, and one does. They
    are put first, so that words of the user's own keep their places from the end.
    """
    if pod.group_size == 1 or not gpus or not is_dynamo(manifest, pod):
        return proposal
    words = proposal.words
    tensor, pipeline, data = (_size(words, names) for names in (_TENSOR, _PIPELINE, _DATA))
    if tensor is None or pipeline is None or data is None or _given(words, _LOCAL | _ELASTIC):
        return proposal
    world = tensor * pipeline
    if not 0 < world <= gpus < world * data:
        return proposal
    place = manifest.places.location(pod.path)
    texts = ("--data-parallel-hybrid-lb", "--data-parallel-size-local", str(gpus // world))
    added = (*texts, "--data-parallel-start-rank", "0")
    return replace(proposal, words=(*(Word(text, place) for text in added), *words))


def _size(words: Sequence[Word], names: frozenset[str]) -> int | None:
    """Read a size as the operator does; 1 where none is given, None where it is not known."""
    found: int | None = 1
    for i, word in enumerate(words):
        option, equals, value = word.text.partition("=")
        if _canonical(option) in names:
            if not equals:
                value = words[i + 1].text if i + 1 < len(words) else ""
            found = int(value) if value.isdecimal() else None
    return found


def _given(words: Sequence[Word], names: frozenset[str]) -> bool:
    return any(_canonical(word.text.partition("=")[0]) in names for word in words)


def _canonical(option: str) -> str:
    return option.replace("_", "-")
