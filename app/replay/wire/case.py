"""A replay case: a version, a request, its response, and what the operator says besides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import msgspec
from packaging.version import InvalidVersion, Version

from app.catalogue.semantics import EngineSemantics, semantics_of
from app.errors import InvalidEnvelope, Problem, UnknownVersion
from app.replay.evidence import Evidence, ReplayOptions
from app.replay.wire.analysis import AnalysisBody, read_analysis
from app.replay.wire.columns import choice_of, has_masks
from app.replay.wire.decoding import convert, decode
from app.replay.wire.generate import ChoiceBody, RequestBody, ResponseBody
from app.replay.wire.packed import refusal
from app.replay.wire.sampling_params import SamplingParamsBody, normalise
from app.replay.wire.scan import Scanned, cut
from app.replay.wire.stream import Joined, decode_events, join

FIRST_VERSION = Version("0.28")
_GENERATE = "/inference/v1/generate"


class OptionsBody(AnalysisBody, gc=False, forbid_unknown_fields=True):
    """`options` of a case; see `ReplayOptions` and, for those inherited, `Analysis`."""

    use_fp64_gumbel: bool = False
    watermark: bool = False
    speculative: bool | None = None
    rejection_sample_method: Literal["standard", "block", "synthetic", "fly"] = "standard"
    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    vocab_size: int | None = None
    tokenizer_size: int | None = None


class CaseBody(ChoiceBody, gc=False):
    """A case; `response` is a body, a list of chunks, or the recorded text of a stream.

    Instead of a response there may be its choices, or the one choice's members.
    """

    id: Any = None
    vllm_version: str | None = None
    request: RequestBody | None = None
    response: ResponseBody | list[ResponseBody] | str | None = None
    options: OptionsBody | None = None
    choices: list[ChoiceBody] | None = None
    prompt_length: Annotated[int, msgspec.Meta(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response, and where its choices stand in the case.

    `bare` says that they came packed, without vLLM's response around them.
    """

    joined: Joined
    pointers: tuple[str, ...]
    bare: bool = False
    streamed: bool = False


def read_case(case: Mapping[str, Any] | bytes | str) -> Evidence:
    """Read a case from JSON text or from parsed JSON.

    `response` is the response body, a list of stream chunks, or the recorded text of a stream;
    `request` the body that was sent, bare or as `{"endpoint", "body"}`. Packed evidence may stand
    in the case itself.

    Raises:
        UnusableInput: the case cannot be read; the problems point to what and where.
        UnknownVersion: that version of vLLM returns no sampling masks.
    """
    body, scans = _decode(case)
    _require_json(body.id)
    if body.request is None:
        raise _missing("request")
    answer = _answer(body)
    version = _version(body.vllm_version)
    semantics = semantics_of(version)
    request = _request(body.request)
    joined = answer.joined
    _refuse_error(joined.response)
    where = "/request" if request is body.request else "/request/body"
    # Pydantic reads "20" as a number in vLLM's parameters, so those are read leniently here too.
    params = convert(
        request.sampling_params or {},
        SamplingParamsBody,
        pointer=f"{where}/sampling_params",
        strict=False,
    )
    sampling = normalise(params)
    _require_masks(answer, semantics, version)
    usage = joined.response.usage
    claimed = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
    metrics = joined.response.metrics
    asked = body.options or OptionsBody()
    options = ReplayOptions(**{f.name: getattr(asked, f.name) for f in fields(ReplayOptions)})
    choices = tuple(
        choice_of(choice, pointer, bare=answer.bare, scans=scans)
        for choice, pointer in zip(joined.response.choices or (), answer.pointers, strict=True)
    )
    speculated = options.speculative
    if not semantics.speculative_replay:
        speculated = False
    elif speculated is None and metrics is not None and metrics.speculative_decoding is not None:
        speculated = True
    return Evidence(
        id=body.id,
        version=version,
        semantics=semantics,
        sampling=sampling,
        prompt_length=body.prompt_length or _prompt_length(request, claimed[0]),
        choices=choices,
        options=options,
        speculated=speculated,
        repeating=joined.repeats,
        uneven=joined.uneven,
        usage=claimed,
        analysis=read_analysis(asked, choices),
    )


def _decode(case: Mapping[str, Any] | bytes | str) -> tuple[CaseBody, dict[str, Scanned]]:
    """Decode a case; what is regular about a whole response is read apart, by marker."""
    if not isinstance(case, bytes | str):
        return convert(case, CaseBody), {}
    try:
        rest, scans = cut(case if isinstance(case, bytes) else case.encode())
        if scans:
            body = msgspec.json.decode(rest, type=CaseBody)
            # Chunks are joined before they become arrays, which markers would not survive.
            if not isinstance(body.response, list):
                return body, scans
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        # Whatever is wrong has its place in the whole text.
        pass
    return decode(case, CaseBody), {}


