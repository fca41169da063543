"""What the admitted configuration says about requests, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from packaging.version import Version

from app.catalogue import Catalogue
from app.catalogue.semantics import EngineSemantics, semantics_of
from app.request_rules.limits import Limits
from app.rules.derived.hf_config import hf_value
from app.rules.derived.model_class import is_pooling
from app.rules.derived.model_length import max_model_len
from app.rules.derived.model_sizes import is_encoder_decoder, vocab_size
from app.rules.derived.scheduler import max_num_seqs
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.serve_config.serve_config import Abstain, ServeConfig, Unresolved

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Default:
    """A server-side default of a sampling parameter.

    `known` is false where it comes from a generation_config.json that we do not see.
    """

    known: bool
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """The facts that request rules ask for; None is unknown.

    Attributes:
        catalogue: of the backend's vLLM version.
        semantics: how its version behaves.
        returns_masks: whether `--return-sampling-mask` is on.
        runs_v2: whether Model Runner V2 executes the requests.
        max_logprobs: `--max-logprobs`; -1 means the vocabulary.
        max_num_seqs: `--max-num-seqs`, or its default where the GPU is known.
        vocabulary: size of the model's vocabulary.
        temperature, top_k, min_p: default values of the OpenAI-compatible routes.
        max_model_len: the context length.
        is_encoder_decoder: whether prompts go to an encoder.
        model_type: that of config.json.
        generates: whether the server generates, and does not pool.
        speculates: whether speculative decoding is on.
        model_names: every name that `model` may have; None also where adapters come at run time.
        max_n, max_bad_words: `VLLM_MAX_N_SEQUENCES` and `VLLM_MAX_NUM_BAD_WORDS`.
        max_bad_word_tokens: `VLLM_MAX_BAD_WORDS_TOTAL_TOKENS`.
        end_ids: `eos_token_id` of config.json.
        generation_end_ids: that of generation_config.json; empty if it has none.
        has_tokenizer: whether the server loads one.
        has_tool_parser: whether `--tool-call-parser` is given.
        root_path: `--root-path`, which vLLM takes off before it looks for the route.
        limits: those of our own.
    """

    catalogue: Catalogue
    semantics: EngineSemantics
    returns_masks: bool | None
    runs_v2: bool | None
    max_logprobs: int | None
    max_num_seqs: int | None
    vocabulary: int | None
    temperature: Default
    top_k: Default
    min_p: Default = Default(known=False)
    max_model_len: int | None = None
    is_encoder_decoder: bool | None = None
    model_type: str | None = None
    generates: bool | None = None
    speculates: bool | None = None
    model_names: frozenset[str] | None = None
    max_n: int | None = None
    max_bad_words: int | None = None
    max_bad_word_tokens: int | None = None
    end_ids: frozenset[int] | None = None
    generation_end_ids: frozenset[int] | None = None
    has_tokenizer: bool | None = None
    has_tool_parser: bool | None = None
    root_path: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def version(self) -> Version:
        """The backend's vLLM version."""
        return self.catalogue.version


def unknown_server(catalogue: Catalogue) -> Served:
    """What is known of a backend whose configuration nobody told: its version, supposedly."""
    return Served(
        catalogue=catalogue,
        semantics=semantics_of(catalogue.version),
        returns_masks=None,
        runs_v2=None,
        max_logprobs=None,
        max_num_seqs=None,
        vocabulary=None,
        temperature=Default(known=False),
        top_k=Default(known=False),
    )


def served_by(config: ServeConfig, generation: Mapping[str, Any] | None = None) -> Served:
    """Work out what `config` says; whatever it leaves open is None.

    `generation` is the model's generation_config.json, which sampling defaults come from where
    the configuration says so.
    """
    return Served(
        catalogue=config.catalogue,
        semantics=semantics_of(config.catalogue.version),
        returns_masks=_known(lambda: bool(config["return_sampling_mask"])),
        runs_v2=_known(lambda: _runs_v2(config)),
        max_logprobs=_known(lambda: _integer(config["max_logprobs"])),
        max_num_seqs=_known(lambda: max_num_seqs(config)),
        vocabulary=_known(lambda: vocab_size(config)),
        temperature=_default(config, generation, "temperature", 1.0),
        top_k=_default(config, generation, "top_k", 0),
        min_p=_default(config, generation, "min_p", 0.0),
        max_model_len=_known(lambda: max_model_len(config)),
        is_encoder_decoder=_known(lambda: is_encoder_decoder(config)),
        model_type=_known(lambda: str(hf_value(config, "model_type"))),
        generates=_known(lambda: not is_pooling(config)),
        speculates=_known(lambda: _speculates(config)),
        model_names=_known(lambda: _model_names(config)),
        max_n=_known(lambda: _number(config, "VLLM_MAX_N_SEQUENCES")),
        max_bad_words=_known(lambda: _number(config, "VLLM_MAX_NUM_BAD_WORDS")),
        max_bad_word_tokens=_known(lambda: _number(config, "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS")),
        end_ids=_known(lambda: _end_ids(config)),
        generation_end_ids=_known(lambda: _generation_end_ids(config, generation)),
        has_tokenizer=_known(lambda: _has_tokenizer(config)),
        has_tool_parser=_known(lambda: config["tool_call_parser"] is not None),
        root_path=_known(lambda: str(config["root_path"] or "")) or "",
    )


