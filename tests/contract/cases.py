"""The requests of the contract: what is sent to real vLLM and to the simulated backend.

They are written for a server with the model name `tiny`, a vocabulary of 1024, a byte-level
tokenizer, a context of 256, `--return-sampling-mask --logprobs-mode processed_logprobs
--generation-config vllm` and, from 0.30.0 on, `--enable-scale-out`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import Version

PROMPT = [5, 17, 99, 300, 301, 302, 42]
SAMPLING = {
    "temperature": 1.0,
    "top_k": 4,
    "top_p": 0.9,
    "seed": 7,
    "max_tokens": 3,
    "ignore_eos": True,
}
GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True, slots=True)
class Case:
    """One request of the contract.

    `body` is sent as JSON; `raw` (with `headers`) as it stands. `races_before` names the first
    version whose answer does not depend on which token happens to come first.
    """

    name: str
    path: str
    method: str = "POST"
    body: Any = None
    raw: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    races_before: str | None = None

    def races_in(self, version: str) -> bool:
        """Whether that version answers now this way, now that."""
        return self.races_before is not None and Version(version) < Version(self.races_before)

    def content(self) -> bytes | None:
        """Give the bytes of the body."""
        if self.raw is not None:
            return self.raw.encode("utf-8", "surrogateescape")
        return None if self.body is None else json.dumps(self.body).encode()

    def all_headers(self) -> dict[str, str]:
        """Give the headers, with the content type of a JSON body."""
        known = {"content-type": "application/json"} if self.body is not None else {}
        return {**known, **self.headers}


def generate(name: str, *, top: Mapping[str, Any] | None = None, **sampling: Any) -> Case:
    """Make a case of `/inference/v1/generate`; a sampling parameter `...` is left out."""
    params = {k: v for k, v in {**SAMPLING, **sampling}.items() if v is not ...}
    body = {"token_ids": PROMPT, "sampling_params": params, **(top or {})}
    return Case(f"generate/{name}", GENERATE, body={k: v for k, v in body.items() if v is not ...})


def completion(name: str, **members: Any) -> Case:
    """Make a case of `/v1/completions`."""
    body = {"model": "tiny", "prompt": "hello", **SAMPLING, **members}
    return Case(
        f"completions/{name}", COMPLETIONS, body={k: v for k, v in body.items() if v is not ...}
    )


def chat(name: str, **members: Any) -> Case:
    """Make a case of `/v1/chat/completions`."""
    body = {"model": "tiny", "messages": MESSAGES, **SAMPLING, **members}
    return Case(f"chat/{name}", CHAT, body={k: v for k, v in body.items() if v is not ...})


def _operations() -> Iterable[Case]:
    for path in ("/health", "/version", "/v1/models", "/load", "/ping", "/nothing-here"):
        yield Case(f"get{path}", path, method="GET")
    yield Case("get/generate", GENERATE, method="GET")
    yield Case("post/ping", "/ping", body={})
    yield Case("post/health", "/health", body={})
    yield Case("options/completions", COMPLETIONS, method="OPTIONS")
    yield Case(
        "options/preflight",
        COMPLETIONS,
        method="OPTIONS",
        headers={"origin": "http://app.example", "access-control-request-method": "POST"},
    )
    yield Case("get/cross origin", "/version", method="GET", headers={"origin": "http://a.example"})
    yield Case("head/version", "/version", method="HEAD")
    yield Case("get/v1/models/", "/v1/models/", method="GET")
    yield Case("tokenize/prompt", "/tokenize", body={"model": "tiny", "prompt": "hello wörld"})
    yield Case(
        "tokenize/strings",
        "/tokenize",
        body={"prompt": "hi ", "return_token_strs": True, "add_special_tokens": False},
    )
    yield Case("tokenize/messages", "/tokenize", body={"model": "tiny", "messages": MESSAGES})
    yield Case("tokenize/unknown model", "/tokenize", body={"model": "other", "prompt": "x"})
    yield Case("tokenize/nothing", "/tokenize", body={"model": "tiny"})
    yield Case("detokenize/tokens", "/detokenize", body={"model": "tiny", "tokens": [71, 68, 75]})
    yield Case("detokenize/beyond", "/detokenize", body={"tokens": [71, 1000, 1020, 300]})
    yield Case("detokenize/negative", "/detokenize", body={"tokens": [-1]})
    yield Case("detokenize/no tokens", "/detokenize", body={"model": "tiny"})


def _generate() -> Iterable[Case]:
    yield generate("plain")
    yield generate("logprobs", logprobs=4)
    yield generate("logprobs 0", logprobs=0)
    yield generate("logprobs 1", logprobs=1, temperature=2.0, top_k=20, top_p=1.0)
    yield generate("logprobs 20", logprobs=20, top_k=3)
    yield generate("one token, no max", top={"token_ids": [9] * 254}, max_tokens=..., logprobs=1)
    yield generate("max_tokens over the context", top={"token_ids": [9] * 254}, max_tokens=50)
    yield generate("prompt logprobs", prompt_logprobs=2)
    yield generate("prompt logprobs 0", prompt_logprobs=0)
    yield generate("n", n=2, logprobs=1)
    yield generate("n final only", n=2, logprobs=1, output_kind=2)
    yield generate("stream", top={"stream": True}, logprobs=4)
    yield generate("stream plain", top={"stream": True})
    yield generate("stream usage", top={"stream": True, "stream_options": {"include_usage": True}})
    yield generate(
        "stream continuous usage",
        top={
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    )
    # Until 0.31 it may break off with an index error, when a choice is ahead of the others.
    yield replace(generate("stream n", top={"stream": True}, n=2), races_before="0.32")
    yield generate("stream prompt ids", top={"stream": True, "return_token_ids": True}, logprobs=0)
    yield generate("return_token_ids", top={"return_token_ids": True})
    yield generate("named", top={"request_id": "mine", "model": "tiny"})
    yield Case(
        "generate/x-request-id",
        GENERATE,
        body={"token_ids": PROMPT, "sampling_params": dict(SAMPLING)},
        headers={"x-request-id": "from-header"},
    )
    yield generate("text mode", top={"output_mode": "text"}, logprobs=2, allowed_token_ids=[71, 72])
    yield generate(
        "text mode stream",
        top={"output_mode": "text", "stream": True},
        logprobs=2,
        allowed_token_ids=[71, 72],
    )
    yield generate("one allowed id", allowed_token_ids=[71], logprobs=2)
    yield generate("stop token", allowed_token_ids=[71, 72], stop_token_ids=[71, 72], logprobs=1)
    yield generate("end token", allowed_token_ids=[1000], ignore_eos=False)
    yield generate("end token ignored", allowed_token_ids=[1000])
    yield generate(
        "min tokens",
        stop_token_ids=[71],
        allowed_token_ids=[71, 72],
        logit_bias={"71": 100},
        min_tokens=2,
    )
    yield generate("stop string beyond", allowed_token_ids=[71], stop=["hhhh"], max_tokens=3)
    yield generate(
        "text mode stop string",
        top={"output_mode": "text", "stream": True},
        allowed_token_ids=[71],
        stop=["hhh"],
        max_tokens=8,
    )
    yield generate("stop string", allowed_token_ids=[71], stop=["hh"], max_tokens=8)
    yield generate("unknown keys", top={"surprise": 1}, surprise=2)
    yield generate("small temperature", temperature=0.001, logprobs=2)
    # refused by the engine's replay rules
    yield generate("greedy", temperature=0)
    yield generate("top_k missing", top_k=...)
    yield generate("top_k -1", top_k=-1)
    yield generate("stream greedy", top={"stream": True}, temperature=0)
    yield generate("stream logprobs 21", top={"stream": True}, logprobs=21)
    yield generate("stream id beyond", top={"stream": True, "token_ids": [1, 5000]})
    yield generate("stream prompt too long", top={"stream": True, "token_ids": [9] * 300})
    yield generate("stream temperature 3", top={"stream": True}, temperature=3)
    yield generate("stream unknown model", top={"stream": True, "model": "other"})
    yield generate("nothing left", allowed_token_ids=[71], bad_words=["h"], logprobs=1)
    yield generate(
        "stream nothing left",
        top={"stream": True},
        allowed_token_ids=[71],
        bad_words=["h"],
        logprobs=1,
    )
    yield generate("logprob token ids", logprob_token_ids=[5, 6])
    yield generate("logprob token ids and logprobs", logprob_token_ids=[5, 6], logprobs=2)
    yield generate("penalties", repetition_penalty=1.5, presence_penalty=1, frequency_penalty=1)
    # refused before
    yield generate("temperature 3", temperature=3)
    yield generate("temperature -1", temperature=-1)
    yield generate("temperature text", temperature="hot")
    yield generate("top_k -2", top_k=-2)
    yield generate("top_k 1.5", top_k=1.5)
    yield generate("top_p 0", top_p=0)
    yield generate("top_p 1.5", top_p=1.5)
    yield generate("min_p 2", min_p=2)
    yield generate("n 0", n=0)
    yield generate("n over max_num_seqs", n=5000)
    yield generate("n greedy", n=2, temperature=0)
    yield generate("max_tokens 0", max_tokens=0)
    yield generate("min over max", min_tokens=5)
    yield generate("logprobs -2", logprobs=-2)
    yield generate("logprobs 21", logprobs=21)
    yield generate("logprobs -1", logprobs=-1)
    yield generate("logprobs true", logprobs=True)
    yield generate("prompt logprobs 21", prompt_logprobs=21)
    yield generate("presence 3", presence_penalty=3)
    yield generate("repetition 0", repetition_penalty=0)
    yield generate("stop empty", stop=[""])
    yield generate("stop token beyond", stop_token_ids=[5000])
    yield generate("bias beyond", logit_bias={"5000": 1.0})
    yield generate("bias word", logit_bias={"x": 1.0})
    yield generate("allowed beyond", allowed_token_ids=[5000])
    yield generate("allowed empty", allowed_token_ids=[])
    yield generate("seed 2^64", seed=2**64)
    yield generate("temperature null", temperature=None)
    yield generate("top_k text", top_k="4")
    yield generate("priority", top={"priority": 1})
    yield generate("cache salt empty", top={"cache_salt": ""})
    yield generate("stop without text", stop=["x"], detokenize=False)
    yield generate("bad word empty", bad_words=[""])
    yield generate("min_p", min_p=0.2, logprobs=4)
    yield generate("n over the limit", n=20000)
    yield generate("output mode", top={"output_mode": "words"})
    yield Case(
        "generate/temperature NaN",
        GENERATE,
        raw=json.dumps({"token_ids": PROMPT, "sampling_params": {"temperature": float("nan")}}),
        headers={"content-type": "application/json"},
    )
    yield generate("unknown model", top={"model": "other"})
    yield generate("empty prompt", top={"token_ids": []})
    yield generate("negative id", top={"token_ids": [1, -1]})
    yield generate("id beyond", top={"token_ids": [1, 5000]})
    yield generate("text prompt", top={"token_ids": "hello"})
    yield generate("no prompt", top={"token_ids": ...})
    yield generate("no sampling_params", top={"sampling_params": ...})
    yield generate("sampling_params list", top={"sampling_params": [1]})
    yield generate("many errors", top={"token_ids": ["a"] * 12, "stream": "maybe"})
    yield generate("prompt too long", top={"token_ids": [9] * 300})
    yield generate("prompt fills", top={"token_ids": [9] * 256})
    yield generate("stream options without stream", top={"stream_options": {"include_usage": True}})
    yield Case(
        "generate/broken json", GENERATE, raw="{", headers={"content-type": "application/json"}
    )
    yield Case(
        "generate/bad utf-8", GENERATE, raw="{\udcff", headers={"content-type": "application/json"}
    )
    yield Case("generate/list body", GENERATE, body=[1])
    yield Case(
        "generate/empty body", GENERATE, raw="", headers={"content-type": "application/json"}
    )
    yield Case("generate/text body", GENERATE, raw="{}", headers={"content-type": "text/plain"})
    yield Case(
        "generate/json with charset",
        GENERATE,
        raw=json.dumps({"token_ids": PROMPT, "sampling_params": SAMPLING}),
        headers={"content-type": "application/json; charset=utf-8"},
    )


def _completions() -> Iterable[Case]:
    yield completion("plain")
    yield completion("token prompt", prompt=PROMPT, return_token_ids=True)
    yield completion("two prompts", prompt=["a", "bc"])
    yield completion("logprobs", logprobs=2, allowed_token_ids=[71, 72])
    yield completion("echo", echo=True, logprobs=1, allowed_token_ids=[71, 72])
    yield completion("n", n=2)
    yield completion("stream", stream=True)
    yield completion("stream logprobs", stream=True, logprobs=1, allowed_token_ids=[71])
    yield completion("stream usage", stream=True, stream_options={"include_usage": True})
    yield completion("stream n", stream=True, n=2)
    yield completion("stop", allowed_token_ids=[71], stop="hh", max_tokens=8)
    yield completion(
        "stop included",
        allowed_token_ids=[71],
        stop="hh",
        max_tokens=8,
        include_stop_str_in_output=True,
    )
    yield completion("stream stop", allowed_token_ids=[71], stop="hhh", max_tokens=8, stream=True)
    yield completion(
        "stream continuous usage",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    yield completion("stream two prompts", prompt=["a", "bc"], stream=True)
    yield completion("echo nothing", echo=True, max_tokens=0, logprobs=1)
    yield completion("logprobs -1", logprobs=-1)
    yield completion("seed 2^63", seed=2**63)
    yield completion("stop token", allowed_token_ids=[71], stop_token_ids=[71])
    yield completion("no top_k", top_k=...)
    yield completion("stream no top_k", top_k=..., stream=True)
    yield completion("greedy", temperature=0)
    yield completion("unknown model", model="other")
    yield completion("no model", model=...)
    yield completion("no prompt", prompt=...)
    yield completion("temperature 3", temperature=3)
    yield completion("temperature text", temperature="hot")
    yield completion("logprobs -2", logprobs=-2)
    yield completion("logprobs 21", logprobs=21)
    yield completion("prompt too long", prompt="x" * 300)
    yield completion("max_tokens too large", max_tokens=300)
    yield completion("no room", prompt="x" * 230, max_tokens=100)
    yield completion("ids beyond", prompt=[1, 5000])
    yield completion("ids too long", prompt=[9] * 300)
    yield completion("stream ids beyond", prompt=[1, 5000], stream=True)
    yield completion("stream logprobs 21", logprobs=21, stream=True)
    yield completion("stream token ids", prompt=PROMPT, return_token_ids=True, stream=True)
    yield completion("echo stream", echo=True, stream=True)
    yield completion("empty prompt", prompt="")
    yield completion("empty ids", prompt=[])
    yield completion("n 0", n=0)
    yield completion("max_tokens null", max_tokens=None)
    yield completion("max_tokens 0", max_tokens=0)
    yield completion("unknown key", surprise=1)
    yield completion("prompt number", prompt=5)
    yield completion("stream_options without stream", stream_options={"include_usage": True})
    yield completion("bias word", logit_bias={"x": 1})
    yield completion("bias beyond", logit_bias={"5000": 1})
    yield completion("prompt logprobs stream", prompt_logprobs=1, stream=True)
    yield completion("bias", logit_bias={"71": 100}, logprobs=1)
    yield completion("prompt logprobs", prompt_logprobs=1)


def _chat() -> Iterable[Case]:
    yield chat("plain")
    yield chat("logprobs", logprobs=True, top_logprobs=2, allowed_token_ids=[71, 72])
    yield chat("logprobs only", logprobs=True, allowed_token_ids=[71])
    yield chat("stream", stream=True)
    yield chat(
        "stream logprobs",
        stream=True,
        logprobs=True,
        top_logprobs=1,
        allowed_token_ids=[71],
        stream_options={"include_usage": True},
    )
    yield chat(
        "stream continuous usage",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    yield chat("n", n=2)
    yield chat("stream n", stream=True, n=2)
    yield chat("max_completion_tokens", max_tokens=..., max_completion_tokens=2)
    yield chat("token ids", return_token_ids=True)
    yield chat("stream token ids", return_token_ids=True, stream=True)
    yield chat("parts", messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    yield chat("no top_k", top_k=...)
    yield chat("unknown model", model="other")
    yield chat("no messages", messages=...)
    yield chat("empty messages", messages=[])
    yield chat("top_logprobs without logprobs", top_logprobs=2)
    yield chat("top_logprobs 21", logprobs=True, top_logprobs=21)
    yield chat("role", messages=[{"content": "x"}])
    yield chat("temperature 3", temperature=3)
    yield chat("context", messages=[{"role": "user", "content": "x" * 300}])
    yield chat("no room", messages=[{"role": "user", "content": "x" * 200}], max_tokens=100)
    yield chat("stream no top_k", top_k=..., stream=True)
    yield chat("stream logprobs 21", logprobs=True, top_logprobs=21, stream=True)
    yield chat("n 0", n=0)
    yield chat("no max_tokens", messages=[{"role": "user", "content": "x" * 228}], max_tokens=...)
    yield chat("messages text", messages="hello")
    yield chat("unknown role", messages=[{"role": "wizard", "content": "x"}])
    yield chat("stream_options without stream", stream_options={"include_usage": True})
    yield chat("system", messages=[{"role": "system", "content": "s"}, *MESSAGES])
    yield chat("stream stop", allowed_token_ids=[71], stop=["hhh"], max_tokens=8, stream=True)
    yield chat("empty tools", tools=[])
    yield chat("tool choice without tools", tool_choice="auto")
    yield chat("prompt logprobs", prompt_logprobs=1)
    yield chat("stop token", allowed_token_ids=[71], stop_token_ids=[71])
    yield chat("end token", allowed_token_ids=[1000], ignore_eos=False)


def all_cases() -> list[Case]:
    """Give every request of the contract."""
    return [*_operations(), *_generate(), *_completions(), *_chat()]
