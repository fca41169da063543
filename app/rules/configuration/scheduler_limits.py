"""How much one step may hold: tokens, sequences, and the parts of long prompts.

Source: `config/scheduler.py::SchedulerConfig`; what the limits are by default is in
`app.rules.derived.scheduler`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from app.rules.configuration.example_models import ENCODER, SPEECH
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import (
    architectures,
    is_encoder_decoder,
    is_pooling,
    max_model_len,
    runner_type,
)
from app.rules.derived.scheduler import (
    batch_defaults,
    chunked_prefill_supported,
    enable_chunked_prefill,
    max_num_batched_tokens,
    max_num_seqs,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag
from app.verdict.location import Location

AREA: Final = "scheduler"
_DIFFUSION: Final = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "model_type": "diffusion_gemma",
}
TOKENS: Final = "max_num_batched_tokens"
SEQUENCES: Final = "max_num_seqs"
_ACTIVE: Final = "max_num_active_seqs"
_THRESHOLD: Final = "long_prefill_token_threshold"
_CHUNKED: Final = "enable_chunked_prefill"
_VERIFY: Final = "vllm/config/scheduler.py::SchedulerConfig.verify_max_model_len"
_DEFAULTS: Final = (
    "vllm/engine/arg_utils.py::EngineArgs._set_default_max_num_seqs_and_batched_tokens_args"
)
_CHUNKING: Final = (
    "vllm/engine/arg_utils.py::EngineArgs._set_default_chunked_prefill_and_prefix_caching_args"
)
# No default of any GPU is below these (`EngineArgs.get_batch_defaults`), nor that of a batching
# all2all backend below the second.
_LEAST_TOKENS: Final = 2048
_LEAST_BATCHED_DP: Final = 256
_V0_31: Final = Version("0.31.0.dev0")
_DIFFUSION_SEQUENCES: Final = 8
_DIFFUSION_MANY: Final = 128


def _places(config: ServeConfig, *dests: str) -> tuple[Location, ...]:
    return tuple(p for p in (config.place(dest) for dest in dests) if p is not None)


@rule(
    id="scheduler-batch-below-length",
    title="A whole prompt does not fit a step",
    explanation="Where prompts cannot be cut into parts (`--no-enable-chunked-prefill`, an "
    "encoder-decoder, most embedding models), one step has to hold the longest prompt: "
    "`--max-num-batched-tokens` must not be below the model length.",
    remedy="Raise `--max-num-batched-tokens`, lower `--max-model-len`, or leave chunked prefill "
    "on where the model allows it.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example(
            "vllm serve m --no-enable-chunked-prefill --max-num-batched-tokens 4096",
            model_config=DENSE,
        ),
        Example(
            "vllm serve m --no-enable-chunked-prefill --max-num-batched-tokens 4096 "
            "--max-model-len 8k"
        ),
        Example("vllm serve m --max-num-batched-tokens 256", model_config=ENCODER),
        Example("vllm serve m --max-num-batched-tokens 256", model_config=SPEECH),
    ),
    good=(
        Example("vllm serve m --max-num-batched-tokens 4096", model_config=DENSE),
        Example("vllm serve m --no-enable-chunked-prefill", model_config=DENSE),
        Example("vllm serve m --max-num-batched-tokens 512", model_config=ENCODER),
    ),
    covers=("mbt-below-len-unchunked",),
)
def batch_below_length(config: ServeConfig) -> Iterator[Finding]:
    """Compare the step with the longest prompt where prompts are whole."""
    given = isinstance(config[TOKENS], int)
    # Left out, it is at least the length, unless chunking was asked for and is taken back.
    if not given and config[_CHUNKED] is not True:
        return
    if enable_chunked_prefill(config):
        return
    tokens, length = max_num_batched_tokens(config), max_model_len(config)
    if tokens >= length:
        return
    yield batch_below_length.finding(
        f"a step holds {tokens} tokens, and prompts of up to {length} tokens are not cut",
        location=config.place(TOKENS) or config.place("model"),
        related=_places(config, _CHUNKED, "max_model_len"),
        fix=Fix(f"set --max-num-batched-tokens {length}", (SetFlag(TOKENS, length),), safe=False),
        engine_message=f"max_num_batched_tokens ({tokens}) is smaller than max_model_len "
        f"({length}).",
        evidence={TOKENS: tokens, "max_model_len": length},
    )


@rule(
    id="scheduler-batch-below-sequences",
    title="A step holds fewer tokens than sequences",
    explanation="Every running sequence takes at least one token of a step. Where only "
    "`--max-num-seqs` is given, the tokens have a default that depends on the memory of the GPU "
    "(2048 below 70 GiB).",
    remedy="Raise `--max-num-batched-tokens`, or lower `--max-num-seqs`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example("vllm serve m --max-num-batched-tokens 128 --max-num-seqs 256"),
        Example("vllm serve m --max-num-seqs 4096", model_config=DENSE, gpu="NVIDIA L4"),
    ),
    good=(
        Example("vllm serve m --max-num-batched-tokens 256 --max-num-seqs 256"),
        Example("vllm serve m --max-num-batched-tokens 128"),
        Example("vllm serve m --max-num-seqs 4096", model_config=DENSE, gpu="NVIDIA H100"),
    ),
    covers=("mbt-below-seqs",),
)
def batch_below_sequences(config: ServeConfig) -> Iterator[Finding]:
    """Compare tokens and sequences of a step."""
    sequences = config[SEQUENCES]
    if not isinstance(sequences, int):
        return  # the default is never above the tokens
    given = isinstance(config[TOKENS], int)
    if not given and sequences <= _LEAST_BATCHED_DP:
        return
    usual = not config["enable_expert_parallel"] and machine_of(config).is_cuda_alike
    if not given and usual and sequences <= _LEAST_TOKENS:
        return
    tokens = max_num_batched_tokens(config)
    if tokens >= sequences:
        return
    yield batch_below_sequences.finding(
        f"a step holds {tokens} tokens{'' if given else ' (the default here)'}, fewer than the "
        f"{sequences} sequences of --max-num-seqs",
        location=config.place(TOKENS) or config.place(SEQUENCES),
        related=_places(config, SEQUENCES),
        fix=Fix(
            f"set --max-num-batched-tokens {sequences}",
            (SetFlag(TOKENS, sequences),),
            safe=not given,
        ),
        engine_message=f"max_num_batched_tokens ({tokens}) must be greater than or equal to "
        f"max_num_seqs ({sequences}).",
        evidence={TOKENS: tokens, SEQUENCES: sequences},
    )


@rule(
    id="scheduler-active-above-sequences",
    title="More active sequences than a step has room for",
    explanation="`--max-num-active-seqs` narrows how many requests run at once; buffers and CUDA "
    "graphs are sized by `--max-num-seqs`, so it cannot be above that.",
    remedy="Lower `--max-num-active-seqs`, or raise `--max-num-seqs`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    versions=">=0.31",
    bad=(Example("vllm serve m --max-num-seqs 64 --max-num-active-seqs 128"),),
    good=(
        Example("vllm serve m --max-num-seqs 128 --max-num-active-seqs 64"),
        Example("vllm serve m --max-num-active-seqs 64"),
    ),
    covers=("active-seqs-exceeds",),
)
def active_above_sequences(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two numbers of sequences."""
    active = config[_ACTIVE]
    if not isinstance(active, int):
        return
    asked = isinstance(config[SEQUENCES], int) or isinstance(config[TOKENS], int)
    if not asked and active <= _LEAST_BATCHED_DP and machine_of(config).is_cuda_alike:
        return
    sequences = max_num_seqs(config)
    if active <= sequences:
        return
    yield active_above_sequences.finding(
        f"--max-num-active-seqs is {active}, above the {sequences} sequences of a step",
        location=config.place(_ACTIVE),
        related=_places(config, SEQUENCES),
        fix=Fix(
            f"set --max-num-active-seqs {sequences}", (SetFlag(_ACTIVE, sequences),), safe=False
        ),
        engine_message=f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs "
        f"({sequences}).",
        evidence={_ACTIVE: active, SEQUENCES: sequences},
    )


