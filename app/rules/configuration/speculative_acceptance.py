"""How drafted tokens are accepted: synthetic rates, lossy windows, adaptive verification."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from app.rules.configuration.speculative_method import (
    AREA,
    DEEPSEEK,
    NGRAM,
    QWEN3_DSPARK,
    SOURCE,
    command,
)
from app.rules.declaration import Example
from app.rules.derived.cuda_graphs import graphs_at_sizes, has_full
from app.rules.facts import world_size
from app.rules.registry import rule
from app.rules.speculation import Speculation, speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Edit, Fix, RemoveFlag, SetFlag

_RATES: Final = "synthetic_acceptance_rates"
_LENGTH: Final = "synthetic_acceptance_length"
_METHOD: Final = "rejection_sample_method"
_ADAPTIVE: Final = "enable_adaptive_verification"
_VERIFY: Final = "vllm/config/speculative.py::SpeculativeConfig._verify_args"
_VALIDATE: Final = "vllm/config/vllm.py::VllmConfig._validate_adaptive_verification"
_SYNTHETIC: Final = f'"method": "ngram", "num_speculative_tokens": 3, "{_METHOD}": "synthetic"'
_FLY: Final = f'"method": "ngram", "num_speculative_tokens": 3, "{_METHOD}": "fly"'
_DSPARK: Final = f'"method": "dspark", "num_speculative_tokens": 3, "{_ADAPTIVE}": true'


@rule(
    id="speculative-synthetic-rates",
    title="The synthetic acceptance of drafts is not well defined",
    explanation="`rejection_sample_method: synthetic` is for benchmarks. It needs exactly one of "
    "`synthetic_acceptance_rates` (one for each drafted token, each in 0 to 1, none above the "
    "one before) and `synthetic_acceptance_length` (from 1 to the tokens plus 1).",
    remedy="Give one of the two, in range; or accept drafts by `standard` rejection.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/speculative.py::SpeculativeConfig._resolve_synthetic_acceptance_rates",
    versions=">=0.28",
    covers=(
        "synthetic-exactly-one",
        "synthetic-rates-length",
        "synthetic-rates-range",
        "synthetic-rates-order",
        "synthetic-length-range",
    ),
    bad=(
        Example(command(_SYNTHETIC), note="neither"),
        Example(command(f'{_SYNTHETIC}, "{_RATES}": [0.9, 0.5, 0.2], "{_LENGTH}": 2')),
        Example(command(f'{_SYNTHETIC}, "{_RATES}": [0.9, 0.5]')),
        Example(command(f'{_SYNTHETIC}, "{_RATES}": [1.5, 0.5, 0.2]')),
        Example(command(f'{_SYNTHETIC}, "{_RATES}": [0.5, 0.6, 0.2]')),
        Example(command(f'{_SYNTHETIC}, "{_LENGTH}": 5')),
    ),
    good=(
        Example(command(f'{_SYNTHETIC}, "{_RATES}": [0.9, 0.5, 0.5]')),
        Example(command(f'{_SYNTHETIC}, "{_LENGTH}": 4')),
        Example(f"vllm serve m {NGRAM}"),
    ),
)
def synthetic_rates(config: ServeConfig) -> Iterator[Finding]:
    """Compare the rates, or the length, with the number of tokens."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value(_METHOD) != "synthetic":
        return
    problem = _synthetic_problem(speculation)
    if problem is None:
        return
    text, engine_message = problem
    yield synthetic_rates.finding(
        text,
        location=speculation.place,
        fix=_standard(speculation),
        engine_message=engine_message,
    )


