"""What annotations of ours (`vllm-admission/…`) say of an object and its pods."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.documents import decode_json
from app.errors import AdmissionError
from app.kubernetes.exceptions import ANNOTATION as IGNORE
from app.kubernetes.exceptions import exceptions_of
from app.kubernetes.gpus import IN_USE_ANNOTATION, in_use
from app.kubernetes.manifest import Manifest, Path
from app.proposal.positions import LineIndex
from app.proposal.suppression import Suppression
from app.verdict.finding import Finding, Severity

PREFIX: Final = "vllm-admission/"
VERSION: Final = "vllm-admission/vllm-version"
MODEL_CONFIG: Final = "vllm-admission/model-config"
_KNOWN: Final = (IGNORE, VERSION, IN_USE_ANNOTATION, MODEL_CONFIG)


class Annotations:
    """The annotations of an object and of its pod's template, which win.

    `findings` are what is wrong with them.
    """

    def __init__(self, manifest: Manifest, pod: Path) -> None:
        """Read them; `pod` is the path of the pod's spec."""
        self.findings: list[Finding] = []
        self._texts: dict[str, LineIndex] = {}
        for path in (("metadata",), (*pod[:-1], "metadata")):
            held = manifest.at((*path, "annotations"))
            for name, value in held.items() if isinstance(held, Mapping) else ():
                if name.startswith(PREFIX) and isinstance(value, str):
                    self._texts[name] = manifest.places.text((*path, "annotations", name))
        for name in self._texts:
            if name not in _KNOWN:
                close = difflib.get_close_matches(name, _KNOWN, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                self._wrong(name, f"there is no annotation {name}{hint}")
        self.memory_in_use = self._memory_in_use()
        self.model_config = self._model_config()

    @property
    def vllm_version(self) -> str | None:
        """The vLLM version that the object says it has."""
        written = self._texts.get(VERSION)
        return None if written is None else written.text

    def suppressions(self) -> Iterator[Suppression]:
        """Give the exceptions from rules."""
        return exceptions_of(self._texts)

    def _memory_in_use(self) -> float | None:
        written = self._texts.get(IN_USE_ANNOTATION)
        share = None if written is None else in_use(written.text)
        if written is not None and share is None:
            self._wrong(
                IN_USE_ANNOTATION,
                f"{IN_USE_ANNOTATION} is a share of the GPU's memory such as 0.2 or 20%",
            )
        return share

    def _model_config(self) -> Mapping[str, Any] | None:
        written = self._texts.get(MODEL_CONFIG)
        if written is None:
            return None
        config = json_object(written.text)
        if config is None:
            self._wrong(MODEL_CONFIG, f"{MODEL_CONFIG} is the model's config.json, a JSON object")
        return config

    def _wrong(self, name: str, message: str) -> None:
        written = self._texts[name]
        self.findings.append(
            Finding(
                rule="kubernetes-annotation-unread",
                severity=Severity.WARNING,
                message=message,
                location=written.location(0, len(written.text)),
            )
        )


def json_object(text: str) -> Mapping[str, Any] | None:
    """Read a JSON object; None if it is none."""
    try:
        data = decode_json(text)
    except AdmissionError:
        return None
    return data if isinstance(data, dict) else None
