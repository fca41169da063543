"""Values that a model does not run with: dtypes, tokenizer and config formats, embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.configuration.example_models import SPEECH
from app.rules.configuration.model_length import AREA
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.hf_config import knows_model_type
from app.rules.derived.model import (
    checkpoint_dtype,
    hf_value,
    is_encoder_decoder,
    model_class,
    text_value,
)
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetEnvironment, SetFlag, UnsetEnvironment


def _class_names(config: ServeConfig) -> tuple[str, ...]:
    """Give the model classes that config.json names, where it does."""
    names = hf_value(config, "architectures")
    return tuple(n for n in names if isinstance(n, str)) if isinstance(names, list) else ()


_NAMES: Final = {"half": "float16", "float": "float32"}
_HALF_WIDTH: Final = frozenset({"float16", "bfloat16"})
_DTYPES: Final = frozenset({*_HALF_WIDTH, "half", "float", "float32"})
_WORKERS: Final = "VLLM_WORKER_MULTIPROC_METHOD"
_IN_PROCESS: Final = "VLLM_ENABLE_V1_MULTIPROCESSING"
_REGISTER: Final = "NCCL_GRAPH_REGISTER"
_GEMMA2: Final[dict[str, Any]] = {
    **DENSE,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
}
_SPARSE: Final[dict[str, Any]] = {
    **DENSE,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@rule(
    id="model-float16",
    title="The model does not run in float16",
    explanation="Gemma 2 and 3, GLM-4 and others overflow in float16, so vLLM refuses it for "
    "their model types.",
    remedy="Use `--dtype bfloat16` (or float32 on a GPU without it).",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::_check_valid_dtype",
    bad=(
        Example("vllm serve m --dtype float16", model_config=_GEMMA2),
        Example("vllm serve m --dtype half", model_config=_GEMMA2),
    ),
    good=(
        Example("vllm serve m --dtype bfloat16", model_config=_GEMMA2),
        Example("vllm serve m --dtype float16", model_config=DENSE),
    ),
    covers=("float16-model-unsupported",),
)
def float16(config: ServeConfig) -> Iterator[Finding]:
    """Look the model type up."""
    asked = config["dtype"]
    if not isinstance(asked, str) or asked.lower() not in {"float16", "half"}:
        return
    kind = hf_value(config, "model_type")
    if kind not in config.catalogue.model_facts.float16_refused:
        return
    yield float16.finding(
        f"--dtype {asked}: {kind} models do not run in float16",
        location=config.place("dtype"),
        fix=Fix("set --dtype bfloat16", (SetFlag("dtype", "bfloat16"),), safe=False),
        engine_message=f"The model type {kind!r} does not support float16.",
    )


@rule(
    id="model-dtype-cast",
    title="Weights are cast to another 16-bit dtype",
    explanation="float16 has more precision and less range than bfloat16. Casting one to the "
    "other changes the model; vLLM warns.",
    remedy="Leave `--dtype` out, unless the GPU has no bfloat16.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/model.py::_get_and_verify_dtype",
    bad=(Example("vllm serve m --dtype float16", model_config=DENSE),),
    good=(
        Example("vllm serve m --dtype bfloat16", model_config=DENSE),
        Example("vllm serve m --dtype float32", model_config=DENSE),
    ),
    covers=("dtype-cast",),
)
def dtype_cast(config: ServeConfig) -> Iterator[Finding]:
    """Compare the dtype with that of the checkpoint."""
    asked = config["dtype"]
    asked = _NAMES.get(asked.lower(), asked.lower()) if isinstance(asked, str) else None
    if asked not in _HALF_WIDTH:
        return
    found = checkpoint_dtype(config)
    if found not in _HALF_WIDTH or found == asked:
        return
    yield dtype_cast.finding(
        f"the weights are {found} and will be cast to {asked}",
        location=config.place("dtype"),
        fix=Fix("leave the dtype to the checkpoint", (RemoveFlag("dtype"),), safe=False),
        evidence={"asked": asked, "checkpoint": found},
    )


@rule(
    id="model-head-dtype",
    title="`head_dtype` names no dtype",
    explanation="`head_dtype` in config.json (or `--hf-overrides`) says what the output layer "
    "computes in: `model`, or a dtype. Anything else fails when the model is loaded.",
    remedy="Say `model`, bfloat16, float16 or float32.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/model.py::_get_head_dtype",
    bad=(Example("""vllm serve m --hf-overrides '{"head_dtype": "fp32"}'"""),),
    good=(Example("""vllm serve m --hf-overrides '{"head_dtype": "float32"}'"""),),
    covers=("head-dtype-unknown",),
)
def head_dtype(config: ServeConfig) -> Iterator[Finding]:
    """Look the dtype up."""
    asked = config["hf_overrides.head_dtype"]
    if asked is None and config.model_config is not None:
        asked = config.model_config.get("head_dtype")
    if not isinstance(asked, str) or asked == "model" or asked.lower() in _DTYPES:
        return
    yield head_dtype.finding(
        f"head_dtype is {asked!r}, which is no dtype; the model will not load",
        location=config.place("hf_overrides") or config.place("model"),
        engine_message=f"Unknown dtype: {asked.lower()!r}",
    )


@rule(
    id="model-config-format",
    title="`--config-format` names no format",
    explanation="The format says how the model's configuration is read: `auto`, `hf` "
    "(config.json) or `mistral` (params.json).",
    remedy="Leave the option out.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/transformers_utils/config.py::get_config_parser",
    bad=(Example("vllm serve m --config-format huggingface"),),
    good=(Example("vllm serve m --config-format hf"), Example("vllm serve m")),
    covers=("config-format-unknown",),
)
def config_format(config: ServeConfig) -> Iterator[Finding]:
    """Look the format up."""
    asked, known = config["config_format"], config.catalogue.registries.get("config_formats")
    if not isinstance(asked, str) or known is None or asked in {"auto", *known}:
        return
    yield config_format.finding(
        f"--config-format {asked} is none of auto, {', '.join(known)}",
        location=config.place("config_format"),
        fix=Fix("leave the format to vLLM", (RemoveFlag("config_format"),), safe=False),
        engine_message=f"Unknown config format `{asked}`.",
    )


@rule(
    id="model-tokenizer-mode",
    title="`--tokenizer-mode` names no tokenizer",
    explanation="The name is looked up when the tokenizer is loaded, after the engine was set up: "
    "what is none of vLLM's tokenizers (and of no plugin) fails there.",
    remedy="Leave the option out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/tokenizers/registry.py::_TokenizerRegistry.load_tokenizer_cls",
    bad=(Example("vllm serve m --tokenizer-mode fast"),),
    good=(Example("vllm serve m --tokenizer-mode hf"), Example("vllm serve m")),
    covers=("tokenizer-mode-unknown",),
)
def tokenizer_mode(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up."""
    asked, known = config["tokenizer_mode"], config.catalogue.registries.get("tokenizer_modes")
    if not isinstance(asked, str) or known is None or asked in {"auto", "slow", *known}:
        return
    if config["model_impl"] == "terratorch":
        return
    yield tokenizer_mode.finding(
        f"--tokenizer-mode {asked} is none of auto, {', '.join(known)}",
        location=config.place("tokenizer_mode"),
        fix=Fix("leave the tokenizer to vLLM", (RemoveFlag("tokenizer_mode"),), safe=False),
        engine_message=f"No tokenizer registered for tokenizer_mode={asked!r}.",
    )


