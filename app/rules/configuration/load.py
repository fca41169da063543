"""How weights are loaded (`--load-format`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.registry import rule
from app.rules.replacement import nearest_or_none
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

AREA: Final = "load"
FORMAT: Final = "load_format"
# `SUPPORTED_SCHEMES`, compared without regard to case.
OBJECT_STORES: Final = ("s3://", "gs://", "az://")
_STREAMERS: Final = ("modelexpress", "runai_streamer", "runai_streamer_sharded")


def load_format(config: ServeConfig) -> str:
    """Give the load format as `LoadConfig` keeps it: in lower case."""
    asked = config[FORMAT]
    return asked.lower() if isinstance(asked, str) else "auto"


@rule(
    id="load-object-store",
    title="Models in object storage need a streaming load format",
    explanation="A model at `s3://`, `gs://` or `az://` is read by a streamer. `auto` becomes "
    "`runai_streamer` by itself; any other format that cannot stream is refused.",
    remedy="Leave `--load-format` out.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.try_verify_and_update_config",
    bad=(
        Example("vllm serve s3://bucket/m --load-format safetensors"),
        Example("vllm serve GS://bucket/m --load-format dummy"),
    ),
    good=(
        Example("vllm serve s3://bucket/m"),
        Example("vllm serve s3://bucket/m --load-format RunAI_streamer"),
        Example("vllm serve m --load-format safetensors"),
    ),
    covers=("runai-load-format",),
)
def object_store(config: ServeConfig) -> Iterator[Finding]:
    """Compare the format with the place of the model."""
    used = load_format(config)
    if used == "auto" or used in _STREAMERS:
        return
    model = config["model"]
    if not isinstance(model, str) or not model.lower().startswith(OBJECT_STORES):
        return
    yield object_store.finding(
        f"--load-format {used} cannot load {model}, which lies in object storage; "
        f"{', '.join(_STREAMERS)} can",
        location=config.place(FORMAT),
        fix=Fix("let vLLM choose runai_streamer", (RemoveFlag(FORMAT),), safe=False),
        engine_message="To load a model from object storage (S3/GCS/Azure), 'load_format' must be",
        evidence={"load_format": used, "model": model},
    )


@rule(
    id="load-format-unknown",
    title="This vLLM has no such load format",
    explanation="`--load-format` takes any word, and vLLM looks the loader up only when it loads "
    "weights: the start then fails, minutes later. Names come and go: `bitsandbytes` and `gguf` "
    "are none of vLLM's own by now. A plugin may register more, which is not known here; that is "
    "why this is a warning.",
    remedy="Use a format that the message lists, or install the plugin that brings it.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/model_executor/model_loader/__init__.py::get_model_loader",
    bad=(
        Example("vllm serve m --load-format bitsandbytes"),
        Example("vllm serve m --load-format safetensor"),
        Example("vllm serve m --load-format ipc_cache", versions="<0.30"),
    ),
    good=(
        Example("vllm serve m --load-format SafeTensors"),
        Example("vllm serve m --load-format ipc_cache", versions=">=0.30"),
        Example("vllm serve m"),
    ),
    covers=("load-format-unknown",),
)
def format_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up."""
    used = load_format(config)
    known = config.catalogue.registries.get("load_formats", ())
    if used in known or not known:
        return
    yield format_unknown.finding(
        f"--load-format {used} is none of the {len(known)} formats of "
        f"{config.catalogue.vllm_version}: {', '.join(known)}; without a plugin that brings it, "
        "vLLM ends when it loads the weights",
        location=config.place(FORMAT),
        fix=nearest_or_none(FORMAT, used, known),
        engine_message=f"Load format `{used}` is not supported",
    )
