"""Sizes of CUDA graphs: contradictions, and what is left out.

Source of most: `config/vllm.py::VllmConfig._set_cudagraph_sizes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.compilation_options import AREA
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.compilation import CONFIG
from app.rules.derived.cuda_graphs import (
    DECODE_ONLY,
    MAXIMUM,
    NO_GRAPHS,
    SIZES,
    CaptureSizes,
    capture_sizes,
    given_maximum,
    given_sizes,
    graph_mode,
    graphs_at_sizes,
    has_full,
)
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Edit, Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

_SET_SIZES: Final = "vllm/config/vllm.py::VllmConfig._set_cudagraph_sizes"
_CREATE: Final = "vllm/engine/arg_utils.py::EngineArgs.create_engine_config"
_TOKENS: Final = "max_num_batched_tokens"


@rule(
    id="compilation-sizes-twice",
    title="Sizes of CUDA graphs are given twice",
    explanation="`--cudagraph-capture-sizes` and `--max-cudagraph-capture-size` are the same as "
    "the keys of `--compilation-config`, and vLLM refuses to choose.",
    remedy="Give each once.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CREATE,
    covers=("cudagraph-sizes-twice", "cudagraph-max-twice"),
    bad=(
        Example(
            "vllm serve m --cudagraph-capture-sizes 1 2 "
            """-cc '{"cudagraph_capture_sizes": [1, 2]}'"""
        ),
        Example("vllm serve m --max-cudagraph-capture-size 8 -cc.max_cudagraph_capture_size=8"),
    ),
    good=(
        Example("vllm serve m --cudagraph-capture-sizes 1 2 -cc.max_cudagraph_capture_size=2"),
        Example("vllm serve m -cc.max_cudagraph_capture_size=8"),
    ),
)
def twice(config: ServeConfig) -> Iterator[Finding]:
    """Look for each in both places."""
    for name in (SIZES, MAXIMUM):
        flag, key = config[name], config[f"{CONFIG}.{name}"]
        if flag is None or key is None:
            continue
        option = f"--{name.replace('_', '-')}"
        edits: tuple[Edit, ...] = (RemoveFlag(f"{CONFIG}.{name}"),)
        yield twice.finding(
            f"{name} is given by {option} ({flag}) and in --compilation-config ({key})",
            location=config.place(name),
            related=tuple(p for p in (config.place(CONFIG),) if p is not None),
            fix=Fix(f"keep {option}", edits, safe=flag == key),
            engine_message=f"{name} and compilation_config.",
        )


@rule(
    id="compilation-sizes-none",
    title="There is no CUDA graph to capture",
    explanation="With CUDA graphs on, the list of sizes holds at least one and the largest size "
    "is at least 1.",
    remedy="Give a size, or turn CUDA graphs off (`-cc.cudagraph_mode=none`).",
    severity=Severity.ERROR,
    area=AREA,
    source=_SET_SIZES,
    covers=("cudagraph-max-zero", "cudagraph-sizes-empty"),
    bad=(
        Example("vllm serve m --max-cudagraph-capture-size 0", model_config=DENSE, gpu="H100"),
        Example("vllm serve m --max-cudagraph-capture-size -1", model_config=DENSE, gpu="H100"),
        Example(
            """vllm serve m -cc '{"cudagraph_capture_sizes": []}'""", model_config=DENSE, gpu="H100"
        ),
    ),
    good=(
        Example(
            "vllm serve m --enforce-eager --max-cudagraph-capture-size 0",
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            "vllm serve m --max-cudagraph-capture-size 0 -cc.cudagraph_mode=none",
            model_config=DENSE,
            gpu="H100",
        ),
        Example("vllm serve m --max-cudagraph-capture-size 1", model_config=DENSE, gpu="H100"),
    ),
)
def none(config: ServeConfig) -> Iterator[Finding]:
    """Look at the list and the largest size."""
    listed, maximum = given_sizes(config), given_maximum(config)
    wrong = maximum is not None and maximum < 1
    if not wrong and listed != ():
        return
    if graphs_at_sizes(config) == NO_GRAPHS:
        return
    dest = _dest(config, MAXIMUM if wrong else SIZES)
    text = f"{MAXIMUM} is {maximum}" if wrong else f"{SIZES} is empty"
    yield none.finding(
        f"{text}, and CUDA graphs are on",
        location=config.place(dest),
        fix=Fix(f"drop {dest}", (RemoveFlag(dest),), safe=False),
        engine_message="Maximum cudagraph size should be greater than or equal to 1"
        if wrong
        else "cudagraph_capture_sizes should contain at least one element",
    )


@rule(
    id="compilation-sizes-maximum",
    title="The largest CUDA graph size is not the last of the list",
    explanation="Where both are given, the largest size must be that of the list. Sizes above "
    "`--max-num-batched-tokens` are taken out of the list first.",
    remedy="Leave `--max-cudagraph-capture-size` out.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SET_SIZES,
    covers=("cudagraph-max-vs-list",),
    bad=(
        Example(
            "vllm serve m --cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size 8 "
            "--max-num-batched-tokens 8192",
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            "vllm serve m --cudagraph-capture-sizes 256 8192 --max-cudagraph-capture-size 8192 "
            "--max-num-batched-tokens 4096 --max-model-len 2048",
            model_config=DENSE,
            gpu="H100",
        ),
    ),
    good=(
        Example(
            "vllm serve m --cudagraph-capture-sizes 1 8 --max-cudagraph-capture-size 8 "
            "--max-num-batched-tokens 8192",
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            "vllm serve m --cudagraph-capture-sizes 1 4 --max-cudagraph-capture-size 8 "
            "--enforce-eager",
            model_config=DENSE,
            gpu="H100",
        ),
    ),
)
def maximum_of_list(config: ServeConfig) -> Iterator[Finding]:
    """Compare both."""
    if not given_sizes(config) or (given_maximum(config) or 0) < 1:
        return
    settled = capture_sizes(config)
    if settled is None or settled.largest == settled.maximum:
        return
    dest = _dest(config, MAXIMUM)
    yield maximum_of_list.finding(
        f"{MAXIMUM} is {settled.maximum}, and the largest of {SIZES} that fits in a batch of "
        f"{settled.limit} tokens is {settled.largest}",
        location=config.place(dest),
        fix=Fix(f"drop {MAXIMUM}", (RemoveFlag(dest),), safe=False),
        engine_message=f"should be consistent with the max value of {SIZES}(={settled.largest})",
    )


@rule(
    id="compilation-sizes-truncated",
    title="vLLM takes a smaller CUDA graph size",
    explanation="Sizes are 1, 2, 4, then every 8 below 256, then every 16, and never above "
    "`--max-num-batched-tokens`. A largest size in between becomes the one below.",
    remedy="Give a size of that grid, or list the sizes.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SET_SIZES,
    covers=("cudagraph-max-truncated",),
    bad=(
        Example(
            "vllm serve m --max-cudagraph-capture-size 300 --max-num-batched-tokens 8192",
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            "vllm serve m --max-cudagraph-capture-size 6 --max-num-batched-tokens 8192",
            model_config=DENSE,
            gpu="H100",
        ),
    ),
    good=(
        Example(
            "vllm serve m --max-cudagraph-capture-size 288 --max-num-batched-tokens 8192",
            model_config=DENSE,
            gpu="H100",
        ),
        Example("vllm serve m", model_config=DENSE, gpu="H100"),
    ),
)
def truncated(config: ServeConfig) -> Iterator[Finding]:
    """Compare with the grid."""
    if (given_maximum(config) or 0) < 1 or given_sizes(config) is not None:
        return
    settled = capture_sizes(config)
    if settled is None or settled.largest == settled.maximum:
        return
    dest = _dest(config, MAXIMUM)
    yield truncated.finding(
        f"{MAXIMUM} is {settled.maximum}, but vLLM will use {settled.largest}, the next size below "
        f"that it captures (batches have at most {settled.limit} tokens)",
        location=config.place(dest),
        fix=Fix(f"set it to {settled.largest}", (SetFlag(dest, settled.largest),), safe=True),
        evidence={"dest": dest, "asked": settled.maximum, "effective": settled.largest},
    )


@rule(
    id="compilation-sizes-dropped",
    title="CUDA graph sizes are left out",
    explanation="A batch never has more tokens than `--max-num-batched-tokens`, so larger sizes, "
    "and those given twice, are taken out of the list.",
    remedy="List each size once, and none above `--max-num-batched-tokens`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SET_SIZES,
    covers=("cudagraph-sizes-dropped",),
    bad=(
        Example(
            "vllm serve m --cudagraph-capture-sizes 1 2 8192 --max-num-batched-tokens 4096 "
            "--max-model-len 2048",
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            "vllm serve m --cudagraph-capture-sizes 1 2 2 --max-num-batched-tokens 8192",
            model_config=DENSE,
            gpu="H100",
        ),
    ),
    good=(
        Example(
            "vllm serve m --cudagraph-capture-sizes 4 2 1 --max-num-batched-tokens 8192",
            model_config=DENSE,
            gpu="H100",
        ),
    ),
)
def dropped(config: ServeConfig) -> Iterator[Finding]:
    """Compare with the list that is left."""
    if not given_sizes(config):
        return
    settled = capture_sizes(config)
    if settled is None or settled.given is None or len(settled.sizes) == len(settled.given):
        return
    dest = _dest(config, SIZES)
    yield dropped.finding(
        _what_is_left(settled),
        location=config.place(dest),
        related=_places(config, _TOKENS),
        evidence={"dest": dest, "asked": list(settled.given), "effective": list(settled.sizes)},
    )


def _what_is_left(settled: CaptureSizes) -> str:
    large = sorted({entry for entry in settled.given or () if entry > settled.limit})
    if not settled.sizes:
        return f"all {SIZES} are above the {settled.limit} tokens of a batch: nothing is captured"
    if large:
        return (
            f"{', '.join(map(str, large))} of {SIZES} cannot occur, as a batch has at most "
            f"{settled.limit} tokens"
        )
    return f"{SIZES} names a size more than once"


@rule(
    id="compilation-sizes-drafts",
    title="No CUDA graph size holds the tokens that one request verifies",
    explanation="On Model Runner V1 graphs of decoding steps are captured for multiples of the "
    "drafted tokens plus 1. If the largest size is below that, the engine stops.",
    remedy="Raise `--max-cudagraph-capture-size`, or draft fewer tokens.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/compilation.py::CompilationConfig.adjust_cudagraph_sizes_for_spec_decode",
    covers=("cg-spec-no-size",),
    bad=(
        Example(
            "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m --max-cudagraph-capture-size 4 "
            "--max-num-batched-tokens 8192 --speculative-config "
            """'{"method": "ngram", "num_speculative_tokens": 5}'""",
            model_config=DENSE,
            gpu="H100",
        ),
    ),
    good=(
        Example(
            "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m --max-cudagraph-capture-size 8 "
            "--max-num-batched-tokens 8192 --speculative-config "
            """'{"method": "ngram", "num_speculative_tokens": 5}'""",
            model_config=DENSE,
            gpu="H100",
        ),
        Example(
            "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m --max-cudagraph-capture-size 4",
            model_config=DENSE,
            gpu="H100",
        ),
    ),
)
def drafts(config: ServeConfig) -> Iterator[Finding]:
    """Compare the largest size that was given with the tokens that one request verifies."""
    if given_maximum(config) is None and given_sizes(config) is None:
        return
    speculation = speculation_of(config)
    tokens = None if speculation is None else speculation.tokens
    settled = capture_sizes(config) if tokens else None
    if tokens is None or settled is None or not settled.sizes or settled.largest > tokens:
        return
    mode = graph_mode(config)
    decodes_whole = has_full(mode) or mode == DECODE_ONLY
    if decodes_whole and decide_runner(config, Moment.LAST_CHECK).version is Runner.V1:
        yield drafts.finding(
            f"the largest CUDA graph size is {settled.largest}, below the {tokens + 1} tokens that "
            "one request verifies; the engine will stop",
            location=config.place(_dest(config, MAXIMUM if settled.maximum is not None else SIZES)),
            evidence={"largest": settled.largest, "query": tokens + 1},
        )


def _dest(config: ServeConfig, name: str) -> str:
    return name if config[name] is not None else f"{CONFIG}.{name}"


def _places(config: ServeConfig, *dests: str) -> tuple[Location, ...]:
    return tuple(place for dest in dests if (place := config.place(dest)) is not None)
