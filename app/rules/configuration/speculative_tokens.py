"""How many tokens are drafted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from app.rules.configuration.speculative_method import (
    AREA,
    DEEPSEEK,
    DENSE,
    NGRAM,
    SOURCE,
    command,
    set_key,
    without_speculation,
)
from app.rules.declaration import Example
from app.rules.registry import rule
from app.rules.speculation import Speculation, speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

_VERIFY: Final = "vllm/config/speculative.py::SpeculativeConfig._verify_args"
_SUFFIX: Final = "vllm/config/speculative.py::SpeculativeConfig._validate_suffix_decoding"
_MTP_WITH_OWN_STEPS: Final = frozenset({"step3p5_mtp", "step5_mtp", "inkling_mtp"})


@rule(
    id="speculative-tokens-missing",
    title="Nothing says how many tokens to draft",
    explanation="`num_speculative_tokens` has no default. Only a draft model's config.json can "
    "give it (`n_predict`, the block size of DSpark), and suffix decoding its tree depth. With "
    "`mtp` vLLM compares the number before it would take the model's own, and fails with a "
    "TypeError or the same complaint.",
    remedy="Add `num_speculative_tokens`, or `--spec-tokens`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    versions=">=0.28",
    covers=("spec-tokens-unset", "spec-tokens-missing", "mtp-tokens-omitted-crash"),
    bad=(
        Example("vllm serve m --spec-method ngram"),
        Example(command('"method": "mtp"'), model_config=DEEPSEEK),
        Example(
            command('"method": "mtp", "model": "draft"'),
            draft_model_config=DEEPSEEK,
            note="vLLM fails with a TypeError",
        ),
        Example(
            command('"model": "draft"'),
            draft_model_config={**DENSE, "vocab_size": 128256},
        ),
    ),
    good=(Example(f"vllm serve m {NGRAM}"),),
)
def tokens_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for a number anywhere."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value("num_speculative_tokens") is not None:
        return
    if speculation.tokens is not None:
        return
    yield tokens_missing.finding(
        f"how many tokens the method {speculation.method} drafts is not said, and nothing gives "
        "a default",
        location=speculation.place,
        fix=Fix(
            "draft 3 tokens a step",
            (set_key(speculation, "num_speculative_tokens", 3),),
            safe=False,
        )
        if speculation.method != "mtp"
        else Fix(
            "draft 1 token a step",
            (set_key(speculation, "num_speculative_tokens", 1),),
            safe=False,
        ),
        engine_message=_tokens_message(speculation),
        evidence={"method": speculation.method},
    )


def _tokens_message(speculation: Speculation) -> str:
    if not speculation.has_draft:
        return "num_speculative_tokens must be provided with speculative model"
    if speculation.method == "mtp":
        return "'>' not supported between instances of 'NoneType' and 'int'"
    return "A speculative model was provided, but `num_speculative_tokens` was not provided"


@rule(
    id="speculative-tokens-nonpositive",
    title="At least one token must be drafted",
    explanation="`num_speculative_tokens` is at least 1. `--spec-tokens 0` does not turn "
    "speculative decoding off; leave the option out for that.",
    remedy="Draft at least one token, or drop speculative decoding.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    versions=">=0.28",
    covers=("spec-tokens-nonpositive",),
    bad=(Example("vllm serve m --spec-method ngram --spec-tokens 0"),),
    good=(Example("vllm serve m --spec-method ngram --spec-tokens 1"),),
)
def tokens_nonpositive(config: ServeConfig) -> Iterator[Finding]:
    """Compare with zero where the parser did not: the shorthand, and a derived number."""
    speculation = speculation_of(config)
    if speculation is None or config["speculative_config.num_speculative_tokens"] is not None:
        return
    tokens = speculation.tokens
    if tokens is None or tokens > 0:
        return
    yield tokens_nonpositive.finding(
        f"{tokens} tokens are to be drafted, and it must be at least 1",
        location=config.place("spec_tokens") or speculation.place,
        fix=without_speculation(speculation),
        engine_message="Input should be greater than 0",
        evidence={"num_speculative_tokens": tokens},
    )


@rule(
    id="speculative-tokens-divisible",
    title="The number of drafted tokens is no multiple of the draft's",
    explanation="A draft whose config.json says that it predicts n tokens a pass (`n_predict`, "
    "the MTP layers of a checkpoint) is run several times for more, so `num_speculative_tokens` "
    "above n must be a multiple of n. From 0.31 DSpark drafts are exempt.",
    remedy="Draft n tokens, or a multiple of n.",
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("mtp-divisible",),
    bad=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 3'),
            model_config={**DEEPSEEK, "num_nextn_predict_layers": 2},
        ),
    ),
    good=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 4'),
            model_config={**DEEPSEEK, "num_nextn_predict_layers": 2},
        ),
        Example(f"vllm serve m {NGRAM}"),
    ),
)
def tokens_divisible(config: ServeConfig) -> Iterator[Finding]:
    """Compare the number with what one pass predicts."""
    speculation = speculation_of(config)
    tokens = None if speculation is None else speculation.whole("num_speculative_tokens")
    if speculation is None or tokens is None or not speculation.has_draft:
        return
    if speculation.method == "dspark":
        if config.catalogue.version >= Version("0.31.0.dev0"):
            return
        raise Abstain("how many tokens one pass of the DSpark draft predicts")
    predicted = speculation.draft.n_predict
    if predicted is None or predicted < 1 or tokens <= predicted or tokens % predicted == 0:
        return
    yield tokens_divisible.finding(
        f"{tokens} tokens are to be drafted, and the draft predicts {predicted} a pass; "
        f"{tokens} is no multiple of {predicted}",
        location=speculation.place,
        fix=Fix(
            f"draft {tokens - tokens % predicted} tokens a step",
            (set_key(speculation, "num_speculative_tokens", tokens - tokens % predicted),),
            safe=False,
        ),
        engine_message=f"num_speculative_tokens:{tokens} must be divisible by "
        f"n_predict={predicted}",
        evidence={"num_speculative_tokens": tokens, "n_predict": predicted},
    )


@rule(
    id="speculative-mtp-reuse",
    title="More than one token from one MTP layer",
    explanation="With `mtp` and more than one token, vLLM runs the same MTP layer again on its "
    "own output. Later tokens are accepted less often. Step3.5, Step5 and Inkling have layers "
    "for each token and are not affected.",
    remedy="Measure the acceptance rate; one token is what the layer was trained for.",
    severity=Severity.WARNING,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("mtp-many-tokens",),
    bad=(Example(command('"method": "mtp", "num_speculative_tokens": 2'), model_config=DEEPSEEK),),
    good=(Example(command('"method": "mtp", "num_speculative_tokens": 1'), model_config=DEEPSEEK),),
)
def mtp_reuse(config: ServeConfig) -> Iterator[Finding]:
    """Look for several tokens of one layer."""
    speculation = speculation_of(config)
    tokens = None if speculation is None else speculation.whole("num_speculative_tokens")
    if speculation is None or tokens is None or tokens < 2 or not speculation.has_draft:
        return
    if speculation.method != "mtp" or speculation.draft.model_type in _MTP_WITH_OWN_STEPS:
        return
    yield mtp_reuse.finding(
        f"{tokens} tokens are drafted by running one MTP layer {tokens} times; the later ones are "
        "accepted less often",
        location=speculation.place,
        evidence={"num_speculative_tokens": tokens},
    )


@rule(
    id="speculative-ngram-window",
    title="The n-gram window is the wrong way round",
    explanation="N-gram drafting looks for the last `prompt_lookup_max` down to "
    "`prompt_lookup_min` tokens earlier in the sequence. If one is given the other takes its "
    "value; if none is, both are 5.",
    remedy="Make `prompt_lookup_min` at most `prompt_lookup_max`.",
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.28",
    covers=("ngram-window-order",),
    bad=(
        Example(
            command(
                '"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, '
                '"prompt_lookup_max": 2'
            )
        ),
    ),
    good=(
        Example(command('"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2')),
        Example(f"vllm serve m {NGRAM}"),
    ),
)
def ngram_window(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two ends."""
    speculation = speculation_of(config)
    if speculation is None or speculation.requested not in {"ngram", "ngram_gpu"}:
        return
    low, high = speculation.whole("prompt_lookup_min"), speculation.whole("prompt_lookup_max")
    if low is None or high is None or low <= high:
        return
    yield ngram_window.finding(
        f"prompt_lookup_min is {low}, above prompt_lookup_max, {high}",
        location=speculation.place,
        fix=Fix(
            f"set prompt_lookup_min to {high}",
            (set_key(speculation, "prompt_lookup_min", high),),
            safe=False,
        ),
        engine_message=f"prompt_lookup_min={low} must be <= prompt_lookup_max={high}",
    )


