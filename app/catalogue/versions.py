"""Version numbers of vLLM builds. Standard library only: the extractor uses it too."""

from __future__ import annotations

import re

_PLATFORM_BUILD = re.compile(r"\+(cpu|cu\d+|rocm[\d.]*|xpu|tpu)$")


def without_platform(version: str) -> str:
    """Drop the local part that only names the platform of a build.

    `0.32.0+cu129` and `0.32.0+cpu` are the code of 0.32.0. Any other local part is kept: a fork
    is a version of its own.
    """
    return _PLATFORM_BUILD.sub("", version)