def _synthetic_problem(speculation: Speculation) -> tuple[str, str] | None:
    rates, length = speculation.value(_RATES), speculation.value(_LENGTH)
    if (rates is None) == (length is None):
        which = "neither" if rates is None else "both"
        return (
            f"synthetic acceptance needs one of {_RATES} and {_LENGTH}, and {which} is given",
            "rejection_sample_method='synthetic' requires exactly one of",
        )
    tokens = speculation.tokens
    if tokens is None:
        return None  # refused for that
    if isinstance(length, int | float):
        if 1 <= length <= tokens + 1:
            return None
        return (
            f"{_LENGTH} is {length}, and must be from 1 to {tokens + 1} (drafted tokens plus 1)",
            f"{_LENGTH} must be in [1, {tokens + 1}], got {float(length)}.",
        )
    if not isinstance(rates, list) or not all(isinstance(r, int | float) for r in rates):
        return None
    if len(rates) != tokens:
        return (
            f"{_RATES} has {len(rates)} rates for {tokens} drafted tokens",
            f"{_RATES} must have length {tokens}",
        )
    outside = next((r for r in rates if not 0 <= r <= 1), None)
    if outside is not None:
        return (
            f"{_RATES} has {outside}, which is not between 0 and 1",
            f"{_RATES} entries must be in [0, 1]",
        )
    if any(later > earlier for earlier, later in pairwise(rates)):
        text = "as a token counts only if those before it were accepted"
        return (
            f"{_RATES} must not rise, {text}; they are {rates}",
            f"{_RATES} must be non-increasing",
        )
    return None


def _standard(speculation: Speculation) -> Fix:
    given = tuple(key for key in (_RATES, _LENGTH) if key in speculation.keys)
    edits: tuple[Edit, ...] = tuple(RemoveFlag(f"speculative_config.{key}") for key in given)
    if _METHOD in speculation.keys:
        edits = (*edits, RemoveFlag(f"speculative_config.{_METHOD}"))
    return Fix("accept drafts by rejection sampling", edits, safe=False)


@rule(
    id="speculative-synthetic-unused",
    title="Synthetic acceptance needs its method",
    explanation="`synthetic_acceptance_rates` and `synthetic_acceptance_length` are read only with "
    "`rejection_sample_method: synthetic`, and refused with any other.",
    remedy="Drop them, or set the method.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    versions=">=0.28",
    covers=("synthetic-without-method",),
    bad=(
        Example(command(f'"method": "ngram", "num_speculative_tokens": 3, "{_LENGTH}": 2')),
        Example(
            command(
                f'"method": "ngram", "num_speculative_tokens": 2, "{_METHOD}": "block", '
                f'"{_RATES}": [0.9, 0.5]'
            )
        ),
    ),
    good=(Example(command(f'{_SYNTHETIC}, "{_LENGTH}": 2')),),
)
def synthetic_unused(config: ServeConfig) -> Iterator[Finding]:
    """Look for the keys without the method."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value(_METHOD) == "synthetic":
        return
    given = [key for key in (_RATES, _LENGTH) if speculation.value(key) is not None]
    if not given:
        return
    method = speculation.value(_METHOD) or "standard"
    yield synthetic_unused.finding(
        f"{' and '.join(given)} {'goes' if len(given) == 1 else 'go'} with {_METHOD} synthetic "
        f"only, and it is {method}",
        location=speculation.place,
        fix=Fix(
            f"drop {' and '.join(given)}",
            tuple(RemoveFlag(f"speculative_config.{key}") for key in given),
            safe=False,
        ),
        engine_message="are only valid with rejection_sample_method='synthetic'.",
    )


@rule(
    id="speculative-fly-window",
    title="FLy needs at least two tokens and a smaller window",
    explanation="FLy accepts a token that rejection sampling would refuse if the tokens after it "
    "agree. So it needs two drafted tokens, a window smaller than their number, and a method "
    "that speculates.",
    remedy="Draft more tokens, or leave `fly_window_size` out.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    versions=">=0.33",
    bad=(
        Example(
            command(f'"method": "ngram", "num_speculative_tokens": 1, "{_METHOD}": "fly"'),
        ),
        Example(command(f'{_FLY}, "fly_window_size": 3')),
    ),
    good=(Example(command(_FLY)), Example(command(f'{_FLY}, "fly_window_size": 2'))),
)
def fly_window(config: ServeConfig) -> Iterator[Finding]:
    """Compare the window with the number of tokens."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value(_METHOD) != "fly":
        return
    tokens, window = speculation.tokens, speculation.whole("fly_window_size")
    edits: tuple[Edit, ...] = (RemoveFlag("speculative_config.fly_window_size"),)
    if tokens is None:
        return
    if speculation.method == "extract_hidden_states":
        text = "FLy goes with methods that speculate, not with extract_hidden_states"
        engine_message = "FLy is not compatible with method='extract_hidden_states'"
    elif tokens < 2:
        text = f"FLy needs at least 2 drafted tokens, and there is {tokens}"
        engine_message = "FLy requires num_speculative_tokens to be at least 2."
    elif window is not None and window >= tokens:
        text = f"fly_window_size is {window}, and must be below the {tokens} drafted tokens"
        engine_message = "FLy requires fly_window_size to be smaller than num_speculative_tokens."
    else:
        return
    if "smaller" not in engine_message:
        edits = (SetFlag(f"speculative_config.{_METHOD}", "standard"),)
    yield fly_window.finding(
        text,
        location=speculation.place,
        fix=Fix("leave FLy out", edits, safe=False),
        engine_message=engine_message,
    )


