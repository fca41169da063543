"""Manifests as text: streams, places, and corrections that keep what was written."""

from __future__ import annotations

import json

import pytest
import yaml

from app.errors import InvalidEnvelope, MalformedDocument
from app.kubernetes.containers import servers_in
from app.kubernetes.manifest import manifest_of
from app.kubernetes.read import read_kubernetes
from app.proposal.changes import Change
from app.proposal.edit_text import changed
from app.proposal.envelope import Envelope, read_envelope
from app.proposal.proposal import Form
from app.proposal.read import read_text
from app.validation import judge
from app.verdict.finding import Severity
from app.verdict.verdict import Verdict
from tests.kubernetes.support import BAD, LIBRARY, container, deployment, gate

STREAM = """\
# Source: chart/templates/service.yaml
apiVersion: v1
kind: Service
metadata:
  name: qwen
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: models}
data:
  serve.yaml: |
    model: org/m
    max-model-len: 8192
  HF_HOME: /data
---
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: qwen
  namespace: models
spec:
  template:
    spec:
      containers:
        - name: web
          image: nginx:1.29
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          args: # what to serve
            - Qwen/Qwen3-8B
            - "--return-sampling-mask"   # for the trainer
          envFrom:
            - configMapRef: {name: settings}
---
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: Pod
    metadata: {name: two, namespace: models}
    spec:
      volumes:
        - {name: c, configMap: {name: settings}}
      containers:
        - name: engine
          image: registry.example/vllm/vllm-openai:v0.28.0
          args: ["--config", /etc/vllm/serve.yaml]
          volumeMounts: [{name: c, mountPath: /etc/vllm}]
"""


def verdicts_of(text: str) -> tuple[Verdict, ...]:
    envelope = read_text(text, source="m.yaml")
    return judge(envelope, LIBRARY, "0.32.0")


def test_a_stream_gives_a_verdict_for_each_server() -> None:
    first, second = verdicts_of(STREAM)
    assert (first.subject, second.subject) == ("Deployment/qwen vllm", "Pod/two engine")
    assert (first.vllm_version, second.vllm_version) == ("0.32.0", "0.28.0")
    assert not first.accepted
    assert second.accepted
    [error] = [f for f in first.findings if f.severity.value == "error"]
    place = error.location
    assert place is not None
    assert (place.source, place.line, place.column) == ("m.yaml", 32, 15)
    assert place.pointer == "/spec/template/spec/containers/1/args/1"


def test_files_and_variables_of_config_maps_are_seen() -> None:
    first, second = read_kubernetes(STREAM)
    assert first.environment["HF_HOME"].value == "/data"
    assert second.files["/etc/vllm/serve.yaml"] == "model: org/m\nmax-model-len: 8192\n"
    [verdict] = [v for v in verdicts_of(STREAM) if v.subject == "Pod/two engine"]
    assert verdict.settings is not None
    assert verdict.settings["given"]["max_model_len"]["value"] == 8192


def test_a_correction_keeps_what_was_written() -> None:
    corrected = verdicts_of(STREAM)[0].corrected
    assert corrected is not None
    before, after = STREAM.splitlines(), corrected["kubernetes"].splitlines()
    added = ["            - --logprobs-mode", "            - processed_logprobs"]
    assert [line for line in after if line not in before] == added
    assert [line for line in after if line in before] == before
    again = read_envelope({"kubernetes": corrected["kubernetes"]})
    assert [v.accepted for v in judge(again, LIBRARY, "0.32.0")] == [True, True]


