"""Rules that keep the engine alive, and its fixed-size tables from overflowing.

Model Runner V2 copies a request's parameters into tables made at start. What does not fit
raises in the worker, after every check of the API server, and takes the whole engine down.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from app.request_rules.request import TOO_DEEP, GenerationRequest, Route, as_number
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

_SEEDS = 2**63
_TABLES = "v1/worker/gpu/sample/logit_bias.py::LogitBiasState.add_request"
_MAX_ALLOWED = 1024
_MAX_BIASES = 1024
_MAX_STOPS = 128
# Of those, the end-of-sequence ids of the tokenizer and of generation_config.json take some: three
# with Llama 3, five with the most there are.
_END_IDS = 5
_LARGEST = 2**31 - 1
# No context is as long, so that smaller outputs need no look at the prompt.
_LONGEST_PROMPT = 2**26
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
        "A body must not be nested more deeply than the gate can read",
        "entrypoints/openai/chat_completion/protocol.py::ChatCompletionRequest",
        id="request-nesting",
        explanation="Python's JSON reader gives up at about 1,000 levels up to Python 3.12, and at "
        "about 10,000 in 3.13. What the gate cannot read it cannot check, and a vLLM that can read "
        "it would run it.",
        remedy="Send a body of at most a few hundred levels.",
        bad=(RequestExample('{"token_ids": [1], "a": "<500000 levels>"}'),),
        good=(RequestExample('{"token_ids": [1], "sampling_params": {}, "a": "<100 levels>"}'),),
    ),
    fields=(TOO_DEEP,),
)
def nesting(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse what could not be read."""
    del served
    if request.too_deep:
        yield nesting.finding(request, "", "the body is nested too deeply to be checked")


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
    if request.route is Route.GENERATE and seed is not None and seed >= _SEEDS:
        what = f"seed must be below 2**63 on this server, got {seed}; it would end the engine"
        yield from _fatality(seed_range, request, served, "seed", what, seed=seed)


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
    if seed is None or n is None or n < 2:
        return
    if seed < _SEEDS <= seed + n - 1:
        what = (
            f"seed + n - 1 must be below 2**63 on this server, got {seed} + {n} - 1; "
            "it would end the engine"
        )
        yield from _fatality(seed_children, request, served, "seed", what, seed=seed, n=n)


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
    if _has_table_fields(request) and count > _MAX_ALLOWED:
        yield from _overflow(
            allowed_token_ids, request, served, "allowed_token_ids", count, _MAX_ALLOWED
        )


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
    if not isinstance(biases, dict) or len(biases) <= _MAX_BIASES:
        return
    count = len(set(request.token_keys("logit_bias")))
    if count > _MAX_BIASES and request.route is not Route.MESSAGES:
        yield from _overflow(logit_bias_size, request, served, "logit_bias", count, _MAX_BIASES)


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
    if _all_bounded(biases.values()):
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
        "No more stop_token_ids with min_tokens than the engine's table holds",
        _TABLES,
        id="request-stop-token-ids",
        explanation="While `min_tokens` is not reached, Model Runner V2 masks the stop ids from "
        "rows of 128. The end-of-sequence ids of the tokenizer and of generation_config.json are "
        "added to them. Where the gate has generation_config.json it counts those, and tells where "
        "one more of the tokenizer's would be too many. Else it counts one, unless all of "
        f"config.json's are sent, and tells of more than {_MAX_STOPS - _END_IDS}. {_DIES}",
        remedy="Send fewer stop_token_ids, or no min_tokens.",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": '
                '{"min_tokens": 1, "stop_token_ids": "<128 ids>"}}',
                note="with one end-of-sequence id they are 129",
                serve=_V2,
                model_config={"eos_token_id": 1000},
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": '
                '{"min_tokens": 1, "stop_token_ids": "<123 ids>"}}',
                serve=_V2,
            ),
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
    if not _has_table_fields(request):
        return
    if (request.integer("min_tokens") or 0) < 1 or request.integers("trace_decode_token_ids"):
        return
    ids = set(request.integers("stop_token_ids"))
    least, most_ends = _ends(ids, served)
    if len(ids) + least > _MAX_STOPS:
        most = _MAX_STOPS - least
        yield from _overflow(stop_token_ids, request, served, "stop_token_ids", len(ids), most)
    elif len(ids) + most_ends > _MAX_STOPS and served.runs_v2 is not False:
        yield stop_token_ids.finding(
            request,
            "stop_token_ids",
            f"stop_token_ids are {len(ids)}, and the end-of-sequence ids come to them; more than "
            f"{_MAX_STOPS} would end the engine",
            severity=Severity.WARNING,
            evidence={"entries": len(ids), "limit": _MAX_STOPS},
        )


