"""Streamed responses: recorded server-sent events or lists of chunks, joined to a whole.

Server-sent events: WHATWG HTML, section 9.2. vLLM ends a stream with `data: [DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.errors import InvalidEnvelope, Problem
from app.replay.wire.decoding import decode
from app.replay.wire.generate import ChoiceBody, Entry, Logprobs, ResponseBody
from app.replay.wire.packed import refusal

_DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Joined:
    """A stream as if it had not been one.

    Attributes:
        response: what the chunks add up to.
        repeats: choices whose every later chunk begins with all earlier tokens, which is what
            cumulative chunks read as increments look like, and how many chunks did.
        uneven: choices with a chunk whose masks or logprobs are not one for each of its tokens.
    """

    response: ResponseBody
    repeats: Mapping[int, int] = field(default_factory=dict)
    uneven: tuple[int, ...] = ()


def events(text: str) -> Iterator[str]:
    """Give the data of each event, without the final `[DONE]`.

    Lines may end in LF, CRLF or CR; comments and other fields are skipped; an event without
    its closing blank line, where a recording was cut, is given too.
    """
    data: list[str] = []
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in (*lines, ""):
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                data.append(value.removeprefix(" "))
        elif data:
            event = "\n".join(data)
            data.clear()
            if event.strip() != _DONE:
                yield event


def decode_events(text: str, *, pointer: str) -> list[ResponseBody]:
    """Decode recorded server-sent events of a stream.

    Raises:
        InvalidEnvelope: there is no event in the text, or one is not a chunk.
        MalformedDocument: an event is not JSON, as when a recording was cut inside it.
    """
    chunks = [decode(event, ResponseBody, pointer=pointer) for event in events(text)]
    if not chunks:
        detail = "the text holds no server-sent events (lines beginning with `data:`)"
        raise InvalidEnvelope(f"{pointer}: {detail}", (Problem("no-events", detail, pointer),))
    return chunks


def join(chunks: Sequence[ResponseBody]) -> Joined:
    """Concatenate what each chunk adds to each choice."""
    parts: dict[int, list[ChoiceBody]] = {}
    whole = ResponseBody(choices=[])
    for chunk in chunks:
        whole.error = whole.error or chunk.error
        whole.usage = chunk.usage or whole.usage
        whole.metrics = chunk.metrics or whole.metrics
        whole.object = chunk.object or whole.object
        for choice in chunk.choices or ():
            parts.setdefault(choice.index, []).append(choice)
    whole.choices = [_concatenate(index, parts[index]) for index in sorted(parts)]
    grown = {index: _repeats(parts[index]) for index in sorted(parts)}
    return Joined(
        whole,
        {index: count for index, count in grown.items() if count},
        tuple(index for index in sorted(parts) if any(map(_is_uneven, parts[index]))),
    )


def _concatenate(index: int, parts: Sequence[ChoiceBody]) -> ChoiceBody:
    token_ids: list[int] = []
    masks: list[list[int]] | None = None
    content: list[Entry] | None = None
    finish_reason: str | None = None
    for part in parts:
        ids, mask, logprobs = part.token_ids, part.sampling_mask, part.logprobs
        beside = (part.tokens, part.ids, part.rows, part.sampled_logprobs, part.loss_mask)
        if (
            not isinstance(ids, list | None)
            or not isinstance(mask, list | None)
            or not isinstance(logprobs, Logprobs | None)
            or beside.count(None) < len(beside)
        ):
            detail = "a chunk of a stream is never packed; give the whole response"
            raise refusal("packed-chunk", detail, "/response")
        token_ids += ids or ()
        if mask is not None:
            masks = masks if masks is not None else []
            masks += mask
        if logprobs is not None and logprobs.content is not None:
            content = content if content is not None else []
            content += logprobs.content
        finish_reason = part.finish_reason or finish_reason
    return ChoiceBody(
        index=index,
        token_ids=token_ids,
        sampling_mask=masks,
        logprobs=None if content is None else Logprobs(content=content),
        finish_reason=finish_reason,
    )


def _is_uneven(part: ChoiceBody) -> bool:
    """Whether a chunk has masks or logprobs for other tokens than its own."""
    tokens = len(part.token_ids) if isinstance(part.token_ids, list) else 0
    masks, logprobs = part.sampling_mask, part.logprobs
    content = logprobs.content if isinstance(logprobs, Logprobs) else None
    # An aborted choice ends with a chunk whose mask is null.
    return (isinstance(masks, list) and len(masks) != tokens) or (
        content is not None and len(content) != tokens
    )


def _repeats(parts: Sequence[ChoiceBody]) -> int:
    """Count the chunks that begin with all earlier tokens; 0 if one does not."""
    seen: list[int] = []
    grown = 0
    for part in parts:
        ids = part.token_ids
        if not ids or not isinstance(ids, list):
            continue
        if seen:
            if len(ids) <= len(seen) or ids[: len(seen)] != seen:
                return 0
            grown += 1
        seen = ids
    return grown
