"""What `dynamo.vllm` does not take any more: its options, and variables that stand for them.

Source: ai-dynamo/dynamo, `components/src/dynamo/vllm/args.py` and `backend_args.py`; pull requests
6450 and 6483 (1.0.0) and 11887 and 12089 (1.4.0). Dynamo 1.4 has vLLM 0.26 and 1.5 is the first
with 0.28, so that whatever went with 1.4 is gone in every image with a vLLM that is judged here,
also where the image's tag does not tell the Dynamo version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.proposal.proposal import Proposal, Word
from app.serve_config.diagnostics import finding
from app.serve_config.serve_config import Setting
from app.verdict.finding import Finding
from app.verdict.fix import Edit, Fix, ReplaceArgument, SetFlag

PROGRAM: Final = "dynamo.vllm"
_TAG: Final = re.compile(r"v?(\d+)\.(\d+)(?:[.\-+].*)?", re.ASCII)
# The last release below 1.0; higher numbers are no Dynamo version.
_LAST_ZERO: Final = 9


@dataclass(frozen=True, slots=True)
class _Removed:
    """An option that is gone: since when, and one word that stands for it."""

    since: tuple[int, int]
    instead: str
    same: bool = True


_OPTIONS: Final = {
    "--is-prefill-worker": _Removed((1, 4), "--disaggregation-mode=prefill"),
    "--is-decode-worker": _Removed((1, 4), "--disaggregation-mode=decode"),
    "--multimodal-decode-worker": _Removed((1, 4), "--disaggregation-mode=decode", same=False),
    "--multimodal-encode-worker": _Removed((1, 4), "--disaggregation-mode=encode", same=False),
    "--multimodal-worker": _Removed((1, 4), "--enable-multimodal", same=False),
}
_CONNECTOR: Final = "--connector"
_CONNECTOR_SINCE: Final = (1, 0)
_TRANSFER_SINCE: Final = (1, 0)
_NIXL: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
_CONNECTORS: Final[dict[str, dict[str, str]]] = {
    "nixl": _NIXL,
    "lmcache": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
    "flexkv": {"kv_connector": "FlexKVConnectorV1", "kv_role": "kv_both"},
    "kvbm": {
        "kv_connector": "DynamoConnector",
        "kv_connector_module_path": "kvbm.vllm_integration.connector",
        "kv_role": "kv_both",
    },
}
_VARIABLES: Final = {
    "DYN_VLLM_IS_PREFILL_WORKER": ((1, 4), "--disaggregation-mode prefill"),
    "DYN_VLLM_IS_DECODE_WORKER": ((1, 4), "--disaggregation-mode decode"),
    "DYN_VLLM_MULTIMODAL_ENCODE_WORKER": ((1, 4), "--disaggregation-mode encode"),
    "DYN_VLLM_MULTIMODAL_DECODE_WORKER": ((1, 4), "--disaggregation-mode decode"),
    "DYN_VLLM_MULTIMODAL_WORKER": ((1, 4), "--enable-multimodal"),
    "DYN_CONNECTOR": ((1, 0), "--kv-transfer-config"),
}
_ON: Final = frozenset({"true", "1", "yes", "on"})


def check_dynamo(proposal: Proposal, settings: Mapping[str, Setting]) -> Iterator[Finding]:
    """Find what the image's Dynamo, or any with a vLLM of today, does not take."""
    if proposal.program != PROGRAM:
        return
    version = _dynamo(proposal)
    yield from _options(proposal, version)
    yield from _variables(proposal, version)
    if _is_at_least(version, _TRANSFER_SINCE):
        yield from _transfer(proposal, settings)


def _dynamo(proposal: Proposal) -> tuple[int, int] | None:
    """Read the Dynamo version in the image's tag; None where it tells none."""
    image = proposal.image
    tag = None if image is None or image.unresolved else image.tag
    match = None if tag is None else _TAG.fullmatch(tag)
    if match is None:
        return None
    version = int(match[1]), int(match[2])
    return None if version[0] == 0 and version[1] > _LAST_ZERO else version


def _is_at_least(version: tuple[int, int] | None, since: tuple[int, int]) -> bool:
    return version is None or version >= since


