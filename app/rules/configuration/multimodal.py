"""Options of multimodal models that vLLM checks itself: encoder attention, caches, limits.

They are checked for multimodal models only; a model that takes text alone ignores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.rules.configuration.example_models import VISION
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.derived.model import is_multimodal
from app.rules.derived.multimodal import encodes_only
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "multimodal"
_CLASS: Final = "vllm/config/multimodal.py::MultiModalConfig"
_ATTENTION: Final = "mm_encoder_attn_backend"
_SHM_SIZE: Final = "mm_shm_cache_max_object_size_mb"
_CACHE_TYPE: Final = "mm_processor_cache_type"
_FP8: Final = "mm_encoder_attn_dtype"
_SCALES: Final = "mm_encoder_fp8_scale_path"
_SAVED: Final = "mm_encoder_fp8_scale_save_path"
_LIMITS: Final = "limit_mm_per_prompt"
_PROCESSOR: Final = "mm_processor_kwargs"
_DEVICE: Final = "mm_processor_device"
_OPTIONS: Final = {
    "image": ("count", "width", "height"),
    "video": ("count", "num_frames", "width", "height"),
    "audio": ("count", "length"),
}


@rule(
    id="multimodal-encoder-backend",
    title="`--mm-encoder-attn-backend` names no backend",
    explanation="The attention of the vision encoder takes one of vLLM's attention backends. "
    "xFormers was removed. Text models ignore the option.",
    remedy="Take a backend that this vLLM has, such as FLASH_ATTN, or leave the option out.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_mm_encoder_attn_backend",
    bad=(
        Example("vllm serve m --mm-encoder-attn-backend XFORMERS", model_config=VISION),
        Example("vllm serve m --mm-encoder-attn-backend FLASHATTN", model_config=VISION),
    ),
    good=(
        Example("vllm serve m --mm-encoder-attn-backend flash_attn", model_config=VISION),
        Example("vllm serve m --mm-encoder-attn-backend XFORMERS", model_config=DENSE),
    ),
    covers=("mm-encoder-xformers", "mm-encoder-backend-unknown"),
)
def encoder_backend(config: ServeConfig) -> Iterator[Finding]:
    """Look the backend up."""
    asked = config[_ATTENTION]
    known = config.catalogue.registries.get("attention_backends")
    if not isinstance(asked, str) or known is None:
        return
    removed = asked.upper() == "XFORMERS"
    if (asked.upper() in known and not removed) or not is_multimodal(config):
        return
    yield encoder_backend.finding(
        f"--mm-encoder-attn-backend {asked} "
        + ("was removed" if removed else "is no attention backend of this vLLM"),
        location=config.place(_ATTENTION),
        fix=Fix("leave the backend to vLLM", (RemoveFlag(_ATTENTION),), safe=False),
        engine_message="Attention backend 'XFORMERS' has been removed"
        if removed
        else f"Unknown attention backend: {asked.upper()!r}.",
    )


@rule(
    id="multimodal-shm-size",
    title="The size of shared-memory objects without shared memory",
    explanation="`--mm-shm-cache-max-object-size-mb` belongs to `--mm-processor-cache-type shm`; "
    "vLLM refuses another value than the default with the LRU cache.",
    remedy="Add `--mm-processor-cache-type shm`, or drop the size.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_multimodal_config",
    bad=(Example("vllm serve m --mm-shm-cache-max-object-size-mb 256", model_config=VISION),),
    good=(
        Example(
            "vllm serve m --mm-shm-cache-max-object-size-mb 256 --mm-processor-cache-type shm",
            model_config=VISION,
        ),
        Example("vllm serve m --mm-shm-cache-max-object-size-mb 256", model_config=DENSE),
    ),
    covers=("mm-shm-size-without-shm",),
)
def shm_size(config: ServeConfig) -> Iterator[Finding]:
    """Compare the size with the default."""
    size, flag = config[_SHM_SIZE], config.catalogue.by_dest.get(_SHM_SIZE)
    if size is None or flag is None or size == flag.default or config[_CACHE_TYPE] == "shm":
        return
    if is_multimodal(config):
        yield shm_size.finding(
            f"--mm-shm-cache-max-object-size-mb {size} needs --mm-processor-cache-type shm",
            location=config.place(_SHM_SIZE),
            fix=Fix(
                "set --mm-processor-cache-type shm", (SetFlag(_CACHE_TYPE, "shm"),), safe=False
            ),
            engine_message="'mm_shm_cache_max_object_size_mb' should only be set when "
            "'mm_processor_cache_type' is 'shm'.",
        )


@rule(
    id="multimodal-fp8-scales",
    title="Scales of FP8 encoder attention do not fit the other options",
    explanation="Scale files belong to `--mm-encoder-attn-dtype fp8`, and scales are either read "
    "(`--mm-encoder-fp8-scale-path`) or calibrated and saved (`--mm-encoder-fp8-scale-save-path`).",
    remedy="Add `--mm-encoder-attn-dtype fp8`, and keep one of the two paths.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_multimodal_config",
    bad=(
        Example("vllm serve m --mm-encoder-fp8-scale-save-path s.json", model_config=VISION),
        Example(
            "vllm serve m --mm-encoder-attn-dtype fp8 --mm-encoder-fp8-scale-path s.json "
            "--mm-encoder-fp8-scale-save-path t.json",
            model_config=VISION,
        ),
    ),
    good=(
        Example(
            "vllm serve m --mm-encoder-attn-dtype fp8 --mm-encoder-fp8-scale-save-path s.json",
            model_config=VISION,
        ),
        Example("vllm serve m --mm-encoder-fp8-scale-path s.json", model_config=DENSE),
    ),
    covers=("mm-fp8-scale-needs-fp8", "mm-fp8-scale-both"),
)
def fp8_scales(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two paths and the dtype."""
    given = [dest for dest in (_SCALES, _SAVED) if config[dest] is not None]
    if not given or (config[_FP8] == "fp8" and len(given) == 1) or not is_multimodal(config):
        return
    if config[_FP8] != "fp8":
        yield fp8_scales.finding(
            f"{config.catalogue.by_dest[given[0]].name} needs --mm-encoder-attn-dtype fp8",
            location=config.place(given[0]),
            fix=Fix("set --mm-encoder-attn-dtype fp8", (SetFlag(_FP8, "fp8"),), safe=False),
            engine_message="'mm_encoder_fp8_scale_path' and 'mm_encoder_fp8_scale_save_path' "
            "require 'mm_encoder_attn_dtype' to be 'fp8'.",
        )
        return
    yield fp8_scales.finding(
        "scales are read from one file and saved to another; saving needs dynamic scaling",
        location=config.place(_SAVED),
        related=tuple(p for p in (config.place(_SCALES),) if p is not None),
        fix=Fix("drop --mm-encoder-fp8-scale-save-path", (RemoveFlag(_SAVED),), safe=False),
        engine_message="'mm_encoder_fp8_scale_save_path' cannot be used with "
        "'mm_encoder_fp8_scale_path'",
    )