def _suffix(keys: str) -> Example:
    return Example(command(f'"method": "suffix", "num_speculative_tokens": 4, {keys}'))


@rule(
    id="speculative-suffix-limits",
    title="A limit of suffix decoding is out of range",
    explanation="The tree depth is at least 1, the number of cached requests and the speculation "
    "factor at least 0, the minimum token probability between 0 and 1. vLLM asks for the package "
    "`arctic-inference` first.",
    remedy="Leave the limit at its default, or choose one in range.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SUFFIX,
    versions=">=0.28",
    covers=("suffix-depth", "suffix-cache", "suffix-factor", "suffix-prob"),
    bad=(
        _suffix('"suffix_decoding_max_tree_depth": 0'),
        _suffix('"suffix_decoding_max_cached_requests": -1'),
        _suffix('"suffix_decoding_max_spec_factor": -0.5'),
        _suffix('"suffix_decoding_min_token_prob": 1.5'),
    ),
    good=(
        Example(command('"method": "ngram", "num_speculative_tokens": 4')),
        Example(
            command('"method": "suffix", "num_speculative_tokens": 4'),
            note="with arctic-inference installed",
        ),
    ),
)
def suffix_limits(config: ServeConfig) -> Iterator[Finding]:
    """Compare each limit with its range."""
    speculation = speculation_of(config)
    if speculation is None or speculation.requested != "suffix":
        return
    for key, low, high in _SUFFIX_LIMITS:
        value = speculation.value(key)
        if not isinstance(value, int | float) or (low <= value and (high is None or value <= high)):
            continue
        wanted = f"at least {low}" if high is None else f"between {low} and {high}"
        must = f"must be in [{low}, {high}]" if high is not None else f"must be >= {low}"
        yield suffix_limits.finding(
            f"{key} is {value}, and must be {wanted}",
            location=speculation.place,
            fix=Fix(f"drop {key}", (RemoveFlag(f"speculative_config.{key}"),), safe=False),
            engine_message=f"{key}={value} {must}",
        )


