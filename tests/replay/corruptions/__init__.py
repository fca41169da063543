"""Ways in which a rollout comes to lie: pure functions over a replay case."""

from tests.replay.corruptions.exchange import EXCHANGE
from tests.replay.corruptions.kind import Kind
from tests.replay.corruptions.logprobs import LOGPROBS
from tests.replay.corruptions.masks import MASKS
from tests.replay.corruptions.tokens import TOKENS

KINDS: tuple[Kind, ...] = (*TOKENS, *MASKS, *LOGPROBS, *EXCHANGE)

__all__ = ["EXCHANGE", "KINDS", "LOGPROBS", "MASKS", "TOKENS", "Kind"]
