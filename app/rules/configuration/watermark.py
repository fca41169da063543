"""What watermarking goes with.

Source: `config/watermarking.py::WatermarkConfig` and
`config/vllm.py::VllmConfig._check_supports_watermarking`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from packaging.version import Version

from app.rules.configuration.speculative_method import DEEPSEEK, without_speculation
from app.rules.declaration import Example
from app.rules.registry import rule
from app.rules.runner import runner_variable
from app.rules.runner_features import RUNNER_VARIABLE
from app.rules.speculation import Speculation, speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag, UnsetEnvironment

AREA: Final = "watermark"
WATERMARK: Final = "watermark_config"
_CLASS: Final = "vllm/config/watermarking.py::WatermarkConfig.validate_watermark_settings"
_CHECK: Final = "vllm/config/vllm.py::VllmConfig._check_supports_watermarking"
_LARGEST_KEY: Final = 2**64 - 1
# `_MIN_RECOMMENDED_DEDUP_HISTORY` and the defaults of `WatermarkConfig`.
_RECOMMENDED_HISTORY: Final = 1024
_DEFAULT_HISTORY: Final = 8192
_DEFAULT_ALPHA: Final = 0.1
_MTP: Final = '"method": "mtp", "num_speculative_tokens": 1'
_PROBABILISTIC: Final = f'{_MTP}, "draft_sample_method": "probabilistic"'


def _command(watermark: str, speculation: str | None = None) -> str:
    text = f"vllm serve m --watermark-config '{{{watermark}}}'"
    return text if speculation is None else f"{text} --speculative-config '{{{speculation}}}'"


def _key(config: ServeConfig, name: str) -> Any:
    return config[f"{WATERMARK}.{name}"]


@rule(
    id="watermark-key",
    title="The watermark key has at most 64 bits",
    explanation="The key seeds a 64-bit pseudorandom function.",
    remedy="Use a key below 2**64.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CLASS,
    versions=">=0.30",
    covers=("watermark-key-range",),
    bad=(Example(_command('"key": 18446744073709551616')),),
    good=(Example(_command('"key": 18446744073709551615')),),
)
def key_range(config: ServeConfig) -> Iterator[Finding]:
    """Compare the key with 64 bits; it is a secret and not repeated."""
    key = _key(config, "key")
    if isinstance(key, int) and key > _LARGEST_KEY:
        yield key_range.finding(
            f"the watermark key has {key.bit_length()} bits, and at most 64 are allowed",
            location=config.place(WATERMARK),
            fix=Fix("serve without a watermark", (RemoveFlag(WATERMARK),), safe=False),
            engine_message="philox keys must fit in 64 bits",
        )


@rule(
    id="watermark-deduplication",
    title="Repeated contexts are watermarked again",
    explanation="A context that was seen before is sampled without the watermark, or the same "
    "noise repeats itself and the text loops. With `deduplicate_contexts: none`, or fewer than "
    "1024 positions of history, vLLM warns of repetition.",
    remedy="Use `single_turn` or `all` with a history of at least 1024, or null.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CLASS,
    versions=">=0.30",
    covers=("watermark-dedup",),
    bad=(
        Example(_command('"key": 1, "deduplicate_contexts": "none"')),
        Example(_command('"key": 1, "deduplicate_contexts_max_history": 100')),
    ),
    good=(
        Example(_command('"key": 1')),
        Example(_command('"key": 1, "deduplicate_contexts_max_history": null')),
    ),
)
def deduplication(config: ServeConfig) -> Iterator[Finding]:
    """Look at the scope and the length of the history."""
    whole = config[WATERMARK]
    if not isinstance(whole, dict):
        return
    scope = _key(config, "deduplicate_contexts") or "single_turn"
    history: Any = _DEFAULT_HISTORY
    if "deduplicate_contexts_max_history" in whole:
        history = _key(config, "deduplicate_contexts_max_history")
    short = isinstance(history, int) and history < _RECOMMENDED_HISTORY
    if scope != "none" and not short:
        return
    what = "off" if scope == "none" else f"limited to {history} positions"
    yield deduplication.finding(
        f"looking for repeated contexts is {what}; texts repeat themselves more often with less "
        f"than {_RECOMMENDED_HISTORY} positions",
        location=config.place(WATERMARK),
    )


@rule(
    id="watermark-runner",
    title="Watermarking overrides the model runner of the environment",
    explanation="Only Model Runner V2 watermarks, so vLLM takes it whatever "
    "`VLLM_USE_V2_MODEL_RUNNER` says.",
    remedy="Unset the variable.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.use_v2_model_runner",
    versions=">=0.30",
    covers=("watermark-forces-v2",),
    bad=(Example(f"{RUNNER_VARIABLE}=0 {_command(chr(34) + 'key' + chr(34) + ': 1')}"),),
    good=(Example(_command('"key": 1')),),
)
def forces_runner(config: ServeConfig) -> Iterator[Finding]:
    """Look for the variable."""
    if config[WATERMARK] is None or runner_variable(config) is not False:
        return
    variable = config.variable(RUNNER_VARIABLE)
    yield forces_runner.finding(
        f"{RUNNER_VARIABLE}=0 asks for Model Runner V1, but vLLM will use V2, because only V2 "
        "watermarks",
        location=variable.location if variable is not None else config.place(WATERMARK),
        fix=Fix(f"unset {RUNNER_VARIABLE}", (UnsetEnvironment(RUNNER_VARIABLE),), safe=False),
        evidence={"asked": "0", "effective": "1", "dest": RUNNER_VARIABLE},
    )


@rule(
    id="watermark-speculation",
    title="The watermark does not go with this speculative decoding",
    explanation="Accepted drafts must be drawn so that they can carry the watermark: the draft "
    "samples (`draft_sample_method: probabilistic`, the default is greedy), acceptance is "
    "`standard`, and the method drafts token by token from a model: EAGLE, MTP, DSpark, from 0.33 "
    "DFlash too.",
    remedy='Set `"draft_sample_method": "probabilistic"` and use such a method.',
    severity=Severity.ERROR,
    area=AREA,
    source=_CHECK,
    versions=">=0.30",
    covers=(
        "watermark-spec-sampling",
        "watermark-spec-rejection",
        "watermark-spec-parallel",
        "watermark-spec-method",
    ),
    bad=(
        Example(_command('"key": 1, "algorithm": "dual_key_gumbel"', _MTP), model_config=DEEPSEEK),
        Example(
            _command(
                '"key": 1, "algorithm": "dual_key_gumbel"',
                f'{_PROBABILISTIC}, "rejection_sample_method": "block"',
            ),
            model_config=DEEPSEEK,
        ),
        Example(
            _command(
                '"key": 1, "algorithm": "dual_key_gumbel"',
                '"method": "ngram", "num_speculative_tokens": 3, '
                '"draft_sample_method": "probabilistic"',
            )
        ),
        Example(
            _command(
                '"key": 1, "algorithm": "dual_key_gumbel"',
                f'{_PROBABILISTIC}, "parallel_drafting": true',
            ),
            model_config=DEEPSEEK,
        ),
    ),
    good=(
        Example(
            _command('"key": 1, "algorithm": "dual_key_gumbel"', _PROBABILISTIC),
            model_config=DEEPSEEK,
        ),
        Example(_command('"key": 1')),
    ),
)
def speculation_conflicts(config: ServeConfig) -> Iterator[Finding]:
    """Walk through the checks in vLLM's order."""
    speculation = speculation_of(config) if config[WATERMARK] is not None else None
    if speculation is None:
        return
    place = speculation.place
    beside = tuple(p for p in (config.place(WATERMARK),) if p is not None and p != place)
    sampling = speculation.value("draft_sample_method") or "greedy"
    if sampling != "probabilistic":
        yield speculation_conflicts.finding(
            "a watermark with speculative decoding needs draft_sample_method probabilistic, and "
            f"it is {sampling}",
            location=place,
            related=beside,
            fix=_with("draft_sample_method", "probabilistic"),
            engine_message="Speculative decoding with watermarking requires "
            "draft_sample_method='probabilistic'.",
        )
    acceptance = speculation.value("rejection_sample_method") or "standard"
    if acceptance != "standard":
        yield speculation_conflicts.finding(
            "a watermark with speculative decoding needs rejection_sample_method standard, and "
            f"it is {acceptance}",
            location=place,
            related=beside,
            fix=_with("rejection_sample_method", "standard"),
            engine_message="Speculative decoding with watermarking requires "
            "rejection_sample_method='standard'.",
        )
    method = speculation.method
    allowed = _methods(config)
    if method not in allowed:
        yield speculation_conflicts.finding(
            f"a watermark goes with the speculative methods {', '.join(sorted(allowed))}, not "
            f"with {method}",
            location=place,
            related=beside,
            fix=without_speculation(speculation),
            engine_message="Watermarking supports only",
        )
    elif speculation.value("parallel_drafting") and method not in _parallel(config):
        yield speculation_conflicts.finding(
            f"a watermark does not go with parallel drafting by {method}",
            location=place,
            related=beside,
            fix=Fix(
                "drop parallel_drafting",
                (RemoveFlag("speculative_config.parallel_drafting"),),
                safe=False,
            ),
            engine_message="Parallel speculative drafting is not supported with watermarking.",
        )


