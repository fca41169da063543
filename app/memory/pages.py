"""The blocks of a cache that holds states: pages as large for a state as for keys and values.

    pool = pool_of(config)
    pool.blocks(30 * GIB)          # of them each sequence needs one for its state
    pool.request(config, 4096)     # bytes of one request

vLLM makes pages of all layers one size, groups layers so that each group has as many of them, and
lets all groups draw blocks from one pool: a block is one page of each layer of a group.

Sources: `platforms/interface.py::Platform._align_hybrid_block_size`,
`v1/core/kv_cache_utils.py::_get_kv_cache_groups_uniform_page_size`,
`get_kv_cache_config_from_groups`, `v1/kv_cache_interface.py::MambaSpec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Final

from app.memory.layers import layers_of
from app.memory.states import Family, sizes_of, state_bytes
from app.memory.tokens import token_bytes
from app.rules.derived import derived
from app.rules.derived.hardware import capability, machine_of
from app.rules.derived.hf_config import number, text_value
from app.rules.derived.mamba import cache_mode
from app.rules.derived.model_sizes import uses_mla
from app.rules.derived.parallel import PP, since, size
from app.serve_config.serve_config import Abstain, ServeConfig

# Tokens of a block that the attention kernels of CUDA take, and the default.
_KERNEL_BLOCK: Final = 16
_BACKENDS: Final = frozenset({None, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"})
_ALL: Final = "all"
_ALIGN: Final = "align"
# Tokens in whose multiples FlashInfer's kernels for gated delta nets give states away.
_FLASHINFER_DELTA: Final = 64
_DELTA_HEAD: Final = 128
_HOPPER: Final = 9
_BLACKWELL: Final = frozenset({10, 12})
# Where the kernels have no chunk of their own (`ModelConfig.get_mamba_chunk_size`).
_DEFAULT_CHUNK: Final = 2048
# Unless one kind has that many times the layers of another, groups are as large as the larger.
_MUCH_MORE: Final = 1.5


@dataclass(frozen=True, slots=True)
class Pool:
    """How the cache of one GPU is cut.

    Attributes:
        page: bytes of a block in one layer.
        layers: of a group; a block has a page of each.
        block: tokens of a block where a layer attends; 0 without attention.
        attending, keeping: groups of layers with attention, and with a state.
        states: blocks that a request needs in each group with a state; None for one a block.
    """

    page: int
    layers: int
    block: int
    attending: int
    keeping: int
    states: int | None

    @property
    def bytes_of_block(self) -> int:
        """Bytes of one block on one GPU."""
        return self.page * self.layers

    def blocks(self, memory: int) -> int:
        """Give the blocks that so many bytes hold."""
        return max(memory, 0) // self.bytes_of_block

    def request(self, tokens: int) -> int:
        """Give the bytes that a request of so many tokens takes."""
        each = _ceil(tokens, self.block) if self.block else 0
        states = each if self.states is None else self.states
        return (self.attending * each + self.keeping * states) * self.bytes_of_block


@derived
def pool_of(config: ServeConfig) -> Pool:
    """Work out the blocks of a model with states.

    Raises:
        Abstain: a kind of state, kernel, machine or cut of the model that is not known.
    """
    if size(config, PP) > 1:
        raise Abstain("how pipeline stages share layers with states out")
    layers, state = layers_of(config), state_bytes(config)
    if layers.local:
        raise Abstain("pages of layers with a window beside states")
    mode = cache_mode(config)
    if not layers.full:
        if mode == _ALL:
            raise Abstain("how many states of a sequence are kept")
        return Pool(state, layers.state, 0, 0, 1, _states(config, mode))
    block = _tokens_of_block(config, state, mode)
    group = min(layers.full, layers.state)
    if max(layers.full, layers.state) < group * _MUCH_MORE:
        group = max(layers.full, layers.state)
    return Pool(
        page=block * int(token_bytes(config)),
        layers=group,
        block=block,
        attending=_ceil(layers.full, group),
        keeping=_ceil(layers.state, group),
        states=_states(config, mode),
    )


def _tokens_of_block(config: ServeConfig, state: int, mode: str) -> int:
    """Give the tokens whose keys and values take at least what a state does."""
    if not machine_of(config).is_cuda or config["attention_backend"] not in _BACKENDS:
        raise Abstain("the blocks that these attention kernels take")
    if uses_mla(config):
        raise Abstain("the blocks of latent attention beside states")
    given = config["block_size"]
    asked = given if isinstance(given, int) else _KERNEL_BLOCK
    unit, step = int(token_bytes(config)), max(asked, _KERNEL_BLOCK)
    if mode == _ALL:
        chunk = config["mamba_block_size"] or _chunk(config)
        step = lcm(chunk, step)
        return max(asked, step * _ceil(_ceil(state, unit), step))
    if mode == _ALIGN:
        step = lcm(step, _checkpoints(config) or 1)
    return max(asked, step * _ceil(state, step * unit))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _chunk(config: ServeConfig) -> int:
    for key in ("mamba_chunk_size", "chunk_size"):
        found = number(text_value(config, key))
        if found:
            return found
    return _DEFAULT_CHUNK


def _states(config: ServeConfig, mode: str) -> int | None:
    """Give the blocks of one request in a group that keeps states."""
    if mode == _ALL:
        return None
    if mode != _ALIGN:
        return 1
    return 2 + bool(_checkpoints(config))


def _checkpoints(config: ServeConfig) -> int | None:
    """Give the multiples of tokens where a prefill can leave a state behind; None where it cannot.

    Source: `get_prefill_checkpoint_alignment` of the layers, `_resolve_gdn_prefill_backend`.
    """
    family = sizes_of(config).family
    if family is Family.MAMBA2:
        return 1 if since(config, "0.32") else None
    if family is not Family.DELTA or not since(config, "0.33"):
        return None
    if text_value(config, "model_type") == "olmo_hybrid":
        return None  # its layers are of another class
    asked = config["gdn_prefill_backend"] or config["additional_config.gdn_prefill_backend"]
    if asked not in {None, "auto", "flashinfer"}:
        return None
    generation = capability(config)[0]
    head = number(text_value(config, "linear_key_head_dim"))
    if generation == _HOPPER or (generation in _BLACKWELL and head == _DELTA_HEAD):
        return _FLASHINFER_DELTA
    return None
