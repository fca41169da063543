"""One sequence being generated: context, sampler, text and stop conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.simulator.model import ToyModel
from app.simulator.sampler import Candidate, candidates, draw, process, support
from app.simulator.sampling_params import SamplingParams
from app.simulator.settings import SimulatorSettings
from app.simulator.tokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token.

    Attributes:
        index: of the choice.
        token: the sampled id.
        mask: the sampling mask, ids ascending; None where masks are off.
        candidates: the sampled token and the likeliest, None where not asked for.
        text: text that has become certain with this token.
        finish_reason: `stop` or `length` on the last step.
        stop_reason: the stop string or stop token id, if one ended it.
    """

    index: int
    token: int
    mask: list[int] | None
    candidates: list[Candidate] | None
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class GeneratedSequence:
    """Generates one choice of one request, token by token.

    Source: `vllm/v1/core/sched/utils.py::check_stop` and
    `vllm/v1/engine/detokenizer.py::BaseIncrementalDetokenizer.update`.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        settings: SimulatorSettings,
        model: ToyModel,
        index: int = 0,
    ) -> None:
        self._params = params
        self._settings = settings
        self._model = model
        self._seed = seed
        self._index = index
        self._prompt = list(prompt)
        self._tokens = list(prompt)
        self._output: list[int] = []
        self._ties = settings.top_k_ties
        self._generator = settings.semantics.draw
        self._detokenizer = Detokenizer(skip_special=params.skip_special_tokens)
        self._text = ""
        self._shown = 0
        room = settings.max_model_len - len(prompt)
        self._limit = room if params.max_tokens is None else min(params.max_tokens, room)

    def __iter__(self) -> Iterator[Step]:
        while True:
            step = self.step()
            yield step
            if step.finish_reason is not None:
                return

    def step(self) -> Step:
        """Generate the next token."""
        settings, params = self._settings, self._params
        logits = self._model.logits(self._tokens)
        row = process(logits, params, prompt=self._prompt, output=self._output, ties=self._ties)
        if params.greedy:
            token = int(row.argmax())
        else:
            token = draw(
                row,
                generator=self._generator,
                seed=self._seed,
                position=len(self._tokens) - 1,
                fp64=settings.use_fp64_gumbel,
            )
        mask = support(row).tolist() if settings.return_sampling_mask else None
        listed = None
        if params.logprobs is not None or params.logprob_token_ids:
            mode = settings.logprobs_mode
            count = self._model.vocabulary if params.logprobs == -1 else params.logprobs or 0
            listed = candidates(
                row if mode.processed else logits,
                token,
                count,
                normalised=mode.normalised,
                chosen=params.logprob_token_ids,
            )
        self._tokens.append(token)
        self._output.append(token)
        finish, reason = self._finish(token)
        text, finish, reason = self._advance_text(token, finish, reason)
        return Step(self._index, token, mask, listed, text, finish, reason)

    def _finish(self, token: int) -> tuple[str | None, int | str | None]:
        if token == self._model.end_token and not self._params.ignore_eos:
            return "stop", None
        if token in self._params.stop_token_ids:
            return "stop", token
        return ("length", None) if len(self._output) >= self._limit else (None, None)

    def _advance_text(
        self, token: int, finish: str | None, reason: int | str | None
    ) -> tuple[str, str | None, int | str | None]:
        """Add the token's text, look for stop strings, hold back what may become one."""
        params = self._params
        if not params.detokenize:
            return "", finish, reason
        if not (finish == "stop" and not params.include_stop_str_in_output):
            before = len(self._text)
            self._text += self._detokenizer.push(token)
            if len(self._output) > params.min_tokens:
                matched = self._stop_string(before)
                if matched is not None:
                    finish, reason = "stop", matched
        held = 0
        if finish is None and params.stop and not params.include_stop_str_in_output:
            held = max(len(stop) for stop in params.stop) - 1
        shown = max(len(self._text) - held, self._shown)
        text = self._text[self._shown : shown]
        self._shown = shown
        return text, finish, reason

    def _stop_string(self, before: int) -> str | None:
        """Find the stop string that ends first in the new text, and cut the text there."""
        if len(self._text) == before:
            return None
        found: list[tuple[int, int, str]] = []
        for stop in self._params.stop:
            start = self._text.find(stop, max(before - len(stop) + 1, 0))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        end, start, stop = min(found, key=lambda match: match[0])
        self._text = self._text[: end if self._params.include_stop_str_in_output else start]
        return stop


def prompt_candidates(
    model: ToyModel, prompt: Sequence[int], count: int
) -> list[list[Candidate] | None]:
    """Give the raw log-probabilities of a prompt: none for its first token.

    Source: `vllm/v1/worker/gpu/sample/prompt_logprob.py`; raw in every `logprobs_mode`.
    """
    count = model.vocabulary if count == -1 else count
    return [
        None,
        *(
            candidates(model.logits(prompt[:position]), prompt[position], count, normalised=True)
            for position in range(1, len(prompt))
        ),
    ]