@rule(
    id="multimodal-limit-option",
    title="A limit per prompt has an option that it does not take",
    explanation="Beside `count`, images take `width` and `height`, videos also `num_frames`, and "
    "audio `length`. Others are refused for multimodal models.",
    remedy="Take the option out.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}._validate_limit_per_prompt",
    bad=(
        Example(
            """vllm serve m --limit-mm-per-prompt '{"image": {"count": 1, "length": 5}}'""",
            model_config=VISION,
        ),
    ),
    good=(
        Example(
            """vllm serve m --limit-mm-per-prompt '{"image": {"count": 1, "width": 512}}'""",
            model_config=VISION,
        ),
        Example("""vllm serve m --limit-mm-per-prompt '{"image": 2}'""", model_config=VISION),
    ),
    covers=("mm-limit-extra-key",),
)
def limit_option(config: ServeConfig) -> Iterator[Finding]:
    """Look at the options of each modality."""
    for modality, options in _limits(config).items():
        taken = _OPTIONS.get(modality)
        if taken is None or not isinstance(options, Mapping):
            continue
        foreign = [str(name) for name in options if name not in taken]
        if foreign and is_multimodal(config):
            yield limit_option.finding(
                f"--limit-mm-per-prompt: {modality} takes {', '.join(taken)}, not "
                f"{', '.join(foreign)}",
                location=config.place(_LIMITS),
                fix=Fix(
                    f"drop {', '.join(foreign)}",
                    tuple(RemoveFlag(f"{_LIMITS}.{modality}.{name}") for name in foreign),
                    safe=False,
                ),
                engine_message="Unexpected keyword argument",
            )


@rule(
    id="multimodal-limit-modality",
    title="A limit per prompt is for a modality that vLLM does not name",
    explanation="vLLM knows image, video and audio; other names are taken as they are, and limit "
    "nothing unless the model has such a modality.",
    remedy="Check the name.",
    severity=Severity.WARNING,
    area=AREA,
    source=f"{_CLASS}._validate_limit_per_prompt",
    bad=(Example("""vllm serve m --limit-mm-per-prompt '{"images": 2}'""", model_config=VISION),),
    good=(Example("""vllm serve m --limit-mm-per-prompt '{"image": 2}'""", model_config=VISION),),
    covers=("mm-limit-unknown-modality",),
)
def limit_modality(config: ServeConfig) -> Iterator[Finding]:
    """Look at the names."""
    foreign = [str(name) for name in _limits(config) if name not in _OPTIONS]
    if foreign:
        yield limit_modality.finding(
            f"--limit-mm-per-prompt: {', '.join(foreign)} is none of {', '.join(_OPTIONS)}",
            location=config.place(_LIMITS),
        )


