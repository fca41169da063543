"""The rule about the model that a request names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.request_rules.request import GenerationRequest
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.serve_config.suggest import hint, nearest
from app.verdict.finding import Finding, Severity

# A name of megabytes is not said twice.
_LONGEST: Final = 256


@request_rule(
    Declaration(
        id="request-model",
        title="The model must be one that the server has",
        explanation="vLLM knows the `--served-model-name` names (else the model as it was given) "
        "and the adapters of `--lora-modules`; it answers any other with 404. The rule says "
        "nothing where adapters may be loaded while the server runs "
        "(`VLLM_ALLOW_RUNTIME_LORA_UPDATING`) or names are not checked.",
        remedy="Send a name that `GET /v1/models` lists.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="entrypoints/serve/engine/serving.py::BaseServing._check_model",
        bad=(
            RequestExample('{"token_ids": [1], "sampling_params": {}, "model": "n"}'),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {}, "model": "m"}',
                serve="vllm serve m --served-model-name a b --enable-lora --lora-modules c=/c",
            ),
        ),
        good=(
            RequestExample('{"token_ids": [1], "sampling_params": {}, "model": "m"}'),
            RequestExample('{"token_ids": [1], "sampling_params": {}}', note="no model is any"),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {}, "model": "c"}',
                serve="vllm serve m --served-model-name a b --enable-lora --lora-modules c=/c",
            ),
            RequestExample(
                '{"token_ids": [1], "sampling_params": {}, "model": "n"}',
                serve="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve m --enable-lora",
            ),
        ),
    ),
    status=404,
    error_type="NotFoundError",
    fields=("model",),
)
def model(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse names that the server cannot know."""
    if request.by_invocation:  # SageMaker's standards take the name from a header field
        return
    name, known = request.of_body("model"), served.model_names
    if known is None or not isinstance(name, str) or not name or name in known:
        return
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
    engine = f"The model `{shown}` does not exist."
    yield model.finding(
        request,
        "model",
        f"{engine.rstrip('.')}; this server has {', '.join(sorted(known))}"
        f"{hint(nearest(name, known))}",
        engine_message=engine,
        evidence={"model": shown},
    )