_SUFFIX_LIMITS: Final[tuple[tuple[str, int, int | None], ...]] = (
    ("suffix_decoding_max_tree_depth", 1, None),
    ("suffix_decoding_max_cached_requests", 0, None),
    ("suffix_decoding_max_spec_factor", 0, None),
    ("suffix_decoding_min_token_prob", 0, 1),
)


@rule(
    id="speculative-suffix-package",
    title="Suffix decoding needs another package",
    explanation="Suffix decoding is done by `arctic-inference`, which neither vLLM's package nor "
    "its images bring. Without it vLLM stops while it reads the configuration.",
    remedy="Install `arctic-inference` in the image.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SUFFIX,
    versions=">=0.28",
    bad=(Example("vllm serve m --spec-method suffix --spec-tokens 8"),),
    good=(Example(f"vllm serve m {NGRAM}"),),
)
def suffix_package(config: ServeConfig) -> Iterator[Finding]:
    """Tell wherever the method is used."""
    speculation = speculation_of(config)
    if speculation is not None and speculation.requested == "suffix":
        yield suffix_package.finding(
            "the method suffix needs the package arctic-inference in the image; without it the "
            "server does not start",
            location=speculation.place,
        )


@rule(
    id="speculative-suffix-tokens",
    title="Suffix decoding drafts up to its tree depth",
    explanation="Without `num_speculative_tokens` suffix decoding takes the maximum tree depth, "
    "24 unless said otherwise, as the most tokens of a step.",
    remedy="Say the number where the memory and the latency of a step matter.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SUFFIX,
    versions=">=0.28",
    covers=("suffix-default-tokens",),
    bad=(Example("vllm serve m --spec-method suffix"),),
    good=(Example("vllm serve m --spec-method suffix --spec-tokens 8"),),
)
def suffix_tokens(config: ServeConfig) -> Iterator[Finding]:
    """Tell the number that is taken."""
    speculation = speculation_of(config)
    if speculation is None or speculation.requested != "suffix":
        return
    if speculation.value("num_speculative_tokens") is None:
        yield suffix_tokens.finding(
            f"num_speculative_tokens is not given; vLLM will use {speculation.tokens}, the "
            "maximum tree depth of suffix decoding",
            location=speculation.place,
            evidence={
                "asked": None,
                "effective": speculation.tokens,
                "dest": "speculative_config.num_speculative_tokens",
            },
        )
