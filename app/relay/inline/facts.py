"""What the admitted configuration tells the replay gate about the backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from app.catalogue.semantics import semantics_of
from app.replay.evidence import ReplayOptions
from app.request_rules.served import Served
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import Abstain, ServeConfig

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """What is known of the backend.

    Attributes:
        vllm_version: of it.
        options: of a replay case.
        returns_masks: whether it runs with `--return-sampling-mask`; None if not known.
    """

    vllm_version: str
    options: ReplayOptions
    returns_masks: bool | None = None

    @property
    def masks_in_streams(self) -> bool:
        """Whether the version's streams carry masks."""
        return semantics_of(self.vllm_version).masks_in_streams

    def options_json(self) -> dict[str, Any]:
        """Give the options as a replay case has them."""
        return asdict(self.options)


def replay_facts(config: ServeConfig, served: Served) -> ReplayFacts:
    """Work out what `config` says about draws; what it leaves open has its default."""
    speculates = _known(lambda: speculation_of(config) is not None, None)
    return ReplayFacts(
        vllm_version=config.catalogue.vllm_version,
        options=ReplayOptions(
            use_fp64_gumbel=_known(lambda: bool(config["use_fp64_gumbel"]), False),
            watermark=_known(lambda: config["watermark_config"] is not None, False),
            speculative=speculates,
            rejection_sample_method=_speculative(config, "rejection_sample_method", str)
            or "standard",
            draft_sample_method=_speculative(config, "draft_sample_method", str) or "greedy",
            num_speculative_tokens=_speculative(config, "num_speculative_tokens", int),
            vocab_size=served.vocabulary,
        ),
        returns_masks=served.returns_masks,
    )


def _speculative(config: ServeConfig, key: str, kind: type[_T]) -> _T | None:
    """Give a key of the speculative config; None where it is not said."""

    def read() -> _T | None:
        speculation = speculation_of(config)
        value = None if speculation is None else speculation.value(key)
        return value if isinstance(value, kind) else None

    return _known(read, None)


def _known(ask: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return ask()
    except Abstain:
        return otherwise
