"""What vLLM works out before it compares: one module an area, in vLLM's own words.

    @derived
    def max_model_len(config: ServeConfig) -> int:
        '''...Source: `config/model.py::ModelConfig.get_and_verify_max_len`.'''

A derived value is a pure function of the configuration, worked out once per `ServeConfig` however
many rules ask. Where a fact is missing it raises `Abstain` (or `UnresolvedValue`), and does so
again for each rule that asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from app.serve_config.serve_config import Abstain, ServeConfig

T = TypeVar("T")


def derived(step: Callable[[ServeConfig], T]) -> Callable[[ServeConfig], T]:
    """Make a resolution step that is worked out once per configuration.

    Raises:
        Abstain: what the step raised the first time, each time it is asked.
    """

    @functools.wraps(step)
    def once(config: ServeConfig) -> T:
        try:
            kept = config.memo[step]
        except KeyError:
            kept = config.memo[step] = _outcome(step, config)
        if isinstance(kept, Abstain):
            raise kept.with_traceback(None)
        return cast("T", kept)

    return once


def _outcome(step: Callable[[ServeConfig], Any], config: ServeConfig) -> Any:
    try:
        return step(config)
    except Abstain as missing:
        return missing
