"""What a container runs that names no command: the entry point that it presumably has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from app.proposal.image import Image
from app.proposal.pieces import Piece
from app.proposal.positions import LineIndex
from app.proposal.proposal import Word
from app.verdict.location import Location

_SERVE: Final = ("vllm", "serve")
_KSERVE: Final = ("python3", "-m", "huggingfaceserver")
_KSERVE_NAME: Final = "kserve-container"
# Options that only vLLM has; arguments with one of them and no image are vLLM's.
_TELLING: Final = re.compile(
    r"--(tensor-parallel-size|pipeline-parallel-size|data-parallel-size|max-model-len|max-num-seqs"
    r"|gpu-memory-utilization|served-model-name|kv-transfer-config|enable-prefix-caching"
    r"|max-num-batched-tokens|enforce-eager|kv-cache-dtype)(=.*)?",
    re.DOTALL,
)


def presumed_command(
    name: object, image: Image | None, arguments: Sequence[Piece], at: Location
) -> list[Piece] | None:
    """Give the command that the arguments are for; None where the image alone decides."""
    words = _command(name, image, [piece.literal for piece in arguments])
    if words is None:
        return None
    index = LineIndex("", at.source or "")
    return [Piece(Word(word, at), lambda: index) for word in words]


def _command(name: object, image: Image | None, words: Sequence[str]) -> Sequence[str] | None:
    if not words:
        return None
    if image is not None and "huggingfaceserver" in image.repository:
        return _KSERVE
    if words[0] == "-m":
        return _KSERVE[:1]
    ours = image is None or (image.official is None and image.serves_vllm)
    if ours and words[0] == "serve" and len(words) > 1:
        return _SERVE[:1]
    if image is None and any(map(is_telling, words)):
        return _KSERVE if name == _KSERVE_NAME else _SERVE
    return None


def is_telling(word: str) -> bool:
    """Whether a word is an option that only vLLM has."""
    return _TELLING.fullmatch(_dashed(word)) is not None


def _dashed(word: str) -> str:
    option, equals, value = word.partition("=")
    return f"{option.replace('_', '-')}{equals}{value}"
