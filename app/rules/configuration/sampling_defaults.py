"""Defaults and limits of requests that decide whether masks can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.catalogue.semantics import semantics_of
from app.rules.configuration.sampling_mask import AREA, MASK, beside, wants_mask
from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag

_MASKED: Final = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
_OVERRIDE: Final = "override_generation_config"


@rule(
    id="sampling-mask-max-logprobs",
    title="Fewer logprobs than the mask has ids",
    explanation="To renormalise over a mask a client asks for the logprobs of all its ids, up to "
    "`top_k` of them. vLLM refuses requests for more than `--max-logprobs` (default 20).",
    remedy="Set `--max-logprobs` to the largest `top_k`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/sampling_params.py::SamplingParams._validate_logprobs",
    versions=">=0.28",
    bad=(Example(f"""{_MASKED} --override-generation-config '{{"top_k": 64}}'"""),),
    good=(
        Example(f"""{_MASKED} --max-logprobs 64 --override-generation-config '{{"top_k": 64}}'"""),
        Example(f"""{_MASKED} --max-logprobs -1 --override-generation-config '{{"top_k": 64}}'"""),
    ),
)
def max_logprobs(config: ServeConfig) -> Iterator[Finding]:
    """Compare the limit with the default top_k of requests."""
    limit, top_k = config["max_logprobs"], _default_of(config, "top_k")
    if not wants_mask(config) or not isinstance(limit, int) or not isinstance(top_k, int):
        return
    if 0 <= limit < top_k:
        yield max_logprobs.finding(
            f"masks hold up to top_k = {top_k} ids, but only {limit} logprobs may be asked for",
            location=config.place("max_logprobs") or config.place(_OVERRIDE),
            related=beside(config, config.place(_OVERRIDE)),
            fix=Fix(
                f"set --max-logprobs {top_k}",
                (SetFlag("max_logprobs", top_k),),
                safe=not config.given("max_logprobs"),
            ),
            evidence={"max_logprobs": limit, "top_k": top_k},
        )


@rule(
    id="sampling-mask-whole-vocabulary-logprobs",
    title="Asking for all logprobs returns one",
    explanation="`--max-logprobs -1` lets a request ask for `logprobs: -1`, every id. Up to 0.30 "
    "`/inference/v1/generate` then returns a single entry a token.",
    remedy="Have requests ask for `logprobs` equal to their `top_k`.",
    severity=Severity.INFO,
    area=AREA,
    source="vllm/entrypoints/scale_out/token_in_token_out/serving.py::_create_tokens_logprobs",
    versions=">=0.28,<0.31",
    bad=(Example(f"{_MASKED} --max-logprobs -1"),),
    good=(Example(f"{_MASKED} --max-logprobs 64"),),
)
def whole_vocabulary(config: ServeConfig) -> Iterator[Finding]:
    """Look for the limit that invites such requests."""
    if not wants_mask(config) or config["max_logprobs"] != -1:
        return
    if not semantics_of(config.catalogue.version).whole_vocabulary_logprobs:
        yield whole_vocabulary.finding(
            f"in vLLM {config.catalogue.vllm_version} a request with logprobs: -1 gets a single "
            "entry a token; ask for logprobs equal to top_k",
            location=config.place("max_logprobs"),
        )


@rule(
    id="sampling-mask-generation-config",
    title="The model's generation config decides how requests sample",
    explanation="With `--generation-config auto`, the default, the OpenAI routes take missing "
    "sampling parameters from the model's generation_config.json. It may set greedy sampling, "
    "with which every such request fails while masks are on, or a `top_k` and `top_p` that "
    "nobody chose. `/inference/v1/generate` does not use these defaults.",
    remedy="Set `--generation-config vllm` and have every request give `temperature` and "
    "`top_k`, or give both with `--override-generation-config`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.get_diff_sampling_param",
    versions=">=0.28",
    bad=(Example(_MASKED),),
    good=(
        Example(f"{_MASKED} --generation-config vllm"),
        Example(
            f"""{_MASKED} --override-generation-config '{{"temperature": 1.0, "top_k": 20}}'"""
        ),
    ),
)
def generation_config(config: ServeConfig) -> Iterator[Finding]:
    """Tell where defaults come from a file that nobody gave."""
    if not wants_mask(config) or config["generation_config"] == "vllm":
        return
    if _is_positive(_default_of(config, "temperature")) and _is_positive(
        _default_of(config, "top_k")
    ):
        return
    yield generation_config.finding(
        f"--generation-config {config['generation_config']} lets the model's "
        "generation_config.json set temperature, top_k and top_p of OpenAI requests; greedy "
        "requests fail while masks are on",
        location=config.place("generation_config") or config.place(MASK),
        fix=Fix(
            "ignore the model's defaults with --generation-config vllm",
            (SetFlag("generation_config", "vllm"),),
            safe=False,
        ),
    )


@rule(
    id="sampling-mask-default-refused",
    title="The default sampling parameters are refused while masks are on",
    explanation="With masks on vLLM refuses requests with `temperature` or `top_k` of 0 or less, "
    "as HTTP 500 with an empty message. `--override-generation-config` makes such values the "
    "default of the OpenAI routes.",
    remedy="Override with a `temperature` and `top_k` above 0.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/v1/engine/input_processor.py::InputProcessor._validate_params",
    versions=">=0.28",
    bad=(Example(f"""{_MASKED} --override-generation-config '{{"temperature": 0}}'"""),),
    good=(Example(f"""{_MASKED} --override-generation-config '{{"temperature": 0.7}}'"""),),
)
def default_refused(config: ServeConfig) -> Iterator[Finding]:
    """Look at the two parameters that are refused."""
    if not wants_mask(config):
        return
    for name in ("temperature", "top_k"):
        value = _default_of(config, name)
        if isinstance(value, int | float) and not _is_positive(value):
            yield default_refused.finding(
                f"OpenAI requests that give no {name} get {value}, which vLLM refuses while "
                "masks are on",
                location=config.place(_OVERRIDE),
                related=beside(config, config.place(_OVERRIDE)),
                engine_message=config.catalogue.engine_message(name),
            )


def _default_of(config: ServeConfig, name: str) -> Any:
    return config[f"{_OVERRIDE}.{name}"]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