OFFICIAL = "containers:\n- image: vllm/vllm-openai:v0.32.0\n"
OTHER = "containers:\n- image: x/y\n"
SCRIPT = "    set -e\n    exec vllm serve m \\\n      --return-sampling-mask\n"
LAYOUTS = [
    f"{OFFICIAL}  name: c\n  args: [m, --return-sampling-mask]\n",
    f"{OFFICIAL}  args:\n  - m\n  - --return-sampling-mask\n  ports: []\n",
    f"{OTHER}  command: [vllm, serve, 'm']\n  args: ['--return-sampling-mask']\n",
    f"{OTHER}  command: [vllm]\n  args:\n  - serve\n  - m\n  - '--return-sampling-mask'\n",
    f"{OTHER}  command:\n  - sh\n  - -c\n  args:\n  - |\n{SCRIPT}",
    f"{OTHER}  command: ['sh', '-c', 'vllm serve m --return-sampling-mask']\n",
    f'{OTHER}  command: ["sh", "-c", "vllm serve \\"m\\" --return-sampling-mask"]\n',
    "containers: [{image: x/y, command: [vllm, serve, m, --return-sampling-mask]}]\n",
    json.dumps(deployment(container(BAD))),
    json.dumps(deployment(container(BAD)), indent=2),
]


@pytest.mark.parametrize("text", LAYOUTS)
def test_corrections_in_any_layout(text: str) -> None:
    [verdict] = verdicts_of(text)
    assert not verdict.accepted
    assert verdict.corrected is not None
    corrected = verdict.corrected["kubernetes"]
    assert yaml.safe_load(corrected) != yaml.safe_load(text)
    [again] = verdicts_of(corrected)
    assert again.accepted
    assert "--return-sampling-mask" in corrected


VARIABLE = "VLLM_LOGGING_LEVL"


