"""What the extractor asks the running vLLM about itself."""

from __future__ import annotations

import ast
import importlib
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from app.catalogue.versions import without_platform

_PATH = re.compile(r"\s*\(?(?:/[\w.+-]+){2,}/?\)?")


def _no_capability(*_args: object, **_named: object) -> None:
    return None


def describe(error: BaseException) -> str:
    """Give an error's type and first sentence or line, without paths of this machine."""
    reason = _PATH.sub("", next(iter(str(error).splitlines()), "")).split(". ")[0].strip()
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


_PLATFORM_CLASSES = {
    "cuda": ("vllm.platforms.cuda", "CudaPlatform"),
    "rocm": ("vllm.platforms.rocm", "RocmPlatform"),
    "xpu": ("vllm.platforms.xpu", "XPUPlatform"),
    "cpu": ("vllm.platforms.cpu", "CpuPlatform"),
}
PLATFORMS = tuple(_PLATFORM_CLASSES)


class NoVllm(Exception):
    """vLLM cannot be imported here."""


class Vllm:
    """The vLLM of this environment, and the notes on what of it could not be read."""

    def __init__(self) -> None:
        """Import vLLM.

        Raises:
            NoVllm: it is not installed, or does not import.
        """
        try:
            self.package = importlib.import_module("vllm")
        except Exception as error:  # whatever an import of foreign code raises
            raise NoVllm(f"vLLM does not import: {type(error).__name__}: {error}") from error
        self.not_captured: list[str] = []

    def assume_platform(self, name: str | None = None) -> None:
        """Where vLLM sees no device, take the machine for one of the platform of this build.

        vLLM cannot build its own parser without a platform. Call this before any other module
        of vLLM is imported: each keeps the platform that it finds.

        Args:
            name: `cuda`, `rocm`, `xpu` or `cpu`; by default what torch was built for.
        """
        platforms = self.module("vllm.platforms")
        if platforms.current_platform.is_unspecified():
            name = name or self._build
            module, cls = _PLATFORM_CLASSES[name]
            platform = getattr(self.module(module), cls)()
            # Modules ask for the capability while they are imported; None is "no such device".
            platform.get_device_capability = _no_capability
            platforms._current_platform = platform
            self.note(f"no device was seen: captured as {name}, what asks the device is missing")

    @property
    def _build(self) -> str:
        version = self.module("torch").version
        return next((p for p in ("cuda", "xpu") if getattr(version, p, None)), None) or (
            "rocm" if getattr(version, "hip", None) else "cpu"
        )

    @property
    def version(self) -> str:
        """The version of the installed distribution, without the name of a platform's build."""
        try:
            version = metadata.version("vllm")
        except metadata.PackageNotFoundError:
            version = str(getattr(self.package, "__version__", "0+unknown"))
        return without_platform(version)

    @property
    def platform(self) -> str:
        """`cuda`, `rocm`, `cpu`, … or `unspecified`, as vLLM sees this machine."""
        current = self.module("vllm.platforms").current_platform
        return str(current._enum.name).lower()

    @property
    def device(self) -> str | None:
        """The compute capability of this machine's GPU, such as `9.0`, if vLLM sees one."""
        try:
            capability = self.module("vllm.platforms").current_platform.get_device_capability()
        except Exception:  # a driver that is missing or too old
            return None
        return None if capability is None else f"{capability.major}.{capability.minor}"

    def module(self, name: str) -> Any:
        """Import one of vLLM's modules."""
        return importlib.import_module(name)

    def first_module(self, *names: str, attribute: str) -> ModuleType:
        """Give the first of the modules that exists and has the attribute.

        Raises:
            ImportError: none does; the places are named.
        """
        for name in names:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name and not name.startswith(error.name):
                    raise
                continue
            if hasattr(module, attribute):
                return module
        raise ImportError(f"no {attribute} in {', '.join(names)}")

    def files(self, pattern: str) -> list[str]:
        """Give vLLM's files that match a glob pattern, relative to the package, sorted."""
        root = Path(str(self.package.__file__)).parent
        return sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))

    def syntax_tree(self, relative: str) -> ast.Module:
        """Parse one of vLLM's files, given relative to the package; empty if there is none."""
        path = Path(str(self.package.__file__)).parent / relative
        if not path.is_file():
            self.note(f"{relative} is not in this version")
            return ast.Module(body=[], type_ignores=[])
        return ast.parse(path.read_text(encoding="utf-8"))

    def source_tree(self, relative: str) -> ast.Module | None:
        """Parse a file that may or may not be there."""
        path = Path(str(self.package.__file__)).parent / relative
        return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None

    def note(self, text: str) -> None:
        """Record what could not be captured."""
        self.not_captured.append(text)

    def note_failure(self, what: str, error: BaseException) -> None:
        """Record what could not be captured, with the first line of why."""
        self.note(f"{what}: {describe(error)}")
