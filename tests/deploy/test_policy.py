"""The CEL policy, evaluated by a CEL implementation on the examples of the rules."""

import json
import re
from functools import cache

import cel
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from app.catalogue import CatalogueLibrary
from app.kubernetes.cel_policy import CONFLICTS, Conflict, policy
from app.kubernetes.mode import Mode
from app.kubernetes.review import validated
from app.proposal.shell import parse_command
from app.rules.declaration import Example, Gate
from app.rules.evaluate import validate
from app.rules.registry import default_registry
from app.validation import judge
from tests.deploy.manifests import Manifest, Programs, check_schemas

LIBRARY = CatalogueLibrary()
NEWEST = LIBRARY.newest


def pod(words: list[str], **container: object) -> Manifest:
    given = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": words, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "m"},
        "spec": {"containers": [{k: v for k, v in given.items() if v is not None}]},
    }


def deployment(words: list[str]) -> Manifest:
    template = {"metadata": {}, "spec": pod(words)["spec"]}
    metadata = {"name": "m"}
    spec = {"template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def cron_job(words: list[str]) -> Manifest:
    job = {"spec": {"template": {"spec": pod(words)["spec"]}}}
    spec = {"jobTemplate": job}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "m"}, "spec": spec}


@cache
def spec_of_policy() -> Manifest:
    spec: Manifest = policy()["spec"]
    return spec


compiled = cache(cel.compile)


def refusals(manifest: Manifest, old: Manifest | None = None) -> list[str]:
    """Evaluate as the API server does: conditions, variables in order, then each validation."""
    spec = spec_of_policy()
    variables: dict[str, object] = {}
    context = cel.Context()
    context.add_function("join", lambda items, by: by.join(items))
    context.add_function("replace", lambda text, old, new: text.replace(old, new))
    context.add_variable("object", manifest)
    context.add_variable("oldObject", old)
    for condition in spec["matchConditions"]:
        if compiled(condition["expression"]).execute(context) is not True:
            return []
    for variable in spec["variables"]:
        context.add_variable("variables", dict(variables))
        variables[variable["name"]] = compiled(variable["expression"]).execute(context)
    context.add_variable("variables", variables)
    refused = []
    for validation in spec["validations"]:
        if compiled(validation["expression"]).execute(context) is not True:
            says = compiled(validation.get("messageExpression", "''")).execute(context)
            text, _, rule = (says or validation["message"]).rpartition(" [")
            assert text
            refused.append(rule.rstrip("]"))
    return refused


def words_of(example: Example) -> list[str] | None:
    """Give the words after `vllm serve`, where the example is that and no more."""
    proposal = parse_command(example.text)
    if proposal.environment or any(word.unresolved for word in proposal.words):
        return None
    return [word.text for word in proposal.words]


def examples(kind: str) -> list[Example]:
    declared = default_registry().declarations
    return [
        example
        for declaration in declared
        if declaration.gate is Gate.CONFIGURATION
        for example in getattr(declaration, kind)
        if example.text.startswith("vllm serve ")
    ]


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda conflict: conflict.rule)
def test_a_rules_bad_example_is_refused_in_every_kind_of_object(conflict: Conflict) -> None:
    rule = conflict.rule
    declaration = default_registry().by_id[rule]
    refused = 0
    for example in declaration.bad:
        words = words_of(example)
        if words is not None and rule in refusals(pod(words)):
            assert rule in refusals(deployment(words))
            assert rule in refusals(cron_job(words))
            refused += 1
    assert refused


def test_what_the_policy_refuses_the_gate_refuses() -> None:
    catalogue = CatalogueLibrary().get(NEWEST)
    seen = 0
    # Without one of these options nothing is refused; most examples have none.
    named = set(re.findall(r"--[a-z0-9_-]+", json.dumps(policy()).replace("[-_]", "-")))
    for example in (*examples("good"), *examples("bad")):
        words = words_of(example)
        if words is None or named.isdisjoint(w.partition("=")[0].replace("_", "-") for w in words):
            continue
        if not refusals(pod(words)):
            continue
        seen += 1
        verdict = validate(parse_command(example.text), catalogue)
        assert not verdict.accepted, example.text
    assert seen >= len(CONFLICTS)


