"""What vLLM demands before it returns sampling masks.

Source of all: `config/vllm.py::VllmConfig._verify_sampling_replay_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.facts import is_diffusion
from app.rules.registry import rule
from app.rules.runner import Reason, Runner, RunnerDecision, decide_runner
from app.rules.runner_features import RUNNER_VARIABLE
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Edit, Fix, RemoveFlag, SetEnvironment, SetFlag
from app.verdict.location import Location

MASK: Final = "return_sampling_mask"
AREA: Final = "sampling-mask"
_SOURCE: Final = "vllm/config/vllm.py::VllmConfig._verify_sampling_replay_config"
_MASK_COMMAND: Final = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
_DENSE: Final = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
_EXPERTS: Final = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
}
_NGRAM: Final = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""


def wants_mask(config: ServeConfig) -> bool:
    """Whether sampling masks are asked for."""
    return bool(config[MASK])


def without_masks() -> Fix:
    """Serve without masks, where nothing else would do."""
    return Fix("drop --return-sampling-mask", (RemoveFlag(MASK),), safe=False)


def beside(config: ServeConfig, place: Location | None) -> tuple[Location, ...]:
    """Give the place of the mask option, as the other half of a conflict at `place`."""
    mask = config.place(MASK)
    return () if mask is None or place is None or mask == place else (mask,)


@rule(
    id="sampling-mask-logprobs-mode",
    title="Sampling masks need processed logprobs",
    explanation="A trainer renormalises over the ids in the mask. Raw logprobs are normalised "
    "over the whole vocabulary, before temperature and truncation, so probabilities over the "
    "mask would not sum to 1. vLLM refuses every `--logprobs-mode` but `processed_logprobs`; "
    "the default is `raw_logprobs`.",
    remedy="Add `--logprobs-mode processed_logprobs`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.28",
    covers=("sampling-mask-logprobs-mode",),
    bad=(
        Example("vllm serve m --return-sampling-mask", note="the default is raw_logprobs"),
        Example("vllm serve m --return-sampling-mask --logprobs-mode raw_logits"),
    ),
    good=(Example(_MASK_COMMAND), Example("vllm serve m --logprobs-mode raw_logits")),
)
def logprobs_mode(config: ServeConfig) -> Iterator[Finding]:
    """Compare the mode with the only one that goes with masks."""
    if not wants_mask(config) or config["logprobs_mode"] == "processed_logprobs":
        return
    given = config.given("logprobs_mode")
    mode = config["logprobs_mode"]
    yield logprobs_mode.finding(
        f"--return-sampling-mask needs --logprobs-mode processed_logprobs, but the mode is "
        f"{mode}{'' if given else ' (the default)'}",
        location=config.place("logprobs_mode") if given else config.place(MASK),
        related=beside(config, config.place("logprobs_mode")),
        fix=Fix(
            "set --logprobs-mode processed_logprobs",
            (SetFlag("logprobs_mode", "processed_logprobs"),),
            safe=not given,
        ),
        engine_message=config.catalogue.engine_message("processed_logprobs"),
        evidence={"logprobs_mode": mode},
    )


@rule(
    id="sampling-mask-logits-processors",
    title="Sampling masks do not go with custom logits processors",
    explanation="A custom processor changes the distribution in a way that a trainer cannot "
    "repeat, so vLLM refuses `--logits-processors` together with masks. Processors installed as "
    "entry points (`vllm.logits_processors`) are not seen by this check; up to 0.30 they switch "
    "the server to Model Runner V1, which has no masks.",
    remedy="Drop `--logits-processors`, or serve without masks.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.28",
    covers=("sampling-mask-logitproc",),
    bad=(Example(f"{_MASK_COMMAND} --logits-processors pkg.module:Processor"),),
    good=(Example(_MASK_COMMAND), Example("vllm serve m --logits-processors pkg.module:P")),
)
def logits_processors(config: ServeConfig) -> Iterator[Finding]:
    """Refuse any processor given by option."""
    if not wants_mask(config) or not config["logits_processors"]:
        return
    yield logits_processors.finding(
        "--return-sampling-mask does not go with --logits-processors",
        location=config.place("logits_processors"),
        related=beside(config, config.place("logits_processors")),
        fix=Fix("drop --logits-processors", (RemoveFlag("logits_processors"),), safe=False),
        engine_message=config.catalogue.engine_message("custom_logits_processors"),
    )


@rule(
    id="sampling-mask-speculative-decoding",
    title="Sampling masks do not go with speculative decoding before 0.32",
    explanation="Up to 0.31 a sampling mask describes one token a step; with drafted tokens "
    "there would be several. vLLM refuses every speculative configuration, whatever the method. "
    "0.32 returns one mask for each accepted position.",
    remedy="Drop the speculative configuration, or use vLLM 0.32 or newer.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.28,<0.32",
    bad=(
        Example(f"{_MASK_COMMAND} {_NGRAM}"),
        Example(f"{_MASK_COMMAND} --spec-method mtp --spec-tokens 1"),
    ),
    good=(Example(_MASK_COMMAND), Example(f"vllm serve m {_NGRAM}")),
)
def speculative_decoding(config: ServeConfig) -> Iterator[Finding]:
    """Refuse any speculative configuration."""
    speculation = speculation_of(config) if wants_mask(config) else None
    if speculation is None:
        return
    yield speculative_decoding.finding(
        f"--return-sampling-mask does not go with speculative decoding in "
        f"{config.catalogue.vllm_version}; 0.32.0 is the first to allow it",
        location=speculation.place,
        related=beside(config, speculation.place),
        fix=Fix(
            "drop speculative decoding",
            tuple(RemoveFlag(dest) for dest in speculation.dests),
            safe=False,
        ),
        engine_message=config.catalogue.engine_message("speculative_decoding"),
    )


@rule(
    id="sampling-mask-adaptive-verification",
    title="Sampling masks need fixed verification boundaries",
    explanation="With adaptive verification the GPU decides how many drafted tokens each "
    "request verifies, so the host does not know which rows belong to which position and cannot "
    "return their masks.",
    remedy="Set `enable_adaptive_verification` to false.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.32",
    covers=("sampling-mask-adaptive",),
    bad=(
        Example(
            f"""{_MASK_COMMAND} --speculative-config '{{"method": "mtp", """
            """"num_speculative_tokens": 1, "enable_adaptive_verification": true}'"""
        ),
    ),
    good=(Example(f"{_MASK_COMMAND} {_NGRAM}"),),
)
def adaptive_verification(config: ServeConfig) -> Iterator[Finding]:
    """Refuse adaptive verification."""
    speculation = speculation_of(config) if wants_mask(config) else None
    if speculation is None or not speculation.value("enable_adaptive_verification"):
        return
    yield adaptive_verification.finding(
        "--return-sampling-mask does not go with adaptive verification of drafted tokens",
        location=speculation.place,
        related=beside(config, speculation.place),
        fix=Fix(
            "verify a fixed number of drafted tokens",
            (SetFlag("speculative_config.enable_adaptive_verification", value=False),),
            safe=False,
        ),
        engine_message=config.catalogue.engine_message("adaptive_verification"),
    )


