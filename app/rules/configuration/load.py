"""How weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag

AREA: Final = "load"
_FORMAT: Final = "load_format"
# `transformers_utils/runai_utils.py::SUPPORTED_SCHEMES`
_STORES: Final = ("s3://", "gs://", "az://")
_STREAMERS: Final = frozenset({"auto", "modelexpress", "runai_streamer", "runai_streamer_sharded"})


@rule(
    id="load-object-storage",
    title="Weights in object storage are streamed",
    explanation="A model at s3://, gs:// or az:// is read by the Run:ai streamer (or "
    "ModelExpress); `auto` chooses it. vLLM refuses another load format.",
    remedy="Leave `--load-format` out.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.try_verify_and_update_config",
    bad=(Example("vllm serve s3://bucket/model --load-format safetensors"),),
    good=(
        Example("vllm serve s3://bucket/model"),
        Example("vllm serve s3://bucket/model --load-format runai_streamer"),
        Example("vllm serve m --load-format safetensors"),
    ),
    covers=("runai-load-format",),
)
def object_storage(config: ServeConfig) -> Iterator[Finding]:
    """Look at the scheme, then at the format."""
    model, asked = config["model"], config[_FORMAT]
    if not isinstance(model, str) or not model.lower().startswith(_STORES):
        return
    if isinstance(asked, str) and asked not in _STREAMERS:
        yield object_storage.finding(
            f"--load-format {asked} cannot read {model.split('://')[0]}://",
            location=config.place(_FORMAT),
            fix=Fix("leave the format to vLLM", (RemoveFlag(_FORMAT),), safe=False),
            engine_message="To load a model from object storage (S3/GCS/Azure), 'load_format' must "
            "be 'modelexpress', 'runai_streamer' or 'runai_streamer_sharded'",
        )


@rule(
    id="load-format-unknown",
    title="`--load-format` names no loader",
    explanation="Any text is accepted and looked up when the weights are loaded, after the engine "
    "was set up: what is none of vLLM's loaders (and of no plugin) fails there. Since "
    "`gguf` and `bitsandbytes` left the list they fail too.",
    remedy="Take a loader that this vLLM has, or leave the option out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/model_executor/model_loader/__init__.py::get_model_loader",
    bad=(Example("vllm serve m --load-format safetensor"),),
    good=(Example("vllm serve m --load-format safetensors"), Example("vllm serve m")),
    covers=("load-format-unknown",),
)
def format_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the format up."""
    asked, known = config[_FORMAT], config.catalogue.registries.get("load_formats")
    if not isinstance(asked, str) or known is None or asked in known or asked == "auto":
        return
    yield format_unknown.finding(
        f"--load-format {asked} is none of {', '.join(known)}; loading the weights will fail",
        location=config.place(_FORMAT),
        fix=Fix("leave the format to vLLM", (RemoveFlag(_FORMAT),), safe=False),
        engine_message=f"Load format `{asked}` is not supported",
    )
