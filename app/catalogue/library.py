"""Finding the catalogue for a vLLM version."""

from __future__ import annotations

import contextlib
import difflib
from importlib import resources
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from app.catalogue.catalogue import Catalogue
from app.catalogue.versions import without_platform
from app.errors import CatalogueError, UnknownVersion

_decoder = msgspec.json.Decoder(Catalogue)


class CatalogueLibrary:
    """The catalogues shipped with the project and those in a directory of the user's.

    A user's file wins over a shipped one of the same version. Files are read on first use and
    kept; the set of versions is fixed when the library is made.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Index the catalogues; `directory` is `VLLM_ADMISSION_CATALOGUE_DIR`.

        Raises:
            CatalogueError: the directory does not exist, or a file name carries no version.
        """
        self._files: dict[Version, Path] = {}
        self._read: dict[Version, Catalogue] = {}
        shipped = resources.files("app.catalogue") / "data"
        for entry in shipped.iterdir():
            if entry.name.endswith(".json"):
                self._files[_version_of(entry.name)] = Path(str(entry))
        if directory is not None:
            if not directory.is_dir():
                raise CatalogueError(f"catalogue directory {directory} does not exist")
            for path in sorted(directory.glob("*.json")):
                catalogue = _read(path)
                known = self._files.get(catalogue.version)
                if known is not None and known.parent == path.parent:
                    raise CatalogueError(
                        f"{path} and {known.name} are both of vLLM {catalogue.version}; keep one"
                    )
                self._files[catalogue.version] = path
                self._read[catalogue.version] = catalogue

    @property
    def versions(self) -> tuple[str, ...]:
        """Supported versions, oldest first."""
        return tuple(str(v) for v in sorted(self._files))

    @property
    def newest(self) -> str:
        """The newest release that is supported (pre-releases and forks only if alone)."""
        releases = [v for v in self._files if not v.is_prerelease and v.local is None]
        return str(max(releases or self._files))

    def get(self, version: str) -> Catalogue:
        """Give the catalogue of `version`.

        It may carry a leading `v` and a platform's build name: `v0.32.0+cu129` is 0.32.0.

        Raises:
            UnknownVersion: there is none; the message lists those there are.
            CatalogueError: its file cannot be read.
        """
        key = self._find(version)
        if key not in self._read:
            source = self._files[key]
            self._read[key] = _read(source)
        return self._read[key]

    def _find(self, version: str) -> Version:
        with contextlib.suppress(InvalidVersion):
            wanted = Version(without_platform(version.strip()))
            if wanted in self._files:
                return wanted
        # Versions are alike by nature: only one that must be a slip of the fingers.
        close = difflib.get_close_matches(version, self.versions, n=1, cutoff=0.85)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UnknownVersion(
            f"no catalogue for vLLM version {version!r}{hint} "
            f"Supported: {', '.join(self.versions)}. For a fork or nightly, run "
            "`python -m app.catalogue.extract` in its image and point "
            "VLLM_ADMISSION_CATALOGUE_DIR at the file."
        )


def _version_of(name: str) -> Version:
    return Version(name.removeprefix("vllm-").removesuffix(".json"))


def _read(path: Path) -> Catalogue:
    try:
        catalogue = _decoder.decode(path.read_bytes())
        Version(catalogue.vllm_version)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError, InvalidVersion) as error:
        raise CatalogueError(f"{path} is not a readable catalogue: {error}") from error
    return catalogue
