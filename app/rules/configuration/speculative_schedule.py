"""What drafting takes of a batch, and schedules that draft fewer tokens in larger batches.

Source: `config/vllm.py::VllmConfig.__post_init__` and what it calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from packaging.version import Version

from app.rules.configuration.speculative_method import AREA, DEEPSEEK, DENSE, NGRAM, command
from app.rules.declaration import Example
from app.rules.derived.cuda_graphs import first_graphs, has_full
from app.rules.derived.scheduler import max_num_batched_tokens
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import RUNNER_VARIABLE
from app.rules.speculation import Speculation, draft_slots, speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

_SCHEDULED: Final = "vllm/config/vllm.py::VllmConfig._set_max_num_scheduled_tokens"
_DYNAMIC: Final = (
    '"method": "ngram", "num_speculative_tokens": 4, '
    '"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 1]]'
)
_SCHEDULE: Final = "num_speculative_tokens_per_batch_size"
_COMFORTABLE: Final = 8192


@rule(
    id="speculative-no-slots",
    title="The batch has no room for drafted tokens",
    explanation="Drafting takes rows of a batch besides those of the target: one a request for a "
    "draft model, one for each token of parallel drafting. `--max-num-batched-tokens` must be "
    "above that. From 0.33 vLLM compares with the lookahead instead: the drafted tokens of "
    "EAGLE-like and draft-model methods, one more for DFlash.",
    remedy="Raise `--max-num-batched-tokens`, or draft fewer tokens.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SCHEDULED,
    versions=">=0.28",
    covers=("spec-no-slots",),
    bad=(
        Example(
            command(
                '"model": "draft", "num_speculative_tokens": 8, "parallel_drafting": true',
                "--max-num-batched-tokens 8 --max-num-seqs 1 --max-model-len 8",
            ),
            draft_model_config={**DENSE, "vocab_size": 128256},
        ),
    ),
    good=(
        Example(
            command(
                '"model": "draft", "num_speculative_tokens": 8, "parallel_drafting": true',
                "--max-num-batched-tokens 16 --max-num-seqs 1 --max-model-len 16",
            ),
            draft_model_config={**DENSE, "vocab_size": 128256},
        ),
        Example(f"vllm serve m {NGRAM}"),
    ),
)
def no_slots(config: ServeConfig) -> Iterator[Finding]:
    """Compare the batch with what drafting takes of it."""
    speculation = speculation_of(config)
    tokens = None if speculation is None else speculation.tokens
    if speculation is None or tokens is None or speculation.requested in _NO_SLOTS:
        return
    batch = config["max_num_batched_tokens"]
    if not isinstance(batch, int):
        return  # the default is thousands
    if batch > tokens + 1:
        return
    lookahead = config.catalogue.version >= Version("0.33.0.dev0")
    taken = _lookahead(speculation, tokens) if lookahead else draft_slots(config)
    if batch > taken:
        return
    named = "num_lookahead_tokens" if lookahead else "scheduled_token_delta"
    yield no_slots.finding(
        f"a batch has {batch} tokens, and drafting {tokens} tokens with the method "
        f"{speculation.method} takes {taken} of them",
        location=config.place("max_num_batched_tokens"),
        related=tuple(p for p in (speculation.place,) if p is not None),
        fix=Fix(
            "leave --max-num-batched-tokens at its default",
            (RemoveFlag("max_num_batched_tokens"),),
            safe=False,
        ),
        engine_message=f"Got max_num_batched_tokens={batch} and {named}={taken}.",
        evidence={"max_num_batched_tokens": batch, named: taken},
    )


_NO_SLOTS: Final = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class"})


def _lookahead(speculation: Speculation, tokens: int) -> int:
    """`VllmConfig.num_lookahead_tokens` of 0.33."""
    method = speculation.method
    if method == "dflash":
        return tokens + 1
    if method == "dspark":
        anchored = speculation.draft.values.get("sample_from_anchor", True)
        return tokens if anchored else tokens + 1
    return tokens if method in {"eagle", "eagle3", "mtp", "draft_model"} else 0


@rule(
    id="speculative-small-batch",
    title="Few tokens a step for speculative decoding",
    explanation="vLLM warns where fewer than 8192 tokens can be scheduled in a step with "
    "speculative decoding, as drafted tokens compete with prompts for them. The default depends "
    "on the memory of the GPU.",
    remedy="Raise `--max-num-batched-tokens`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SCHEDULED,
    versions=">=0.28",
    covers=("spec-scheduled-tokens-low",),
    bad=(Example(f"vllm serve m --max-num-batched-tokens 4096 {NGRAM}"),),
    good=(
        Example(f"vllm serve m --max-num-batched-tokens 8192 {NGRAM}"),
        Example("vllm serve m --max-num-batched-tokens 4096"),
    ),
)
def small_batch(config: ServeConfig) -> Iterator[Finding]:
    """Compare the scheduled tokens with the number that vLLM recommends."""
    speculation = speculation_of(config)
    if speculation is None:
        return
    scheduled = config["max_num_scheduled_tokens"]
    dest = "max_num_scheduled_tokens"
    if not isinstance(scheduled, int):
        scheduled, dest = max_num_batched_tokens(config), "max_num_batched_tokens"
    if 0 < scheduled < _COMFORTABLE:
        yield small_batch.finding(
            f"a step schedules at most {scheduled} tokens ({dest}); with speculative decoding "
            f"{_COMFORTABLE} or more are recommended",
            location=config.place(dest) or speculation.place,
            evidence={dest: scheduled},
        )


@rule(
    id="speculative-schedule-data-parallel",
    title="A drafting schedule is dropped with data parallelism",
    explanation="`num_speculative_tokens_per_batch_size` drafts fewer tokens in larger batches. "
    "Data-parallel ranks could choose different numbers and wait for each other forever, so vLLM "
    "drops the schedule where there is more than one.",
    remedy="Drop the schedule, or serve with one data-parallel rank.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._maybe_disable_dynamic_sd_for_data_parallel",
    versions=">=0.28",
    covers=("dynamic-sd-dp",),
    bad=(Example(command(_DYNAMIC, "-dp 2"), model_config=DEEPSEEK),),
    good=(Example(command(_DYNAMIC)),),
)
def schedule_data_parallel(config: ServeConfig) -> Iterator[Finding]:
    """Look for more than one rank."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value(_SCHEDULE) is None:
        return
    ranks = config["data_parallel_size"]
    if isinstance(ranks, int) and ranks > 1:
        yield schedule_data_parallel.finding(
            f"the schedule {_SCHEDULE} is dropped because there are {ranks} data-parallel ranks; "
            f"{speculation.tokens} tokens are drafted in every batch",
            **_dropped_schedule(config, speculation),
        )