def _limits(config: ServeConfig) -> Mapping[str, Any]:
    limits = config[_LIMITS]
    return limits if isinstance(limits, Mapping) else {}


@rule(
    id="multimodal-processor-device",
    title="The processor of images and audio cannot run on that device",
    explanation="The processor runs in the API server. On the GPU it would share memory and "
    "compute with the model, so vLLM takes the accelerator only on an instance that encodes and "
    "does nothing else (an EC producer). `device` in `--mm-processor-kwargs` must be one that "
    "torch knows.",
    remedy="Use `--mm-processor-device cpu`, or drop `device` from `--mm-processor-kwargs`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_CLASS}.validate_mm_processor_device",
    bad=(
        Example("vllm serve m --mm-processor-device cuda", model_config=VISION),
        Example(
            """vllm serve m --mm-processor-kwargs '{"device": "cuda:0"}'""", model_config=VISION
        ),
        Example("""vllm serve m --mm-processor-kwargs '{"device": "gpu"}'""", model_config=VISION),
    ),
    good=(
        Example("vllm serve m --mm-processor-device cpu", model_config=VISION),
        Example("vllm serve m --mm-processor-device cuda", model_config=DENSE),
        Example(
            "vllm serve m --mm-processor-device cuda --ec-transfer-config "
            """'{"ec_connector": "ECExampleConnector", "ec_role": "ec_producer"}'""",
            model_config=VISION,
        ),
    ),
    covers=("mm-processor-device-bad",),
)
def processor_device(config: ServeConfig) -> Iterator[Finding]:
    """Find the device that was asked for."""
    flag, asked = config[_DEVICE], config[f"{_PROCESSOR}.device"]
    dest = _PROCESSOR
    if asked is None and flag not in (None, "auto", "cpu"):
        asked, dest = "cuda", _DEVICE
    if isinstance(asked, int) and not isinstance(asked, bool):
        asked = f"cuda:{asked}"  # torch counts accelerators
    if not isinstance(asked, str) or asked == "cpu" or not machine_of(config).is_cuda_alike:
        return
    kind = asked.split(":")[0]
    bad = kind not in _TORCH_DEVICES
    if not is_multimodal(config) or (not bad and (kind != "cuda" or encodes_only(config))):
        return
    edit = RemoveFlag(f"{_PROCESSOR}.device" if dest == _PROCESSOR else _DEVICE)
    yield processor_device.finding(
        f"{asked!r} is no device"
        if bad
        else f"the processor would run on {asked}, beside the language model",
        location=config.place(dest),
        fix=Fix("leave the processor on the CPU", (edit,), safe=False),
        engine_message='Invalid "device" in mm_processor_kwargs'
        if bad
        else f"Cannot run the multi-modal processor on {kind!r}",
    )


# What `torch.device` takes as a type.
_TORCH_DEVICES: Final = frozenset(
    {"cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga"}
    | {"maia", "xla", "lazy", "vulkan", "mps", "meta", "hpu", "mtia", "privateuseone"}
)


@rule(
    id="multimodal-encoder-graphs",
    title="CUDA graphs of an encoder that never runs",
    explanation="`--language-model-only` switches all multimodal input off, and "
    "`cudagraph_mm_encoder` captures graphs of the encoder.",
    remedy="Drop one of them.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    versions=">=0.29",
    bad=(
        Example(
            "vllm serve m --language-model-only --compilation-config.cudagraph_mm_encoder true",
            model_config=VISION,
        ),
    ),
    good=(
        Example("vllm serve m --language-model-only", model_config=VISION),
        Example(
            "vllm serve m --language-model-only --compilation-config.cudagraph_mm_encoder true",
            model_config=DENSE,
        ),
    ),
    covers=("language-only-mm-cudagraph",),
)
def encoder_graphs(config: ServeConfig) -> Iterator[Finding]:
    """Look for both options."""
    dest = "compilation_config.cudagraph_mm_encoder"
    if config["language_model_only"] and config[dest] is True and is_multimodal(config):
        yield encoder_graphs.finding(
            "--language-model-only never runs the encoder that cudagraph_mm_encoder is for",
            location=config.place("language_model_only"),
            related=tuple(p for p in (config.place("compilation_config"),) if p is not None),
            fix=Fix("drop cudagraph_mm_encoder", (RemoveFlag(dest),), safe=False),
            engine_message="--language-model-only is incompatible with cudagraph_mm_encoder=True",
        )
