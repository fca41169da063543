"""Rules that keep the engine alive, and its fixed-size tables from overflowing.

Model Runner V2 copies a request's parameters into tables made at start. What does not fit
raises in the worker, after every check of the API server, and takes the whole engine down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from app.request_rules.request import GenerationRequest, Route, as_number
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

_SEEDS = 2**63
_TABLES = "v1/worker/gpu/sample/logit_bias.py::LogitBiasState.add_request"
_MAX_ALLOWED = 1024
_MAX_BIASES = 1024
_MAX_STOPS = 128
_DIES = (
    "vLLM does not check it before the worker does, where the error ends the engine: every "
    "request in flight fails, and the server must be restarted."
)
_MASKS = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
_V2 = "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m"


def _fatal(title: str, source: str, **members: Any) -> Declaration:
    return Declaration(
        title=title,
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source=source,
        **members,
    )


@request_rule(
    _fatal(
        "A seed must fit 64 bits with sign",
        "v1/worker/gpu/sample/states.py::SamplingStates.add_request",
        id="request-seed-range",
        explanation=f"`/inference/v1/generate` takes seeds up to 2**64-1, but Model Runner V2 "
        f"keeps them in an int64 table. {_DIES} The OpenAI-compatible routes refuse such seeds.",
        remedy="Send a seed below 2**63, for instance your hash shifted right by one bit.",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"seed": 9223372036854775808}}', serve=_V2
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"seed": 9223372036854775807}}', serve=_V2
            ),
        ),
    ),
    fields=("seed",),
)
def seed_range(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse seeds of 2**63 and above."""
    seed = request.integer("seed")
    if served.runs_v2 and request.route is Route.GENERATE and seed is not None and seed >= _SEEDS:
        yield seed_range.finding(
            request,
            "seed",
            f"seed must be below 2**63 on this server, got {seed}; it would end the engine",
            evidence={"seed": seed},
        )


