"""A little honest engine: random logits, vLLM's filters, the seeded draw, each version's wire.

Written apart from the application, row by row; only fp32 where the engine has fp32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from app.catalogue.semantics import DrawGenerator
from tests.replay.reference import M64, SCALAR, scalar_acceptance_uniform


@dataclass(frozen=True)
class Engine:
    """`coarse` logits are multiples of 1/8, so that many tie, as bf16 ones do.

    With `speculates`, three of four tokens come from verifying a one-hot draft; with `blocks`,
    that many drafts at a time are verified as a block.
    """

    version: str = "0.32.0"
    vocabulary: int = 48
    model_seed: int = 0
    coarse: bool = False
    fp64: bool = False
    keep_ties: bool = True
    speculates: bool = False
    blocks: int = 0

    def case(self, *, prompt: int = 5, **sampling: Any) -> dict[str, Any]:
        """A request and the response to it, as `/replay` takes them."""
        params = {"temperature": 1.0, "top_k": 8, "seed": 7, "max_tokens": 12, **sampling}
        params = {name: value for name, value in params.items() if value is not None}
        request = {"token_ids": list(range(1, prompt + 1)), "sampling_params": params}
        choices = [self._choice(index, prompt, params) for index in range(params.get("n", 1))]
        generated = sum(len(choice["token_ids"]) for choice in choices)
        usage = {"prompt_tokens": prompt, "completion_tokens": generated}
        case: dict[str, Any] = {
            "vllm_version": self.version,
            "request": request,
            "response": {"choices": choices, "usage": usage},
        }
        if self.fp64:
            case["options"] = {"use_fp64_gumbel": True}
        return case

    def _choice(self, index: int, prompt: int, params: dict[str, Any]) -> dict[str, Any]:
        rng = np.random.default_rng([self.model_seed, index, prompt])
        logits = [self._logits(rng) for _ in range(params["max_tokens"] + self.blocks + 1)]
        rows = [
            self._row(row, prompt - 1 + i, index, params)
            for i, row in enumerate(logits[: params["max_tokens"]])
        ]
        if self.blocks:
            tokens = self._verified_blocks(logits, prompt - 1, index, params)
            rows = [
                self._listing(row.mask, row.logprobs, token, params)
                for row, token in zip(rows, tokens, strict=False)
            ]
        return {
            "index": index,
            "token_ids": [row.token for row in rows],
            "sampling_mask": [row.mask for row in rows],
            "logprobs": {"content": [self._entry(row) for row in rows]}
            if "logprobs" in params
            else None,
            "finish_reason": "length",
        }

    def _logits(self, rng: np.random.Generator) -> NDArray[np.float32]:
        logits = rng.normal(0.0, 2.0, self.vocabulary)
        if self.coarse:
            logits = np.round(logits * 8) / 8
        return logits.astype(np.float32)

    def _row(
        self, logits: NDArray[np.float32], position: int, index: int, params: dict[str, Any]
    ) -> _Row:
        logits = self._filtered(logits, params)
        mask, logprobs = self._distribution(logits)
        seed = params.get("seed", 99) + index
        sums = self._sums(logits, mask, position, seed)
        if self.speculates and position % 4:
            draft = self._draft(logprobs, position)
            if logprobs[draft] > math.log(scalar_acceptance_uniform(seed, position)):
                sums = {draft: 0.0}
            elif len(mask) > 1:
                sums.pop(draft, None)
        return self._listing(mask, logprobs, max(sums, key=lambda i: (sums[i], -i)), params)

    def _draft(self, logprobs: dict[int, float], position: int) -> int:
        return (
            max(logprobs, key=lambda i: logprobs[i]) if position % 2 else position % self.vocabulary
        )

    def _sums(
        self, logits: NDArray[np.float32], mask: list[int], position: int, seed: int
    ) -> dict[int, float]:
        dtype = np.float64 if self.fp64 else np.float32
        generator = (
            DrawGenerator.MURMUR3
            if Version(self.version) >= Version("0.31")
            else DrawGenerator.PHILOX
        )
        return {
            i: float(dtype(logits[i]) + dtype(SCALAR[generator](seed, position, i, self.fp64)))
            for i in mask
        }

    def _distribution(self, logits: NDArray[np.float32]) -> tuple[list[int], dict[int, float]]:
        """The mask and the logprobs, -9999 outside it."""
        normaliser = np.float32(np.log(np.sum(np.exp(logits - logits.max())))) + logits.max()
        logprobs = {
            i: max(float(np.float32(logits[i] - normaliser)), -9999.0)
            for i in range(self.vocabulary)
        }
        return [int(i) for i in np.flatnonzero(np.isfinite(logits))], logprobs

    def _listing(
        self, mask: list[int], logprobs: dict[int, float], token: int, params: dict[str, Any]
    ) -> _Row:
        top = sorted(logprobs, key=lambda i: (-logprobs[i], i))[: params.get("logprobs", 0)]
        listed = [token, *(i for i in top if i != token)]
        return _Row(token, mask, logprobs, listed[: max(params.get("logprobs", 0), 1)])

    def _verified_blocks(
        self, logits: list[NDArray[np.float32]], first: int, index: int, params: dict[str, Any]
    ) -> list[int]:
        """Sun et al. 2024, with point masses for drafts; the end may cut a block."""
        seed, tokens = params.get("seed", 99) + index, list[int]()
        salted = Version(self.version) >= Version("0.33")
        while len(tokens) < params["max_tokens"]:
            start = len(tokens)
            part = [self._filtered(row, params) for row in logits[start : start + self.blocks + 1]]
            known = [self._distribution(row) for row in part]
            drafts = [self._draft(known[i][1], first + start + i) for i in range(self.blocks)]
            shares = [math.exp(known[i][1][draft]) for i, draft in enumerate(drafts)]
            taken = 0
            for i in range(self.blocks):
                joint = math.prod(shares[: i + 1])
                left = joint * (1.0 - shares[i + 1]) if i + 1 < self.blocks else None
                h = joint if left is None else left / (left + 1.0 - joint) if joint < 1 else 1.0
                salt = i << 32 if salted else 0
                if scalar_acceptance_uniform((seed & M64) ^ salt, first + start + i) <= h:
                    taken = i + 1
            logits_of_row, (mask, _) = part[taken], known[taken]
            sums = self._sums(logits_of_row, mask, first + start + taken, seed)
            if taken < self.blocks and len(mask) > 1:
                sums.pop(drafts[taken], None)
            tokens += [*drafts[:taken], max(sums, key=lambda i: (sums[i], -i))]
        return tokens[: params["max_tokens"]]

    def _filtered(self, logits: NDArray[np.float32], params: dict[str, Any]) -> NDArray[np.float32]:
        logits = logits / np.float32(params["temperature"])
        if min_p := params.get("min_p", 0.0):
            logits = np.where(logits < logits.max() + np.float32(math.log(min_p)), -np.inf, logits)
        kth = np.sort(logits)[-min(params["top_k"], self.vocabulary)]
        if self.keep_ties:
            logits = np.where(logits < kth, -np.inf, logits)
        else:
            order = sorted(range(self.vocabulary), key=lambda i: (-logits[i], i))
            logits[order[params["top_k"] :]] = -np.inf
        if (top_p := params.get("top_p", 1.0)) < 1.0:
            rising = np.argsort(logits, kind="stable")
            shares = np.exp(logits[rising] - logits.max())
            cut = np.cumsum(shares / shares.sum()) <= 1.0 - top_p
            cut[-1] = False
            logits[rising[cut]] = -np.inf
        return logits.astype(np.float32)

    def _entry(self, row: _Row) -> dict[str, Any]:
        named = {i: self._named(i) for i in row.listed}
        top = [{**named[i], "logprob": row.logprobs[i]} for i in row.listed]
        if Version(self.version) >= Version("0.32"):
            order = sorted(row.logprobs, key=lambda i: (-row.logprobs[i], i))
            for i, candidate in zip(row.listed, top, strict=True):
                candidate["rank"] = order.index(i) + 1
                if candidate["rank"] > len(row.listed):
                    # Of a token that is not among the most likely ones, ties count too.
                    own = row.logprobs[i]
                    candidate["rank"] = sum(other >= own for other in row.logprobs.values())
        return {**top[0], "top_logprobs": top}

    def _named(self, token: int) -> dict[str, Any]:
        if Version(self.version) >= Version("0.32"):
            return {"token_id": token}
        return {"token": f"token_id:{token}", "bytes": None}


@dataclass(frozen=True)
class _Row:
    token: int
    mask: list[int]
    logprobs: dict[int, float]
    listed: list[int] = field(default_factory=list)


def chunks_of(case: dict[str, Any], sizes: list[int]) -> list[dict[str, Any]]:
    """Cut the response into stream chunks, `sizes` tokens at a time and choices in turn."""
    chunks: list[dict[str, Any]] = []
    for choice in case["response"]["choices"]:
        start, turn, total = 0, 0, len(choice["token_ids"])
        while start < total:
            part = slice(start, start + sizes[turn % len(sizes)])
            start, turn = part.stop, turn + 1
            logprobs = choice["logprobs"]
            chunks.append(
                {
                    "choices": [
                        {
                            "index": choice["index"],
                            "token_ids": choice["token_ids"][part],
                            "sampling_mask": choice["sampling_mask"][part],
                            "logprobs": logprobs and {"content": logprobs["content"][part]},
                            "finish_reason": choice["finish_reason"] if start >= total else None,
                        }
                    ]
                }
            )
    return [*chunks, {"choices": [], "usage": case["response"]["usage"]}]
