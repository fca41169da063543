"""Edits of servers that custom resources describe: written where the resource says them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml

from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of, read_manifests
from app.proposal.edit import apply_edits
from app.proposal.envelope import Envelope
from app.proposal.proposal import Proposal
from app.serve_config.resolve import resolve
from app.validation import judge
from app.verdict.fix import Edit, RemoveFlag, SetEnvironment, SetFlag, UnsetEnvironment
from tests.kubernetes.resources import RESOURCES
from tests.kubernetes.support import LIBRARY, answered, patch_of, patched, review

CATALOGUE = LIBRARY.get("0.32.0")
EDITS: list[tuple[Edit, str, Any]] = [
    (SetFlag("max_num_seqs", 16), "max_num_seqs", 16),
    (SetFlag("logprobs_mode", "processed_logprobs"), "logprobs_mode", "processed_logprobs"),
    (SetFlag("hf_overrides", {"a": "$(b) 'c'"}), "hf_overrides", {"a": "$(b) 'c'"}),
    (SetFlag("enforce_eager", False), "enforce_eager", False),
    (RemoveFlag("enforce_eager"), "enforce_eager", False),
    (RemoveFlag("max_num_seqs"), "max_num_seqs", None),
    (SetFlag("enable_prefix_caching", False), "enable_prefix_caching", False),
]
KINDS = pytest.mark.parametrize("kind", RESOURCES)
FORMS = pytest.mark.parametrize("form", ["yaml", "json"])


def server_of(kind: str, form: str, text: str | None = None) -> Proposal:
    text = RESOURCES[kind] if text is None else text
    if form == "yaml":
        [server] = servers_in(read_manifests(text, "f"))
    else:
        [server] = servers_in([manifest_of(yaml.safe_load(text))])
    return server


def effective(server: Proposal, dest: str) -> Any:
    config = resolve(server, CATALOGUE).config
    assert config is not None
    return config[dest]


@KINDS
@FORMS
def test_edits_are_written_into_the_resource(kind: str, form: str) -> None:
    before = server_of(kind, form)
    assert effective(before, "enforce_eager") is True
    for edit, dest, value in EDITS:
        edited = apply_edits(before, [edit], CATALOGUE)
        assert effective(edited, dest) == value, edit
        written = edited.source or ""
        again = server_of(kind, "yaml", written)
        assert effective(again, dest) == value, edit
        assert again.environment["KEPT"].value == "1"
        if form == "yaml" and edit != RemoveFlag("max_num_seqs"):  # whose comment goes with it
            assert "kept" in written
        untouched = {"max_num_seqs", "enforce_eager", "model"} - {dest}
        for other in untouched:
            assert effective(again, other) == effective(before, other), (edit, other)
        # Nothing beside the server changes.
        assert _frame(written) == _frame(RESOURCES[kind])


def _frame(text: str) -> Any:
    """Give an object without what arguments and variables may be written in."""
    data = yaml.safe_load(text)
    ray = data.get("spec", {}).get("serveConfigV2")
    if ray is not None:
        data["spec"]["serveConfigV2"] = yaml.safe_load(ray)
    return _without(data)


_HOLDERS = {"args", "env", "engine_kwargs", "vllmConfig", "options", "env_vars", "runtime_env"}


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _without(v) for k, v in value.items() if k not in _HOLDERS or k == "args" != v}
        return {k: v for k, v in kept.items() if k not in _HOLDERS or isinstance(v, dict)}
    return [_without(item) for item in value] if isinstance(value, list) else value


# What the controller of a group of one pod adds to the variables that are written.
_GROUP = {
    "LWS_LEADER_ADDRESS": "$(LWS_LEADER_ADDRESS)",
    "LWS_GROUP_SIZE": "1",
    "LWS_WORKER_INDEX": "0",
}


@KINDS
@FORMS
def test_variables_are_written_into_the_resource(kind: str, form: str) -> None:
    before = server_of(kind, form)
    edits: list[tuple[Edit, dict[str, str]]] = [
        (SetEnvironment("NEW", "a $(b)"), {"KEPT": "1", "NEW": "a $(b)"}),
        (SetEnvironment("KEPT", "2"), {"KEPT": "2"}),
        (UnsetEnvironment("KEPT"), {}),
    ]
    for edit, expected in edits:
        edited = apply_edits(before, [edit], CATALOGUE)
        again = server_of(kind, "yaml", edited.source or "")
        found = {name: v.value for name, v in again.environment.items()}
        assert found == {**(_GROUP if kind == "leader and workers" else {}), **expected}, edit
        assert [w.text for w in again.words] == [w.text for w in before.words]
        assert again.kwargs == before.kwargs


@KINDS
@FORMS
def test_several_edits_at_once(kind: str, form: str) -> None:
    before = server_of(kind, form)
    edits: list[Edit] = [
        SetFlag("max_num_seqs", 4),
        RemoveFlag("enforce_eager"),
        SetFlag("logprobs_mode", "raw_logits"),
        SetEnvironment("NEW", "1"),
    ]
    after = server_of(kind, "yaml", apply_edits(before, edits, CATALOGUE).source)
    assert effective(after, "max_num_seqs") == 4
    assert effective(after, "enforce_eager") is False
    assert effective(after, "logprobs_mode") == "raw_logits"
    assert after.environment["NEW"].value == "1"


BARE = {
    "kserve": "args",
    "kubeai": "args",
    "stack": "vllmConfig",
    "stack runtime": "vllmConfig",
    "ray": "engine_kwargs",
    "llm service": "env",
    "actuation": "env_vars",
}


def without_key(data: Any, name: str) -> Any:
    if isinstance(data, dict):
        return {k: without_key(v, name) for k, v in data.items() if k != name}
    return [without_key(item, name) for item in data] if isinstance(data, list) else data


@pytest.mark.parametrize("kind", BARE)
@FORMS
def test_what_is_not_there_yet_is_added(kind: str, form: str) -> None:
    data = yaml.safe_load(RESOURCES[kind])
    if kind == "ray":
        inner = without_key(yaml.safe_load(data["spec"]["serveConfigV2"]), BARE[kind])
        data["spec"]["serveConfigV2"] = yaml.safe_dump(inner)
    else:
        data = without_key(data, BARE[kind])
    before = server_of(kind, form, yaml.safe_dump(data))
    edits: list[Edit] = [SetFlag("logprobs_mode", "raw_logits"), SetEnvironment("NEW", "1")]
    after = server_of(kind, "yaml", apply_edits(before, edits, CATALOGUE).source)
    assert effective(after, "logprobs_mode") == "raw_logits"
    assert after.environment["NEW"].value == "1"


def broken(kind: str) -> dict[str, Any]:
    """Give the resource with sampling masks asked for, and their mode forgotten."""
    before = server_of(kind, "json")
    edited = apply_edits(before, [SetFlag("return_sampling_mask", True)], CATALOGUE)
    data: dict[str, Any] = json.loads(edited.source or "")
    return data


@pytest.mark.parametrize("kind", [kind for kind in RESOURCES if kind != "stack"])
def test_a_patch_mends_the_resource_once(kind: str) -> None:
    subject = broken(kind)
    refused = answered(review(subject))
    assert refused["allowed"] is False
    patch = patch_of(review(subject))
    assert patch
    mended = patched(subject, patch)
    assert answered(review(mended))["allowed"] is True
    assert patch_of(review(mended)) == []
    # On an update too: none of these is fixed once it is made.
    assert patch_of(review(subject, "UPDATE", oldObject=mended)) == patch
    assert len(patch) <= 3
    elsewhere = copy.deepcopy(subject)
    assert patched(elsewhere, patch) == mended


@pytest.mark.parametrize("kind", RESOURCES)
def test_the_corrected_manifest_is_accepted(kind: str) -> None:
    text = apply_edits(
        server_of(kind, "yaml"), [SetFlag("return_sampling_mask", True)], CATALOGUE
    ).source
    [verdict] = judge(Envelope(proposal=server_of(kind, "yaml", text)), LIBRARY, "0.32.0")
    assert not verdict.accepted
    assert verdict.corrected is not None
    assert verdict.corrected["safe"] is True
    written = verdict.corrected["kubernetes"]
    assert "kept" in written
    [again] = judge(Envelope(proposal=server_of(kind, "yaml", written)), LIBRARY, "0.32.0")
    assert again.accepted, [f.message for f in again.findings]


@KINDS
@pytest.mark.parametrize(
    ("style", "flow"), [(None, False), ('"', False), ("'", None), (None, True)]
)
def test_edits_fit_any_layout(kind: str, style: str | None, flow: bool | None) -> None:
    data = yaml.safe_load(RESOURCES[kind])
    text = yaml.safe_dump(data, default_style=style, default_flow_style=flow, width=40)
    before = server_of(kind, "yaml", text)
    edits: list[Edit] = [SetFlag("max_num_seqs", 4), SetFlag("logprobs_mode", "raw_logits")]
    after = server_of(kind, "yaml", apply_edits(before, edits, CATALOGUE).source)
    assert (effective(after, "max_num_seqs"), effective(after, "logprobs_mode")) == (
        4,
        "raw_logits",
    )


@KINDS
@pytest.mark.parametrize("indent", [None, 2])
def test_json_stays_json(kind: str, indent: int | None) -> None:
    data = yaml.safe_load(RESOURCES[kind])
    bare = without_key(data, BARE[kind]) if kind in BARE and kind != "ray" else data
    edits: list[Edit] = [
        SetFlag("logprobs_mode", "raw_logits"),
        SetEnvironment("NEW", "1"),
        RemoveFlag("enforce_eager"),
    ]
    for found in (data, bare):
        before = server_of(kind, "yaml", json.dumps(found, indent=indent))
        for some in (edits, *([edit] for edit in edits)):
            edited = apply_edits(before, some, CATALOGUE).source or ""
            assert _frame(edited) == _frame(json.dumps(found))
            json.loads(edited)


ALIASED = """\
servingEngineSpec:
  modelSpec:
  - name: one
    modelURL: org/m
    vllmConfig: &shared
      extraArgs: [--enforce-eager]
  - name: two
    modelURL: org/n
    vllmConfig: *shared
  - name: three
    modelURL: org/o
    vllmConfig: {<<: *shared, maxNumSeqs: 4}
