"""Every rule of the request gate, for the checker, `GET /rules` and the docs."""

from __future__ import annotations

from app.request_rules import (
    amounts,
    bad_words,
    chat,
    context,
    engine,
    keys,
    logprobs,
    masks,
    model_name,
    seeding,
    speculation,
    token_ids,
)
from app.request_rules.rule import RequestRule

RULES: tuple[RequestRule, ...] = (
    engine.nesting,
    model_name.model,
    logprobs.range_,
    logprobs.everything,
    logprobs.limit,
    context.length,
    context.least,
    context.endless,
    engine.n_limit,
    amounts.n_range,
    engine.seed_range,
    engine.seed_children,
    engine.allowed_token_ids,
    engine.logit_bias_size,
    engine.logit_bias_finite,
    engine.stop_token_ids,
    engine.stop_token_range,
    engine.output_range,
    bad_words.bad_words,
    amounts.prompt_logprobs,
    token_ids.vocabulary,
    token_ids.prompt_range,
    speculation.parameters,
    masks.temperature,
    masks.top_k,
    masks.beam_search,
    masks.route,
    masks.stream,
    context.cut,
    token_ids.prompt,
    keys.unknown,
    chat.tool_parser,
    chat.template_switch,
    seeding.missing_seed,
)
DECLARATIONS = tuple(rule.declaration for rule in RULES)
