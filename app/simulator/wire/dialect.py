"""How versions differ in what they say, beyond `app.catalogue.semantics`.

Recorded from the running versions (`tests/contract/recorded`).
"""

from __future__ import annotations

from dataclasses import dataclass

from app.simulator.settings import SimulatorSettings

# Sampling parameters that only real vLLM heeds, by the version that brought them.
UNSIMULATED = {
    "structured_outputs": "0.28",
    "thinking_token_budget": "0.28",
    "repetition_detection": "0.28",
    "trace_decode_token_ids": "0.29",
    "prompt_logprob_token_ids": "0.31",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The texts and shapes of one version.

    Attributes:
        summarises_errors: whether body errors show a cleaned `loc` and a shortened input.
        lists_aliases: whether "model does not exist" names the models that do.
        output_shares_context: whether a prompt is refused that leaves no room for all of
            `max_tokens`; later versions generate fewer tokens.
        repeats_total_name: whether the text on too large `max_tokens` has a stray name.
        flat_generate: whether `/inference/v1/generate` answers in the order of 0.32, with
            `output_mode`, `stop_reason` and `weight_versions`.
        returns_prompt_ids: whether `/inference/v1/generate` knows `return_token_ids`.
        words_salt_errors: whether an empty `cache_salt` gets a text of its own.
        derenders: whether `output_mode` may be `derender`.
        unsimulated: sampling parameters of this version that the simulation does not heed.
        lists_all_completions: whether `/v1/completions` takes `logprobs: -1`.
        scores_prompt_ids: whether its answer has `prompt_token_id_logprobs` and `metrics`.
    """

    summarises_errors: bool
    lists_aliases: bool
    output_shares_context: bool
    repeats_total_name: bool
    flat_generate: bool
    returns_prompt_ids: bool
    scores_prompt_ids: bool
    words_salt_errors: bool
    lists_all_completions: bool
    derenders: bool
    unsimulated: frozenset[str]

    @classmethod
    def of(cls, settings: SimulatorSettings) -> Dialect:
        """Give the dialect of the simulated version."""
        since = settings.since
        return cls(
            summarises_errors=since("0.30"),
            lists_aliases=since("0.32"),
            output_shares_context=not since("0.32"),
            repeats_total_name=not since("0.31"),
            flat_generate=since("0.32"),
            returns_prompt_ids=since("0.30"),
            scores_prompt_ids=since("0.31"),
            words_salt_errors=since("0.30"),
            lists_all_completions=since("0.29"),
            derenders=since("0.33"),
            unsimulated=frozenset(name for name, first in UNSIMULATED.items() if since(first)),
        )