@request_rule(
    _fatal(
        "The seeds of all n sequences must fit 64 bits with sign",
        "v1/engine/parallel_sampling.py::ParentRequest._get_child_sampling_params",
        id="request-seed-children",
        explanation="With `n` above 1, sequence i is drawn with seed + i, which must stay below "
        f"2**63. {_DIES}",
        remedy="Send a seed of at most 2**63 - n.",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"seed": 9223372036854775807, "n": 2}}',
                serve=_V2,
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"seed": 9223372036854775806, "n": 2}}',
                serve=_V2,
            ),
        ),
    ),
    fields=("seed",),
)
def seed_children(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse seed + n - 1 of 2**63 and above."""
    seed, n = request.integer("seed"), request.integer("n")
    if not served.runs_v2 or seed is None or n is None or n < 2:
        return
    if seed < _SEEDS <= seed + n - 1:
        yield seed_children.finding(
            request,
            "seed",
            f"seed + n - 1 must be below 2**63 on this server, got {seed} + {n} - 1; "
            "it would end the engine",
            evidence={"seed": seed, "n": n},
        )


@request_rule(
    _fatal(
        "At most 1024 allowed_token_ids",
        _TABLES,
        id="request-allowed-token-ids",
        explanation=f"Model Runner V2 keeps the ids in rows of 1024. {_DIES}",
        remedy="Send at most 1024 ids; a structured output constrains more tokens.",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"allowed_token_ids": "<1025 ids>"}}',
                serve=_V2,
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"allowed_token_ids": [1, 2]}}', serve=_V2
            ),
        ),
    ),
    fields=("allowed_token_ids",),
)
def allowed_token_ids(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse longer lists."""
    count = len(request.integers("allowed_token_ids"))
    if served.runs_v2 and _has_table_fields(request) and count > _MAX_ALLOWED:
        yield _overflow(allowed_token_ids, request, "allowed_token_ids", count, _MAX_ALLOWED)


@request_rule(
    _fatal(
        "At most 1024 entries in logit_bias",
        _TABLES,
        id="request-logit-bias-size",
        explanation=f"Model Runner V2 keeps the biases in rows of 1024. {_DIES}",
        remedy="Send at most 1024 entries; drop those near 0 first.",
        bad=(
            RequestExample(
                '{"prompt": "a", "logit_bias": "<1025 biases>"}',
                route=Route.COMPLETIONS,
                serve=_V2,
            ),
        ),
        good=(
            RequestExample(
                '{"prompt": "a", "logit_bias": {"1": 1}}', route=Route.COMPLETIONS, serve=_V2
            ),
        ),
    ),
    fields=("logit_bias",),
)
def logit_bias_size(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse more entries; keys that name the same token count once."""
    biases = request.sent("logit_bias")
    if not served.runs_v2 or not isinstance(biases, dict) or len(biases) <= _MAX_BIASES:
        return
    try:
        count = len({int(token) for token in biases})
    except ValueError:
        return
    if count > _MAX_BIASES and request.route is not Route.MESSAGES:
        yield _overflow(logit_bias_size, request, "logit_bias", count, _MAX_BIASES)


@request_rule(
    _fatal(
        "No infinite logit_bias on a server that returns sampling masks",
        _TABLES,
        id="request-logit-bias-finite",
        explanation="Python's JSON takes `Infinity` and `NaN`, and `/inference/v1/generate` does "
        "not clamp biases as the OpenAI-compatible routes do. The row then has no finite "
        "distribution: the sampled token is outside its own mask, logprobs are NaN, and up to "
        "0.31 the response cannot be written as JSON at all (status 500). `-Infinity` is fine.",
        remedy="To force a token, send `allowed_token_ids` with that one id.",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"top_k": 5, "logit_bias": '
                '{"7": Infinity}}}',
                serve=_MASKS,
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"top_k": 5, "logit_bias": '
                '{"7": -Infinity}}}',
                serve=_MASKS,
            ),
        ),
    ),
    fields=("logit_bias",),
)
def logit_bias_finite(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse +Infinity and NaN where nothing clamps them."""
    biases = request.sent("logit_bias")
    if request.route is not Route.GENERATE or not served.returns_masks:
        return
    if not isinstance(biases, dict):
        return
    unbounded = [token for token, bias in biases.items() if _is_unbounded(bias)]
    if unbounded:
        yield logit_bias_finite.finding(
            request,
            "logit_bias",
            f"logit_bias must be finite (or -Infinity) on this server; token {unbounded[0]} has "
            f"{biases[unbounded[0]]}",
            evidence={"tokens": unbounded[:10]},
        )


@request_rule(
    _fatal(
        "At most 128 stop_token_ids together with min_tokens",
        _TABLES,
        id="request-stop-token-ids",
        explanation="While `min_tokens` is not reached, Model Runner V2 masks the stop ids from "
        f"rows of 128, which the end-of-sequence ids share. {_DIES}",
        remedy="Send fewer stop_token_ids, or no min_tokens.",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": '
                '{"min_tokens": 1, "stop_token_ids": "<129 ids>"}}',
                serve=_V2,
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"stop_token_ids": "<129 ids>"}}',
                note="without min_tokens",
                serve=_V2,
            ),
        ),
    ),
    fields=("stop_token_ids",),
)
def stop_token_ids(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse more distinct ids with min_tokens; trace replay drops both."""
    if not served.runs_v2 or not _has_table_fields(request):
        return
    if (request.integer("min_tokens") or 0) < 1 or request.has("trace_decode_token_ids"):
        return
    count = len(set(request.integers("stop_token_ids")))
    if count > _MAX_STOPS:
        yield _overflow(stop_token_ids, request, "stop_token_ids", count, _MAX_STOPS)


@request_rule(
    Declaration(
        id="request-n-limit",
        title="n is at most the server's --max-num-seqs",
        explanation="`/inference/v1/generate` refuses more sequences than the scheduler runs.",
        remedy="Send several requests with the seeds seed, seed + n, ….",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="entrypoints/scale_out/token_in_token_out/serving.py::ServingTokens.serve_tokens",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"n": 9}}',
                serve="vllm serve m --max-num-seqs 8",
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"n": 8}}',
                serve="vllm serve m --max-num-seqs 8",
            ),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"n": 2000}}',
                note="the default of --max-num-seqs depends on the GPU",
            ),
        ),
    ),
    fields=("n",),
)
def n_limit(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse a larger n where the limit is known; only this route checks it."""
    n, allowed = request.integer("n"), served.max_num_seqs
    if request.route is Route.GENERATE and n is not None and allowed is not None and n > allowed:
        engine = (
            f"sampling_params.n must be at most the server's max_num_seqs ({allowed}), got {n}."
        )
        yield n_limit.finding(
            request, "n", engine, engine_message=engine, evidence={"n": n, "max_num_seqs": allowed}
        )


def _is_unbounded(bias: object) -> bool:
    number = as_number(bias)
    return number is not None and (math.isnan(number) or number == math.inf)


def _has_table_fields(request: GenerationRequest) -> bool:
    """Whether the route may have the list fields; the catalogue knows which version has which."""
    return request.route is not Route.MESSAGES


def _overflow(rule: Any, request: GenerationRequest, name: str, count: int, most: int) -> Finding:
    finding: Finding = rule.finding(
        request,
        name,
        f"at most {most} entries in {name} on this server, got {count}; more would end the engine",
        evidence={"entries": count, "limit": most},
    )
    return finding
