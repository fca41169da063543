"""What a configuration class makes of a config.json."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.catalogue.extraction.model_configs import model_config_facts


class Text:
    """A text model's class, with a renamed key, grouped heads and a gated window."""

    model_type = "text"
    attribute_map = {"hidden_size": "width", "other": "o"}  # noqa: RUF012 - as the real ones

    def __init__(
        self,
        num_attention_heads: int = 16,
        num_key_value_heads: int | None = None,
        hidden_size: int = 1024,
        head_dim: int | None = None,
        sliding_window: int | None = None,
        use_sliding_window: bool = False,
    ) -> None:
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.hidden_size = hidden_size
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.sliding_window = sliding_window if use_sliding_window else None
        self.vocab_size = 100
        self.tie_word_embeddings = True
        self.num_hidden_layers = 4
        self.is_encoder_decoder = False
        self.rope_parameters = {"rope_type": "yarn", "factor": 4.0, "beta": [1]}

    def get_text_config(self) -> Any:
        return self


class Both:
    """A class with a text part two levels down."""

    def __init__(self) -> None:
        self.thinker_config = SimpleNamespace(text_config=Text())
        self.thinker_config.get_text_config = self.get_text_config

    def get_text_config(self) -> Any:
        return self.thinker_config.text_config


class Flat:
    """A class whose text part may be written into the whole."""

    tie_word_embeddings = False

    def __init__(self, num_hidden_layers: int = 2) -> None:
        self.text_config = Text()
        self.text_config.num_hidden_layers = num_hidden_layers

    def get_text_config(self) -> Any:
        return self.text_config


class Refuses:
    """A class that cannot be made without arguments."""

    def __init__(self, needed: int) -> None:
        self.needed = needed


class Vllm:
    """What the extractor asks of the running vLLM."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def module(self, name: str) -> Any:
        if name == "transformers":
            return SimpleNamespace(CONFIG_MAPPING={"text": Text, "refuses": Refuses})
        return SimpleNamespace(_CONFIG_REGISTRY={"both": Both, "flat": Flat})

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_defaults_aliases_parts_and_gates_are_found() -> None:
    vllm = Vllm()
    facts = model_config_facts(vllm)  # type: ignore[arg-type]  # it asks only this of one
    assert facts == {
        "both": {"text": ["thinker_config.text_config", "text"]},
        "flat": {
            "text": ["text_config", "text"],
            "flat": True,
            "defaults": {"tie_word_embeddings": False},
        },
        "text": {
            "defaults": {
                "num_attention_heads": 16,
                "num_hidden_layers": 4,
                "hidden_size": 1024,
                "vocab_size": 100,
                "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "yarn", "factor": 4.0},
            },
            "gated": {"sliding_window": "use_sliding_window"},
            "aliases": {"hidden_size": "width"},
        },
    }
    assert [note.split(":")[0] for note in vllm.notes] == ["model configuration refuses"]
