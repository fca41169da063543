"""Custom logits processors, and what speculative decoding does to sampling parameters.

Source: `v1/sample/logits_processor/__init__.py`, which the engine calls once it starts: the
configuration is accepted and the server stops later. Hence warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.speculative_method import NGRAM
from app.rules.declaration import Example
from app.rules.derived.model import is_pooling
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import RUNNER_VARIABLE, Moment
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

AREA: Final = "sampling"
PROCESSORS: Final = "logits_processors"
_BUILD: Final = "vllm/v1/sample/logits_processor/__init__.py::build_logitsprocs"
_LOAD: Final = "vllm/v1/sample/logits_processor/__init__.py::_load_logitsprocs_by_fqcns"
_PROCESSOR: Final = "--logits-processors pkg.module:Processor"


@rule(
    id="sampling-processor-format",
    title="A logits processor is named `module:class`",
    explanation="The engine splits each entry of `--logits-processors` at the colon and stops if "
    "there is none, or more than one. The configuration is accepted before.",
    remedy="Write `package.module:Class`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_LOAD,
    versions=">=0.28",
    covers=("logitproc-format",),
    bad=(Example("vllm serve m --logits-processors pkg.module.Processor"),),
    good=(Example(f"vllm serve m {_PROCESSOR}"),),
)
def processor_format(config: ServeConfig) -> Iterator[Finding]:
    """Count the colons."""
    given = config[PROCESSORS]
    for name in given if isinstance(given, list | tuple) else ():
        if isinstance(name, str) and name.count(":") != 1:
            yield processor_format.finding(
                f"the logits processor {name!r} is not written as module:class; the engine stops "
                "when it loads it",
                location=config.place(PROCESSORS),
            )


@rule(
    id="sampling-processor-pooling",
    title="Pooling models take no logits processors",
    explanation="A pooling model draws no tokens. The engine refuses custom processors when it "
    "starts, after the configuration was accepted.",
    remedy="Drop `--logits-processors`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_BUILD,
    versions=">=0.28",
    covers=("logitproc-pooling",),
    bad=(
        Example(
            f"vllm serve m {_PROCESSOR}",
            model_config={"architectures": ["BertModel"], "model_type": "bert"},
        ),
    ),
    good=(
        Example(
            f"vllm serve m {_PROCESSOR}",
            model_config={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        ),
    ),
)
def processor_pooling(config: ServeConfig) -> Iterator[Finding]:
    """Look for a pooling model."""
    if config[PROCESSORS] and is_pooling(config):
        yield processor_pooling.finding(
            "--logits-processors does not go with a pooling model; the engine stops when it starts",
            location=config.place(PROCESSORS),
            fix=Fix("drop --logits-processors", (RemoveFlag(PROCESSORS),), safe=False),
        )


@rule(
    id="sampling-processor-speculation",
    title="Custom logits processors do not go with speculative decoding",
    explanation="Model Runner V1 refuses custom processors with speculative decoding when the "
    "engine starts, after the configuration was accepted.",
    remedy="Drop one of the two.",
    severity=Severity.WARNING,
    area=AREA,
    source=_BUILD,
    versions=">=0.28",
    covers=("logitproc-spec",),
    bad=(Example(f"{RUNNER_VARIABLE}=0 vllm serve m {_PROCESSOR} {NGRAM}"),),
    good=(
        Example(f"vllm serve m {_PROCESSOR}"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m {NGRAM}"),
    ),
)
def processor_speculation(config: ServeConfig) -> Iterator[Finding]:
    """Look for both on V1."""
    if not config[PROCESSORS] or speculation_of(config) is None:
        return
    if decide_runner(config, Moment.LAST_CHECK).version is Runner.V1:
        yield processor_speculation.finding(
            "--logits-processors does not go with speculative decoding on Model Runner V1; the "
            "engine stops when it starts",
            location=config.place(PROCESSORS),
            fix=Fix("drop --logits-processors", (RemoveFlag(PROCESSORS),), safe=False),
        )


@rule(
    id="sampling-min-p-speculation",
    title="`min_p` and `logit_bias` do nothing with speculative decoding",
    explanation="Model Runner V1 leaves both out where tokens are drafted, and says so once in its "
    "log; requests that send them are answered without.",
    remedy="Run on Model Runner V2, or do not send them.",
    severity=Severity.WARNING,
    area=AREA,
    source=_BUILD,
    versions=">=0.28",
    covers=("minp-bias-spec",),
    bad=(Example(f"{RUNNER_VARIABLE}=0 vllm serve m {NGRAM}"),),
    good=(Example(f"{RUNNER_VARIABLE}=0 vllm serve m"),),
)
def min_p_speculation(config: ServeConfig) -> Iterator[Finding]:
    """Look for drafting on V1."""
    speculation = speculation_of(config)
    if speculation is None or config[PROCESSORS]:
        return
    if decide_runner(config, Moment.LAST_CHECK).version is Runner.V1:
        yield min_p_speculation.finding(
            "requests' min_p and logit_bias have no effect with speculative decoding on Model "
            "Runner V1",
            location=speculation.place,
        )
