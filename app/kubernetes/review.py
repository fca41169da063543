"""AdmissionReview v1: what the API server asks, and what it is answered.

Source: Kubernetes, Dynamic Admission Control; `k8s.io/api/admission/v1`. Every review that can be
read is answered in band; nothing here asks the API server anything.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import Any, Final, TypeAlias

from app.errors import AdmissionError
from app.kubernetes.containers import servers_in
from app.kubernetes.json_patch import patch_between
from app.kubernetes.json_writer import path_of
from app.kubernetes.manifest import Manifest, manifest_of
from app.kubernetes.mode import Mode
from app.kubernetes.workloads import is_judged_kind
from app.proposal.envelope import Envelope
from app.proposal.proposal import Proposal
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location
from app.verdict.verdict import Outcome, Verdict

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
_WARNING_LENGTH: Final = 250
_WARNINGS_LENGTH: Final = 3800
_ANNOTATION_LENGTH: Final = 1024
_SERVERS: Final = 64
# Kinds whose description of the pods may still be changed after they were made.
_MUTABLE: Final = frozenset(
    {"Deployment", "StatefulSet", "DaemonSet", "CronJob", "LeaderWorkerSet", "ReplicaSet"}
    | {"InferenceService", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceService"}
    | {"LLMInferenceServiceConfig", "RayService", "DynamoGraphDeployment", "StormService"}
    | {"DynamoComponentDeployment", "Model", "VLLMRuntime", "InferenceServerConfig", "Rollout"}
    | {"HelmRelease", "Application"}
)
_ORDER: Final = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_MIRROR: Final = "kubernetes.io/config.mirror"
# Findings that the client is told of although they are no warnings.
_CRASHED: Final = "internal-rule-error"

Judge: TypeAlias = Callable[[Envelope], tuple[Verdict, ...]]


class MalformedReview(Exception):
    """The review lacks what every review has; `uid` is its own, if it has one."""

    def __init__(self, detail: str, uid: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.uid = uid


@dataclass(frozen=True, slots=True)
class Review:
    """A request of the API server, as far as it matters."""

    uid: str
    operation: str
    sub_resource: str
    namespace: str
    object: Manifest | None
    old: Manifest | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts on the servers of an object, and what could not be judged."""

    verdicts: tuple[Verdict, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer, and what metrics and logs say of it."""

    body: dict[str, Any]
    operation: str
    decision: str
    verdicts: tuple[Verdict, ...] = ()


def read_review(data: object) -> Review:
    """Read a decoded review.

    Raises:
        MalformedReview: it is none of v1, or lacks a member.
    """
    if not isinstance(data, Mapping):
        raise MalformedReview("a review is a JSON object")
    request = data.get("request")
    members: Mapping[str, Any] = request if isinstance(request, Mapping) else {}
    uid = members.get("uid")
    uid = uid if isinstance(uid, str) else ""
    if data.get("kind") != KIND or data.get("apiVersion") != API_VERSION:
        detail = f"only {KIND} of {API_VERSION} is answered"
        raise MalformedReview(detail, uid)
    operation = members.get("operation")
    if not uid or not isinstance(operation, str):
        raise MalformedReview("the review has no request with uid and operation", uid)
    namespace = members.get("namespace")
    namespace = namespace if isinstance(namespace, str) else ""
    sub_resource = members.get("subResource")
    return Review(
        uid=uid,
        operation=operation,
        sub_resource=sub_resource if isinstance(sub_resource, str) else "",
        namespace=namespace,
        object=_manifest(members.get("object"), namespace),
        old=_manifest(members.get("oldObject"), namespace),
    )


def _manifest(value: object, namespace: str) -> Manifest | None:
    """Take an object; its namespace is the request's, whatever it says itself."""
    if not isinstance(value, Mapping):
        return None
    metadata = value.get("metadata")
    members = dict(metadata) if isinstance(metadata, Mapping) else {}
    if namespace and members.get("namespace") != namespace:
        value = {**value, "metadata": {**members, "namespace": namespace}}
    return manifest_of(value)


def validated(data: object, mode: Mode, judge: Judge, more_at: str) -> Decision:
    """Answer a validating review; `more_at` says where cut-off warnings can be read in full."""
    try:
        review = read_review(data)
    except MalformedReview as error:
        return _malformed(error)
    subject = _to_judge(review)
    if subject is None:
        return _decision(review, True, "ignored")
    judged = _judged(subject, judge, editable=False)
    if judged == Judged():
        return _decision(review, True, "ignored")
    refused = any(verdict.outcome is Outcome.REJECTED for verdict in judged.verdicts)
    before = _known_before(review, judge) if refused else frozenset()
    return _answered(review, mode, judged, before, more_at)


def _answered(
    review: Review,
    mode: Mode,
    judged: Judged,
    before: frozenset[tuple[str, ...]],
    more_at: str,
) -> Decision:
    verdicts = judged.verdicts
    rejected = [v for v in verdicts if v.outcome is Outcome.REJECTED]
    fresh = [
        (verdict, finding)
        for verdict in rejected
        for finding in verdict.findings
        if _counts(verdict, finding) and _identity(verdict, finding) not in before
    ]
    refused = mode is Mode.ENFORCE and bool(fresh)
    told = [
        (verdict, finding)
        for verdict in verdicts
        for finding in sorted(verdict.findings, key=lambda f: _ORDER.index(f.severity))
        if _is_told(finding) and not (refused and (verdict, finding) in fresh)
    ]
    told.sort(key=lambda pair: _ORDER.index(pair[1].severity))
    texts = list(_told_texts(told, several=len(verdicts) > 1))
    texts.extend(judged.unread)
    annotations = {
        "mode": mode.value,
        "verdict": _worst(verdicts).value if verdicts else "unread",
        "ruleset": _ruleset(),
        "rules": ",".join(dict.fromkeys(f.rule for v in verdicts for f in v.findings))[
            :_ANNOTATION_LENGTH
        ],
        "exceptions": _exceptions(verdicts)[:_ANNOTATION_LENGTH],
        "vllm-versions": ",".join(dict.fromkeys(v.vllm_version for v in verdicts)),
    }
    if before and rejected and not fresh:
        annotations["ratcheted"] = "true"
    decision = "allowed" if verdicts else "unread"
    return _decision(
        review,
        not refused,
        "refused" if refused else ("would-refuse" if fresh else decision),
        status=_status(review, fresh) if refused else None,
        warnings=_warnings(texts, more_at) if mode is not Mode.AUDIT else [],
        annotations={name: text for name, text in annotations.items() if text},
        verdicts=verdicts,
    )


def _exceptions(verdicts: Sequence[Verdict]) -> str:
    """Name the exceptions that were used, with their reasons, as they are written."""
    used = (f"{e.finding.rule}: {e.reason}" for v in verdicts for e in v.suppressed)
    return "; ".join(dict.fromkeys(used))


def mutated(data: object, judge: Judge, more_at: str) -> Decision:
    """Answer a mutating review: safe fixes, where they make what would be refused acceptable."""
    try:
        review = read_review(data)
    except MalformedReview as error:
        return _malformed(error)
    subject = _to_judge(review)
    changeable = review.operation == "CREATE" or (
        review.operation == "UPDATE" and subject is not None and subject.kind in _MUTABLE
    )
    if subject is None or not changeable:
        return _decision(review, True, "ignored")
    mended, verdicts, fixes = _mended(subject, judge)
    operations = list(patch_between(subject.data, mended.data))
    if not operations:
        return _decision(review, True, "unchanged", verdicts=verdicts)
    told = [f"changed by vllm-admission: {fix}" for fix in fixes]
    annotations = {"fixes": "; ".join(fixes)[:_ANNOTATION_LENGTH], "ruleset": _ruleset()}
    return _decision(
        review,
        True,
        "patched",
        warnings=_warnings(told, more_at),
        annotations=annotations,
        patch=operations,
        verdicts=verdicts,
    )


def _mended(
    subject: Manifest, judge: Judge
) -> tuple[Manifest, tuple[Verdict, ...], tuple[str, ...]]:
    """Take the last safe correction: it has those of the servers before it."""
    verdicts = _judged(subject, judge).verdicts
    fixes: list[str] = []
    for verdict in verdicts:
        corrected = verdict.corrected
        if corrected is not None and corrected["safe"] and "kubernetes" in corrected:
            subject = manifest_of(json.loads(corrected["kubernetes"]))
            fixes.extend(corrected["fixes"])
    return subject, verdicts, tuple(dict.fromkeys(fixes))


def _judged(subject: Manifest, judge: Judge, *, editable: bool = True) -> Judged:
    """Judge the servers; that one cannot be read says nothing against it, or the others."""
    unread: list[str] = []
    try:
        servers = servers_in((subject,), editable=editable, at_most=_SERVERS + 1)
    except AdmissionError as error:
        return Judged(unread=(f"not judged: {_told(error)}",))
    if not servers:
        return Judged()
    if len(servers) > _SERVERS:  # it has to be answered within seconds
        servers = servers[:_SERVERS]
        unread.append(f"only the first {_SERVERS} servers of this object were judged")
    try:  # all at once, as one may use an exception that another one does not
        return Judged(judge(Envelope(proposal=servers[0], more=servers[1:])), tuple(unread))
    except AdmissionError:
        pass
    readable: list[Proposal] = []
    for server in servers:
        try:
            judge(Envelope(proposal=server))
            readable.append(server)
        except AdmissionError as error:
            unread.append(f"{server.subject} was not judged: {_told(error)}")
    if not readable:
        return Judged(unread=tuple(unread))
    first, *more = readable
    return Judged(judge(Envelope(proposal=first, more=tuple(more))), tuple(unread))


def _told(error: AdmissionError) -> str:
    return "; ".join([error.detail, *(problem.detail for problem in error.problems)])


def _to_judge(review: Review) -> Manifest | None:
    """Give the object, unless there is nothing to judge or its owner is judged instead."""
    if review.object is None or review.sub_resource or review.operation not in {"CREATE", "UPDATE"}:
        return None
    metadata = review.object.metadata
    annotations = metadata.get("annotations")
    mirrored = isinstance(annotations, Mapping) and _MIRROR in annotations
    if mirrored or metadata.get("deletionTimestamp"):
        return None  # it runs already, or is on its way out: a refusal would only be in the way
    owners = review.object.metadata.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, Mapping) and owner.get("controller"):
            group = str(owner.get("apiVersion", "")).rpartition("/")[0]
            if is_judged_kind(group, str(owner.get("kind"))):
                return None
    return review.object