def _reason(version: tuple[int, int] | None, since: tuple[int, int]) -> str:
    """Say why an option is gone, also where no tag tells the version."""
    text = f"is gone since Dynamo {since[0]}.{since[1]}.0"
    if version is not None:
        return text
    return f"{text}, and every Dynamo with a supported vLLM is newer"


def _options(proposal: Proposal, version: tuple[int, int] | None) -> Iterator[Finding]:
    for i, word in enumerate(proposal.words):
        name = word.text.replace("--no-", "--", 1)
        removed = _OPTIONS.get(name)
        if removed is not None and _is_at_least(version, removed.since):
            fix = None
            if name == word.text:
                edits = (ReplaceArgument(i, removed.instead),)
                fix = Fix(f"write {removed.instead}", edits, safe=removed.same)
            yield finding(
                "launch-removed-option",
                f"{word.text} {_reason(version, removed.since)}; {PROGRAM} refuses it: "
                f"write {removed.instead}",
                location=word.location,
                fix=fix,
            )
        elif word.text.partition("=")[0] == _CONNECTOR and _is_at_least(version, _CONNECTOR_SINCE):
            yield finding(
                "launch-removed-option",
                f"{_CONNECTOR} {_reason(version, _CONNECTOR_SINCE)}; {PROGRAM} refuses it: "
                "write --kv-transfer-config",
                location=word.location,
                fix=_connected(proposal.words, i),
            )


def _connected(words: Sequence[Word], at: int) -> Fix | None:
    """Write one connector by its short name as the configuration that it stood for."""
    _, equals, value = words[at].text.partition("=")
    values = [value] if equals else _values(words, at)
    known = _CONNECTORS.get(values[0].lower()) if len(values) == 1 else None
    if known is None or any(_is_transfer(word) for word in words):
        return None
    text = json.dumps(known)
    option = "--kv-transfer-config"
    edits: tuple[Edit, ...] = (ReplaceArgument(at, f"{option}={text}"),)
    if not equals:
        edits = (ReplaceArgument(at, option), ReplaceArgument(at + 1, text))
    return Fix(f"write {option} '{text}'", edits, safe=True)


def _values(words: Sequence[Word], at: int) -> list[str]:
    found = []
    for word in words[at + 1 :]:
        if word.text.startswith("-"):
            break
        found.append(word.text)
    return found


def _is_transfer(word: Word) -> bool:
    return word.text.replace("_", "-").startswith("--kv-transfer-config")


def _variables(proposal: Proposal, version: tuple[int, int] | None) -> Iterator[Finding]:
    """Find variables that have no effect any more, or stop the worker."""
    for name, (since, instead) in _VARIABLES.items():
        variable = proposal.environment.get(name)
        if variable is None or not _is_at_least(version, since):
            continue
        # A connector's variable counts whatever it says; of the others only what turns them on.
        if name == "DYN_CONNECTOR" or variable.value.strip().lower() in _ON:
            yield finding(
                "launch-removed-variable",
                f"{name} {_reason(version, since)}: it is refused, or does nothing and the worker "
                f"starts in another role; write {instead}",
                location=variable.location,
            )


def _transfer(proposal: Proposal, settings: Mapping[str, Setting]) -> Iterator[Finding]:
    """Find a prefill worker that is told of no way to hand its cache on."""
    variable = proposal.environment.get("DYN_VLLM_DISAGGREGATION_MODE")
    prefills = variable is not None and variable.value == "prefill"
    place = None if variable is None else variable.location
    words = proposal.words
    for i, word in enumerate(words):
        option, equals, value = word.text.partition("=")
        if option == "--disaggregation-mode":
            mode = value if equals else (words[i + 1].text if i + 1 < len(words) else "")
            prefills, place = mode == "prefill", word.location
    setting = settings.get("kv_transfer_config")
    if not prefills or setting is None or setting.value is not None:
        return
    yield finding(
        "launch-prefill-without-transfer",
        f"{PROGRAM} refuses a prefill worker without --kv-transfer-config since Dynamo 1.0.0, "
        "which has no connector of its own accord",
        location=place,
        fix=Fix(
            "hand the cache on by NIXL, as Dynamo below 1.0 did",
            (SetFlag("kv_transfer_config", _NIXL),),
            safe=False,
        ),
    )
