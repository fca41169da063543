"""Loaded at start-up by every Python process of the lab, vLLM's own children included.

Makes the package `lab` importable without putting the checkout on the path, where its other
packages could shadow vLLM's dependencies, and installs what the process asks for:

LAB_TRITON_ON_CPU=1     Triton in interpreter mode as a CPU backend: Model Runner V2 works
LAB_NVIDIA=h100:8       eight fake GPUs, for verdicts; nothing can run on them
LAB_PARENT=1234         end when that process, which started this one, is gone
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def _make_lab_importable() -> None:
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "lab", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no package in {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["lab"] = module
    spec.loader.exec_module(module)


_make_lab_importable()
if os.environ.get("LAB_TRITON_ON_CPU") == "1":
    from lab.inside import triton_on_cpu

    triton_on_cpu.install()
if os.environ.get("LAB_NVIDIA"):
    from lab.inside import nvidia

    nvidia.install(os.environ["LAB_NVIDIA"])
if os.environ.get("LAB_PARENT"):
    from lab.inside import lifeline

    lifeline.install(int(os.environ["LAB_PARENT"]))
