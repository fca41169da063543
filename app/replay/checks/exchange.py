"""Checks of a response as a whole against its request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from app.replay import declarations
from app.replay.evidence import Evidence
from app.rules.declaration import Declaration
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

# Chunks that begin with all earlier tokens from which on this is no chance.
_SURELY_CUMULATIVE = 3


def check_exchange(evidence: Evidence) -> Iterator[tuple[Declaration, Finding | None]]:
    """Check what is not about rows; gives each check with its finding, None where it passed."""
    yield declarations.REQUEST, _request(evidence)
    yield declarations.CHOICES, _choices(evidence)
    yield declarations.USAGE, _usage(evidence)
    yield declarations.LENGTH, _length(evidence)
    yield declarations.UNFINISHED, _unfinished(evidence)
    yield declarations.MASK_ORDER, _mask_order(evidence)
    if evidence.repeating:
        yield declarations.CUMULATIVE, _cumulative(evidence)
    if evidence.uneven:
        message = (
            f"choice {_listed(evidence.uneven)}: a chunk has masks or logprobs of other tokens "
            "than its own; they were aligned after joining the chunks"
        )
        yield declarations.CHUNKS, _finding(declarations.CHUNKS, message, "/response")


def _cumulative(evidence: Evidence) -> Finding:
    """Speculation, which sends several tokens a chunk, may look so in a few chunks of a loop."""
    sure = max(evidence.repeating.values()) >= _SURELY_CUMULATIVE
    message = (
        f"choice {_listed(evidence.repeating)}: every chunk begins with all earlier tokens"
        + ("; they are cumulative, and tokens come twice" if sure else "; are they cumulative?")
    )
    severity = declarations.CUMULATIVE.severity if sure else Severity.WARNING
    return _finding(declarations.CUMULATIVE, message, "/response", severity)


def _listed(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))


def _request(evidence: Evidence) -> Finding | None:
    sampling = evidence.sampling
    broken = [
        text
        for text, is_broken in (
            ("temperature <= 0", sampling.greedy),
            ("top_k <= 0", sampling.top_k <= 0),
        )
        if is_broken
    ]
    if not broken:
        return None
    message = (
        f"the request has {' and '.join(broken)}, which a server that returns sampling masks "
        "refuses; is it the one that was answered?"
    )
    return _finding(declarations.REQUEST, message, "/request/sampling_params")


def _choices(evidence: Evidence) -> Finding | None:
    indices = [choice.index for choice in evidence.choices]
    asked = evidence.sampling.n
    where = "/response/choices"
    shown = {"indices": indices, "n": asked}
    if len(set(indices)) < len(indices) or not all(0 <= index < asked for index in indices):
        message = f"the choices are numbered {indices}; they must be 0 to {asked - 1}, each once"
        return _finding(declarations.CHOICES, message, where, evidence=shown)
    if len(indices) < asked:
        lossy = not evidence.semantics.keeps_all_choices
        message = f"{len(indices)} of n = {asked} choices came back" + (
            ', as 0.28 does without "output_kind": 2' if lossy else ""
        )
        severity = Severity.WARNING
        return _finding(declarations.CHOICES, message, where, severity, evidence=shown)
    return None


def _usage(evidence: Evidence) -> Finding | None:
    prompt, completion = evidence.usage
    generated = sum(map(len, evidence.choices))
    problems = []
    if prompt is not None and evidence.prompt_length not in (None, prompt):
        problems.append(
            f"usage.prompt_tokens is {prompt} but the request has {evidence.prompt_length}"
        )
    if completion is not None and completion != generated:
        problems.append(f"usage.completion_tokens is {completion} but {generated} tokens came")
    if not problems:
        return None
    return _finding(declarations.USAGE, "; ".join(problems), "/response/usage")


def _length(evidence: Evidence) -> Finding | None:
    limit = evidence.sampling.max_tokens
    longer = {
        choice.index: len(choice)
        for choice in evidence.choices
        if limit is not None and len(choice) > limit and not choice.bare
    }
    if not longer:
        return None
    message = "; ".join(
        f"choice {index} has {count} tokens, more than max_tokens = {limit}"
        for index, count in longer.items()
    )
    return _finding(declarations.LENGTH, message, "/response/choices")


def _unfinished(evidence: Evidence) -> Finding | None:
    open_ended = {
        choice.index: choice.finish_reason
        for choice in evidence.choices
        if choice.finish_reason == "abort" or (choice.finish_reason is None and not choice.bare)
    }
    if not open_ended:
        return None
    message = "; ".join(
        f"choice {index} was aborted" if reason else f"choice {index} has no finish_reason"
        for index, reason in open_ended.items()
    )
    return _finding(declarations.UNFINISHED, message, "/response/choices")


def _mask_order(evidence: Evidence) -> Finding | None:
    unsorted = [choice.index for choice in evidence.choices if not choice.masks_ascending]
    if not unsorted:
        return None
    message = f"choice {_listed(unsorted)}: ids of a mask do not ascend"
    return _finding(declarations.MASK_ORDER, message, "/response/choices")


def _finding(
    check: Declaration,
    message: str,
    pointer: str,
    severity: Severity | None = None,
    evidence: dict[str, Any] | None = None,
) -> Finding:
    return Finding(
        rule=check.id,
        severity=severity or check.severity,
        message=message,
        location=Location(pointer=pointer),
        evidence=evidence or {},
    )