@rule(
    id="model-prompt-embeds-encoder-decoder",
    title="Prompt embeddings do not go with an encoder-decoder",
    explanation="Encoder-decoders embed tokens inside the decoder and take no embeddings as input.",
    remedy="Drop `--enable-prompt-embeds`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.validate_model_config_after",
    versions=">=0.29",
    bad=(Example("vllm serve m --enable-prompt-embeds", model_config=SPEECH),),
    good=(
        Example("vllm serve m --enable-prompt-embeds", model_config=DENSE),
        Example("vllm serve m", model_config=SPEECH),
    ),
    covers=("prompt-embeds-encdec",),
)
def prompt_embeds(config: ServeConfig) -> Iterator[Finding]:
    """Look for an encoder-decoder."""
    if config["enable_prompt_embeds"] and is_encoder_decoder(config):
        yield prompt_embeds.finding(
            "--enable-prompt-embeds does not go with an encoder-decoder",
            location=config.place("enable_prompt_embeds"),
            fix=Fix(
                "drop --enable-prompt-embeds", (RemoveFlag("enable_prompt_embeds"),), safe=False
            ),
            engine_message="--enable-prompt-embeds is not supported with encoder-decoder models.",
        )


@rule(
    id="model-sparse-attention-index",
    title="DeepSeek V3.2 without `index_topk`",
    explanation="The sparse attention of DeepSeek V3.2 picks `index_topk` tokens; without the key "
    "the checkpoint is one of V3 and vLLM stops at an assertion.",
    remedy="Take the checkpoint's own config.json, or the class of DeepSeek V3.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/models/config.py::DeepseekV32ForCausalLM.verify_and_update_config",
    bad=(Example("vllm serve m", model_config=_SPARSE),),
    good=(Example("vllm serve m", model_config={**_SPARSE, "index_topk": 2048}),),
    covers=("dsv32-index",),
)
def sparse_attention_index(config: ServeConfig) -> Iterator[Finding]:
    """Look for the key of the sparse attention."""
    if config.model_config is None or "index_topk" in config.model_config:
        return
    classes = config.catalogue.registries.get("arch_specific_config", {})
    named = hf_value(config, "architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if "DeepseekV32ForCausalLM" not in map(classes.get, names):
        return
    if classes.get(model_class(config)) != "DeepseekV32ForCausalLM":
        return
    if knows_model_type(config) and hf_value(config, "index_topk") is None:
        yield sparse_attention_index.finding(
            "config.json has no index_topk, which DeepSeek V3.2 needs",
            location=config.place("hf_overrides") or config.place("model"),
        )


@rule(
    id="model-qwen4-streams",
    title="Qwen4-Exp needs more than one residual stream",
    explanation="The hyper-connections of Qwen4-Exp mix `hc_count` streams; 1 would be none.",
    remedy="Take `hc_count` out of `--hf-overrides`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/models/config.py::"
    "Qwen4ExpForConditionalGenerationConfig.verify_and_update_config",
    versions=">=0.29",
    bad=(
        Example(
            "vllm serve m",
            model_config={
                "architectures": ["Qwen4ExpForConditionalGeneration"],
                "model_type": "qwen4_exp",
                "text_config": {"model_type": "qwen4_exp_text", "hc_count": 1},
            },
        ),
    ),
    good=(
        Example(
            "vllm serve m",
            model_config={
                "architectures": ["Qwen4ExpForConditionalGeneration"],
                "model_type": "qwen4_exp",
                "text_config": {"model_type": "qwen4_exp_text", "hc_count": 4},
            },
        ),
    ),
    covers=("qwen4exp-hc",),
)
def qwen4_streams(config: ServeConfig) -> Iterator[Finding]:
    """Look for one stream."""
    if config.model_config is None or "qwen4_exp" not in str(hf_value(config, "model_type")):
        return
    streams = text_value(config, "hc_count")
    if isinstance(streams, int) and streams <= 1:
        yield qwen4_streams.finding(
            f"hc_count is {streams}, and Qwen4-Exp needs 2 or more",
            location=config.place("hf_overrides") or config.place("model"),
            engine_message="requires hc_count > 1",
        )


@rule(
    id="model-seed-shared",
    title="The seed is that of the whole server process",
    explanation=f"With `{_IN_PROCESS}=0` the engine runs inside the API server, so that `--seed` "
    "sets the random state of everything in that process.",
    remedy=f"Unset `{_IN_PROCESS}`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/engine/arg_utils.py::EngineArgs.create_model_config",
    bad=(Example(f"{_IN_PROCESS}=0 vllm serve m"),),
    good=(Example(f"{_IN_PROCESS}=1 vllm serve m"),),
    covers=("v1-multiprocessing-off-seed",),
)
def seed_shared(config: ServeConfig) -> Iterator[Finding]:
    """Look at the variable."""
    variable = config.variable(_IN_PROCESS)
    if variable is not None and variable.value.strip() == "0":
        yield seed_shared.finding(
            f"{_IN_PROCESS}=0: the seed {config['seed']} is set for the whole server process",
            location=variable.location,
            fix=Fix(f"unset {_IN_PROCESS}", (UnsetEnvironment(_IN_PROCESS),), safe=False),
        )


@rule(
    id="model-whisper-fork",
    title="Whisper may hang with forked workers",
    explanation=f"`vllm serve` starts workers anew (spawn) unless `{_WORKERS}` says otherwise. "
    "Whisper is known to hang at start with forked ones.",
    remedy=f"Unset `{_WORKERS}`, or set it to spawn.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    bad=(Example(f"{_WORKERS}=fork vllm serve m", model_config=SPEECH),),
    good=(
        Example(f"{_WORKERS}=spawn vllm serve m", model_config=SPEECH),
        Example(f"{_WORKERS}=fork vllm serve m", model_config=DENSE),
    ),
    covers=("whisper-spawn",),
)
def whisper_fork(config: ServeConfig) -> Iterator[Finding]:
    """Look at the variable, then at the model."""
    variable = config.variable(_WORKERS)
    if variable is None or variable.value == "spawn":
        return
    if "WhisperForConditionalGeneration" not in _class_names(config):
        return
    yield whisper_fork.finding(
        f"{_WORKERS}={variable.value}: Whisper may hang at start",
        location=variable.location,
        fix=Fix(f"set {_WORKERS}=spawn", (SetEnvironment(_WORKERS, "spawn"),), safe=False),
    )


@rule(
    id="model-sleep-graph-register",
    title="NCCL pins the CUDA graphs that sleep mode would take out",
    explanation="With `--sleep-mode-offload-cudagraph` the memory of CUDA graphs goes to the host "
    f"during sleep. vLLM sets `{_REGISTER}=0` for that; another value keeps the memory where it "
    "is.",
    remedy=f"Unset `{_REGISTER}`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    versions=">=0.32",
    bad=(
        Example(f"{_REGISTER}=1 vllm serve m --enable-sleep-mode --sleep-mode-offload-cudagraph"),
    ),
    good=(
        Example("vllm serve m --enable-sleep-mode --sleep-mode-offload-cudagraph"),
        Example(f"{_REGISTER}=1 vllm serve m --enable-sleep-mode"),
    ),
    covers=("nccl-graph-register",),
)
def sleep_graph_register(config: ServeConfig) -> Iterator[Finding]:
    """Look at the variable where graphs are taken out."""
    if not config["sleep_mode_offload_cudagraph"] or not config["enable_sleep_mode"]:
        return
    variable = config.variable(_REGISTER)
    if variable is None or variable.value == "0" or config["enforce_eager"]:
        return
    yield sleep_graph_register.finding(
        f"{_REGISTER}={variable.value} keeps the CUDA graphs in memory during sleep",
        location=variable.location,
        fix=Fix(f"unset {_REGISTER}", (UnsetEnvironment(_REGISTER),), safe=False),
    )


@rule(
    id="model-sleep-platform",
    title="A CPU has no sleep mode",
    explanation="Sleep mode and the cumem allocator take GPU memory away and give it back; vLLM "
    "refuses them on the CPU.",
    remedy="Drop the option.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.__post_init__",
    bad=(
        Example("vllm serve m --enable-sleep-mode", gpu="cpu"),
        Example("vllm serve m --enable-cumem-allocator", gpu="cpu"),
    ),
    good=(
        Example("vllm serve m --enable-sleep-mode", gpu="NVIDIA H100"),
        Example("vllm serve m", gpu="cpu"),
    ),
)
def sleep_platform(config: ServeConfig) -> Iterator[Finding]:
    """Look for the options on a CPU."""
    sleeps = bool(config["enable_sleep_mode"])
    dest = "enable_sleep_mode" if sleeps else "enable_cumem_allocator"
    if not config[dest] or not machine_of(config).is_cpu:
        return
    name = config.catalogue.by_dest[dest].name
    yield sleep_platform.finding(
        f"{name} is for GPUs, and this is a CPU",
        location=config.place(dest),
        fix=Fix(f"drop {name}", (RemoveFlag(dest),), safe=False),
        engine_message="Sleep mode is not supported on current platform."
        if sleeps
        else "cumem allocator is not supported on current platform.",
    )