def _parallel(config: ServeConfig) -> frozenset[str]:
    newer = config.catalogue.version >= Version("0.33.0.dev0")
    return frozenset({"dflash", "dspark"}) if newer else frozenset({"dspark"})


def _methods(config: ServeConfig) -> frozenset[str]:
    return _parallel(config) | {"eagle", "eagle3", "mtp"}


def _with(key: str, value: str) -> Fix:
    return Fix(f"set {key} to {value}", (SetFlag(f"speculative_config.{key}", value),), safe=False)


def _algorithm(config: ServeConfig) -> str:
    return str(_key(config, "algorithm") or "gumbel")


@rule(
    id="watermark-speculation-algorithm",
    title="The watermark's algorithm cannot mark drafted tokens",
    explanation="Only `dual_key_gumbel` marks drafts and corrections so that both can be "
    "detected. With another algorithm, `gumbel` by default, vLLM refuses speculative decoding "
    "unless `allow_target_only_watermarking` leaves drafts unmarked.",
    remedy="Use `dual_key_gumbel`, or allow unmarked drafts.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CHECK,
    versions=">=0.30",
    covers=("watermark-spec-algorithm",),
    bad=(Example(_command('"key": 1', _PROBABILISTIC), model_config=DEEPSEEK),),
    good=(
        Example(
            _command('"key": 1, "algorithm": "dual_key_gumbel"', _PROBABILISTIC),
            model_config=DEEPSEEK,
        ),
        Example(
            _command('"key": 1, "allow_target_only_watermarking": true', _PROBABILISTIC),
            model_config=DEEPSEEK,
        ),
    ),
)
def speculation_algorithm(config: ServeConfig) -> Iterator[Finding]:
    """Compare the algorithm."""
    speculation = _watermarked(config)
    if speculation is None or _algorithm(config) == "dual_key_gumbel":
        return
    if _key(config, "allow_target_only_watermarking"):
        return
    algorithm = _algorithm(config)
    yield speculation_algorithm.finding(
        f"the watermark's algorithm {algorithm} cannot mark drafted tokens",
        location=config.place(WATERMARK),
        related=tuple(p for p in (speculation.place,) if p is not None),
        fix=Fix(
            "use dual_key_gumbel",
            (SetFlag(f"{WATERMARK}.algorithm", "dual_key_gumbel"),),
            safe=False,
        ),
        engine_message=f"The '{algorithm}' watermarking algorithm does not support speculative "
        "decoding.",
    )


