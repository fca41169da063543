"""A byte-level toy tokenizer: one token a byte, some filler words, one end token.

It has the vocabulary of the lab's tiny model, so that `/tokenize`, `/detokenize` and every
prompt count are equal on both. The order of the bytes is that of byte-level BPE (GPT-2,
`encoder.py::bytes_to_unicode`): printable Latin-1 stands for itself, the rest is shifted.
"""

from __future__ import annotations

from collections.abc import Iterable

VOCABULARY = 1024
END_TOKEN = 1000
END_TEXT = "<|end|>"

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_SHIFTED = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
# Byte values in the order of their ids: sorted by the character that stands for them.
_BYTES = (*_PRINTABLE, *_SHIFTED)
_ID_OF_BYTE = {byte: token for token, byte in enumerate(_BYTES)}
_SYMBOLS = (*(chr(b) for b in _PRINTABLE), *(chr(256 + n) for n in range(len(_SHIFTED))))


def _piece(token: int) -> bytes:
    if token < len(_BYTES):
        return bytes((_BYTES[token],))
    return f"w{token}".encode() if token < END_TOKEN else b""


_PIECES = tuple(_piece(token) for token in range(VOCABULARY))


def encode(text: str) -> list[int]:
    """Give the token ids of `text`; the end token's text becomes the end token."""
    ids: list[int] = []
    for number, part in enumerate(text.split(END_TEXT)):
        if number:
            ids.append(END_TOKEN)
        ids.extend(_ID_OF_BYTE[byte] for byte in part.encode("utf-8", "replace"))
    return ids


def token_bytes(token: int, *, skip_special: bool = True) -> bytes:
    """Give the bytes one token stands for; none for an id that has no text."""
    if token == END_TOKEN and not skip_special:
        return END_TEXT.encode()
    return _PIECES[token] if 0 <= token < VOCABULARY else b""


def decode(tokens: Iterable[int], *, skip_special: bool = True) -> str:
    """Give the text of `tokens`, with U+FFFD for what is not UTF-8."""
    pieces = (token_bytes(token, skip_special=skip_special) for token in tokens)
    return b"".join(pieces).decode("utf-8", "replace")


def symbol(token: int) -> str:
    """Give the vocabulary entry of a token, as `return_token_strs` shows it."""
    if token < len(_SYMBOLS):
        return _SYMBOLS[token]
    return END_TEXT if token == END_TOKEN else _PIECES[token].decode()


class Detokenizer:
    """Text of a growing sequence, given out once its UTF-8 is complete.

    Behaves like `DecodeStream` of the `tokenizers` library, which vLLM uses: a text that ends
    in U+FFFD is held back until the next token completes or refutes it.
    """

    def __init__(self, *, skip_special: bool = True) -> None:
        self._skip_special = skip_special
        self._pending = b""

    def push(self, token: int) -> str:
        """Take the next token; give the text that has become certain."""
        self._pending += token_bytes(token, skip_special=self._skip_special)
        text = self._pending.decode("utf-8", "replace")
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._pending = b""
        return text
