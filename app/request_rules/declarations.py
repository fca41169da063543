"""Every rule of the request gate, for the checker, `GET /rules` and the docs."""

from __future__ import annotations

from app.request_rules import engine, logprobs, masks
from app.request_rules.rule import RequestRule

RULES: tuple[RequestRule, ...] = (
    logprobs.range_,
    logprobs.limit,
    engine.n_limit,
    engine.seed_range,
    engine.seed_children,
    engine.allowed_token_ids,
    engine.logit_bias_size,
    engine.logit_bias_finite,
    engine.stop_token_ids,
    masks.temperature,
    masks.top_k,
    masks.route,
    masks.stream,
)
DECLARATIONS = tuple(rule.declaration for rule in RULES)
