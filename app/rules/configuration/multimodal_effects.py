"""What multimodal options come to: what is refused beside others, ignored, or taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from packaging.version import Version

from app.rules.configuration.example_models import ENCODER, SPEECH, VISION
from app.rules.configuration.multimodal import AREA
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.hf_config import number
from app.rules.derived.kv_transfer import kv_transfer
from app.rules.derived.model import (
    has_ability,
    hf_value,
    is_encoder_decoder,
    is_multimodal,
    is_pooling,
    model_class,
    uses_mm_prefix,
)
from app.rules.derived.multimodal import encoder_role
from app.rules.derived.parallel import data_parallel_size, uses_rust_frontend, world_size
from app.rules.derived.scheduler import max_num_batched_tokens
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag, UnsetEnvironment

_POST_INIT: Final = "vllm/config/model.py::ModelConfig.__post_init__"
_ENGINE: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_NORMALIZE: Final = "mm_device_do_normalize"
_CACHE: Final = "mm_processor_cache_gb"
_TENSORS: Final = "mm_tensor_ipc"
_WORKERS: Final = "renderer_num_workers"
_METHOD: Final = "VLLM_WORKER_MULTIPROC_METHOD"
_TP_MODE: Final = "mm_encoder_tp_mode"
_UNCHUNKED: Final = "disable_chunked_mm_input"
_TOKENS: Final = "max_num_batched_tokens"
_EMBEDS: Final = "enable_mm_embeds"
_GROUP: Final = "MultiModalConfig"
_V0_33: Final = Version("0.33.0.dev0")
_GEMMA3: Final[dict[str, Any]] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {"model_type": "gemma3_text", "sliding_window": 1024},
    "torch_dtype": "bfloat16",
}
_VISION_EMBEDDER: Final[dict[str, Any]] = {
    **VISION,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "vision_config": {"model_type": "qwen2_vl"},
}
_UNLIMITED: Final = {"architectures": ["UnlimitedOCRForCausalLM"], "model_type": "unlimited-ocr"}


@rule(
    id="multimodal-shared-tensors-ranks",
    title="Tensors in shared memory go to one rank only",
    explanation="`--mm-tensor-ipc torch_shm` hands tensors to one worker: with tensor, pipeline, "
    "prefill-context or data parallelism they would have to reach several.",
    remedy="Use `--mm-tensor-ipc direct_rpc`, or serve on one device.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/model.py::ModelConfig.verify_with_parallel_config",
    bad=(Example("vllm serve m --mm-tensor-ipc torch_shm -tp 2", model_config=VISION),),
    good=(
        Example("vllm serve m --mm-tensor-ipc torch_shm", model_config=VISION),
        Example("vllm serve m --mm-tensor-ipc torch_shm -tp 2", model_config=DENSE),
    ),
    covers=("torch-shm-multi-rank",),
)
def shared_tensors_ranks(config: ServeConfig) -> Iterator[Finding]:
    """Count the ranks."""
    if config[_TENSORS] != "torch_shm":
        return
    ranks = world_size(config) * data_parallel_size(config)
    if config["distributed_executor_backend"] == "external_launcher":
        ranks = world_size(config)
    if ranks > 1 and is_multimodal(config):
        yield shared_tensors_ranks.finding(
            f"--mm-tensor-ipc torch_shm goes to one rank, and there are {ranks}",
            location=config.place(_TENSORS),
            fix=Fix(
                "set --mm-tensor-ipc direct_rpc", (SetFlag(_TENSORS, "direct_rpc"),), safe=False
            ),
            engine_message="mm_tensor_ipc='torch_shm' is not supported with data_parallel_size > 1 "
            "or tensor_parallel_size > 1 or pipeline_parallel_size > 1.",
        )


@rule(
    id="multimodal-shared-tensors-fork",
    title="Tensors in shared memory need spawned workers",
    explanation=f"`vllm serve` spawns workers unless `{_METHOD}` says otherwise; "
    "`--mm-tensor-ipc torch_shm` fails with forked ones.",
    remedy=f"Unset `{_METHOD}`, or set it to spawn.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ENGINE,
    bad=(Example(f"{_METHOD}=fork vllm serve m --mm-tensor-ipc torch_shm", model_config=VISION),),
    good=(
        Example(f"{_METHOD}=spawn vllm serve m --mm-tensor-ipc torch_shm", model_config=VISION),
        Example("vllm serve m --mm-tensor-ipc torch_shm", model_config=VISION),
    ),
    covers=("torch-shm-spawn",),
)
def shared_tensors_fork(config: ServeConfig) -> Iterator[Finding]:
    """Look at the variable."""
    variable = config.variable(_METHOD) if config[_TENSORS] == "torch_shm" else None
    if variable is None or variable.value == "spawn" or not is_multimodal(config):
        return
    yield shared_tensors_fork.finding(
        f"{_METHOD}={variable.value}: --mm-tensor-ipc torch_shm needs spawned workers",
        location=variable.location,
        fix=Fix(f"unset {_METHOD}", (UnsetEnvironment(_METHOD),), safe=False),
        engine_message="torch_shm is known to fail without VLLM_WORKER_MULTIPROC_METHOD set to "
        "spawn",
    )


@rule(
    id="multimodal-renderer-workers",
    title="Several renderer workers share a cache that only one may use",
    explanation="Pooling models are prepared on the renderer workers, and the processor's cache "
    "(4 GiB by default) does not stand several.",
    remedy="Set `--renderer-num-workers 1`, or `--mm-processor-cache-gb 0`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example(
            "vllm serve m --runner pooling --renderer-num-workers 2", model_config=_VISION_EMBEDDER
        ),
    ),
    good=(
        Example(
            "vllm serve m --runner pooling --renderer-num-workers 2 --mm-processor-cache-gb 0",
            model_config=_VISION_EMBEDDER,
        ),
        Example("vllm serve m --renderer-num-workers 2", model_config=VISION),
        Example("vllm serve m --renderer-num-workers 2", model_config=ENCODER),
    ),
    covers=("renderer-workers-pooling-cache",),
)
def renderer_workers(config: ServeConfig) -> Iterator[Finding]:
    """Look for several workers and a cache."""
    workers, cache = config[_WORKERS], config[_CACHE]
    if not isinstance(workers, int) or workers < 2:  # one is always fine
        return
    if not isinstance(cache, int | float) or cache <= 0 or not is_pooling(config):
        return
    if not is_multimodal(config) or is_encoder_decoder(config):
        return
    yield renderer_workers.finding(
        f"{workers} renderer workers would share the processor's cache of {cache} GiB",
        location=config.place(_WORKERS),
        fix=Fix("set --renderer-num-workers 1", (SetFlag(_WORKERS, 1),), safe=False),
        engine_message="Cannot use --renderer-num-workers > 1 with the multimodal processor cache "
        "enabled for pooling models.",
    )


@rule(
    id="multimodal-text-model",
    title="Multimodal options of a model that takes text alone",
    explanation="vLLM ignores them without a word, and does not even check their values.",
    remedy="Drop the options, or serve the multimodal model.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example("""vllm serve m --limit-mm-per-prompt '{"image": 2}'""", model_config=DENSE),
        Example("vllm serve m --mm-processor-cache-gb 8", model_config=DENSE),
    ),
    good=(
        Example("""vllm serve m --limit-mm-per-prompt '{"image": 2}'""", model_config=VISION),
        Example("vllm serve m", model_config=DENSE),
    ),
    covers=("mm-settings-on-text-model",),
)
def text_model(config: ServeConfig) -> Iterator[Finding]:
    """Look for options of the multimodal configuration."""
    given = [
        dest
        for dest, flag in config.catalogue.by_dest.items()
        if flag.config_class == _GROUP and config.given(dest)
    ]
    if not given or is_multimodal(config):
        return
    names = [config.catalogue.by_dest[dest].name for dest in given]
    yield text_model.finding(
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: "
        f"{model_class(config)} takes text alone",
        location=config.place(given[0]),
        fix=Fix(f"drop {', '.join(names)}", tuple(RemoveFlag(dest) for dest in given), safe=True),
        evidence={"options": names},
    )


@rule(
    id="multimodal-encoder-split",
    title="The encoder's batch cannot be split over ranks",
    explanation="`--mm-encoder-tp-mode data` gives each rank a part of the images. A model whose "
    "encoder cannot do that splits its weights, as by default.",
    remedy="Drop `--mm-encoder-tp-mode`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(Example("vllm serve m -tp 2 --mm-encoder-tp-mode data", model_config=SPEECH),),
    good=(Example("vllm serve m -tp 2 --mm-encoder-tp-mode data", model_config=VISION),),
    covers=("mm-tp-data-unsupported",),
)
def encoder_split(config: ServeConfig) -> Iterator[Finding]:
    """Ask the model class."""
    if config[_TP_MODE] != "data" or not is_multimodal(config):
        return
    if not has_ability(config, "supports_multimodal_encoder_tp_data"):
        yield encoder_split.finding(
            f"--mm-encoder-tp-mode was set to data, but vLLM will use weights, because "
            f"{model_class(config)} does not support it",
            location=config.place(_TP_MODE),
            fix=Fix("drop --mm-encoder-tp-mode", (RemoveFlag(_TP_MODE),), safe=True),
            evidence={"asked": "data", "effective": "weights", "dest": _TP_MODE},
        )


@rule(
    id="multimodal-encoder-decoder-cache",
    title="An encoder-decoder has no processor cache",
    explanation="vLLM sets `--mm-processor-cache-gb` to 0 for encoder-decoders, such as Whisper.",
    remedy="Drop the option.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(Example("vllm serve m --mm-processor-cache-gb 8", model_config=SPEECH),),
    good=(Example("vllm serve m --mm-processor-cache-gb 8", model_config=VISION),),
    covers=("encdec-mm-cache-off",),
)
def encoder_decoder_cache(config: ServeConfig) -> Iterator[Finding]:
    """Look for a cache that was asked for."""
    cache = config[_CACHE] if config.given(_CACHE) else 0
    if isinstance(cache, int | float) and cache > 0 and is_encoder_decoder(config):
        yield encoder_decoder_cache.finding(
            f"--mm-processor-cache-gb was set to {cache}, but vLLM will use 0, because the model "
            "is an encoder-decoder",
            location=config.place(_CACHE),
            fix=Fix("drop --mm-processor-cache-gb", (RemoveFlag(_CACHE),), safe=True),
            evidence={"asked": cache, "effective": 0, "dest": _CACHE},
        )


@rule(
    id="multimodal-normalize",
    title="Images are not normalised on the device",
    explanation="`--mm-device-do-normalize` moves normalisation from the processor to the GPU. "
    "The Rust front end and most models cannot, and vLLM switches it off.",
    remedy="Drop the option.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/model.py::ModelConfig._resolve_mm_device_do_normalize",
    bad=(
        Example("vllm serve m --mm-device-do-normalize", model_config=SPEECH),
        Example(
            "VLLM_USE_RUST_FRONTEND=1 vllm serve m --mm-device-do-normalize", model_config=VISION
        ),
    ),
    good=(Example("vllm serve m", model_config=SPEECH),),
    covers=("mm-normalize-rust", "mm-normalize-model"),
)
def normalize(config: ServeConfig) -> Iterator[Finding]:
    """Ask the front end and the model class."""
    if config[_NORMALIZE] is not True or not is_multimodal(config):
        return
    if uses_rust_frontend(config):
        because = "the Rust front end does not support it"
    elif not has_ability(config, "supports_mm_device_do_normalize"):
        because = f"{model_class(config)} does not support it"
    else:
        return
    yield normalize.finding(
        f"--mm-device-do-normalize will be off because {because}",
        location=config.place(_NORMALIZE),
        fix=Fix("drop --mm-device-do-normalize", (RemoveFlag(_NORMALIZE),), safe=True),
        evidence={"asked": True, "effective": False, "dest": _NORMALIZE},
    )


@rule(
    id="multimodal-unchunked",
    title="Images of this model are not cut into steps",
    explanation="Where the tokens of an image attend to each other in both directions (Gemma 3, "
    "PaliGemma) an image has to fit one step, and vLLM sets `--disable-chunked-mm-input`.",
    remedy="Give `--max-num-batched-tokens` room for the largest image.",
    severity=Severity.INFO,
    area=AREA,
    source="vllm/platforms/cuda.py::CudaPlatformBase.check_and_update_config",
    bad=(Example("vllm serve m", model_config=_GEMMA3),),
    good=(
        Example("vllm serve m --disable-chunked-mm-input", model_config=_GEMMA3),
        Example("vllm serve m", model_config=VISION),
    ),
    covers=("mm-prefix-forces-unchunked",),
)
def unchunked(config: ServeConfig) -> Iterator[Finding]:
    """Ask how images attend."""
    if config.model_config is None or config[_UNCHUNKED] or not machine_of(config).is_cuda:
        return
    if not is_multimodal(config) or not uses_mm_prefix(config):
        return
    yield unchunked.finding(
        "vLLM will set --disable-chunked-mm-input, because images of this model attend in both "
        "directions",
        location=config.place(_UNCHUNKED) or config.place("model"),
        evidence={"asked": False, "effective": True, "dest": _UNCHUNKED},
    )


@rule(
    id="multimodal-embeddings-accepted",
    title="Embeddings are accepted as input",
    explanation="An instance that takes encoded images (an EC consumer) or KV caches from others "
    "accepts embeddings in requests, as by `--enable-mm-embeds`. A wrong shape can crash the "
    "engine, so only trusted clients should reach it.",
    remedy="Keep the instance behind the encoder and the router.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._resolve_mm_embedding_inputs",
    versions=">=0.30",
    bad=(
        Example(
            "vllm serve m --ec-transfer-config "
            """'{"ec_connector": "ECExampleConnector", "ec_role": "ec_consumer"}'""",
            model_config=VISION,
        ),
    ),
    good=(
        Example("vllm serve m", model_config=VISION),
        Example(
            "vllm serve m --enable-mm-embeds --ec-transfer-config "
            """'{"ec_connector": "ECExampleConnector", "ec_role": "ec_consumer"}'""",
            model_config=VISION,
        ),
    ),
    covers=("consumer-enables-mm-embeds",),
)
def embeddings_accepted(config: ServeConfig) -> Iterator[Finding]:
    """Look for an instance that takes what others made."""
    if config[_EMBEDS]:
        return
    moved = kv_transfer(config)
    by_encoder = encoder_role(config) in {"ec_consumer", "ec_both"}
    by_cache = moved is not None and moved.is_consumer
    if config.catalogue.version >= _V0_33 and config["language_model_only"]:
        by_cache = False
    if (by_encoder or by_cache) and is_multimodal(config):
        yield embeddings_accepted.finding(
            "vLLM will set --enable-mm-embeds, because this instance takes "
            + ("what an encoder made" if by_encoder else "KV caches from others"),
            location=config.place("ec_transfer_config" if by_encoder else "kv_transfer_config")
            or config.place("kv_offloading_size"),
            evidence={"asked": False, "effective": True, "dest": _EMBEDS},
        )


@rule(
    id="multimodal-unlimited-ocr",
    title="Unlimited-OCR does not run FlashInfer in its vision encoder",
    explanation="vLLM replaces the backend by one that the encoder's head size allows.",
    remedy="Leave `--mm-encoder-attn-backend` out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/model_executor/models/config.py::"
    "UnlimitedOCRForCausalLMConfig.verify_and_update_config",
    bad=(Example("vllm serve m --mm-encoder-attn-backend FLASHINFER", model_config=_UNLIMITED),),
    good=(Example("vllm serve m --mm-encoder-attn-backend FLASH_ATTN", model_config=_UNLIMITED),),
    covers=("unlimited-ocr-vision",),
)
def unlimited_ocr(config: ServeConfig) -> Iterator[Finding]:
    """Look for the backend, then for the model."""
    asked = config["mm_encoder_attn_backend"]
    if not isinstance(asked, str) or asked.upper() != "FLASHINFER":
        return
    if model_class(config) == "UnlimitedOCRForCausalLM":
        yield unlimited_ocr.finding(
            "--mm-encoder-attn-backend FLASHINFER is replaced for Unlimited-OCR",
            location=config.place("mm_encoder_attn_backend"),
            fix=Fix(
                "leave the backend to vLLM", (RemoveFlag("mm_encoder_attn_backend"),), safe=True
            ),
        )


@rule(
    id="multimodal-item-exceeds-batch",
    title="One image or audio clip does not fit a step",
    explanation="Where an item is not cut (`--disable-chunked-mm-input`, an encoder-decoder, "
    "images that attend in both directions) one step has to hold it whole: Whisper's clip takes "
    "`max_source_positions` tokens, an image of Gemma 3 at least `mm_tokens_per_image`. With few "
    "`--max-num-seqs` the default of the step can be below that. The engine fails at start.",
    remedy="Raise `--max-num-batched-tokens` to the size of an item.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/v1/core/encoder_cache_manager.py::compute_mm_encoder_budget",
    bad=(
        Example("vllm serve m --max-num-batched-tokens 1024", model_config=SPEECH),
        Example("vllm serve m --max-num-seqs 2", model_config=SPEECH, gpu="NVIDIA H100"),
        Example("vllm serve m --max-num-batched-tokens 128", model_config=_GEMMA3),
    ),
    good=(
        Example("vllm serve m --max-num-batched-tokens 2048", model_config=SPEECH),
        Example("vllm serve m", model_config=SPEECH, gpu="NVIDIA H100"),
        Example("vllm serve m --max-num-batched-tokens 128", model_config=VISION),
    ),
    covers=("mm-item-exceeds-batch",),
)
def item_exceeds_batch(config: ServeConfig) -> Iterator[Finding]:
    """Compare the tokens of one item, where config.json tells them, with a step."""
    if config.model_config is None or config["language_model_only"]:
        return
    whole = bool(config[_UNCHUNKED]) or is_encoder_decoder(config)
    key = "max_source_positions" if is_encoder_decoder(config) else "mm_tokens_per_image"
    item = number(hf_value(config, key))
    if item is None or not is_multimodal(config):
        return
    if not whole and not (machine_of(config).is_cuda and uses_mm_prefix(config)):
        return
    given = config[_TOKENS]
    tokens = given if isinstance(given, int) else max_num_batched_tokens(config)
    if tokens >= item:
        return
    yield item_exceeds_batch.finding(
        f"a step holds {tokens} tokens, and one item takes {item} ({key} in config.json); the "
        "engine will not start",
        location=config.place(_TOKENS) or config.place("max_num_seqs") or config.place("model"),
        fix=Fix(f"set --max-num-batched-tokens {item}", (SetFlag(_TOKENS, item),), safe=False),
        engine_message="Chunked MM input disabled but max_tokens_per_mm_item",
        evidence={_TOKENS: tokens, key: item},
    )
