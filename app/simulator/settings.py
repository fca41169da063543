"""What the simulated server was started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from packaging.version import Version

from app.catalogue.semantics import EngineSemantics, semantics_of
from app.errors import UnusableInput
from app.serve_config.serve_config import Abstain, ServeConfig
from app.simulator.sampler import LogprobsMode, TopKTies

# Sampling parameters whose server-side default a generation config may set.
# Source: vllm/config/model.py::ModelConfig.get_diff_sampling_param.
_GENERATION_DEFAULTS = frozenset(
    {"repetition_penalty", "temperature", "top_k", "top_p", "min_p", "max_new_tokens"}
)

_FROM_SERVE_CONFIG = (
    *("return_sampling_mask", "enable_scale_out"),
    *("model_tag", "model", "served_model_name", "api_key", "logprobs_mode", "max_model_len"),
    *("max_logprobs", "max_num_seqs", "tokens_only", "use_fp64_gumbel", "seed"),
    *("return_tokens_as_token_ids", "enable_prompt_tokens_details"),
    *("override_generation_config", "allowed_origins"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """The flags of `vllm serve` that the simulation heeds, by their destination names.

    The defaults are those of a server that is fit for replay, not vLLM's.

    Attributes:
        vllm_version: whose wire format, draw and quirks to show.
        served_model_name: names the model answers to; the first is the one in responses.
        model: what `/v1/models` gives as `root`.
        max_model_len: context length, in tokens.
        max_logprobs: most logprobs a request may ask for; -1 is the vocabulary.
        max_num_seqs: most requests that run at a time; others wait.
        return_sampling_mask: whether responses carry masks.
        logprobs_mode: which row logprobs come from.
        enable_scale_out: whether `/inference/v1/generate` is on, from 0.30 on.
        tokens_only: the same, without a tokenizer.
        use_fp64_gumbel: whether the draw is in double precision.
        return_tokens_as_token_ids: whether logprobs name tokens as `token_id:N`.
        enable_prompt_tokens_details: whether usage tells cached tokens (always 0 here).
        override_generation_config: server-side sampling defaults of the OpenAI routes.
        api_keys: keys of which requests must carry one.
        allowed_origins: web origins let in; None is the version's default.
        seed: of the unseeded requests' seeds, as `--seed`.
        token_delay: seconds a token takes.
    """

    vllm_version: str = "0.32.0"
    served_model_name: tuple[str, ...] = ("tiny",)
    model: str = "tiny"
    max_model_len: int = 4096
    max_logprobs: int = 20
    max_num_seqs: int = 128
    return_sampling_mask: bool = True
    logprobs_mode: LogprobsMode = LogprobsMode.PROCESSED_LOGPROBS
    enable_scale_out: bool = True
    tokens_only: bool = False
    use_fp64_gumbel: bool = False
    return_tokens_as_token_ids: bool = False
    enable_prompt_tokens_details: bool = False
    override_generation_config: Mapping[str, Any] = field(default_factory=dict)
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] | None = None
    seed: int = 0
    token_delay: float = 0.0

    @property
    def release(self) -> Version:
        """The release the version belongs to, for comparisons."""
        return Version(Version(self.vllm_version).base_version)

    @property
    def semantics(self) -> EngineSemantics:
        """What that version does on the wire and in the draw."""
        return semantics_of(self.vllm_version)

    @property
    def top_k_ties(self) -> TopKTies:
        """What that version's top-k does at its boundary, for steps of few rows."""
        return TopKTies.LOWEST_IDS if self.since("0.30") else TopKTies.KEEP_ALL

    @property
    def generate_enabled(self) -> bool:
        """Whether `/inference/v1/generate` works."""
        needed = self.semantics.generate_needs_scale_out
        return not needed or self.enable_scale_out or self.tokens_only

    @property
    def origins(self) -> tuple[str, ...]:
        """The web origins let in: all by default up to 0.31, none from 0.32 on."""
        if self.allowed_origins is not None:
            return self.allowed_origins
        return () if self.since("0.32") else ("*",)

    @property
    def model_name(self) -> str:
        """The name in responses."""
        return self.served_model_name[0]

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Sampling parameters that the OpenAI routes use where a request names none."""
        given = self.override_generation_config
        return {name: given[name] for name in _GENERATION_DEFAULTS if given.get(name) is not None}

    def since(self, version: str) -> bool:
        """Whether the simulated release is `version` or newer."""
        return self.release >= Version(version)

    @classmethod
    def from_serve_config(cls, config: ServeConfig) -> Self:
        """Take version and settings of a resolved `vllm serve` command line.

        What the simulation has no use for is ignored. Where vLLM would ask the model or the
        machine (context length, number of sequences), the defaults of this class hold.

        Raises:
            UnusableInput: a setting of use here depends on something unresolved.
        """
        given: dict[str, Any] = {}
        try:
            for name in _FROM_SERVE_CONFIG:
                if (value := config[name]) is not None:
                    given[name] = value
        except Abstain as unknown:
            raise UnusableInput(f"The simulation needs to know {unknown.needs}.") from unknown
        tag, model = given.pop("model_tag", None), given.pop("model", None)
        model = str(tag or model or "tiny")
        names = given.pop("served_model_name", None) or model
        keys = given.pop("api_key", None) or ()
        if "allowed_origins" in given:
            given["allowed_origins"] = tuple(given["allowed_origins"])
        mode = given.pop("logprobs_mode", LogprobsMode.RAW_LOGPROBS)
        return cls(
            vllm_version=config.catalogue.vllm_version,
            model=model,
            served_model_name=(names,) if isinstance(names, str) else tuple(names),
            api_keys=(keys,) if isinstance(keys, str) else tuple(keys),
            logprobs_mode=LogprobsMode(mode),
            return_sampling_mask=bool(given.pop("return_sampling_mask", False)),
            enable_scale_out=bool(given.pop("enable_scale_out", False)),
            **given,
        )
