"""Finding a model's config.json where nobody brings it: in a directory, on the hub.

Its generation_config.json, with the defaults of a server's sampling, is found in the same places.

Both are off unless a setting (or the command line) says where to look: the gate itself reads only
what it is given. What was found, or why not, is told as a finding.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx

from app.catalogue import CatalogueLibrary
from app.documents import decode_json, decode_text
from app.errors import AdmissionError
from app.proposal.envelope import Envelope
from app.proposal.proposal import Proposal
from app.rules.declaration import Declaration
from app.rules.registry import finding_of
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig
from app.settings import Settings
from app.validation import versions_of
from app.verdict.finding import Severity

MAX_BYTES: Final = 1024 * 1024
_SECONDS: Final = 5.0
_KEPT: Final = 256
_FRESH_SECONDS: Final = 600.0
_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION: Final = re.compile(r"[\w./-]+", re.ASCII)
_NAME: Final = "config.json"
GENERATION: Final = "generation_config.json"
_SOURCE: Final = "app/model_facts.py"

FOUND = Declaration(
    id="model-config-found",
    title="The model's config.json was looked up",
    explanation="The proposal brings none, and the service is allowed to look (`VLLM_ADMISSION_"
    "MODEL_ROOT`, `VLLM_ADMISSION_HUB_URL`). The verdict counts on what was found.",
    remedy="Give `model_config` to judge by another one.",
    severity=Severity.INFO,
    area="model",
    source=_SOURCE,
)
UNAVAILABLE = Declaration(
    id="model-config-unavailable",
    title="The model's config.json was looked for and not found",
    explanation="Rules that need it abstain, as without looking.",
    remedy="Give `model_config`, or see what kept it from being read.",
    severity=Severity.INFO,
    area="model",
    source=_SOURCE,
)
DECLARATIONS: Final = (FOUND, UNAVAILABLE)


class Unavailable(Exception):
    """Why a config.json could not be had, in words."""


@dataclass
class ModelConfigs:
    """Where to look, and what has been found.

    Attributes:
        root: models are looked for in this directory and below: those whose path is within it,
            and those that it has by their name.
        hub: base URL of a hub with the layout of huggingface.co; None for none.
        token: sent to the hub as a bearer token.
        anywhere: a model that is a directory is read wherever it is: for a user's own command.
    """

    root: Path | None = None
    hub: str | None = None
    token: str | None = None
    anywhere: bool = False
    _kept: OrderedDict[str, tuple[float, Mapping[str, Any] | str]] = field(
        default_factory=OrderedDict, repr=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __bool__(self) -> bool:
        """Whether there is anywhere to look."""
        return self.root is not None or self.hub is not None or self.anywhere

    def find(
        self, model: str, revision: str | None, name: str = _NAME
    ) -> tuple[Mapping[str, Any], str] | None:
        """Give a model's config.json and where it was; None where nowhere in particular it is.

        Raises:
            Unavailable: it is nowhere, or what is there cannot be read.
        """
        local = self._local(model, name)
        if local is not None:
            return _decoded(_bytes_of(local), str(local)), str(local)
        if self.hub is None:
            if self.root is None:
                return None
            raise Unavailable(f"{model} is not in {self.root}")
        if not _REPOSITORY.fullmatch(model) or ".." in model:
            raise Unavailable(f"{model} is no name of a repository")
        if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise Unavailable(f"{revision!r} is no name of a revision")
        url = f"{self.hub.rstrip('/')}/{model}/resolve/{revision or 'main'}/{name}"
        return self._fetched(url), url

    def _local(self, model: str, name: str) -> Path | None:
        if self.anywhere and (own := Path(model) / name).is_file():
            return own
        if self.root is None:
            return None
        root = self.root.resolve()
        # An absolute path stands for itself; whatever leaves the directory is none of ours.
        path = (root / model / name).resolve()
        return path if path.is_relative_to(root) and path.is_file() else None

    def _fetched(self, url: str) -> Mapping[str, Any]:
        with self._lock:
            known = self._kept.get(url)
        if known is None or time.monotonic() - known[0] > _FRESH_SECONDS:
            known = (time.monotonic(), _outcome(url, self.token))
            with self._lock:
                self._kept[url] = known
                self._kept.move_to_end(url)
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        if isinstance(known[1], str):
            raise Unavailable(known[1])
        return known[1]


def _outcome(url: str, token: str | None) -> Mapping[str, Any] | str:
    """Fetch, and keep a failure as its words: asking again at once would not help."""
    try:
        return _decoded(_get(url, token), url)
    except Unavailable as reason:
        return str(reason)


def _get(url: str, token: str | None) -> bytes:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    body = bytearray()
    try:
        with (
            httpx.Client(timeout=_SECONDS, follow_redirects=True, max_redirects=3) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code != HTTPStatus.OK:
                raise Unavailable(f"{url} answered {answer.status_code} {answer.reason_phrase}")
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise Unavailable(f"{url} is larger than {MAX_BYTES} bytes")
    except httpx.HTTPError as error:
        raise Unavailable(f"{url} could not be read: {type(error).__name__} {error}") from None
    return bytes(body)


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as opened:
            body = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"{path} could not be read: {error.strerror}") from None
    if len(body) > MAX_BYTES:
        raise Unavailable(f"{path} is larger than {MAX_BYTES} bytes")
    return body


def _decoded(body: bytes, where: str) -> Mapping[str, Any]:
    try:
        data = decode_json(decode_text(body, what=where), what=where)
    except AdmissionError as error:
        raise Unavailable(f"{where} is no JSON: {error.detail}") from None
    if not isinstance(data, dict):
        raise Unavailable(f"{where} is no JSON object")
    return data


def configs_of(settings: Settings, *, anywhere: bool = False) -> ModelConfigs:
    """Give the places that settings name."""
    token = settings.hub_token
    secret = None if token is None else token.get_secret_value()
    return ModelConfigs(settings.model_root, settings.hub_url, secret, anywhere)


def with_model_configs(
    envelope: Envelope, library: CatalogueLibrary, default: str | None, configs: ModelConfigs
) -> Envelope:
    """Give the envelope with the config.json of each proposal that brings none."""
    if not configs:
        return envelope
    version = default or library.newest
    first, *more = (_completed(p, envelope, library, version, configs) for p in envelope.proposals)
    return replace(envelope, proposal=first, more=tuple(more))


def _completed(
    proposal: Proposal,
    envelope: Envelope,
    library: CatalogueLibrary,
    default: str,
    configs: ModelConfigs,
) -> Proposal:
    if proposal.model_config is not None:
        return proposal
    version = versions_of(envelope, proposal, default)[0]
    config = resolve(proposal, library.get(version)).config
    try:
        model = None if config is None else config["model"]
        revision = None if config is None else config["revision"]
    except Abstain:
        return proposal
    if not isinstance(model, str) or config is None or not config.given("model"):
        return proposal
    place = config.place("model")
    try:
        found = configs.find(model, revision if isinstance(revision, str) else None)
    except Unavailable as reason:
        told = finding_of(UNAVAILABLE, f"no config.json for {model}: {reason}", location=place)
        return replace(proposal, findings=(*proposal.findings, told))
    if found is None:
        return proposal
    data, where = found
    told = finding_of(FOUND, f"judged with the config.json at {where}", location=place)
    return replace(proposal, model_config=data, findings=(*proposal.findings, told))


def generation_config(config: ServeConfig, configs: ModelConfigs) -> Mapping[str, Any] | None:
    """Give what a server takes its sampling defaults from; None where that cannot be seen.

    Without a generation_config.json transformers looks for defaults in config.json, whatever
    may be there; that is left open.

    Source: `config/model.py::ModelConfig.try_get_generation_config`.

    Raises:
        Unavailable: it is nowhere, or what is there cannot be read.
    """
    try:
        # With "vllm" it gives no defaults, but its end-of-sequence ids all the same.
        if config["generation_config"] not in ("auto", "vllm"):
            return None
        model = config["hf_config_path"] or config["model"]
        revision = config["revision"]
    except Abstain:
        return None
    if not configs or not isinstance(model, str):
        return None
    found = configs.find(model, revision if isinstance(revision, str) else None, GENERATION)
    return None if found is None else found[0]
