"""Request fields, read from a small source tree."""

from __future__ import annotations

import ast
from fnmatch import fnmatch

from app.catalogue.extraction.requests import ROUTES, request_facts

FILES = {
    "entrypoints/a/api_router.py": """
from vllm.entrypoints.a.protocol import TextRequest as Wanted
from .protocol import ChatRequest

@router.post("/v1/completions", responses={})
@load_aware_call
async def create(request: Wanted, raw_request: Request):
    pass

@router.post("/v1/chat/completions")
async def chat(request: ChatRequest):
    pass

@router.post("/other")
async def other(request: ChatRequest):
    pass

@router.get("/v1/messages")
async def messages(request: ChatRequest):
    pass
""",
    "entrypoints/a/protocol.py": """
from vllm.base import Base

class TextRequest(Base):
    model: str | None = None
    max_tokens: int | None = 16
    prompt: str = Field(..., description="x")
    top_k: int | None = Field(default=5)
    seed: int | None = Field(None, ge=0)
    kind: str = Field("x", alias="type")
    names: ClassVar[set[str]] = set()
    _private: int = 1

    def method(self): ...

class ChatRequest(BaseModel):
    messages: list[str]
""",
    "base/__init__.py": "class Base(BaseModel):\n    request_id: str = ''\n    model: str = 'm'\n",
    "sampling_params.py": """
MAX_LOGPROB_TOKEN_IDS = 128

class SamplingParams(Mixin, msgspec.Struct):
    n: int = 1
    _hidden: int = 0

    def verify(self, config):
        self._validate_logprobs(config)
        if config.x:
            self._validate_logit_bias(config)
""",
    "renderers/params.py": """
class TokenizeParams:
    @property
    def max_input_tokens(self):
        if self.total is None:
            return None
        return self.total - self.output
""",
    "v1/worker/gpu/sample/logit_bias.py": "MAX_NUM_STOP_TOKEN_IDS = 128\nOTHER = 3\n",
}


class _Source:
    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        self.notes: list[str] = []

    def files(self, pattern: str) -> list[str]:
        return sorted(name for name in self._files if fnmatch(name, pattern.replace("**", "*")))

    def syntax_tree(self, relative: str) -> ast.Module:
        return ast.parse(self._files.get(relative, ""))

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_fields_come_from_the_class_that_the_handler_takes() -> None:
    source = _Source(FILES)
    facts = request_facts(source)
    assert facts["routes"]["/v1/completions"] == {
        "model": "TextRequest",
        "fields": ["request_id", "model", "max_tokens", "prompt", "top_k", "seed", "type"],
        "defaults": {"request_id": "", "max_tokens": 16, "top_k": 5, "kind": "x"},
    }
    assert facts["routes"]["/v1/chat/completions"]["fields"] == ["messages"]
    assert source.notes == [
        f"request fields of {route}" for route in ROUTES if route not in facts["routes"]
    ]
    assert "/v1/messages" not in facts["routes"]


def test_limits_checks_and_what_is_reserved() -> None:
    facts = request_facts(_Source(FILES))
    assert facts["sampling_params"]["fields"] == ["n"]
    assert facts["limits"] == {"MAX_LOGPROB_TOKEN_IDS": 128, "MAX_NUM_STOP_TOKEN_IDS": 128}
    assert facts["checks"] == ["_validate_logprobs", "_validate_logit_bias"]
    assert facts["output_is_reserved"] is True
    whole = {**FILES, "renderers/params.py": "def max_input_tokens(self):\n    return self.total\n"}
    assert request_facts(_Source(whole))["output_is_reserved"] is False


def test_a_layout_that_is_not_known_gives_nothing_and_says_so() -> None:
    source = _Source({})
    assert request_facts(source) == {
        "routes": {},
        "sampling_params": {"model": "SamplingParams", "fields": [], "defaults": {}},
        "limits": {},
        "checks": [],
        "output_is_reserved": None,
    }
    assert len(source.notes) == len(ROUTES)
