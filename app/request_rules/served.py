"""What the admitted configuration says about requests, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from packaging.version import Version

from app.catalogue import Catalogue
from app.catalogue.semantics import EngineSemantics, semantics_of
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.serve_config.serve_config import Abstain, ServeConfig

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
        max_num_seqs: `--max-num-seqs` if given; its default depends on the GPU.
        vocabulary: size of the model's vocabulary.
        temperature, top_k: default values of the OpenAI-compatible routes.
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


def served_by(config: ServeConfig) -> Served:
    """Work out what `config` says; whatever it leaves open is None."""
    return Served(
        catalogue=config.catalogue,
        semantics=semantics_of(config.catalogue.version),
        returns_masks=_known(lambda: bool(config["return_sampling_mask"])),
        runs_v2=_known(lambda: _runs_v2(config)),
        max_logprobs=_known(lambda: _integer(config["max_logprobs"])),
        max_num_seqs=_known(lambda: _integer(config["max_num_seqs"])),
        vocabulary=_vocabulary(config.model_config),
        temperature=_default(config, "temperature", 1.0),
        top_k=_default(config, "top_k", 0),
    )


def _runs_v2(config: ServeConfig) -> bool | None:
    """Whether V2 runs; None where that rests on something taken for granted."""
    if config["return_sampling_mask"]:
        return True
    decision = decide_runner(config, Moment.LAST_CHECK)
    return None if decision.presumes else decision.version is Runner.V2


def _default(config: ServeConfig, name: str, neutral: float) -> Default:
    """Resolve a default as `config/model.py::ModelConfig.get_diff_sampling_param` does."""
    try:
        override = config["override_generation_config"]
        if isinstance(override, Mapping) and name in override:
            value = override[name]
            if value is None:
                return Default(known=True, value=neutral)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return Default(known=number, value=value if number else None)
        if config["generation_config"] == "vllm":
            return Default(known=True, value=neutral)
    except Abstain:
        pass
    return Default(known=False)


def _vocabulary(model_config: Mapping[str, Any] | None) -> int | None:
    if model_config is None:
        return None
    text = model_config.get("text_config")
    source = text if isinstance(text, Mapping) else model_config
    return _integer(source.get("vocab_size"))


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _known(ask: Callable[[], _T]) -> _T | None:
    try:
        return ask()
    except Abstain:
        return None
