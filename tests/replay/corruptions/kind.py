"""What a corruption is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.replay.corruptions.rows import Case

# A pure function: the case stays as it is; None where the corruption would change nothing.
Corrupt: TypeAlias = Callable[[Case, random.Random], Case | None]


@dataclass(frozen=True)
class Kind:
    """One way in which a rollout comes to lie.

    Attributes:
        name: for tables.
        corrupt: does it.
        unseen: why the report of a seeded rollout with all logprobs cannot refute it, at any
            length; empty where it must.
        choices: how many the case needs.
    """

    name: str
    corrupt: Corrupt
    unseen: str = ""
    choices: int = 1