def _dropped_schedule(config: ServeConfig, speculation: Speculation) -> dict[str, Any]:
    dest = f"speculative_config.{_SCHEDULE}"
    return {
        "location": config.place("speculative_config"),
        "fix": Fix("drop the schedule", (RemoveFlag(dest),), safe=False),
        "evidence": {"asked": speculation.value(_SCHEDULE), "effective": None, "dest": dest},
    }


@rule(
    id="speculative-schedule-runner",
    title="A drafting schedule is dropped on Model Runner V1",
    explanation="From 0.33 only n-gram, EAGLE, MTP, draft-model and DFlash proposers of Model "
    "Runner V1 can draft a varying number of tokens. With another method the schedule is dropped.",
    remedy="Run on Model Runner V2, or drop the schedule.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._maybe_disable_dynamic_sd_for_v1",
    versions=">=0.33",
    bad=(
        Example(
            command(
                '"model": "pkg.module.Proposer", "num_speculative_tokens": 4, '
                '"num_speculative_tokens_per_batch_size": [[1, 8, 4]]'
            )
        ),
    ),
    good=(Example(f"{RUNNER_VARIABLE}=0 {command(_DYNAMIC)}"),),
)
def schedule_runner(config: ServeConfig) -> Iterator[Finding]:
    """Look for a method whose proposer drafts a fixed number."""
    speculation = _scheduled(config)
    if speculation is None or speculation.method in _V1_SCHEDULES:
        return
    decision = decide_runner(config)
    if decision.version is Runner.V1:
        yield schedule_runner.finding(
            f"the schedule {_SCHEDULE} is dropped: the method {speculation.method} on Model "
            f"Runner V1 drafts {speculation.tokens} tokens in every batch",
            **_dropped_schedule(config, speculation),
        )


_V1_SCHEDULES: Final = frozenset({"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"})


def _scheduled(config: ServeConfig) -> Speculation | None:
    """Give the speculation where it has a schedule that data parallelism leaves alone."""
    speculation = speculation_of(config)
    if speculation is None or speculation.value(_SCHEDULE) is None:
        return None
    ranks = config["data_parallel_size"]
    return None if isinstance(ranks, int) and ranks > 1 else speculation


@rule(
    id="speculative-schedule-graphs",
    title="A drafting schedule lowers CUDA graphs to PIECEWISE",
    explanation="With `num_speculative_tokens_per_batch_size` the number of verified tokens "
    "varies from step to step. On Model Runner V1 vLLM then gives up full CUDA graphs.",
    remedy="Run on Model Runner V2 (`VLLM_USE_V2_MODEL_RUNNER=1`), or drop the schedule.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._maybe_override_dynamic_sd_cudagraph_mode",
    versions=">=0.28",
    covers=("dynamic-sd-piecewise",),
    bad=(Example(f"{RUNNER_VARIABLE}=0 {command(_DYNAMIC)}"),),
    good=(
        Example(f"{RUNNER_VARIABLE}=0 {command(_DYNAMIC, '--enforce-eager')}"),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m {NGRAM}"),
    ),
)
def schedule_graphs(config: ServeConfig) -> Iterator[Finding]:
    """Look for full graphs on V1."""
    speculation = _scheduled(config)
    if speculation is None or config["enforce_eager"]:
        return
    mode = first_graphs(config)
    if not has_full(mode):
        return
    dropped = config.catalogue.version >= Version("0.33.0.dev0")
    if dropped and speculation.method not in _V1_SCHEDULES:
        return
    decision = decide_runner(config)
    if decision.version is not Runner.V1:
        return
    dest = "compilation_config.cudagraph_mode"
    given = config[dest] is not None
    yield schedule_graphs.finding(
        f"the CUDA graph mode is {mode}{'' if given else ' (the default)'}, but vLLM will use "
        f"PIECEWISE, because {_SCHEDULE} changes the verified length on Model Runner V1",
        location=config.place("speculative_config"),
        fix=Fix(
            "set cudagraph_mode to PIECEWISE",
            (SetFlag(dest, "PIECEWISE"),),
            safe=False,
        ),
        evidence={"asked": mode, "effective": "PIECEWISE", "dest": dest},
    )