@rule(
    id="watermark-target-only",
    title="Drafted tokens are not watermarked",
    explanation="With `allow_target_only_watermarking` accepted drafts carry no watermark; the "
    "more of them, the harder the text is to detect.",
    remedy="Use `dual_key_gumbel`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CHECK,
    versions=">=0.30",
    covers=("watermark-target-only",),
    bad=(
        Example(
            _command('"key": 1, "allow_target_only_watermarking": true', _PROBABILISTIC),
            model_config=DEEPSEEK,
        ),
    ),
    good=(
        Example(
            _command('"key": 1, "algorithm": "dual_key_gumbel"', _PROBABILISTIC),
            model_config=DEEPSEEK,
        ),
    ),
)
def target_only(config: ServeConfig) -> Iterator[Finding]:
    """Look for the permission where it matters."""
    speculation = _watermarked(config)
    if speculation is None or _algorithm(config) == "dual_key_gumbel":
        return
    if _key(config, "allow_target_only_watermarking"):
        yield target_only.finding(
            "accepted drafts carry no watermark (allow_target_only_watermarking), which weakens "
            "detection",
            location=config.place(WATERMARK),
        )


@rule(
    id="watermark-alpha-unused",
    title="`alpha` is not used with speculative decoding",
    explanation="With two keys and speculative decoding the role of a token chooses its key "
    "(drafts A, corrections B), not `alpha`.",
    remedy="Leave `alpha` out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CHECK,
    versions=">=0.30",
    covers=("watermark-alpha-unused",),
    bad=(
        Example(
            _command('"key": 1, "algorithm": "dual_key_gumbel", "alpha": 0.5', _PROBABILISTIC),
            model_config=DEEPSEEK,
        ),
    ),
    good=(
        Example(
            _command('"key": 1, "algorithm": "dual_key_gumbel"', _PROBABILISTIC),
            model_config=DEEPSEEK,
        ),
    ),
)
def alpha_unused(config: ServeConfig) -> Iterator[Finding]:
    """Look for a value other than the default."""
    if _watermarked(config) is None or _algorithm(config) != "dual_key_gumbel":
        return
    alpha = _key(config, "alpha")
    if isinstance(alpha, int | float) and alpha != _DEFAULT_ALPHA:
        yield alpha_unused.finding(
            f"alpha is {alpha}, but with speculative decoding the role of a token chooses its key",
            location=config.place(WATERMARK),
            evidence={"asked": alpha, "effective": None, "dest": f"{WATERMARK}.alpha"},
        )


def _watermarked(config: ServeConfig) -> Speculation | None:
    return speculation_of(config) if config[WATERMARK] is not None else None
