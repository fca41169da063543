"""A replay case: a version, a request, its response, and what the operator says besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from packaging.version import InvalidVersion, Version

from app.catalogue.semantics import EngineSemantics, semantics_of
from app.errors import InvalidEnvelope, Problem, UnknownVersion
from app.replay.evidence import Evidence, ReplayOptions
from app.replay.wire.columns import choice_of
from app.replay.wire.decoding import convert, decode, decode_leniently, mistyped
from app.replay.wire.generate import RequestBody, ResponseBody
from app.replay.wire.sampling_params import SamplingRequest, normalise
from app.replay.wire.stream import Joined, decode_events, join

FIRST_VERSION = Version("0.28")
_GENERATE = "/inference/v1/generate"


class OptionsBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """`options` of a case; see `app.replay.evidence.ReplayOptions`."""

    use_fp64_gumbel: bool = False
    watermark: bool = False
    speculative: bool | None = None
    rejection_sample_method: str = "standard"
    draft_sample_method: str = "greedy"
    vocab_size: int | None = None


class _RequestEnvelope(msgspec.Struct, gc=False):
    endpoint: str | None = None
    body: msgspec.Raw = msgspec.Raw()


class _CaseHead(msgspec.Struct, gc=False):
    id: Any = None
    vllm_version: str | None = None
    options: OptionsBody | None = None


class _CaseText(msgspec.Struct, gc=False):
    id: Any = None
    vllm_version: str | None = None
    request: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    options: OptionsBody | None = None


def read_case(case: Mapping[str, Any] | bytes | str) -> Evidence:
    """Read a case from JSON text or from parsed JSON.

    `response` is the response body, a list of stream chunks, or the recorded text of a stream;
    `request` the body that was sent, bare or as `{"endpoint", "body"}`.

    Raises:
        UnusableInput: the case cannot be read; the problems point to what and where.
        UnknownVersion: that version of vLLM returns no sampling masks.
    """
    parts = _from_text(case) if isinstance(case, bytes | str) else _from_mapping(case)
    version = _version(parts.vllm_version)
    semantics = semantics_of(version)
    request = _request(parts.endpoint, parts.request)
    joined = parts.response
    _refuse_error(joined.response)
    sampling = normalise(request.sampling_params) if request.sampling_params else SamplingRequest()
    _require_masks(joined.response, semantics, version, streamed=parts.streamed)
    usage = joined.response.usage
    claimed = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
    metrics = joined.response.metrics
    options = parts.options
    speculated = options.speculative
    if speculated is None and metrics is not None and metrics.speculative_decoding is not None:
        speculated = True
    return Evidence(
        id=parts.id,
        version=version,
        semantics=semantics,
        sampling=sampling,
        prompt_length=_prompt_length(request, claimed[0]),
        choices=tuple(
            choice_of(choice, place) for place, choice in enumerate(joined.response.choices or ())
        ),
        options=options,
        speculated=speculated,
        repeating=joined.repeats,
        usage=claimed,
    )


class _Parts(msgspec.Struct, gc=False):
    id: Any
    vllm_version: str | None
    endpoint: str | None
    request: RequestBody
    response: Joined
    streamed: bool
    options: ReplayOptions


def _from_text(case: bytes | str) -> _Parts:
    try:
        envelope = msgspec.json.decode(case, type=_CaseText)
    except msgspec.ValidationError as error:
        raise mistyped(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _from_mapping(decode_leniently(case, error))
    if not bytes(envelope.request) or not bytes(envelope.response):
        raise _missing("request" if not bytes(envelope.request) else "response")
    wrapper = decode(envelope.request, _RequestEnvelope, pointer="/request")
    wrapped = bool(bytes(wrapper.body))
    first = bytes(envelope.response).lstrip()[:1]
    if first == b"[":
        chunks = decode(envelope.response, list[ResponseBody], pointer="/response")
        joined = join(chunks)
    elif first == b'"':
        text = decode(envelope.response, str, pointer="/response")
        joined = join(decode_events(text, pointer="/response"))
    else:
        joined = Joined(decode(envelope.response, ResponseBody, pointer="/response"), ())
    return _Parts(
        envelope.id,
        envelope.vllm_version,
        wrapper.endpoint,
        decode(wrapper.body, RequestBody, pointer="/request/body")
        if wrapped
        else decode(envelope.request, RequestBody, pointer="/request"),
        joined,
        first != b"{",
        _options(envelope.options),
    )


def _from_mapping(case: Any) -> _Parts:
    if not isinstance(case, Mapping):
        detail = "a case is an object: {vllm_version, request, response}"
        raise InvalidEnvelope(detail, (Problem("wrong-type", detail, ""),))
    for member in ("request", "response"):
        if case.get(member) is None:
            raise _missing(member)
    head = convert({name: case.get(name) for name in _CaseHead.__struct_fields__}, _CaseHead)
    request, response = case["request"], case["response"]
    endpoint: str | None = None
    where = "/request"
    if isinstance(request, Mapping) and request.get("body") is not None:
        named = {"endpoint": request.get("endpoint")}
        endpoint = convert(named, _RequestEnvelope, pointer=where).endpoint
        request, where = request["body"], "/request/body"
    if isinstance(response, list):
        joined = join(convert(response, list[ResponseBody], pointer="/response"))
    elif isinstance(response, str):
        joined = join(decode_events(response, pointer="/response"))
    else:
        joined = Joined(convert(response, ResponseBody, pointer="/response"), ())
    return _Parts(
        head.id,
        head.vllm_version,
        endpoint,
        convert(request, RequestBody, pointer=where),
        joined,
        isinstance(response, list | str),
        _options(head.options),
    )


def _options(body: OptionsBody | None) -> ReplayOptions:
    return ReplayOptions(**msgspec.structs.asdict(body)) if body is not None else ReplayOptions()


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


def _request(endpoint: str | None, body: RequestBody) -> RequestBody:
    other = endpoint if endpoint is not None and not endpoint.endswith(_GENERATE) else None
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


def _require_masks(
    response: ResponseBody, semantics: EngineSemantics, version: Version, *, streamed: bool
) -> None:
    choices = response.choices or []
    if not choices:
        detail = "the response has no choices"
        raise InvalidEnvelope(detail, (Problem("no-choices", detail, "/response/choices"),))
    problems = [
        Problem("no-token-ids", "token_ids is missing", f"/response/choices/{place}/token_ids")
        for place, choice in enumerate(choices)
        if choice.token_ids is None
    ] or [
        Problem(
            "no-sampling-mask",
            "sampling_mask is missing or null",
            f"/response/choices/{place}/sampling_mask",
        )
        for place, choice in enumerate(choices)
        if choice.sampling_mask is None and choice.token_ids
    ]
    if problems:
        what = problems[0].detail
        causes = "; ".join(_causes(semantics, version, streamed=streamed))
        raise InvalidEnvelope(f"{what}: {causes}", tuple(problems))


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


def _missing(member: str) -> InvalidEnvelope:
    detail = f"{member} is missing; a case is {{vllm_version, request, response}}"
    return InvalidEnvelope(detail, (Problem("missing-member", detail, f"/{member}"),))
