"""The CEL policy, evaluated by a CEL implementation on the examples of the rules."""

import cel
import pytest
import yaml
from packaging.version import Version

from app.catalogue import CatalogueLibrary
from app.kubernetes.cel_policy import CONFLICTS, Conflict, policy
from app.proposal.shell import parse_command
from app.rules.declaration import Example, Gate
from app.rules.evaluate import validate
from app.rules.registry import default_registry
from tests.deploy.manifests import Manifest, Programs, check_schemas

NEWEST = CatalogueLibrary().newest


def pod(words: list[str]) -> Manifest:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": words}
    return {"kind": "Pod", "spec": {"containers": [container]}}


def deployment(words: list[str]) -> Manifest:
    return {"kind": "Deployment", "spec": {"template": {"spec": pod(words)["spec"]}}}


def cron_job(words: list[str]) -> Manifest:
    job = {"spec": {"template": {"spec": pod(words)["spec"]}}}
    return {"kind": "CronJob", "spec": {"jobTemplate": job}}


def refusals(manifest: Manifest) -> list[str]:
    """Evaluate as the API server does: variables in order, then each validation."""
    spec = policy()["spec"]
    variables: dict[str, object] = {}
    context = cel.Context()
    context.add_function("join", lambda items, by: by.join(items))
    context.add_function("replace", lambda text, old, new: text.replace(old, new))
    context.add_variable("object", manifest)
    for variable in spec["variables"]:
        context.add_variable("variables", dict(variables))
        variables[variable["name"]] = cel.evaluate(variable["expression"], context)
    context.add_variable("variables", variables)
    return [
        validation["message"].rpartition("[")[2].rstrip("]")
        for validation in spec["validations"]
        if cel.evaluate(validation["expression"], context) is not True
    ]


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
    for example in (*examples("good"), *examples("bad")):
        words = words_of(example)
        if words is None or not refusals(pod(words)):
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
        [],
    ],
)
def test_it_refuses_nothing_that_could_be_accepted(words: list[str]) -> None:
    assert refusals(pod(words)) == []


def test_other_containers_are_let_alone() -> None:
    manifest = pod(["--return-sampling-mask"])
    manifest["spec"]["containers"][0]["image"] = "sglang:1"
    assert refusals(manifest) == []
    del manifest["spec"]["containers"][0]["image"]
    assert refusals(manifest) == []


def test_its_rules_hold_for_every_version() -> None:
    versions = [Version(v) for v in CatalogueLibrary().versions]
    for conflict in CONFLICTS:
        declaration = default_registry().by_id[conflict.rule]
        assert all(declaration.applies_to(version) for version in versions)


def test_the_policy_in_the_chart_is_this_one_and_valid(programs: Programs) -> None:
    text = (programs.chart / "files" / "policy.yaml").read_text()
    assert yaml.safe_load(text) == policy(), "run `make manifests`"
    check_schemas([policy()])