@rule(
    id="sampling-mask-diffusion",
    title="Sampling masks do not go with diffusion models",
    explanation="A discrete diffusion model (config.json has `canvas_length`) does not draw one "
    "token a position, so there is no distribution to return.",
    remedy="Serve the model without masks.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.28",
    covers=("sampling-mask-diffusion",),
    bad=(
        Example(
            _MASK_COMMAND,
            model_config={"architectures": ["LLaDAModelLM"], "canvas_length": 128},
        ),
    ),
    good=(Example(_MASK_COMMAND, model_config=_DENSE), Example("vllm serve m")),
)
def diffusion(config: ServeConfig) -> Iterator[Finding]:
    """Look for the canvas of a diffusion model."""
    if not wants_mask(config) or not is_diffusion(config):
        return
    yield diffusion.finding(
        "--return-sampling-mask does not go with a diffusion model, and config.json has "
        "canvas_length",
        location=config.place(MASK),
        fix=without_masks(),
        engine_message=config.catalogue.engine_message("diffusion"),
    )


@rule(
    id="sampling-mask-runner",
    title="Sampling masks need Model Runner V2",
    explanation="Only Model Runner V2 keeps the ids that survive truncation. Which runner a "
    "server gets depends on the version, `VLLM_USE_V2_MODEL_RUNNER`, features that V2 lacks, "
    "whether Triton works on the machine and, in 0.28, the model: dense models that generate "
    "and a short list run on V2, other mixture-of-experts and hybrid models on V1.",
    remedy="Set `VLLM_USE_V2_MODEL_RUNNER=1`, and drop what V2 does not support.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.use_v2_model_runner",
    versions=">=0.28",
    covers=("sampling-mask-v2",),
    bad=(
        Example(f"{RUNNER_VARIABLE}=0 {_MASK_COMMAND}"),
        Example(_MASK_COMMAND, gpu="cpu", note="no Triton"),
        Example(
            _MASK_COMMAND,
            versions="<0.29",
            model_config=_EXPERTS,
            note="0.28 runs Mixtral on V1",
        ),
        Example(f"{_MASK_COMMAND} --enable-dbo", note="a feature that V2 lacks"),
        Example(
            _MASK_COMMAND,
            versions="<0.29",
            note="undecided: which runner 0.28 takes depends on the model",
        ),
    ),
    good=(
        Example(_MASK_COMMAND, versions=">=0.29"),
        Example(_MASK_COMMAND, model_config=_DENSE),
        Example(f"{RUNNER_VARIABLE}=1 {_MASK_COMMAND}", model_config=_EXPERTS),
        Example(f"{RUNNER_VARIABLE}=0 vllm serve m"),
    ),
)
def runner(config: ServeConfig) -> Iterator[Finding]:
    """Refuse V1; leave the question open where 0.28 decides by a model that nobody described."""
    if not wants_mask(config):
        return
    decision = decide_runner(config)
    if decision.version is Runner.V2:
        if decision.presumes:
            raise Abstain("; ".join(decision.presumes))
        return
    undecided = decision.version is None
    start = "may start" if undecided else "starts"
    yield runner.finding(
        f"--return-sampling-mask needs Model Runner V2, but vLLM "
        f"{config.catalogue.vllm_version} {start} with V1: {decision.because}",
        severity=Severity.WARNING if undecided else Severity.ERROR,
        undecided=undecided,
        location=decision.place or config.place(MASK),
        related=beside(config, decision.place),
        fix=_towards_v2(decision),
        engine_message=config.catalogue.engine_message("needs_v2_runner"),
        evidence={"model_runner": decision.as_json()},
    )


def _towards_v2(decision: RunnerDecision) -> Fix:
    ask: tuple[Edit, ...] = (SetEnvironment(RUNNER_VARIABLE, "1"),)
    if decision.reason is Reason.ENVIRONMENT:
        return Fix(f"set {RUNNER_VARIABLE}=1", ask, safe=False)
    if decision.reason is Reason.ARCHITECTURE:
        return Fix(f"ask for Model Runner V2 with {RUNNER_VARIABLE}=1", ask, safe=True)
    edits = tuple(RemoveFlag(dest) for feature in decision.unsupported for dest in feature.dests)
    if not edits:
        return without_masks()
    labels = ", ".join(feature.label for feature in decision.unsupported)
    return Fix(f"drop what Model Runner V2 does not support: {labels}", edits, safe=False)