@pytest.mark.parametrize(
    "words",
    [
        ["m", "--return-sampling-mask", "--logprobs-mode=processed_logprobs"],
        ["m", "--return_sampling_mask", "--logprobs_mode", "processed_logprobs"],
        ["m", "--return-sampling-mask", "--logprobs-mo", "processed_logprobs"],
        ["m", "--return-sampling-mask", "--config", "serve.yaml"],
        ["m", "--return-sampling-mask", "--no-return-sampling-mask"],
        ["sh", "-c", "vllm serve m \\\n--return-sampling-mask \\\n--logprobs-mode $MODE"],
        ["m", "--enable-auto-tool-choice", "--tool-call", "hermes"],
        ["m", "--enable-auto-tool-choice", "$(PARSER)"],
        [],
    ],
)
def test_it_refuses_nothing_that_could_be_accepted(words: list[str]) -> None:
    assert refusals(pod(words)) == []


VALUES: list[tuple[list[str], str | None]] = [
    (["--dtype", "bf16"], "cli-invalid-choice"),
    (["--dtype=FLOAT16"], "cli-invalid-choice"),
    (["--logprobs_mode=raw"], "cli-invalid-choice"),
    (["--dtype", "--enforce-eager"], "cli-invalid-choice"),
    (["--dtype=bfloat16"], None),
    (["--dtype", "auto"], None),
    (["--mamba-cache-mode", "all"], None),
    (["--tensor-parallel-size", "two"], "cli-invalid-value"),
    (["--tensor-parallel-size="], "cli-invalid-value"),
    (["--tensor_parallel_size=-"], "cli-invalid-value"),
    (["--tensor-parallel-size", "2"], None),
    (["--tensor-parallel-size", "\u0662"], None),
    (["--max-model-len", "auto"], None),
    (["--port"], None),
]


@pytest.mark.parametrize(("words", "rule"), VALUES)
def test_values_are_held_to_what_every_version_takes(words: list[str], rule: str | None) -> None:
    manifest = pod(["m", *words])
    assert refusals(manifest) == ([] if rule is None else [rule])
    assert rule is None or not enforced(manifest)["allowed"]
    # Others than these may have further values.
    assert refusals(pod(["m", *words], image="vllm/vllm-openai:v0.99.0")) == []
    assert refusals(pod(["m", *words], image="vllm/vllm-openai-rocm:v0.32.0")) == []
    manifest["metadata"]["annotations"] = {"vllm-admission/vllm-version": "0.99.0"}
    assert refusals(manifest) == []


def test_every_option_with_choices_is_held_to_them() -> None:
    """Each choice of each version is let through by the policy, and another one refused by both."""
    (choices,) = (v for v in spec_of_policy()["variables"] if v["name"] == "choices")
    table = json.loads(choices["expression"])
    assert len(table) >= 20
    for pattern, values in table:
        option = pattern.replace("[-_]", "-")
        flags = [LIBRARY.get(version).by_option[option] for version in LIBRARY.versions]
        choices = {str(choice) for flag in flags for choice in flag.choices or ()}
        right = pod(["m"])
        right["spec"]["containers"] *= 0
        for choice in choices:
            right["spec"]["containers"] += pod(["m", option, choice])["spec"]["containers"]
            assert re.fullmatch(values, choice)
        assert refusals(right) == [], option
        wrong = pod(["m", option, "nonesuch"])
        assert refusals(wrong) == ["cli-invalid-choice"], option
        assert not enforced(wrong)["allowed"], option


WRONG = ["m", "--return-sampling-mask"]
RULE = "sampling-mask-logprobs-mode"


@pytest.mark.parametrize(
    ("container", "told"),
    [
        ({}, True),
        ({"image": "mirror.local/vllm/vllm-openai@sha256:00"}, True),
        ({"image": "mirror.local:5000/vllm/vllm-openai-rocm:v0.32.0"}, True),
        ({"image": "ours:1", "command": ["vllm", "serve"]}, True),
        ({"image": "ours:1", "command": ["/opt/bin/vllm", "serve"]}, True),
        (
            {"image": "ours:1", "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]},
            True,
        ),
        ({"command": []}, True),
        ({"image": "sglang:1"}, False),
        ({"image": None}, False),
        ({"image": "ours/vllm-exporter:1"}, False),
        ({"image": "ours/my-vllm/vllm-openai-proxy:1"}, False),
        ({"command": ["vllm", "run-batch"]}, False),
        ({"command": ["my-wrapper"]}, False),
        ({"command": ["sh", "-c", "vllm serve m --logprobs-mode processed_logprobs"]}, False),
        ({"args": None}, False),
    ],
)
def test_only_words_of_vllm_serve_are_judged(container: dict[str, object], told: bool) -> None:
    assert refusals(pod(WRONG, **container)) == ([RULE] if told else [])


def owned(kind: str, group: str = "apps/v1", **reference: object) -> Manifest:
    manifest = pod(WRONG)
    owner = {"apiVersion": group, "kind": kind, "name": "m", "controller": True, **reference}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


def annotated(**annotations: str) -> Manifest:
    manifest = pod(WRONG)
    manifest["metadata"]["annotations"] = {k.replace("_", "/"): v for k, v in annotations.items()}
    return manifest


EXEMPT: dict[str, Manifest] = {
    "of a ReplicaSet that runs already": owned("ReplicaSet"),
    "of a Job": owned("Job", "batch/v1"),
    "being deleted": {
        **pod(WRONG),
        "metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z", "finalizers": ["a/b"]},
    },
    "a mirror pod": annotated(**{"kubernetes.io_config.mirror": "0"}),
    "with an exception": annotated(**{"vllm-admission_ignore": f"{RULE}: tried by hand"}),
}