@pytest.mark.parametrize(
    "env",
    [
        "",
        "  env: [{name: A, value: b}]\n",
        "  env:\n  - name: A\n    value: b\n  - name: VLLM_X\n    value: 'c'\n",
        "  env:\n  - {name: VLLM_X, value: c}\n",
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_variables_are_written_and_taken_out(env: str, as_json: bool) -> None:
    text = f"containers:\n- image: vllm/vllm-openai:v0.32.0\n{env}  args: [m]\n"
    if as_json:
        [server] = servers_in([manifest_of(yaml.safe_load(text))])
    else:
        [server] = read_kubernetes(text)
    assert server.writer is not None
    assert server.reread is not None
    edited = server.writer.set_variable(server, "VLLM_X", "a$(B) 1")
    assert edited is not None
    again = server.reread(edited)
    assert again.environment["VLLM_X"].value == "a$(B) 1"
    assert {**again.environment, "VLLM_X": None}.keys() == {*server.environment, "VLLM_X"}
    if "VLLM_X" in env:
        gone = server.writer.unset_variable(server, "VLLM_X")
        assert gone is not None
        assert "VLLM_X" not in server.reread(gone).environment
    else:
        assert server.writer.unset_variable(server, "VLLM_X") is None


def test_the_form_is_told_by_keys() -> None:
    assert read_text(STREAM, source="f").proposal.form is Form.KUBERNETES
    assert (
        read_text("model: m\nkv-cache-dtype: auto\n", source="f").proposal.form
        is not Form.KUBERNETES
    )
    assert (
        read_text("services:\n  a: {image: vllm/vllm-openai}\n", source="f").proposal.form
        is Form.COMPOSE
    )


def test_what_has_no_server_is_told() -> None:
    with pytest.raises(InvalidEnvelope, match=r"\(Service/qwen, ConfigMap/settings\)"):
        read_kubernetes(STREAM.partition("---\n---")[0])
    with pytest.raises(MalformedDocument, match="line 2"):
        read_kubernetes("kind: Pod\n\tspec: 1\n")


def test_exceptions_are_in_annotations_and_comments() -> None:
    reason = "sampling-mask-logprobs-mode: we mended it"
    text = STREAM.replace(
        "  name: qwen\n  namespace: models\n",
        "  name: qwen\n  namespace: models\n  annotations:\n"
        f"    vllm-admission/ignore: '{reason}'\n",
    )
    assert [v.accepted for v in verdicts_of(text)] == [True, True]
    [void] = [
        f
        for v in verdicts_of(text.replace(": we mended it", ""))
        for f in v.findings
        if f.rule == "suppression-without-reason"
    ]
    assert void.location is not None
    assert void.location.line == 23


def test_json_of_the_api_server_and_yaml_are_read_alike() -> None:
    subject = deployment(
        container([*BAD, "--max-model-len", "1k"], env=[{"name": "A", "value": "$$(B)"}])
    )
    [from_yaml] = read_kubernetes(yaml.safe_dump(subject))
    [from_json] = read_kubernetes(json.dumps(subject))
    assert [w.text for w in from_yaml.words] == [w.text for w in from_json.words]
    assert from_yaml.environment["A"].value == from_json.environment["A"].value == "$(B)"
    ours, theirs = gate(Envelope(proposal=from_yaml)), gate(Envelope(proposal=from_json))
    assert [f.rule for v in ours for f in v.findings] == [
        f.rule for v in theirs for f in v.findings
    ]


def test_scripts_take_variables_and_words_in_their_own_text() -> None:
    script = "export VLLM_X=1\nexec vllm serve m --port 8001\n"
    subject = deployment(container([script], command=["sh", "-c"]))
    for [server] in (read_kubernetes(yaml.safe_dump(subject)), servers_in([manifest_of(subject)])):
        assert server.writer is not None
        assert server.reread is not None
        edited = server.writer.set_variable(server, "VLLM_X", "two words")
        assert edited is not None
        again = server.reread(edited)
        assert again.environment["VLLM_X"].value == "two words"
        assert (
            "export VLLM_X='two words'"
            in yaml.safe_load(edited)["spec"]["template"]["spec"]["containers"][0]["args"][0]
        )


EDITS: list[tuple[list[str], Change, list[str]]] = [
    (["m", "--a"], Change({1: []}), ["m"]),
    (["--a"], Change({0: []}), []),
    (["--a", "--b"], Change({0: [], 1: []}, added=["--c"]), ["--c"]),
    (["m", "--", "x"], Change(added=["--c"]), ["m", "--c", "--", "x"]),
    (["--a"], Change(first=["m n"]), ["m n", "--a"]),
    ([], Change(added=["--c", "1"]), ["--c", "1"]),
    (["m", "$$(X)"], Change({0: ["$(X)"]}), ["$(X)", "$(X)"]),
]


@pytest.mark.parametrize(("words", "change", "expected"), EDITS)
@pytest.mark.parametrize("flow", [None, False, True])
def test_words_are_edited_in_every_style(
    words: list[str], change: Change, expected: list[str], flow: bool | None
) -> None:
    subject = deployment(container(words or None))
    if flow is None:
        [server] = servers_in([manifest_of(subject)])
    else:
        [server] = read_kubernetes(yaml.safe_dump(subject, default_flow_style=flow))
    edited = changed(server, change)
    assert [word.text for word in edited.words] == expected


MOUNTED = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  serve.yaml: |
    # ours
    model: org/m
    max_num_seqss: 8
    return-sampling-mask: true  # to train
  LEVEL: loud
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    command: [vllm, serve, --config, /etc/vllm/serve.yaml]
    env:
    - name: VLLM_LOGGING_LEVEL
      valueFrom: {configMapKeyRef: {name: settings, key: LEVEL}}
    envFrom: [{prefix: VLLM_MAX_, configMapRef: {name: numbers}}]
    volumeMounts: [{name: c, mountPath: /etc/vllm}]
  volumes: [{name: c, configMap: {name: settings}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: numbers}
data:
  AUDIO_CLIP_FILESIZE_MB: many
"""


def test_a_file_of_a_config_map_is_judged_where_it_stands_in_the_stream() -> None:
    [server] = read_kubernetes(MOUNTED, source="all.yaml")
    [verdict] = gate(Envelope(proposal=server))
    places = {
        f.rule: (f.location.source, f.location.line, f.location.column)
        for f in verdict.findings
        if f.location is not None and f.severity is Severity.ERROR
    }
    assert places["yaml-unknown-key"] == ("all.yaml", 8, 5)
    assert places["env-invalid-value"] == ("all.yaml", 31, 27)
    assert "/etc/vllm/serve.yaml" not in verdict.sources


def test_a_file_of_a_config_map_is_mended_in_the_stream() -> None:
    text = MOUNTED.replace("many", "20").replace("loud", "INFO")
    [server] = read_kubernetes(text)
    [verdict] = gate(Envelope(proposal=server))
    assert verdict.corrected is not None
    assert verdict.corrected["safe"] is True
    assert verdict.corrected.keys() == {"kubernetes", "fixes", "safe"}
    mended = verdict.corrected["kubernetes"]
    assert "    max-num-seqs: 8\n" in mended
    assert "# ours" in mended
    assert "# to train" in mended
    [again] = read_kubernetes(mended)
    assert gate(Envelope(proposal=again))[0].accepted


def test_a_file_that_is_given_counts_more_than_the_streams() -> None:
    text = MOUNTED.replace("many", "20").replace("loud", "INFO")
    own = "model: org/m\nmax_num_seqss: 8\n"
    envelope = read_envelope({"kubernetes": text, "files": {"/etc/vllm/serve.yaml": own}})
    [verdict] = gate(envelope)
    assert verdict.corrected is not None
    assert verdict.corrected["kubernetes"] == text
    assert verdict.corrected["files"] == {
        "/etc/vllm/serve.yaml": own.replace("max_num_seqss", "max-num-seqs")
    }


def test_the_last_correction_of_a_stream_has_those_before_it() -> None:
    one = "- {name: one, image: 'vllm/vllm-openai:v0.32.0', args: [m, --return-sampling-mask]}"
    two = "- {name: two, image: 'vllm/vllm-openai:v0.32.0', args: [m, --enforce-eager=true]}"
    bad = "- {name: three, image: 'vllm/vllm-openai:v0.32.0', args: [m, --no-such-thing]}"
    good = "- {name: four, image: 'vllm/vllm-openai:v0.32.0', args: [m]}"
    text = f"containers:\n{one}\n{bad}\n{good}\n{two.replace('0.32', '0.31')}\n"
    verdicts = verdicts_of(text)
    assert [verdict.corrected is not None for verdict in verdicts] == [True, False, False, True]
    last = verdicts[-1].corrected
    assert last is not None
    assert last["fixes"] == ["write --enforce-eager"]
    assert [v.accepted for v in verdicts_of(last["kubernetes"])] == [True, False, True, True]


@pytest.mark.parametrize(
    "tagged",
    ["!!int ''", "!!int x", "!!bool x", "!!timestamp x", "!!float '-'", "!!binary x", "!own x"],
)
def test_a_tag_that_does_not_fit_its_text_leaves_the_text(tagged: str) -> None:
    text = f"kind: Pod\nspec: {{containers: [{{args: [serve, m], x: {tagged}}}]}}\n"
    [server] = read_kubernetes(text)
    assert server.workload is not None
    assert isinstance(server.workload.container["x"], str)


def test_of_a_key_written_twice_the_last_one_is_corrected() -> None:
    text = """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: r}
spec:
  serveConfigV2: |
    applications:
    - import_path: ray.serve.llm:build_openai_app
      args: {kept: 1}
      args:
        llm_configs:
        - model_loading_config: {model_source: org/m}
          engine_kwargs: {enable_chunked_prefil: true}
"""
    [server] = read_kubernetes(text)
    [verdict] = judge(Envelope(proposal=server), LIBRARY, "0.32.0")
    assert verdict.corrected is not None
    assert verdict.corrected["kubernetes"] == text.replace("prefil:", "prefill:")