def _known_before(review: Review, judge: Judge) -> frozenset[tuple[str, ...]]:
    """Give what was already wrong in the object that is being changed."""
    if review.operation != "UPDATE" or review.old is None:
        return frozenset()
    verdicts = _judged(review.old, judge, editable=False).verdicts
    return frozenset(_identity(v, f) for v in verdicts for f in v.findings if _counts(v, f))


def _is_told(finding: Finding) -> bool:
    return finding.severity is not Severity.INFO or finding.undecided or finding.rule == _CRASHED


def _counts(verdict: Verdict, finding: Finding) -> bool:
    """Whether a finding is among those that reject; under the strict profile warnings are too."""
    errors = any(f.severity is Severity.ERROR for f in verdict.findings)
    return finding.severity is (Severity.ERROR if errors else Severity.WARNING)


def _identity(verdict: Verdict, finding: Finding) -> tuple[str, ...]:
    """Name a violation by what is wrong, not by the index it stands at, or the version."""
    return (finding.rule, verdict.subject or "", finding.message)


@cache
def _ruleset() -> str:
    """Give the version of the rules, which is that of the package."""
    return version("vllm-admission")


def _worst(verdicts: Sequence[Verdict]) -> Outcome:
    outcomes = {verdict.outcome for verdict in verdicts}
    order = (Outcome.REJECTED, Outcome.UNDETERMINED)
    return next((outcome for outcome in order if outcome in outcomes), Outcome.ACCEPTED)