"""


def test_what_several_servers_share_is_not_edited_for_one() -> None:
    servers = servers_in(read_manifests(ALIASED, "f"))
    edit = SetFlag("logprobs_mode", "raw_logits")
    for number in (1, 2):
        edited = apply_edits(servers[number], [edit], CATALOGUE)
        assert edited.source == ALIASED
    pods = """\
kind: Pod
spec:
  containers:
  - {name: a, image: 'vllm/vllm-openai:v0.32.0', args: &w [m], env: &e [{name: KEPT, value: "1"}]}
  - {name: b, image: 'vllm/vllm-openai:v0.28.0', args: *w, env: *e}
"""
    for server in servers_in(read_manifests(pods, "f")):
        for other in (edit, SetEnvironment("NEW", "1"), UnsetEnvironment("KEPT")):
            assert apply_edits(server, [other], CATALOGUE).source == pods
    changed = apply_edits(servers[2], [SetFlag("max_num_seqs", 9)], CATALOGUE)
    assert changed.source == ALIASED.replace("maxNumSeqs: 4", "maxNumSeqs: 9")


def test_one_of_many_servers_is_edited() -> None:
    engine = """\
        - model_loading_config: {{model_id: m{0}}}
          engine_kwargs: {{enforce_eager: true}}
"""
    head = RESOURCES["ray"].split("        - model_loading_config")[0]
    ray = head + "".join(engine.format(i) for i in range(10))
    model = "  - {{name: m{0}, modelURL: m{0}, vllmConfig: {{extraArgs: [--enforce-eager]}}}}\n"
    stack = "servingEngineSpec:\n  modelSpec:\n" + "".join(model.format(i) for i in range(10))
    for text in (ray, stack):
        servers = servers_in(read_manifests(text, "f"))
        assert len(servers) == 10
        edited = apply_edits(servers[6], [SetFlag("max_num_seqs", 3)], CATALOGUE)
        edited = apply_edits(edited, [RemoveFlag("enforce_eager")], CATALOGUE)
        after = servers_in(read_manifests(edited.source or "", "f"))
        changed = [i for i in range(10) if effective(after[i], "max_num_seqs") == 3]
        assert changed == [6]
        assert [effective(s, "enforce_eager") for s in after].count(False) == 1