@rule(
    id="scheduler-long-prefill-above-length",
    title="No prompt can be as long as `--long-prefill-token-threshold`",
    explanation="The threshold tells long prompts from short ones. One above the model length "
    "could never be reached, and vLLM refuses it. An encoder-decoder has none.",
    remedy="Lower the threshold, or leave it out.",
    severity=Severity.ERROR,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example(
            "vllm serve m --long-prefill-token-threshold 8193",
            model_config=DENSE,
        ),
        Example("vllm serve m --max-model-len 4096 --long-prefill-token-threshold 5000"),
    ),
    good=(
        Example("vllm serve m --long-prefill-token-threshold 8192", model_config=DENSE),
        Example("vllm serve m --long-prefill-token-threshold 9000", model_config=SPEECH),
    ),
    covers=("long-prefill-exceeds",),
)
def long_prefill_above_length(config: ServeConfig) -> Iterator[Finding]:
    """Compare the threshold with the model length."""
    threshold = config[_THRESHOLD]
    if not isinstance(threshold, int) or threshold < 1:
        return
    length = max_model_len(config)
    if threshold <= length:
        return
    if config.model_config is not None and is_encoder_decoder(config):
        return
    yield long_prefill_above_length.finding(
        f"--long-prefill-token-threshold is {threshold}, above the model length, {length}",
        location=config.place(_THRESHOLD),
        related=_places(config, "max_model_len"),
        fix=Fix("drop the threshold", (RemoveFlag(_THRESHOLD),), safe=False),
        engine_message=f"long_prefill_token_threshold ({threshold}) cannot be greater than the "
        f"max_model_len ({length}).",
        evidence={_THRESHOLD: threshold, "max_model_len": length},
    )


