"""Container images: which vLLM is in them, and what they run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from app.verdict.location import Location

# The release in a tag: `v0.32.0`, `0.32.0-cu130`, `v0.33.0rc1-ubuntu24.04`.
_RELEASE: Final = re.compile(
    r"v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:a|b|rc|post|dev)\d+)*)(?:[-_+].*)?", re.ASCII
)
# Repositories of the vLLM project, as they end: a mirror puts its own name in front. Their entry
# point is `vllm serve` (docker/Dockerfile, Dockerfile.cpu, Dockerfile.rocm, Dockerfile.xpu).
_OFFICIAL: Final = {
    "vllm/vllm-openai": "cuda",
    "vllm/vllm-openai-rocm": "rocm",
    "vllm/vllm-openai-cpu": "cpu",
    "vllm/vllm-openai-xpu": "xpu",
    "vllm-cpu-release-repo": "cpu",
}
# What names of programs beside vLLM say of themselves: `vllm-router`, `vllm-admission`.
_BESIDE: Final = frozenset(
    {"router", "admission", "gateway", "proxy", "controller", "operator", "exporter", "webhook"}
    | {"bench", "benchmark", "benchmarks", "autoscaler", "dashboard", "client", "sidecar", "stack"}
    | {"runtime", "frontend"}
)


@dataclass(frozen=True, slots=True)
class Image:
    """An image reference: `registry/repository:tag@digest`, and where it is written."""

    text: str
    location: Location | None = None
    unresolved: tuple[str, ...] = ()

    @property
    def repository(self) -> str:
        """The name without tag and digest."""
        name = self.text.partition("@")[0]
        head, colon, tail = name.rpartition(":")
        return head if colon and "/" not in tail else name

    @property
    def tag(self) -> str | None:
        """The tag, if one is written."""
        name = self.text.partition("@")[0]
        tag = name[len(self.repository) + 1 :]
        return tag or None

    @property
    def vllm_version(self) -> str | None:
        """The vLLM release that the tag names; None for `latest`, a digest or a variable."""
        if self.tag is None or self.unresolved or self.official is None:
            return None  # other images count by versions of their own
        release = _RELEASE.fullmatch(self.tag)
        return None if release is None else release.group(1)

    @property
    def official(self) -> str | None:
        """The platform of an image of the vLLM project (`cuda`, `rocm`, `cpu`, `xpu`), or None."""
        parts = self.repository.split("/")
        return _OFFICIAL.get("/".join(parts[-2:]), _OFFICIAL.get(parts[-1]))

    @property
    def serves_vllm(self) -> bool:
        """Whether it is an image of vLLM's, or by its name made from it, or a variable."""
        if self.official is not None or self.unresolved:
            return True
        words = re.split(r"[^a-z]+", self.repository.lower().rpartition("/")[2])
        return any(word.startswith("vllm") for word in words) and not _BESIDE & set(words)
