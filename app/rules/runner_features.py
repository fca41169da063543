"""Which features of a configuration a model runner does not support.

The list of each version, its labels and the methods it names come from the catalogue
(`config/vllm.py::_get_v2_model_runner_unsupported_features` and its V1 and dual-batch
counterparts). Here is only what each label means in terms of settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from app.catalogue import RunnerStep
from app.rules.derived.compilation import breakable_graphs, is_disabled
from app.rules.facts import (
    MachineKind,
    architectures,
    has_ability,
    hf_value,
    is_diffusion,
    is_hybrid,
    machine_of,
    world_size,
)
from app.rules.speculation import Speculation, speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig

RUNNER_VARIABLE: Final = "VLLM_USE_V2_MODEL_RUNNER"
_PASSES: Final = "compilation_config.pass_config"


class Moment(StrEnum):
    """When vLLM asks; settings change in between (`VllmConfig.__post_init__`).

    The replay rules run before compilation settings are settled, the check of what the chosen
    runner supports after.
    """

    REPLAY_CHECK = "replay check"
    LAST_CHECK = "last check"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A feature that is on and not supported; `label` is vLLM's word, `dests` switch it on."""

    label: str
    dests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Support:
    """What a runner does not support of a configuration, and what would have to be known."""

    unsupported: tuple[Unsupported, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    config: ServeConfig
    step: RunnerStep
    moment: Moment

    def parallel(self, axis: str) -> bool:
        return world_size(self.config, f"{axis}_parallel_size") > 1

    @property
    def speculation(self) -> Speculation | None:
        return speculation_of(self.config)

    def speculative_key(self, key: str) -> bool:
        speculation = self.speculation
        return speculation is not None and bool(speculation.value(key))

    @property
    def listed_method(self) -> bool:
        """Whether the speculative method is one that the step lists (or does not spare)."""
        if self.speculation is None:
            return False
        compared = self.step.compared.get("speculative_config.method", {})
        method = self.speculation.method
        if "not_in" in compared:
            return method not in compared["not_in"]
        return method in compared.get("in", ())


_Present: TypeAlias = Callable[[_Asked], bool]


def _stock_compile(asked: _Asked) -> bool:
    config = asked.config
    if (
        _enum(config["compilation_config.mode"], {1: "STOCK_TORCH_COMPILE"})
        != "STOCK_TORCH_COMPILE"
    ):
        return False
    if asked.moment is Moment.REPLAY_CHECK:
        return True
    if config["enforce_eager"] or is_disabled(config):
        return False
    return not breakable_graphs(config)


def _sequence_parallelism(asked: _Asked) -> bool:
    config = asked.config
    wanted = bool(config[f"{_PASSES}.enable_sp"])
    if asked.moment is Moment.LAST_CHECK:
        wanted = wanted or bool(config[f"{_PASSES}.fuse_gemm_comms"])
    if not wanted or not asked.parallel("tensor"):
        return False
    if asked.moment is Moment.LAST_CHECK:
        if _is_on(config, "VLLM_BATCH_INVARIANT"):
            raise Abstain("whether batch invariance turns sequence parallelism off")
        if config[f"{_PASSES}.sp_min_token_num"] is None:
            raise Abstain("whether the model is wide enough for sequence parallelism on this GPU")
    return True


def _speculative_method(asked: _Asked) -> bool:
    # Where ngram has a label of its own, the list of the others does not repeat it.
    if asked.speculation is not None and "not_in" in asked.step.compared.get(
        "speculative_config.method", {}
    ):
        return asked.listed_method and asked.speculation.method not in {"ngram", "ngram_gpu"}
    return asked.listed_method


def _mamba_cache_all(asked: _Asked) -> bool:
    """Whether the mode survives what models with state-space layers make of it.

    Source: `model_executor/models/config.py::MambaModelConfig.verify_and_update_config`.
    """
    config = asked.config
    if config["mamba_cache_mode"] != "all":
        return False
    if not has_ability(config, "has_inner_state"):
        return True
    caching = config["enable_prefix_caching"]
    if caching is None:
        # On by default for hybrid models that generate (`is_prefix_caching_supported`).
        caching = not has_ability(config, "is_attention_free")
    return bool(caching) and has_ability(config, "supports_mamba_prefix_caching")


def _adaptive_without_graphs(asked: _Asked) -> bool:
    if not asked.speculative_key("enable_adaptive_verification"):
        return False
    eager = asked.moment is Moment.LAST_CHECK and bool(asked.config["enforce_eager"])
    mode = asked.config["compilation_config.cudagraph_mode"]
    return eager or _enum(mode, {0: "NONE"}) == "NONE"


def _async_pipeline(asked: _Asked) -> bool:
    # Where nobody asks for it, vLLM has turned it off for V1 with stages before it looks here.
    on_cpu = asked.moment is Moment.LAST_CHECK and machine_of(asked.config).kind is MachineKind.CPU
    return asked.parallel("pipeline") and bool(asked.config["async_scheduling"]) and not on_cpu


def _draft_is(*methods: str) -> _Present:
    def present(asked: _Asked) -> bool:
        if asked.speculation is None or asked.speculation.method not in methods:
            return False
        raise Abstain("the draft model's config.json")

    return present


def _multimodal(asked: _Asked) -> bool:
    encoder_decoder = bool(hf_value(asked.config, "is_encoder_decoder"))
    return encoder_decoder or has_ability(asked.config, "supports_multimodal")


def _named(asked: _Asked) -> bool:
    names = asked.step.compared.get("model_config.architecture", {}).get("in", ())
    return any(name in names for name in architectures(asked.config))


def _adaptive_and(other: _Present) -> _Present:
    return lambda asked: asked.speculative_key("enable_adaptive_verification") and other(asked)


def _setting(dest: str) -> _Present:
    return lambda asked: bool(asked.config[dest])


def _size(axis: str) -> _Present:
    return lambda asked: asked.parallel(axis)


@dataclass(frozen=True, slots=True)
class _Feature:
    present: _Present
    dests: tuple[str, ...] = ()


_SPECULATION: Final = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
_ADAPTIVE: Final = ("speculative_config.enable_adaptive_verification",)
_DUAL_BATCH: Final = ("enable_dbo", "ubatch_size")

_FEATURES: Final[Mapping[str, _Feature]] = {
    # Model Runner V2
    "prefill context parallelism": _Feature(
        lambda a: a.parallel("prefill_context") and not _uses_mla(a.config),
        ("prefill_context_parallel_size",),
    ),
    "stock torch.compile": _Feature(_stock_compile, ("compilation_config.mode",)),
    "sequence parallelism": _Feature(
        _sequence_parallelism,
        (
            f"{_PASSES}.enable_sp",
            f"{_PASSES}.fuse_gemm_comms",
        ),
    ),
    "pipeline parallelism with external_launcher": _Feature(
        lambda a: (
            a.config["distributed_executor_backend"] == "external_launcher"
            and a.parallel("pipeline")
        ),
        ("distributed_executor_backend",),
    ),
    "ngram/ngram_gpu speculative decoding": _Feature(lambda a: a.listed_method, _SPECULATION),
    "speculative method '{method}'": _Feature(_speculative_method, _SPECULATION),
    "parallel drafting for EAGLE speculative decoding": _Feature(
        lambda a: a.speculative_key("parallel_drafting") and a.listed_method,
        ("speculative_config.parallel_drafting",),
    ),
    "EAGLE3 with pipeline parallelism": _Feature(
        lambda a: a.parallel("pipeline") and a.listed_method, _SPECULATION
    ),
    "adaptive verification with LoRA": _Feature(_adaptive_and(_setting("enable_lora")), _ADAPTIVE),
    "adaptive verification with enforce_eager/cudagraph_mode=none": _Feature(
        _adaptive_without_graphs, _ADAPTIVE
    ),
    "adaptive verification with pipeline parallelism": _Feature(
        _adaptive_and(_size("pipeline")), _ADAPTIVE
    ),
    "heterogeneous-vocabulary draft models": _Feature(
        lambda a: a.speculative_key("use_heterogeneous_vocab"), _SPECULATION
    ),
    "dual batch overlap": _Feature(lambda a: _dual_batch_overlap(a), _DUAL_BATCH),
    "elastic expert parallelism": _Feature(_setting("enable_elastic_ep"), ("enable_elastic_ep",)),
    "custom logits processors": _Feature(_setting("logits_processors"), ("logits_processors",)),
    "prompt embeds": _Feature(_setting("enable_prompt_embeds"), ("enable_prompt_embeds",)),
    "KV sharing fast prefill": _Feature(
        _setting("kv_sharing_fast_prefill"), ("kv_sharing_fast_prefill",)
    ),
    "mamba cache mode 'all'": _Feature(_mamba_cache_all, ("mamba_cache_mode",)),
    # dual batch overlap with …
    "dual batch overlap with LoRA": _Feature(_setting("enable_lora"), _DUAL_BATCH),
    "dual batch overlap with speculative decoding": _Feature(
        lambda a: a.speculation is not None, _DUAL_BATCH
    ),
    "dual batch overlap with pipeline parallelism": _Feature(_size("pipeline"), _DUAL_BATCH),
    "dual batch overlap with context parallelism": _Feature(
        lambda a: a.parallel("decode_context") or a.parallel("prefill_context"), _DUAL_BATCH
    ),
    "dual batch overlap with multimodal models": _Feature(_multimodal, _DUAL_BATCH),
    "dual batch overlap with hybrid models": _Feature(lambda a: is_hybrid(a.config), _DUAL_BATCH),
    "dual batch overlap with PIECEWISE CUDA graphs": _Feature(
        lambda a: (
            _enum(a.config["compilation_config.cudagraph_mode"], {1: "PIECEWISE"}) == "PIECEWISE"
        ),
        _DUAL_BATCH,
    ),
    "dual batch overlap with encoder only models": _Feature(
        _setting("mm_encoder_only"), _DUAL_BATCH
    ),
    # Model Runner V1
    "prefill context parallel": _Feature(
        _size("prefill_context"), ("prefill_context_parallel_size",)
    ),
    "pipeline parallelism with async scheduling": _Feature(_async_pipeline, ("async_scheduling",)),
    "dspark speculative decoding": _Feature(lambda a: a.listed_method, _SPECULATION),
    "adaptive draft verification": _Feature(
        lambda a: a.speculative_key("enable_adaptive_verification"), _ADAPTIVE
    ),
    "mixed sliding/full dflash drafts": _Feature(_draft_is("dflash"), _SPECULATION),
    "dflash2 drafts": _Feature(_draft_is("dflash"), _SPECULATION),
    "DFlash candidate-head drafts": _Feature(_draft_is("dflash"), _SPECULATION),
    "xpress speculative decoding": _Feature(_draft_is("dflash"), _SPECULATION),
    "draft lm_head quantization": _Feature(
        lambda a: a.speculative_key("draft_lm_head_quantization"),
        ("speculative_config.draft_lm_head_quantization",),
    ),
    "Parse 3.5 MTP": _Feature(_draft_is("mtp"), _SPECULATION),
    "diffusion models": _Feature(lambda a: is_diffusion(a.config)),
    "batch-sharded sampling": _Feature(
        _setting("enable_batch_sharded_sampling"), ("enable_batch_sharded_sampling",)
    ),
    "Step5": _Feature(_named),
}


def support_of(config: ServeConfig, runner: str, moment: Moment = Moment.REPLAY_CHECK) -> Support:
    """List what `runner` (`v2`, `v1` or `dbo`) does not support of a configuration.

    Raises:
        UnresolvedValue: a setting that one of the features reads is left open.
    """
    present: list[Unsupported] = []
    unknown: list[str] = []
    for step in config.catalogue.runner.unsupported.get(runner, ()):
        asked = _Asked(config, step, moment)
        if step.includes is not None:
            if uses_microbatches(config, moment):
                inner = support_of(config, step.includes, moment)
                present.extend(inner.unsupported)
                unknown.extend(inner.unknown)
            continue
        label = step.label or "?"
        feature = _FEATURES.get(label)
        if feature is None:
            unknown.append(f"what this version calls {label!r}")
            continue
        try:
            if feature.present(asked):
                present.append(Unsupported(_filled(label, asked), _given(config, feature.dests)))
                if label == "dual batch overlap" and runner == "dbo":
                    break  # refused as a whole: vLLM names no combination
        except Abstain as missing:
            if type(missing) is not Abstain:
                raise
            unknown.append(missing.needs)
    return Support(tuple(present), tuple(dict.fromkeys(unknown)))


def uses_microbatches(config: ServeConfig, moment: Moment) -> bool:
    """Whether batches are split (`config/parallel.py::use_ubatching`).

    On a CPU the option is taken back (`platforms/cpu.py::check_and_update_config`).
    """
    if moment is Moment.LAST_CHECK and machine_of(config).kind is MachineKind.CPU:
        return False
    size = config["ubatch_size"]
    return bool(config["enable_dbo"]) or (isinstance(size, int) and size > 1)


def _dual_batch_overlap(asked: _Asked) -> bool:
    # Up to 0.29 the option itself; later the option while the runner is not asked for.
    if f"envs.{RUNNER_VARIABLE}" in asked.step.reads:
        return asked.config.variable(RUNNER_VARIABLE) is None
    return bool(asked.config["enable_dbo"])


def _uses_mla(config: ServeConfig) -> bool:
    text = hf_value(config, "text_config")
    rank = text.get("kv_lora_rank") if isinstance(text, Mapping) else None
    return (rank or hf_value(config, "kv_lora_rank")) is not None


def _filled(label: str, asked: _Asked) -> str:
    if "{method}" not in label or asked.speculation is None:
        return label
    return label.format(method=asked.speculation.method)


def _given(config: ServeConfig, dests: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dest for dest in dests if config.given(dest))


def _enum(value: Any, members: Mapping[int, str]) -> str | None:
    """Give the member's name for what pydantic takes: a name in any case, or its number."""
    if isinstance(value, str):
        return value.upper()
    return members.get(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _is_on(config: ServeConfig, variable: str) -> bool:
    given = config.variable(variable)
    return given is not None and given.value.strip() not in {"", "0"}
