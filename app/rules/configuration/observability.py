"""Metrics, traces and histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from app.rules.configuration.speculative_method import NGRAM
from app.rules.declaration import Example
from app.rules.registry import rule
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

AREA: Final = "observability"
_CLASS: Final = "vllm/config/observability.py::ObservabilityConfig"
_HIDDEN: Final = "show_hidden_metrics_for_version"
_BUCKETS: Final = "custom_histogram_buckets"
_TRACES: Final = "collect_detailed_traces"
_ENDPOINT: Final = "otlp_traces_endpoint"
_DRAFTS: Final = "per_request_spec_decode_metrics"


@rule(
    id="observability-hidden-metrics-version",
    title="`--show-hidden-metrics-for-version` is no version",
    explanation="The option names the release whose hidden metrics are shown, such as 0.28.",
    remedy="Give a version number.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_show_hidden_metrics_for_version",
    bad=(Example("vllm serve m --show-hidden-metrics-for-version latest"),),
    good=(Example("vllm serve m --show-hidden-metrics-for-version 0.28"),),
    covers=("hidden-metrics-version",),
)
def hidden_metrics_version(config: ServeConfig) -> Iterator[Finding]:
    """Read the version."""
    asked = config[_HIDDEN]
    if not isinstance(asked, str):
        return
    try:
        Version(asked)
    except InvalidVersion:
        yield hidden_metrics_version.finding(
            f"{asked!r} is no version",
            location=config.place(_HIDDEN),
            fix=Fix("drop the option", (RemoveFlag(_HIDDEN),), safe=False),
            engine_message=f"Invalid version: {asked!r}",
        )


def _buckets(value: str) -> str:
    return f"vllm serve m --custom-histogram-buckets '{value}'"


@rule(
    id="observability-histogram-buckets",
    title="Histogram buckets that cannot be used",
    explanation="Each family of `--custom-histogram-buckets` is one that vLLM has, with at least "
    "one bound; bounds are finite numbers above 0, each larger than the one before.",
    remedy="Mend the list, or drop the family.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_custom_histogram_buckets",
    versions=">=0.32",
    bad=(
        Example(_buckets('{"latency": [1, 2]}')),
        Example(_buckets('{"request_latency": []}')),
        Example(_buckets('{"request_latency": [0, 1]}')),
        Example(_buckets('{"request_latency": [2, 1]}')),
        Example(_buckets('{"request_latency": [true, 2]}')),
    ),
    good=(Example(_buckets('{"request_latency": [0.5, 1, 2]}')),),
    covers=(
        "histogram-bool",
        "histogram-family",
        "histogram-empty",
        "histogram-bound",
        "histogram-order",
    ),
)
def histogram_buckets(config: ServeConfig) -> Iterator[Finding]:
    """Check each family."""
    given = config[_BUCKETS]
    if not isinstance(given, Mapping):
        return
    families = config.catalogue.registries.get("histogram_bucket_families", ())
    for family, bounds in given.items():
        problem, said = _problem(str(family), bounds, families)
        if problem:
            yield histogram_buckets.finding(
                f"--custom-histogram-buckets: {problem}",
                location=config.place(_BUCKETS),
                fix=Fix(f"drop {family}", (RemoveFlag(f"{_BUCKETS}.{family}"),), safe=False),
                engine_message=said,
            )


def _problem(family: str, bounds: Any, families: Any) -> tuple[str, str | None]:
    where = f"custom_histogram_buckets[{family!r}]:"
    if family not in families:
        known = ", ".join(families)
        said = f"custom_histogram_buckets: unknown bucket family {family!r}"
        return f"{family} is none of {known}", said
    if not isinstance(bounds, list):
        return "", None
    if not bounds:
        return f"{family} has no bounds", f"{where} bucket list must not be empty"
    for bound in bounds:
        if isinstance(bound, bool):
            return f"{bound} in {family} is no number", f"{where} bound {bound!r} must be a number"
        if not isinstance(bound, int | float):
            return "", None
        if not math.isfinite(bound) or bound <= 0:
            return f"{bound} in {family} is not above 0", "must be finite and greater than 0"
    if any(a >= b for a, b in pairwise(bounds)):
        return f"{family} does not increase: {bounds}", "must be strictly increasing"
    return "", None


@rule(
    id="observability-traces-endpoint",
    title="Detailed traces have nowhere to go",
    explanation="`--collect-detailed-traces` adds to the traces that `--otlp-traces-endpoint` "
    "sends.",
    remedy="Add `--otlp-traces-endpoint`, or drop `--collect-detailed-traces`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_tracing_config",
    bad=(Example("vllm serve m --collect-detailed-traces all"),),
    good=(Example("vllm serve m"),),
    covers=("detailed-traces-need-endpoint",),
)
def traces_endpoint(config: ServeConfig) -> Iterator[Finding]:
    """Look for an endpoint."""
    if not config.given(_TRACES) or not config[_TRACES] or config[_ENDPOINT]:
        return
    yield traces_endpoint.finding(
        "--collect-detailed-traces needs --otlp-traces-endpoint",
        location=config.place(_TRACES),
        fix=Fix("drop --collect-detailed-traces", (RemoveFlag(_TRACES),), safe=False),
        engine_message="collect_detailed_traces requires `--otlp-traces-endpoint` to be set.",
    )


@rule(
    id="observability-draft-metrics",
    title="Metrics of drafts without speculative decoding",
    explanation="`--per-request-spec-decode-metrics` tells how many drafted tokens a request "
    "accepted. Without speculative decoding vLLM refuses it.",
    remedy="Drop the option, or add `--speculative-config`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    versions=">=0.29",
    bad=(Example("vllm serve m --per-request-spec-decode-metrics summary"),),
    good=(
        Example(f"vllm serve m --per-request-spec-decode-metrics summary {NGRAM}"),
        Example("vllm serve m --per-request-spec-decode-metrics none"),
    ),
    covers=("spec-metrics-need-spec",),
)
def draft_metrics(config: ServeConfig) -> Iterator[Finding]:
    """Look for speculative decoding."""
    asked = config[_DRAFTS]
    if asked in (None, "none") or speculation_of(config) is not None:
        return
    yield draft_metrics.finding(
        f"--per-request-spec-decode-metrics {asked} needs speculative decoding",
        location=config.place(_DRAFTS),
        fix=Fix("drop the option", (RemoveFlag(_DRAFTS),), safe=False),
        engine_message="--per-request-spec-decode-metrics requires speculative decoding to be "
        "enabled (via --speculative-config).",
    )