@rule(
    id="scheduler-batch-above-product",
    title="A step holds more tokens than all its sequences can have",
    explanation="With `--max-num-seqs` sequences of at most the model length, the rest of "
    "`--max-num-batched-tokens` is never used, but memory is set aside for it. vLLM warns.",
    remedy="Lower `--max-num-batched-tokens` to the product, or leave it out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example("vllm serve m --max-num-seqs 2 --max-model-len 1024 --max-num-batched-tokens 4096"),
    ),
    good=(
        Example("vllm serve m --max-num-seqs 4 --max-model-len 1024 --max-num-batched-tokens 4096"),
        Example("vllm serve m --max-num-seqs 2 --max-model-len 1024"),
    ),
    covers=("mbt-exceeds-product",),
)
def batch_above_product(config: ServeConfig) -> Iterator[Finding]:
    """Compare the tokens with sequences x length."""
    tokens = config[TOKENS]
    if not isinstance(tokens, int):
        return
    length = max_model_len(config)
    if tokens <= length:
        return
    sequences = max_num_seqs(config)
    if tokens <= sequences * length:
        return
    yield batch_above_product.finding(
        f"--max-num-batched-tokens is {tokens}, above {sequences} sequences x {length} tokens "
        f"= {sequences * length}",
        location=config.place(TOKENS),
        related=_places(config, SEQUENCES, "max_model_len"),
        fix=Fix("leave --max-num-batched-tokens out", (RemoveFlag(TOKENS),), safe=False),
        evidence={TOKENS: tokens, SEQUENCES: sequences, "max_model_len": length},
    )


