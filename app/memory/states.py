"""The state that a layer keeps of one sequence instead of keys and values, as vLLM lays it out.

Source: `vllm/model_executor/layers/mamba/mamba_utils.py::MambaStateShapeCalculator` and the
`get_mamba_state_shape_from_config` of the model classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.rules.derived import derived
from app.rules.derived.hf_config import MODEL_CONFIG, number, text_value
from app.rules.derived.mamba import REPLAY, drafted_tokens, ssm_dtype
from app.rules.derived.model_sizes import hidden_size
from app.rules.derived.model_types import model_dtype
from app.rules.derived.parallel import size
from app.serve_config.serve_config import Abstain, ServeConfig

_WIDTHS: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_AUTO: Final = "auto"


class Family(StrEnum):
    """Kinds of layers with a state."""

    MAMBA1 = "Mamba"
    MAMBA2 = "Mamba 2"
    DELTA = "gated delta net"
    CONV = "short convolution"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the state is made of, for the whole model.

    Attributes:
        inner: channels of the convolution that are no keys.
        heads, head: of the recurrent state; Mamba 1 has its channels instead.
        state: elements that each of a head's channels keeps; 0 for a bare convolution.
        groups: shared inputs (Mamba 2) or key heads.
        kernel: of the convolution.
    """

    family: Family
    inner: int
    heads: int
    head: int
    state: int
    groups: int
    kernel: int

    @property
    def convolved(self) -> int:
        """Channels that go through the convolution."""
        return self.inner + 2 * self.groups * self.state


# Names of sizes in config.json: inner, heads, head, state, groups, kernel.
_MAMBA2_KEYS: Final[Mapping[str, tuple[str, str, str, str, str]]] = {
    "falcon_h1": (
        *("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    ),
    "granitemoehybrid": (
        *("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    ),
    "nemotron_h": (
        *("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    ),
    "mamba2": ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel"),
    "zamba2": (
        *("n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_ngroups", "mamba_d_conv"),
    ),
}
_DELTA: Final = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"})
_CONV: Final = frozenset({"lfm2", "lfm2_moe"})
_MAMBA1: Final = frozenset({"mamba", "falcon_mamba", "jamba"})


@derived
def sizes_of(config: ServeConfig) -> Sizes:
    """Read the sizes of the state.

    Raises:
        Abstain: a kind of state that is not known, or config.json has not its sizes.
    """
    kind = str(text_value(config, "model_type"))
    keys = _MAMBA2_KEYS.get(kind)
    if keys is not None:
        heads, head, state, groups, kernel = (needed(config, key) for key in keys)
        return Sizes(Family.MAMBA2, heads * head, heads, head, state, groups, kernel)
    if kind in _DELTA:
        heads, head = (
            needed(config, "linear_num_value_heads"),
            needed(config, "linear_value_head_dim"),
        )
        return Sizes(
            Family.DELTA,
            heads * head,
            heads,
            head,
            needed(config, "linear_key_head_dim"),
            needed(config, "linear_num_key_heads"),
            needed(config, "linear_conv_kernel_dim"),
        )
    if kind in _CONV:
        width = number(text_value(config, "conv_dim")) if kind == "lfm2" else None
        inner = width or hidden_size(config)
        return Sizes(Family.CONV, inner, 0, 0, 0, 0, needed(config, "conv_L_cache"))
    if kind in _MAMBA1:
        return _mamba1(config, kind)
    raise Abstain(f"how the layers of a {kind} model keep their state")


def _mamba1(config: ServeConfig, kind: str) -> Sizes:
    if kind == "jamba":
        inner = needed(config, "mamba_expand") * hidden_size(config)
        state, kernel = needed(config, "mamba_d_state"), needed(config, "mamba_d_conv")
    else:
        inner = number(text_value(config, "intermediate_size")) or 0
        state, kernel = needed(config, "state_size"), needed(config, "conv_kernel")
    return Sizes(Family.MAMBA1, inner, 0, 0, state, 0, kernel)


@derived
def state_bytes(config: ServeConfig) -> int:
    """Give the bytes per GPU of one sequence's state in one layer, however long it is.

    Raises:
        Abstain: as `sizes_of`; or drafts or replays change it, or ranks do not divide it.
    """
    if config[REPLAY] or drafted_tokens(config):
        raise Abstain("what drafts and replays add to the states")
    found, ranks = sizes_of(config), size(config, "tensor_parallel_size")
    conv, recurrent = _widths(config)
    groups = found.groups
    if found.family is Family.MAMBA2 and groups % ranks:
        groups = ranks  # each rank holds one that its heads need
    channels = found.inner + 2 * groups * found.state
    if channels % ranks or found.heads % ranks:
        raise Abstain("a state that divides among the ranks")
    kept = channels // ranks * (found.kernel - 1) * conv
    if found.family is Family.MAMBA1:
        return kept + found.inner // ranks * found.state * recurrent
    return kept + found.heads // ranks * found.head * found.state * recurrent


def _widths(config: ServeConfig) -> tuple[int, int]:
    """Give the bytes of an element of the convolution's and of the recurrent state."""
    asked, recurrent = config["mamba_cache_dtype"], ssm_dtype(config)
    dtype = model_dtype(config).removeprefix("torch.") if asked == _AUTO else asked
    found = [_WIDTHS.get(str(name)) for name in (dtype, dtype if recurrent == _AUTO else recurrent)]
    if found[0] is None or found[1] is None:
        raise Abstain("a dtype of states that is known")
    return found[0], found[1]


def needed(config: ServeConfig, key: str) -> int:
    """Read a size of the text model.

    Raises:
        Abstain: config.json has it not.
    """
    found = number(text_value(config, key))
    if found is None:
        raise Abstain(f"`{key}` in {MODEL_CONFIG}")
    return found
