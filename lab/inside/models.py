"""Makes the lab's model directories: `python -m lab.inside.models DIRECTORY`.

Each of lab/model_configs.json becomes a directory with the configuration files that such a
model's page on the hub has, for verdicts; its config.json must load through transformers.
`tiny` is a random Qwen2 with weights, for serving: small enough for Triton's interpreter, with
a head size of 64, the least that vLLM's kernels take.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CONFIGS = Path(__file__).resolve().parents[1] / "model_configs.json"
END_OF_TEXT = 1000
CHAT_TEMPLATE = "{% for m in messages %}{{m['role']}}: {{m['content']}}\n{% endfor %}assistant:"


def byte_level_tokenizer() -> Any:
    """Make a tokenizer of 256 bytes, unused words up to id 999, and an end token, 1000."""
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {f"w{i}": i for i in range(len(vocabulary), END_OF_TEXT)}
    vocabulary["<|end|>"] = END_OF_TEXT
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def make_configuration(directory: Path, files: dict[str, Any], tokenizer: Any) -> None:
    """Write a model directory without weights."""
    tokenizer.save_pretrained(directory)
    for name, content in files.items():
        write_json(directory / name, content)
    AutoConfig.from_pretrained(directory)


def make_tiny(directory: Path, tokenizer: Any) -> None:
    """Write the random model with weights; the same weights every time."""
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.5,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TEXT,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    ids = {"bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT}
    write_json(directory / "generation_config.json", {"transformers_version": "4.51.0", **ids})


def main(directory: Path) -> None:
    tokenizer = byte_level_tokenizer()
    make_tiny(directory / "tiny", tokenizer)
    for name, files in json.loads(CONFIGS.read_text()).items():
        make_configuration(directory / name, files, tokenizer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
