"""Checkpoints that decide their quantisation themselves, whatever `--quantization` says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.configuration.parallel_models import LATENT
from app.rules.configuration.quantization import AREA, DEST, WITHOUT, checkpoint_method
from app.rules.configuration.quantization_settings import GPT_OSS, NVFP4
from app.rules.declaration import Example
from app.rules.derived.model import hf_value, requested_quantization
from app.rules.derived.model_types import quantization_override
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

_VERIFY: Final = "vllm/config/model.py::ModelConfig._verify_quantization"
# Other kernels for what the checkpoint names: nobody asked for another method.
_SAME_METHOD: Final = frozenset({"auto_awq", "auto_gptq", "humming"})


@rule(
    id="quantization-replaced",
    title="--quantization is replaced by the checkpoint's method",
    explanation="Some checkpoints (ModelOpt, the MXFP4 weights of gpt-oss, AutoRound) take their "
    "own method whatever was asked for. vLLM says nothing; the option is without effect.",
    remedy="Drop `--quantization`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_VERIFY,
    bad=(
        Example("vllm serve m --quantization fp8", model_config=NVFP4),
        Example("vllm serve m --quantization mxfp8", model_config=GPT_OSS),
    ),
    good=(
        Example("vllm serve m --quantization modelopt_fp4", model_config=NVFP4),
        Example("vllm serve m --quantization mxfp4", model_config=GPT_OSS),
        Example("vllm serve m --quantization fp8", model_config=LATENT),
        Example("vllm serve m", model_config=NVFP4),
    ),
)
def replaced(config: ServeConfig) -> Iterator[Finding]:
    """Compare what was asked for with what takes the checkpoint."""
    asked = requested_quantization(config)
    if asked is None:
        return
    method = checkpoint_method(config)
    if method is None or asked == method:
        return
    taken = quantization_override(config)
    if taken is None or taken == asked or taken in _SAME_METHOD:
        return
    yield replaced.finding(
        f"--quantization {asked} is asked for, but vLLM will use {taken}, because the checkpoint "
        f"is quantised by {method}",
        location=config.place(DEST),
        fix=Fix("drop --quantization", (RemoveFlag(DEST),), safe=False),
        evidence={"asked": asked, "effective": taken, "dest": DEST},
    )


@rule(
    id="quantization-gpt-oss-humming",
    title="Humming is no quantisation of gpt-oss",
    explanation="The MXFP4 weights of gpt-oss are experts, so the Humming kernels are chosen by "
    "`--moe-backend` there.",
    remedy="Write `--moe-backend humming`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/model_executor/layers/quantization/humming.py::HummingConfig."
    "override_quantization_method",
    bad=(Example("vllm serve m --quantization humming", model_config=GPT_OSS),),
    good=(Example("vllm serve m", model_config=GPT_OSS),),
)
def gpt_oss_humming(config: ServeConfig) -> Iterator[Finding]:
    """Look for the pair."""
    if requested_quantization(config) != "humming" or checkpoint_method(config) != "mxfp4":
        return
    if hf_value(config, "model_type") != "gpt_oss":
        return
    with_backend = (RemoveFlag(DEST), SetFlag("moe_backend", "humming"))
    yield gpt_oss_humming.finding(
        "--quantization humming does not go with gpt-oss, whose kernels --moe-backend chooses",
        location=config.place(DEST),
        fix=Fix("use --moe-backend humming", with_backend, safe=True)
        if not config.given("moe_backend")
        else WITHOUT,
        engine_message="For gpt-oss model, use '--moe-backend humming'",
    )