@rule(
    id="speculative-fly-lossy",
    title="FLy changes what the model says",
    explanation="FLy accepts drafted tokens that rejection sampling would refuse, for speed. vLLM "
    "warns that outputs may get worse.",
    remedy="Use `standard` where outputs must be the model's own.",
    severity=Severity.WARNING,
    area=AREA,
    source=_VERIFY,
    versions=">=0.33",
    bad=(Example(command(_FLY)),),
    good=(Example(f"vllm serve m {NGRAM}"),),
)
def fly_lossy(config: ServeConfig) -> Iterator[Finding]:
    """Tell wherever it is on."""
    speculation = speculation_of(config)
    if speculation is not None and speculation.value(_METHOD) == "fly":
        yield fly_lossy.finding(
            "rejection_sample_method fly is lossy: tokens are accepted that the model would not "
            "have drawn",
            location=speculation.place,
        )


@rule(
    id="speculative-adaptive-method",
    title="Adaptive verification needs DSpark",
    explanation="Up to 0.29 `enable_adaptive_verification` goes with the method `dspark` only; "
    "whatever the draft, another method is refused.",
    remedy="Drop the key, or use vLLM 0.30 or newer.",
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.28,<0.30",
    bad=(Example(command(f'"method": "ngram", "num_speculative_tokens": 3, "{_ADAPTIVE}": true')),),
    good=(Example(f"vllm serve m {NGRAM}"),),
)
def adaptive_method(config: ServeConfig) -> Iterator[Finding]:
    """Look for another method."""
    speculation = _adaptive(config)
    if speculation is None or speculation.method == "dspark":
        return
    yield adaptive_method.finding(
        f"{_ADAPTIVE} goes with the method dspark only, not with {speculation.method}",
        **_fixed_verification(speculation),
        engine_message="Adaptive verification only supported with DSpark",
    )


@rule(
    id="speculative-adaptive-argmax",
    title="Adaptive verification needs draft logits",
    explanation="How many tokens to verify follows from the draft's probabilities, which "
    "`use_local_argmax_reduction` never gathers. DSpark has a confidence of its own.",
    remedy="Drop one of the two.",
    severity=Severity.ERROR,
    area=AREA,
    source=SOURCE,
    versions=">=0.30",
    covers=("adaptive-argmax",),
    bad=(
        Example(
            command(
                f'"method": "mtp", "num_speculative_tokens": 1, "{_ADAPTIVE}": true, '
                '"use_local_argmax_reduction": true'
            ),
            model_config=DEEPSEEK,
        ),
    ),
    good=(
        Example(
            command(
                '"method": "mtp", "num_speculative_tokens": 1, "use_local_argmax_reduction": true'
            ),
            model_config=DEEPSEEK,
        ),
    ),
)
def adaptive_argmax(config: ServeConfig) -> Iterator[Finding]:
    """Look for both."""
    speculation = _adaptive(config)
    if speculation is None or not speculation.value("use_local_argmax_reduction"):
        return
    if speculation.method == "dspark":
        return
    yield adaptive_argmax.finding(
        f"{_ADAPTIVE} needs the draft's logits, which use_local_argmax_reduction never gathers",
        **_fixed_verification(speculation),
        engine_message="Adaptive verification estimates per-position acceptance from the draft "
        "logits",
    )