@pytest.mark.parametrize("manifest", EXEMPT.values(), ids=EXEMPT)
def test_what_the_gate_leaves_alone_it_leaves_alone(manifest: Manifest) -> None:
    assert refusals(manifest) == []
    # An object that has what vLLM is said to do: the gate lets it through too.
    assert enforced(manifest)["allowed"]


def test_what_a_custom_resource_owns_is_judged() -> None:
    assert refusals(owned("InferenceService", "serving.kserve.io/v1beta1")) == [RULE]
    assert refusals(owned("ReplicaSet", controller=False)) == [RULE]


def test_an_exception_may_stand_at_the_template() -> None:
    manifest = deployment(WRONG)
    assert refusals(manifest) == [RULE]
    manifest["spec"]["template"]["metadata"] = {"annotations": {"vllm-admission/ignore": "x: y"}}
    assert refusals(manifest) == []


def test_what_was_wrong_before_may_be_updated() -> None:
    wrong, right = deployment(WRONG), deployment(["m"])
    scaled = {**wrong, "spec": {**wrong["spec"], "replicas": 3}}
    assert refusals(scaled, wrong) == []
    assert refusals(scaled, right) == [RULE]
    worse = deployment([*WRONG, "--enable-auto-tool-choice"])
    assert refusals(worse, wrong) == ["serve-auto-tool-choice"]
    assert refusals(right, wrong) == []


def enforced(manifest: Manifest) -> Manifest:
    """What the gate answers in the mode `enforce`."""
    request = {"uid": "1", "operation": "CREATE", "object": manifest}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    decision = validated(review, Mode.ENFORCE, lambda e: judge(e, LIBRARY, NEWEST), "-")
    response: Manifest = decision.body["response"]
    return response


PARTS = (
    ["m"],
    ["--dtype", "half"],
    ["--dtype=b16"],
    ["--max-num-seqs", "many"],
    ["--max-num-seqs", "8"],
    ["--runner"],
    ["--return-sampling-mask"],
    ["--enable-auto-tool-choice"],
    ["--enable-log-outputs"],
    ["--logprobs-mode", "processed_logprobs"],
    ["--logprobs-mode=raw_logits"],
    ["--no-return-sampling-mask"],
    ["--logits-processors", "a:b"],
    ["--tool-call-parser=hermes"],
    ["--enable-log-requests"],
    ["$(MORE)"],
    ["--config", "/serve.yaml"],
)
COMMANDS: tuple[list[str] | None, ...] = (
    None,
    ["vllm", "serve"],
    ["vllm", "run-batch"],
    ["sh", "-c"],
    ["wrapper"],
    [],
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS), max_size=5),
    st.sampled_from(COMMANDS),
    st.sampled_from(
        (
            "vllm/vllm-openai:v0.32.0",
            "vllm/vllm-openai:v0.28.0",
            "ours:1",
            "ours/vllm-router:2",
            None,
        )
    ),
)
def test_it_never_refuses_what_the_gate_lets_through(
    parts: list[list[str]], command: list[str] | None, image: str | None
) -> None:
    manifest = pod([word for part in parts for word in part], command=command, image=image)
    if refusals(manifest):
        assert not enforced(manifest)["allowed"]


def test_its_rules_hold_for_every_version() -> None:
    versions = [Version(v) for v in CatalogueLibrary().versions]
    for conflict in CONFLICTS:
        declaration = default_registry().by_id[conflict.rule]
        assert all(declaration.applies_to(version) for version in versions)


def test_the_policy_in_the_chart_is_this_one_and_valid(programs: Programs) -> None:
    text = (programs.chart / "files" / "policy.yaml").read_text()
    assert yaml.safe_load(text) == policy(), "run `make manifests`"
    check_schemas([policy()])
