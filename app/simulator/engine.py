"""The simulated engine: admits requests, runs their sequences, counts what happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from app.simulator.errors import EngineDead, InvalidRequest
from app.simulator.model import ToyModel
from app.simulator.sampling_params import SamplingParams, ends_engine, verify
from app.simulator.sequence import GeneratedSequence, Step, prompt_candidates
from app.simulator.settings import SimulatorSettings

__all__ = ["Engine", "prompt_candidates"]


class Engine:
    """Runs requests concurrently on one event loop.

    Attributes:
        running: requests being generated.
        waiting: requests that wait for one of `max_num_seqs` places.
        finished: number of sequences by finish reason: stop, length, abort.
        prompt_tokens: of all admitted requests.
        generated_tokens: of all of them.
        dead: whether a request ended the engine.
    """

    def __init__(self, settings: SimulatorSettings, model: ToyModel | None = None) -> None:
        self.settings = settings
        self.model = model or ToyModel()
        self.running = 0
        self.waiting = 0
        self.finished: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.dead = False
        self._places = asyncio.Semaphore(settings.max_num_seqs)
        self._seeds = np.random.default_rng(settings.seed)

    def check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Refuse what vLLM's engine refuses.

        Source: `vllm/v1/engine/input_processor.py::InputProcessor.process_inputs`.

        Raises:
            Refusal: one of its kinds.
        """
        if self.dead:
            raise EngineDead(self._last_words)
        verify(
            params,
            vocabulary=self.model.vocabulary,
            max_logprobs=self.settings.max_logprobs,
            return_sampling_mask=self.settings.return_sampling_mask,
            checks_stop_ids=self.settings.since("0.29"),
        )
        length, most = len(prompt), self.settings.max_model_len
        beyond = max(prompt)
        if beyond >= self.model.vocabulary:
            raise InvalidRequest(f"Token id {beyond} is out of vocabulary")
        if length > most:
            raise InvalidRequest(
                f"The decoder prompt (length {length}) is longer than the maximum model length "
                f"of {most}. Make sure that `max_model_len` is no smaller than the number of "
                "text tokens."
            )
        if length == most:
            raise InvalidRequest(
                f"The decoder prompt (length {length}) plus the number of requested output "
                "tokens (at least 1) is longer than the maximum model length of "
                f"{most}. Make sure that `max_model_len` is no smaller than the number of text "
                "tokens (prompt + requested output tokens)."
            )
        if ends_engine(params):
            self.dead = True
            raise EngineDead(self._last_words)

    async def generate(self, prompt: Sequence[int], params: SamplingParams) -> AsyncGenerator[Step]:
        """Generate every choice of a request, one token of each in turn.

        Closing the iterator early aborts the request.

        Raises:
            Refusal: the request is not admitted; at the first iteration, as in vLLM.
        """
        self.check(prompt, params)
        seed = params.seed
        unfinished = {}
        for index in range(params.n):
            child_seed = self._draw_seed() if seed is None else seed + index
            unfinished[index] = GeneratedSequence(
                prompt,
                params,
                seed=child_seed,
                settings=self.settings,
                model=self.model,
                index=index,
            )
        self.prompt_tokens += len(prompt)
        try:
            async with self._place():
                while unfinished:
                    for index, sequence in list(unfinished.items()):
                        step = sequence.step()
                        self.generated_tokens += 1
                        if step.finish_reason is not None:
                            del unfinished[index]
                            self.finished[step.finish_reason] += 1
                        yield step
                    # Also without a delay: other requests, and a departed client, get a turn.
                    await asyncio.sleep(self.settings.token_delay)
        finally:
            self.finished["abort"] += len(unfinished)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()

    @property
    def _last_words(self) -> str:
        if self.settings.since("0.33"):
            return "The server had an error while processing your request."
        return "EngineCore encountered an issue. See stack trace (above) for the root cause."

    def _draw_seed(self) -> int:
        return int(self._seeds.integers(-(2**63), 2**63 - 1, dtype=np.int64))