@rule(
    id="speculative-adaptive-conflicts",
    title="Adaptive verification does not go with LoRA or pipeline stages",
    explanation="The GPU decides how many tokens each request verifies, so the adapters' mapping, "
    "which is built on the CPU, and the other pipeline stages would not know.",
    remedy="Drop `enable_adaptive_verification`, or the other option.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VALIDATE,
    versions=">=0.29",
    covers=("adaptive-lora", "adaptive-pp"),
    bad=(
        Example(
            command(
                f'"method": "mtp", "num_speculative_tokens": 1, "{_ADAPTIVE}": true',
                "--enable-lora",
            ),
            model_config=DEEPSEEK,
            versions=">=0.30",
        ),
        Example(
            command(f'"method": "mtp", "num_speculative_tokens": 1, "{_ADAPTIVE}": true', "-pp 2"),
            model_config=DEEPSEEK,
            versions=">=0.30",
        ),
        Example(
            command(f'{_DSPARK}, "model": "draft"', "--enable-lora"),
            draft_model_config=QWEN3_DSPARK,
        ),
    ),
    good=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 1', "-pp 2"),
            model_config=DEEPSEEK,
            versions=">=0.30",
        ),
        Example(f"vllm serve m --enable-lora {NGRAM}"),
    ),
)
def adaptive_conflicts(config: ServeConfig) -> Iterator[Finding]:
    """Look for adapters and for pipeline stages."""
    speculation = _adaptive(config)
    if speculation is None:
        return
    stages = world_size(config, "pipeline_parallel_size")
    if config["enable_lora"]:
        yield adaptive_conflicts.finding(
            f"{_ADAPTIVE} does not go with --enable-lora",
            **_fixed_verification(speculation),
        )
    if stages > 1:
        yield adaptive_conflicts.finding(
            f"{_ADAPTIVE} does not go with {stages} pipeline stages",
            **_fixed_verification(speculation),
        )


@rule(
    id="speculative-adaptive-graphs",
    title="Adaptive verification needs full CUDA graphs",
    explanation="The number of tokens to verify is weighed against the time of a step, which is "
    "measured while CUDA graphs are captured. `--enforce-eager` or a mode without full graphs "
    "leave nothing to measure.",
    remedy="Drop `--enforce-eager`, or use FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VALIDATE,
    versions=">=0.30",
    covers=("adaptive-graphs",),
    bad=(
        Example(
            command(
                f'"method": "mtp", "num_speculative_tokens": 1, "{_ADAPTIVE}": true',
                "--enforce-eager",
            ),
            model_config=DEEPSEEK,
        ),
        Example(
            command(
                f'"method": "mtp", "num_speculative_tokens": 1, "{_ADAPTIVE}": true',
                "-cc.cudagraph_mode=PIECEWISE",
            ),
            model_config=DEEPSEEK,
        ),
    ),
    good=(
        Example(
            command('"method": "mtp", "num_speculative_tokens": 1', "--enforce-eager"),
            model_config=DEEPSEEK,
        ),
    ),
)
def adaptive_graphs(config: ServeConfig) -> Iterator[Finding]:
    """Look for a mode without full graphs."""
    speculation = _adaptive(config)
    if speculation is None:
        return
    mode = graphs_at_sizes(config)
    if has_full(mode):
        return
    eager = bool(config["enforce_eager"])
    yield adaptive_graphs.finding(
        f"{_ADAPTIVE} needs full CUDA graphs, and "
        f"{'--enforce-eager turns them off' if eager else f'the mode is {mode}'}",
        **_fixed_verification(speculation),
        evidence={"cudagraph_mode": mode},
    )


def _adaptive(config: ServeConfig) -> Speculation | None:
    speculation = speculation_of(config)
    return speculation if speculation is not None and speculation.value(_ADAPTIVE) else None


def _fixed_verification(speculation: Speculation) -> dict[str, Any]:
    return {
        "location": speculation.place,
        "fix": Fix(
            "verify a fixed number of drafted tokens",
            (RemoveFlag(f"speculative_config.{_ADAPTIVE}"),),
            safe=False,
        ),
    }
