"""What the request rules say about one request, in the relay's terms."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.request_rules.counting import TokenCounter
from app.request_rules.seed_place import SeedPlace

Settle: TypeAlias = Callable[[TokenCounter], Coroutine[Any, Any, "Examination"]]


@dataclass(frozen=True, slots=True)
class Examination:
    """The outcome for one request body.

    Attributes:
        refusal: the error object in vLLM's shape; None if the request may pass.
        status: the status that goes with it.
        warnings: values for the warning field of the response.
        findings: (rule, `error`, `warning` or `repaired`) of every finding, for the metrics.
        crashed: ids of rules that crashed.
        request_id: the id in the body, which vLLM takes where no header field gives another.
        lacks_seed: whether a seed is to be added.
        seed_place: where it can be, in what is sent; None if nowhere.
        body: what to send instead of the body; None if it stays as it is.
        repairs: what was changed in it, as values for the repair field of the response.
        asks: texts whose tokens must be counted before this is certain, and by which model.
        settle: gives the examination that counts, where this one is not it yet.
    """

    refusal: dict[str, Any] | None = None
    status: int = 400
    warnings: Sequence[str] = ()
    findings: Sequence[tuple[str, str]] = ()
    crashed: Sequence[str] = ()
    request_id: str | None = None
    lacks_seed: bool = False
    seed_place: SeedPlace | None = None
    body: bytes | None = None
    repairs: Sequence[str] = ()
    asks: Sequence[str] = ()
    model: str | None = None
    settle: Settle | None = None
