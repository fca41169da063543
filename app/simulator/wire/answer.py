"""What a request has generated, gathered for a body or told chunk by chunk."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from app.simulator.errors import InvalidRequest, ModelNotFound
from app.simulator.sampler import Candidate
from app.simulator.sequence import Step
from app.simulator.settings import SimulatorSettings
from app.simulator.tokenizer import decode
from app.simulator.wire.dialect import Dialect

FLOOR = -9999.0
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_MOST_CONTEXT = 4


@dataclass(slots=True)
class Choice:
    """One choice so far; `masks` and `candidates` have an entry a token, or None."""

    index: int
    tokens: list[int] = field(default_factory=list)
    masks: list[list[int]] | None = None
    candidates: list[list[Candidate]] | None = None
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, step: Step) -> None:
        """Append one generated token."""
        self.tokens.append(step.token)
        if step.mask is not None:
            self.masks = self.masks or []
            self.masks.append(step.mask)
        if step.candidates is not None:
            self.candidates = self.candidates or []
            self.candidates.append(step.candidates)
        self.text += step.text
        self.finish_reason = step.finish_reason
        self.stop_reason = step.stop_reason

    @classmethod
    def of(cls, step: Step) -> Choice:
        """Make the choice of a stream chunk, which has one token."""
        choice = cls(step.index)
        choice.add(step)
        return choice


async def gather(steps: AsyncIterator[Step]) -> list[Choice]:
    """Collect a request's choices, in the order of their index."""
    choices: dict[int, Choice] = {}
    async for step in steps:
        choices.setdefault(step.index, Choice(step.index)).add(step)
    return [choices[index] for index in sorted(choices)]


def decoded(token: int, context: Sequence[int]) -> str:
    """Give the text of one token after `context`.

    A part of a character is empty text until the token that completes it, which gets all.
    Source: `vllm/v1/engine/logprobs.py::LogprobsProcessor._correct_decoded_token`.
    """
    text = decode([token], skip_special=False)
    if not text.endswith(_INCOMPLETE):
        return text
    for length in range(1, min(len(context), _MOST_CONTEXT) + 1):
        recent = list(context[-length:])
        whole = decode([*recent, token], skip_special=False)
        if whole.endswith(_INCOMPLETE):
            continue
        while recent and decode(recent[-1:], skip_special=False).endswith(_INCOMPLETE):
            recent.pop()
        return whole[len(decode(recent, skip_special=False)) :]
    return ""


def prompt_logprobs(
    entries: Sequence[list[Candidate] | None], prompt: Sequence[int]
) -> list[dict[str, Any] | None]:
    """Render prompt log-probabilities: by token id, None for the first token."""
    return [
        None
        if found is None
        else {
            str(candidate.token): {
                "logprob": candidate.logprob,
                "rank": candidate.rank,
                "decoded_token": decoded(candidate.token, prompt[:position]),
            }
            for candidate in found
        }
        for position, found in enumerate(entries)
    ]


def usage(prompt: int, generated: int, settings: SimulatorSettings | None = None) -> dict[str, Any]:
    """Render token counts as bodies have them."""
    details = settings is not None and settings.enable_prompt_tokens_details
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": {"cached_tokens": 0} if details else None,
        "completion_tokens_details": None,
    }


def without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    """Drop the null members, as the usage chunk of a stream does."""
    return {name: value for name, value in members.items() if value is not None}


def event(members: dict[str, Any]) -> str:
    """Render one server-sent event of a chunk; NaN is sent as null, as pydantic does."""
    try:
        text = _compact(members)
    except ValueError:
        text = _compact(_without_nan(members))
    return f"data: {text}\n\n"


def _compact(members: Any) -> str:
    return json.dumps(members, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_without_nan(member) for member in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def error_event(members: dict[str, Any]) -> str:
    """Render an error in a stream; vLLM's other serialiser puts spaces there."""
    return f"data: {json.dumps(members)}\n\n"


DONE = "data: [DONE]\n\n"


def request_id(request: Request, prefix: str, given: str | None) -> str:
    """Name a request: the client's header, the client's body, or 16 random hex digits."""
    own = request.headers.get("x-request-id") or given or uuid.uuid4().hex[:16]
    return f"{prefix}-{own}"


def now() -> int:
    """Give the time as `created` has it, in whole seconds."""
    return int(time.time())


def fingerprint(settings: SimulatorSettings) -> str:
    """Give `system_fingerprint`: the version and eight digits of the configuration."""
    digest = uuid.uuid5(uuid.NAMESPACE_OID, repr(settings)).hex[:8]
    return f"vllm-{settings.vllm_version}-{digest}"


def check_model(name: str | None, settings: SimulatorSettings, dialect: Dialect) -> None:
    """Refuse a model name that is not served; none means the server's.

    Raises:
        ModelNotFound: with the served names, in versions that list them.
    """
    served = settings.served_model_name
    if not name or name in served:
        return
    aliases = f" Valid aliases: {', '.join(served)}." if dialect.lists_aliases else ""
    raise ModelNotFound(f"The model `{name}` does not exist.{aliases}", "model")


def check_room(
    prompt: Sequence[int],
    max_tokens: int | None,
    settings: SimulatorSettings,
    dialect: Dialect,
    *,
    text: bool,
    name: str = "max_tokens",
) -> None:
    """Refuse what does not fit in the context, as the OpenAI routes do.

    A text is tokenised no further than one token too many, which vLLM says as "at least".
    Source: `vllm/renderers/params.py::TokenizeParams`.

    Raises:
        InvalidRequest: the prompt, or the output where the version counts it, is too long.
    """
    most = settings.max_model_len
    output = max_tokens or 0
    if output > most:
        stray = "max_total_tokens=" if dialect.repeats_total_name else ""
        raise InvalidRequest(
            f"{name}={output} cannot be greater than max_model_len={stray}{most}. "
            "Please request fewer output tokens.",
            name,
            output,
        )
    room = most - output if dialect.output_shares_context else most
    if len(prompt) <= room:
        return
    count = room + 1 if text else len(prompt)
    least = "at least " if count == room + 1 else ""
    start = f"This model's maximum context length is {most} tokens. However, "
    if dialect.output_shares_context:
        rest = (
            f"you requested {output} output tokens and your prompt contains {least}{count} input "
            f"tokens, for a total of {least}{count + output} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens."
        )
    else:
        rest = (
            f"your prompt contains {least}{count} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt."
        )
    raise InvalidRequest(start + rest, "input_tokens", count)
