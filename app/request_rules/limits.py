"""Bounds of our own on requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of our own, which vLLM does not have.

    Attributes:
        prompt_logprobs: most entries (prompt tokens times the number asked for) of a request.
        bad_word_bytes: most bytes of all `bad_words` together.
        characters_per_token: the longest token of the tokenizer in characters; None is unknown.
        repair_top_k: the `top_k` that is put in where a server with masks needs one.
    """

    prompt_logprobs: int = 100_000_000
    bad_word_bytes: int = 4096
    characters_per_token: int | None = None
    repair_top_k: int = 20