def _speculates(config: ServeConfig) -> bool:
    shorthands = ("spec_method", "spec_model", "spec_tokens")
    return any(config[name] is not None for name in ("speculative_config", *shorthands))


def _end_ids(config: ServeConfig) -> frozenset[int] | None:
    return _as_ids(hf_value(config, "eos_token_id")) or None


def _generation_end_ids(
    config: ServeConfig, generation: Mapping[str, Any] | None
) -> frozenset[int] | None:
    """Give those of `generation`, which vLLM reads with `--generation-config vllm` as well.

    Source: `config/model.py::ModelConfig.try_get_generation_config`.
    """
    if generation is None or config["generation_config"] not in ("auto", "vllm"):
        return None
    given = generation.get("eos_token_id")
    return frozenset() if given is None else _as_ids(given)


def _as_ids(given: Any) -> frozenset[int] | None:
    ids = given if isinstance(given, list) else [given]
    return frozenset(ids) if all(type(token) is int for token in ids) else None


def _has_tokenizer(config: ServeConfig) -> bool:
    return not (config["skip_tokenizer_init"] or config["tokens_only"])


def _model_names(config: ServeConfig) -> frozenset[str] | None:
    """Give the served names and those of static adapters; None where others may come.

    Source: `entrypoints/serve/engine/serving.py::BaseServing._check_model`.
    """
    if any(
        _switched_on(config, name)
        for name in ("VLLM_SKIP_MODEL_NAME_VALIDATION", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    ):
        return None
    names = config["served_model_name"] or [config["model"]]
    names = [names] if isinstance(names, str) else list(names)
    adapters = [*(config["lora_modules"] or ()), *(config["default_mm_loras"] or ())]
    if adapters:
        return None if config["default_mm_loras"] else _with_adapters(names, adapters)
    return frozenset(names) if all(isinstance(name, str) for name in names) else None


def _with_adapters(names: list[Any], adapters: list[Any]) -> frozenset[str] | None:
    """Add the names of `--lora-modules`: `name=path`, or an object with `name`."""
    for adapter in adapters:
        if isinstance(adapter, Unresolved):  # it may be several words
            return None
        if isinstance(adapter, Mapping):
            names.append(adapter.get("name"))
        elif isinstance(adapter, str) and adapter.lstrip().startswith("{"):
            return None
        else:
            names.append(str(adapter).partition("=")[0])
    return frozenset(names) if all(isinstance(name, str) and name for name in names) else None


def _switched_on(config: ServeConfig, name: str) -> bool:
    variable = config.variable(name)
    return variable is not None and variable.value.strip().lower() in ("1", "true")


def _number(config: ServeConfig, name: str) -> int | None:
    """Give a variable's integer, its default if it is not set; None if the version has none."""
    fact = config.catalogue.env_vars.get(name)
    if fact is None:
        return None
    variable = config.variable(name)
    try:
        return int(fact.default if variable is None else variable.value)
    except (TypeError, ValueError):
        return None


def _runs_v2(config: ServeConfig) -> bool | None:
    """Whether V2 runs, None where nobody can say.

    Where it rests only on what is taken for granted, such as a GPU, V2 counts as sure: what it
    dies of is nothing that anybody needs. V1 does not.
    """
    if config["return_sampling_mask"]:
        return True
    decision = decide_runner(config, Moment.LAST_CHECK)
    if decision.version is Runner.V2:
        return True
    return None if decision.version is None or decision.presumes else False


def _default(
    config: ServeConfig, generation: Mapping[str, Any] | None, name: str, neutral: float
) -> Default:
    """Resolve a default as `config/model.py::ModelConfig.get_diff_sampling_param` does."""
    try:
        override = config["override_generation_config"]
        if isinstance(override, Mapping) and name in override:
            return _as_default(override[name], neutral)
        source = config["generation_config"]
    except Abstain:
        return Default(known=False)
    if source == "vllm":
        return Default(known=True, value=neutral)
    if source == "auto" and generation is not None:
        return _as_default(generation.get(name), neutral)
    return Default(known=False)


def _as_default(value: Any, neutral: float) -> Default:
    if value is None:
        return Default(known=True, value=neutral)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Default(known=number, value=value if number else None)


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _known(ask: Callable[[], _T]) -> _T | None:
    try:
        return ask()
    except Abstain:
        return None