@rule(
    id="scheduler-defaults-changed",
    title="Another option changes a default of the scheduler",
    explanation="`--performance-mode throughput` doubles the tokens and sequences of a step that "
    "nobody gave, and where only `--max-num-batched-tokens` is given the sequences are lowered to "
    "it.",
    remedy="Nothing, or say both numbers.",
    severity=Severity.INFO,
    area=AREA,
    source=_DEFAULTS,
    bad=(
        Example(
            "vllm serve m --performance-mode throughput", model_config=DENSE, gpu="NVIDIA H100"
        ),
        Example("vllm serve m --max-num-batched-tokens 64", gpu="NVIDIA H100"),
    ),
    good=(
        Example("vllm serve m", gpu="NVIDIA H100"),
        Example("vllm serve m --max-num-batched-tokens 2048", gpu="NVIDIA H100"),
    ),
    covers=("throughput-mode-doubles", "seqs-default-lowered"),
)
def defaults_changed(config: ServeConfig) -> Iterator[Finding]:
    """Tell the numbers that result."""
    throughput = config["performance_mode"] == "throughput"
    tokens = config[TOKENS]
    lowered = isinstance(tokens, int) and config[SEQUENCES] is None
    if not throughput and not lowered:
        return
    usual_tokens, usual_sequences = batch_defaults(config)
    if throughput and tokens is None:
        effective = max_num_batched_tokens(config)
        if effective > usual_tokens:
            yield defaults_changed.finding(
                f"a step will hold {effective} tokens instead of {usual_tokens}, because of "
                "--performance-mode throughput",
                location=config.place("performance_mode"),
                evidence={"asked": None, "effective": effective, "dest": TOKENS},
            )
    if config[SEQUENCES] is None:
        sequences = max_num_seqs(config)
        if sequences != usual_sequences:
            because = "--performance-mode throughput"
            if sequences < usual_sequences and lowered:
                because = f"--max-num-batched-tokens {tokens}"
            yield defaults_changed.finding(
                f"a step will hold {sequences} sequences instead of {usual_sequences}, because "
                f"of {because}",
                location=config.place(TOKENS) or config.place("performance_mode"),
                evidence={"asked": None, "effective": sequences, "dest": SEQUENCES},
            )


@rule(
    id="scheduler-chunked-prefill-off",
    title="Chunked prefill is switched off for a model that generates",
    explanation="vLLM does not officially support that and warns: the engine may crash or give "
    "wrong output.",
    remedy="Leave chunked prefill on.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CHUNKING,
    bad=(Example("vllm serve m --no-enable-chunked-prefill", model_config=DENSE),),
    good=(
        Example("vllm serve m", model_config=DENSE),
        Example("vllm serve m --no-enable-chunked-prefill", model_config=SPEECH),
        Example("vllm serve m --no-enable-chunked-prefill", model_config=ENCODER),
    ),
    covers=("chunked-prefill-off-generate",),
)
def chunked_prefill_off(config: ServeConfig) -> Iterator[Finding]:
    """Look for a model that takes prompts in parts."""
    if config[_CHUNKED] is not False or runner_type(config) != "generate":
        return
    if chunked_prefill_supported(config):
        yield chunked_prefill_off.finding(
            "--no-enable-chunked-prefill: vLLM warns that this model may crash or give wrong "
            "output without chunked prefill",
            location=config.place(_CHUNKED),
            fix=Fix("leave chunked prefill on", (RemoveFlag(_CHUNKED),), safe=False),
        )


@rule(
    id="scheduler-chunked-prefill-pooling",
    title="Chunked prefill is forced on a pooling model",
    explanation="A model that attends in both directions, or pools over all tokens, needs whole "
    "prompts. vLLM warns of crashes and wrong output; a model without any KV cache has chunked "
    "prefill taken back when the engine starts.",
    remedy="Leave `--enable-chunked-prefill` out.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CHUNKING,
    bad=(Example("vllm serve m --enable-chunked-prefill", model_config=ENCODER),),
    good=(
        Example("vllm serve m", model_config=ENCODER),
        Example("vllm serve m --enable-chunked-prefill", model_config=DENSE),
    ),
    covers=("chunked-prefill-on-pooling", "no-kv-chunked-off"),
)
def chunked_prefill_pooling(config: ServeConfig) -> Iterator[Finding]:
    """Look for a pooling model that needs whole prompts."""
    if config[_CHUNKED] is not True or not is_pooling(config):
        return
    if not chunked_prefill_supported(config):
        yield chunked_prefill_pooling.finding(
            "--enable-chunked-prefill: this pooling model needs whole prompts",
            location=config.place(_CHUNKED),
            fix=Fix("leave it to the model", (RemoveFlag(_CHUNKED),), safe=False),
        )


