"""Input files of the command line: opened, decompressed, cut into lines and answered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from app.batch import Answer, Batch, Line, lines_of
from app.decompression import PIECE, Inflater, decompress
from app.errors import UnusableInput

UNUSABLE: Final = 2
# A batch exits with the worst of its lines.
_WORST_FIRST: Final = (UNUSABLE, 1, 3, 0)
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@contextmanager
def open_input(name: str) -> Iterator[BinaryIO]:
    """Open a file to read, or standard input for `-`.

    Raises:
        UnusableInput: it cannot be read.
    """
    with ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise UnusableInput(f"{name} cannot be read: {error.strerror}") from None
        yield stream


def read_input(name: str) -> bytes:
    """Read a file whole, undoing gzip and zstd where it begins like that."""
    with open_input(name) as stream:
        data = stream.read()
    encoding = _encoding(data)
    return data if encoding is None else decompress(data, encoding, limit=sys.maxsize)


def answer_lines(name: str, limit: int, handle: Callable[[Line], Answer]) -> int:
    """Answer a file's lines on standard output; gives the worst exit code.

    Args:
        name: of the file, `-` being standard input; gzip and zstd are undone.
        limit: longest line in bytes.
        handle: see `app.batch.Batch`.

    Raises:
        AdmissionError: the file cannot be read at all.
    """
    batch = Batch(handle, limit=limit, unusable=UNUSABLE)
    with open_input(name) as stream:
        return write_answers(map(batch.answer, lines_of(_pieces(stream), limit)))


def write_answers(answers: Iterable[Answer]) -> int:
    """Write answers to standard output; gives the worst exit code."""
    codes = {0}
    for answer in answers:
        codes.add(answer.exit_code)
        sys.stdout.write(answer.text.decode("ascii"))
    return next(code for code in _WORST_FIRST if code in codes)


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    head = stream.read(4)
    inflater = Inflater(_encoding(head))
    for part in chain((head,), iter(lambda: stream.read(PIECE), b"")):
        yield from inflater.feed(part)
    inflater.finish()


def _encoding(head: bytes) -> str | None:
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