def _answer(case: CaseBody) -> _Answer:
    response = case.response
    if isinstance(response, ResponseBody):
        if response.choices is None and _is_choice(response):
            whole = ResponseBody(choices=[response], usage=response.usage, metrics=response.metrics)
            return _Answer(Joined(whole), ("/response",), bare=True)
        return _Answer(Joined(response), _pointers("/response/choices", response.choices))
    if response is not None:
        if isinstance(response, str):
            response = decode_events(response, pointer="/response")
        joined = join(response)
        pointers = _pointers("/response/choices", joined.response.choices)
        return _Answer(joined, pointers, streamed=True)
    if case.choices is not None:
        whole = ResponseBody(choices=case.choices)
        return _Answer(Joined(whole), _pointers("/choices", case.choices), bare=True)
    if _is_choice(case):
        return _Answer(Joined(ResponseBody(choices=[case])), ("",), bare=True)
    raise _missing("response")


def _is_choice(body: ChoiceBody) -> bool:
    return body.token_ids is not None or body.tokens is not None


def _pointers(where: str, choices: Sequence[ChoiceBody] | None) -> tuple[str, ...]:
    return tuple(f"{where}/{place}" for place in range(len(choices or ())))


def _version(text: str | None) -> Version:
    if text is None:
        raise _missing("vllm_version")
    try:
        version = Version(text)
    except InvalidVersion:
        raise UnknownVersion(
            f"vllm_version {text!r} is no version number such as 0.32.0",
            (Problem("unknown-vllm-version", "not a version number", "/vllm_version"),),
        ) from None
    if Version(version.base_version) < FIRST_VERSION:
        raise UnknownVersion(
            f"vLLM {text} returns no sampling masks; they exist from 0.28.0 on",
            (Problem("unknown-vllm-version", "before 0.28.0", "/vllm_version"),),
        )
    return version


def _request(sent: RequestBody) -> RequestBody:
    """Unwrap `{"endpoint", "body"}`, and refuse what another route answers."""
    body = sent.body if sent.body is not None else sent
    other = sent.endpoint if sent.endpoint and not sent.endpoint.endswith(_GENERATE) else None
    if other is None and not body.token_ids and (body.messages, body.prompt) != (None, None):
        other = "/v1/chat/completions" if body.messages is not None else "/v1/completions"
    if other is not None:
        detail = f"the request went to {other}, but only {_GENERATE} returns sampling masks"
        raise InvalidEnvelope(detail, (Problem("other-route", detail, "/request"),))
    return body


def _refuse_error(response: ResponseBody) -> None:
    if response.error is not None or response.object == "error":
        message = response.error.get("message") if isinstance(response.error, Mapping) else None
        detail = (
            f"the response is an error: {message or 'without a message'}"
            if message
            else "the response is an error without a message, which is how vLLM answers "
            "temperature <= 0 or top_k <= 0 when it returns sampling masks"
        )
        raise InvalidEnvelope(detail, (Problem("error-response", detail, "/response/error"),))


def _require_masks(answer: _Answer, semantics: EngineSemantics, version: Version) -> None:
    choices = answer.joined.response.choices or []
    placed = list(zip(choices, answer.pointers, strict=True))
    if not choices:
        detail = "the response has no choices"
        raise InvalidEnvelope(detail, (Problem("no-choices", detail, "/response/choices"),))
    pointers = [f"{pointer}/token_ids" for choice, pointer in placed if not _is_choice(choice)]
    if pointers:
        detail = "token_ids is missing; only ids that the server sent can be checked, not its text"
        raise InvalidEnvelope(
            f"{pointers[0]}: {detail}",
            tuple(Problem("no-token-ids", detail, pointer) for pointer in pointers),
        )
    maskless = [
        Problem(
            "no-sampling-mask",
            "sampling_mask is missing or null",
            f"{pointer}/sampling_mask",
        )
        for choice, pointer in placed
        if not has_masks(choice) and (choice.token_ids or choice.tokens)
    ]
    if maskless:
        causes = "; ".join(_causes(semantics, version, streamed=answer.streamed))
        raise InvalidEnvelope(f"{maskless[0].detail}: {causes}", tuple(maskless))


def _causes(semantics: EngineSemantics, version: Version, *, streamed: bool) -> list[str]:
    causes = []
    if streamed and not semantics.masks_in_streams:
        return [f"vLLM {version} fills it only without streaming (streams have it from 0.32.0 on)"]
    causes.append("the server runs without --return-sampling-mask")
    causes.append(f"or another route than {_GENERATE} answered")
    release = version.release[:2]
    if release == (0, 29):
        causes.append("or it runs with --enable-batch-sharded-sampling, which loses masks in 0.29")
    if release <= (0, 31):
        causes.append(
            "or fuse_gemm_comms with tensor parallelism made it fall back to Model Runner V1"
        )
    if release >= (0, 33):
        causes.append('or output_mode "derender" with include_reasoning false took it out')
    return causes


def _prompt_length(request: RequestBody, claimed: int | None) -> int | None:
    """Multimodal parts expand in the server, so there only its own count is right."""
    if request.token_ids and not request.content_parts:
        return len(request.token_ids)
    return claimed


def _require_json(identity: Any) -> None:
    """Refuse an id that the report could not give back, such as NaN."""
    try:
        json.dumps(identity, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        detail = "the id is nothing that JSON can hold, so it cannot be given back"
        raise refusal("no-json", detail, "/id") from None


def _missing(member: str) -> InvalidEnvelope:
    detail = f"{member} is missing; a case is {{vllm_version, request, response}}"
    return InvalidEnvelope(detail, (Problem("missing-member", detail, f"/{member}"),))