@rule(
    id="scheduler-encoder-decoder",
    title="An encoder-decoder takes whole prompts",
    explanation="For an encoder-decoder, such as Whisper, vLLM switches chunked prefill off and "
    "sets the threshold of long prompts to 0, whatever was asked for.",
    remedy="Leave the options out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/scheduler.py::SchedulerConfig.__post_init__",
    bad=(
        Example("vllm serve m --enable-chunked-prefill", model_config=SPEECH),
        Example("vllm serve m --long-prefill-token-threshold 100", model_config=SPEECH),
    ),
    good=(
        Example("vllm serve m", model_config=SPEECH),
        Example("vllm serve m --enable-chunked-prefill", model_config=DENSE),
    ),
    covers=("encdec-scheduler-forced",),
)
def encoder_decoder(config: ServeConfig) -> Iterator[Finding]:
    """Tell what is taken back."""
    threshold = config[_THRESHOLD]
    asked: list[tuple[str, object, object]] = []
    if config[_CHUNKED] is True:
        asked.append((_CHUNKED, True, False))
    if isinstance(threshold, int) and threshold > 0:
        asked.append((_THRESHOLD, threshold, 0))
    if not asked or not is_encoder_decoder(config):
        return
    for dest, value, effective in asked:
        name = config.catalogue.by_dest[dest].name
        yield encoder_decoder.finding(
            f"{name} was set to {value}, but vLLM will use {effective}, because an "
            "encoder-decoder takes whole prompts",
            location=config.place(dest),
            fix=Fix(f"drop {name}", (RemoveFlag(dest),), safe=True),
            evidence={"asked": value, "effective": effective, "dest": dest},
        )


@rule(
    id="scheduler-diffusion-sequences",
    title="DiffusionGemma runs at most 8 sequences",
    explanation="Sampling of DiffusionGemma needs much memory. vLLM takes 128 or more sequences "
    "for the default and uses 8, even where the number was asked for.",
    remedy="Give a number below 128, or leave it out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/model_executor/models/config.py::"
    "DiffusionGemmaModelForBlockDiffusionConfig.verify_and_update_config",
    bad=(
        Example(
            "vllm serve m --max-num-seqs 256",
            model_config=_DIFFUSION,
        ),
    ),
    good=(
        Example(
            "vllm serve m --max-num-seqs 16",
            model_config=_DIFFUSION,
        ),
        Example("vllm serve m --max-num-seqs 256", model_config=DENSE),
    ),
    covers=("diffusiongemma-seqs",),
)
def diffusion_sequences(config: ServeConfig) -> Iterator[Finding]:
    """Look for a number that counts as the default."""
    sequences = config[SEQUENCES]
    if not isinstance(sequences, int) or sequences < _DIFFUSION_MANY:
        return
    if config.model_config is None:
        return
    classes = config.catalogue.registries.get("arch_specific_config", {})
    taken = {classes.get(name) for name in architectures(config)}
    if "DiffusionGemmaModelForBlockDiffusionConfig" not in taken:
        return
    yield diffusion_sequences.finding(
        f"--max-num-seqs is {sequences}, but vLLM will use {_DIFFUSION_SEQUENCES}, because it "
        f"takes {_DIFFUSION_MANY} and more for the default of this model",
        location=config.place(SEQUENCES),
        fix=Fix(
            f"set --max-num-seqs {_DIFFUSION_SEQUENCES}",
            (SetFlag(SEQUENCES, _DIFFUSION_SEQUENCES),),
            safe=False,
        ),
        evidence={"asked": sequences, "effective": _DIFFUSION_SEQUENCES, "dest": SEQUENCES},
    )
