"""Rules about amounts: sequences, and what prompt logprobs cost."""

from __future__ import annotations

from collections.abc import Iterator

from app.request_rules.logprobs import COUNTED, counts
from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

# Fewer tokens than any text of that many characters has, so that the bound is no guess.
_CHARACTERS_PER_TOKEN = 8


@request_rule(
    Declaration(
        id="request-n-range",
        title="n is at most VLLM_MAX_N_SEQUENCES",
        explanation="vLLM refuses more sequences than that variable allows, 16384 unless set.",
        remedy="Send several requests with the seeds seed, seed + n, ….",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="sampling_params.py::_verify_num_sequences",
        bad=(
            RequestExample(
                '{"prompt": "a", "n": 5}',
                route=Route.COMPLETIONS,
                serve="VLLM_MAX_N_SEQUENCES=4 vllm serve m",
            ),
        ),
        good=(RequestExample('{"prompt": "a", "n": 16384}', route=Route.COMPLETIONS),),
    ),
    fields=("n",),
)
def n_range(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse a larger n on every route that has it."""
    n, allowed = request.integer("n"), served.max_n
    if n is not None and allowed is not None and n > allowed:
        engine = f"n must be at most {allowed}, got {n}."
        yield n_range.finding(
            request, "n", engine, engine_message=engine, evidence={"n": n, "limit": allowed}
        )


@request_rule(
    Declaration(
        id="request-prompt-logprobs-cost",
        title="Prompt logprobs of a long prompt cost more than the server can bear",
        explanation="vLLM keeps an entry for each prompt token and each logprob asked for, on the "
        "host; `-1` over a long prompt takes tens of gigabytes and the server with it. "
        "`VLLM_ADMISSION_REQUEST_MAX_PROMPT_LOGPROBS` bounds tokens times logprobs. Token ids are "
        "counted; a text counts as one token for eight characters.",
        remedy="Ask for fewer prompt logprobs, score certain ids, or send the prompt in parts.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="v1/engine/logprobs.py::LogprobsProcessor._update_prompt_logprobs",
        bad=(
            RequestExample(
                '{"prompt": "<2000 ids>", "prompt_logprobs": -1}',
                route=Route.COMPLETIONS,
                serve="vllm serve m --max-logprobs -1",
                model_config={"vocab_size": 152064},
            ),
        ),
        good=(
            RequestExample(
                '{"prompt": "<2000 ids>", "prompt_logprobs": 1}',
                route=Route.COMPLETIONS,
                serve="vllm serve m --max-logprobs -1",
                model_config={"vocab_size": 152064},
            ),
        ),
    ),
    fields=COUNTED,
)
def prompt_logprobs(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse more entries than the limit of the settings."""
    for count in counts(request):
        if count.kind != "prompt" or count.number == 0:
            continue
        width = served.vocabulary if count.number == -1 else count.number
        if width is None or width < 0:
            continue
        tokens = sum(map(len, request.prompts())) or sum(
            len(text) // _CHARACTERS_PER_TOKEN for text in request.texts()
        )
        most = served.limits.prompt_logprobs
        if tokens * width > most:
            yield prompt_logprobs.finding(
                request,
                count.field,
                f"{width} logprobs for each of {tokens} prompt tokens are more than the {most} "
                "that this gate lets through",
                evidence={"tokens": tokens, "logprobs": width, "limit": most},
            )