# the answer


def _decision(
    review: Review,
    allowed: bool,
    decision: str,
    *,
    status: dict[str, Any] | None = None,
    warnings: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    patch: Sequence[dict[str, Any]] = (),
    verdicts: tuple[Verdict, ...] = (),
) -> Decision:
    response: dict[str, Any] = {"uid": review.uid, "allowed": allowed}
    if status is not None:
        response["status"] = status
    if warnings:
        response["warnings"] = list(warnings)
    if annotations:
        response["auditAnnotations"] = dict(annotations)
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(list(patch)).encode()).decode()
    return Decision(_body(response), review.operation, decision, verdicts)


def _malformed(error: MalformedReview) -> Decision:
    status = {"code": 400, "reason": "BadRequest", "message": error.detail}
    response = {"uid": error.uid, "allowed": False, "status": status}
    return Decision(_body(response), "", "malformed")


def _body(response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _status(review: Review, fresh: Sequence[tuple[Verdict, Finding]]) -> dict[str, Any]:
    first_verdict, first = fresh[0]
    more = f" (and {len(fresh) - 1} more)" if len(fresh) > 1 else ""
    message = f"vLLM {first_verdict.vllm_version}: {first.message} [{first.rule}]{more}"
    causes = [
        {
            "reason": "FieldValueInvalid",
            "message": f"{finding.message} [{finding.rule}]",
            "field": field_of(finding.location),
        }
        for _, finding in fresh
    ]
    details: dict[str, Any] = {"causes": causes}
    subject = review.object
    if subject is not None:
        details |= {"kind": subject.kind, "group": subject.group}
        if subject.metadata.get("name"):
            details["name"] = subject.name
    return {"code": 422, "reason": "Invalid", "message": message, "details": details}


def field_of(location: Location | None) -> str:
    """Write a place as Kubernetes writes paths: `spec.containers[0].args[3]`."""
    if location is None or not location.pointer:
        return ""
    text = ""
    for step in path_of(location.pointer):
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text


def _told_texts(told: Sequence[tuple[Verdict, Finding]], *, several: bool) -> Iterator[str]:
    """Write findings as warnings; what one unknown value leaves open is one of them."""
    questions = Counter(_question(verdict, finding) for verdict, finding in told)
    for verdict, finding in told:
        question = _question(verdict, finding)
        count = questions.pop(question, 0)
        if question is None or count == 1:
            yield _warning(verdict, finding, several=several)
        elif count > 1:
            message = f"{question[1]}; {count - 1} more rules depend on it too"
            yield _warning(verdict, replace(finding, message=message), several=several)


def _question(verdict: Verdict, finding: Finding) -> tuple[str, str] | None:
    """Name what an open finding depends on, which stands before what the rule is about."""
    if not finding.undecided or ": " not in finding.message:
        return None
    return verdict.subject or "", finding.message.partition(": ")[0]


def _warning(verdict: Verdict, finding: Finding, *, several: bool) -> str:
    subject = f"{verdict.subject}: " if several and verdict.subject else ""
    return f"{subject}{finding.message} [{finding.rule}]"


def _warnings(texts: Iterable[str], more_at: str) -> list[str]:
    """Keep to what the API server passes on: 256 characters each, 4,096 in all."""
    texts = list(dict.fromkeys(" ".join(text.split()) for text in texts))
    kept: list[str] = []
    left = _WARNINGS_LENGTH
    for number, text in enumerate(texts):
        short = _shortened(text)
        if len(short.encode()) > left:
            kept.append(f"{len(texts) - number} more at {more_at}")
            break
        left -= len(short.encode())
        kept.append(short)
    return kept


def _shortened(text: str) -> str:
    """Cut the message, not the rule's id at its end."""
    if len(text.encode()) <= _WARNING_LENGTH:
        return text
    message, bracket, rule = text.rpartition(" [")
    ending = f"… [{rule}" if bracket else "…"
    left = _WARNING_LENGTH - len(ending.encode())
    return (message if bracket else text).encode()[:left].decode(errors="ignore") + ending


def crashed(data: object, more_at: str) -> Decision:
    """Answer a review that a mistake of ours kept from being judged: it is let through."""
    try:
        review = read_review(data)
    except MalformedReview as error:
        return _malformed(error)
    warning = f"vllm-admission failed, so this was not judged; see its log, or {more_at}"
    return _decision(review, True, "crashed", warnings=[warning])
