"""A proposal with facts, resolved, for the steps that rules compare with."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from app.catalogue import CatalogueLibrary
from app.proposal.proposal import Hardware
from app.proposal.shell import parse_command
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import ServeConfig

LIBRARY = CatalogueLibrary()
H100 = Hardware("NVIDIA H100 80GB HBM3", 8)

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def config_of(
    options: str = "",
    model: dict[str, Any] | None = None,
    hardware: Hardware | None = None,
    version: str = "0.32.0",
) -> ServeConfig:
    """Resolve `[VAR=1 ...] [options]` for one version; `--` options follow `vllm serve m`."""
    first = re.search(r"(?:^|\s)-", options)
    at = len(options) if first is None else first.start()
    command = f"{options[:at]} vllm serve m {options[at:]}".strip()
    proposal = replace(parse_command(command), model_config=model, hardware=hardware)
    config = resolve(proposal, LIBRARY.get(version)).config
    assert config is not None
    return config