@request_rule(
    _fatal(
        "With min_tokens, vLLM 0.28 dies of stop_token_ids that are no tokens",
        _TABLES,
        id="request-stop-token-range",
        explanation="0.28 does not compare stop ids with the vocabulary. While `min_tokens` is not "
        "reached, Model Runner V2 writes to the logits at each of them: one below 0 or beyond the "
        f"vocabulary is beside them, and one of 2**31 fits no table. {_DIES}",
        remedy="Send ids from 0 to `vocab_size` - 1, or no min_tokens.",
        versions="<0.29",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"min_tokens": 1, "stop_token_ids": [-1]}}',
                serve=_V2,
                versions="<0.29",
            ),
            RequestExample(
                '{"prompt": "a", "min_tokens": 1, "stop_token_ids": [1000]}',
                route=Route.COMPLETIONS,
                serve=_V2,
                model_config={"vocab_size": 1000},
                versions="<0.29",
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"min_tokens": 1, "stop_token_ids": [9]}}',
                serve=_V2,
                versions="<0.29",
            ),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"stop_token_ids": [-1]}}',
                note="without min_tokens nothing is written",
                serve=_V2,
                versions="<0.29",
            ),
        ),
    ),
    fields=("stop_token_ids",),
)
def stop_token_range(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse ids that the kernel would write beside the logits with."""
    if not _has_table_fields(request) or (request.integer("min_tokens") or 0) < 1:
        return
    most = served.vocabulary or _LARGEST + 1
    wrong = [token for token in request.integers("stop_token_ids") if not 0 <= token < most]
    if wrong:
        what = (
            f"with min_tokens, ids in stop_token_ids must be from 0 to {most - 1} on this server, "
            f"got {wrong[0]}; it would end the engine"
        )
        yield from _fatality(stop_token_range, request, served, "stop_token_ids", what)


@request_rule(
    _fatal(
        "Prompt and output together must fit 32 bits",
        "v1/worker/gpu/states.py::RequestState.add_request",
        id="request-output-range",
        explanation="`/inference/v1/generate` cuts a `max_tokens` beyond the context length only "
        "after Model Runner V2 has put prompt length plus `max_tokens`, and plus `min_tokens`, "
        f"into tables of 32 bits. {_DIES} The OpenAI-compatible routes refuse such numbers.",
        remedy="Send `max_tokens` up to the context length, or null for all that fits.",
        bad=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"max_tokens": 2147483647}}', serve=_V2
            ),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"max_tokens": null, '
                '"min_tokens": 2147483647}}',
                serve=_V2,
                versions="<0.31",
            ),
        ),
        good=(
            RequestExample(
                '{"token_ids": [1], "sampling_params": {"max_tokens": 2147483646}}', serve=_V2
            ),
        ),
    ),
    fields=("max_tokens", "min_tokens"),
)
def output_range(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse numbers with which the sequence would have 2**31 tokens or more."""
    if request.route is not Route.GENERATE:
        return
    for name in ("max_tokens", "min_tokens"):
        number = request.integer(name)
        if number is None or number <= _LARGEST - _LONGEST_PROMPT:
            continue
        prompt = sum(map(len, request.prompts()))
        if request.body.get("content_parts") is not None:
            prompt = max(prompt, served.max_model_len or _LONGEST_PROMPT)
        if prompt + number > _LARGEST:
            what = (
                f"{name} and the prompt's {prompt} tokens must be below 2**31 together, got "
                f"{number}; it would end the engine"
            )
            yield from _fatality(output_range, request, served, name, what, **{name: number})
            return


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


def _all_bounded(biases: Collection[object]) -> bool:
    """Whether all are numbers below infinity, found at the speed of C."""
    return (
        set(map(type, biases)) <= {int, float}
        and not any(map(math.isnan, biases))  # type: ignore[arg-type] # numbers, as seen above
        and max(biases, default=0) < math.inf  # type: ignore[type-var, operator] # the same
    )


def _is_unbounded(bias: object) -> bool:
    number = as_number(bias)
    return number is not None and (math.isnan(number) or number == math.inf)


def _ends(ids: set[int], served: Served) -> tuple[int, int]:
    """How many end-of-sequence ids vLLM adds to `ids`: at least, and at most.

    Source: `sampling_params.py::SamplingParams.update_from_generation_config`.
    """
    known, others = served.generation_end_ids, int(served.has_tokenizer is not False)
    if known or (known is not None and not others):
        added = len(known - ids)
        return added, added + others
    # A model has one of them at least; with 128 beside it 0.28.0 and 0.32.0 ended.
    least = 1 if served.end_ids is None or served.end_ids - ids else 0
    return least, _END_IDS if known is None else 1


def _has_table_fields(request: GenerationRequest) -> bool:
    """Whether the route may have the list fields; the catalogue knows which version has which."""
    return request.route is not Route.MESSAGES


def _fatality(
    rule: Any, request: GenerationRequest, served: Served, name: str, what: str, **evidence: Any
) -> Iterator[Finding]:
    """Say what Model Runner V2 dies of; where nobody knows whether it runs, only tell."""
    if served.runs_v2 is False:
        return
    severity = Severity.ERROR if served.runs_v2 else Severity.WARNING
    yield rule.finding(request, name, what, severity=severity, evidence=evidence)


def _overflow(
    rule: Any, request: GenerationRequest, served: Served, name: str, count: int, most: int
) -> Iterator[Finding]:
    what = (
        f"at most {most} entries in {name} on this server, got {count}; more would end the engine"
    )
    return _fatality(rule, request, served, name, what, entries=count, limit=most)
