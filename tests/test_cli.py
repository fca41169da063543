from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from app.cli import main

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SAMPLES = Path(__file__).parent / "replay" / "samples"
MASK = ["vllm", "serve", "m", "--return-sampling-mask"]
GOOD = [*MASK, "--logprobs-mode", "processed_logprobs", "--enable-scale-out"]


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["vllm-admission", *argv])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        code = caught.value.code
        assert isinstance(code, int)
        return Result(code, out, err)

    return run


def test_a_rejected_command_prints_rule_place_and_fix(run: Run) -> None:
    result = run("validate", "--vllm-version", "0.32.0", "--", *MASK)
    assert result.code == 1
    assert "sampling-mask-logprobs-mode" in result.out
    assert "--return-sampling-mask" in result.out
    assert "--logprobs-mode processed_logprobs" in result.out


def test_an_accepted_command_exits_0(run: Run) -> None:
    assert run("validate", "--vllm-version", "0.32.0", "--", *GOOD).code == 0


def test_an_open_question_exits_3(run: Run) -> None:
    words = [*MASK, "--logprobs-mode", "$MODE"]
    result = run("validate", "--vllm-version", "0.32.0", "-", stdin=" ".join(words).encode())
    assert result.code == 3


@pytest.mark.parametrize("form", ["json", "jsonl", "sarif", "junit", "github"])
def test_machine_formats_parse(run: Run, form: str) -> None:
    result = run("validate", "--format", form, "--vllm-version", "0.32.0", "--", *MASK)
    assert result.code == 1
    match form:
        case "junit":
            assert result.out.startswith("<testsuites ")
        case "github":
            assert "::error " in result.out
        case _:
            assert json.loads(result.out)


def test_a_file_of_any_form_is_recognised(run: Run, tmp_path: Path) -> None:
    forms = {
        "serve.sh": " ".join(MASK),
        "serve.yaml": "model: m\nreturn-sampling-mask: true\n",
        "envelope.json": json.dumps({"args": MASK[2:]}),
    }
    for name, text in forms.items():
        (tmp_path / name).write_text(text)
        assert run("validate", str(tmp_path / name)).code == 1, name


def test_options_add_what_the_proposal_does_not_say(run: Run, tmp_path: Path) -> None:
    good = ["--vllm-version", "0.32.0", "--", *GOOD]
    assert run("validate", "--env", "VLLM_USE_V2_MODEL_RUNNER=0", *good).code == 1
    assert run("validate", "--hardware", "cpu", *good).code == 1
    assert run("validate", "--hardware", "H100-80GB:8", *good).code == 0
    diffusion = tmp_path / "config.json"
    diffusion.write_text(json.dumps({"architectures": ["X"], "canvas_length": 8}))
    assert run("validate", "--model-config", str(diffusion), *good).code == 1


def test_a_model_config_that_is_no_object_is_unusable(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    result = run("validate", "--model-config", str(tmp_path / "config.json"), "--", *MASK)
    assert result.code == 2
    assert "must hold a JSON object" in result.err


def test_a_batch_is_answered_line_by_line_in_order(run: Run) -> None:
    lines = [
        {"id": "a", "vllm_version": "0.32.0", "args": GOOD[2:]},
        {"id": "b", "vllm_version": "0.32.0", "args": MASK[2:]},
    ]
    stdin = "\n".join(map(json.dumps, lines)).encode()
    result = run("validate", "--batch", "-", "--format", "jsonl", stdin=stdin)
    assert [(v["id"], v["verdict"]) for v in result.lines] == [("a", "accepted"), ("b", "rejected")]
    assert result.code == 1


def test_a_batch_with_an_unusable_line_answers_the_others(run: Run) -> None:
    stdin = b'{"id": 1, "args": ["m"]}\n{"id": 2, "args": 3}\n{broken\n{"id": 4, "args": ["m"]}\n'
    result = run("validate", "--batch", "-", "--format", "jsonl", stdin=stdin)
    assert result.code == 2
    assert [line.get("id") for line in result.lines] == [1, 2, None, 4]
    assert result.lines[1]["error"]["errors"][0]["pointer"] == "/args"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["validate"], "exactly one"),
        (["validate", "f", "--", "vllm", "serve"], "exactly one"),
        (["validate", "/no/such/file"], "cannot be read"),
        (["validate", "--env", "NAME", "--", *MASK], "NAME=VALUE"),
        (["validate", "--hardware", "H100:x", "--", *MASK], "GPU:COUNT"),
        (["validate", "--vllm-version", "9", "--", *MASK], "0.33.0"),
        (["validate", "--batch", "-", "--format", "sarif"], "jsonl"),
        (["validate", "--batch", "-", "--vllm-version", "0.32.0"], "each line"),
        (["validate", "--format", "pdf", "--", *MASK], "sarif"),
        (["replay"], "exactly one"),
        (["replay", "--batch", "-", "--format", "json"], "jsonl"),
        (["replay", "/no/such/file"], "cannot be read"),
        (["serve", "--port", "-1"], "--port"),
        (["nonsense"], "nonsense"),
    ],
)
def test_unusable_input_exits_2_and_says_why(run: Run, argv: list[str], says: str) -> None:
    result = run(*argv)
    assert result.code == 2
    assert says in result.err


def test_a_version_in_the_envelope_and_on_the_command_line_is_refused(run: Run) -> None:
    stdin = json.dumps({"args": ["m"], "vllm_version": "0.31.0"}).encode()
    result = run("validate", "--vllm-version", "0.32.0", "-", stdin=stdin)
    assert result.code == 2
    assert "names a version" in result.err


def case(version: str = "0.32.0", **more: Any) -> bytes:
    members = {
        "vllm_version": version,
        "request": json.loads((SAMPLES / "request.json").read_text()),
        "response": json.loads((SAMPLES / f"{version}.json").read_text()),
    }
    return json.dumps(members | more).encode()


def test_replay_reads_a_case_and_exits_0_when_consistent(run: Run, tmp_path: Path) -> None:
    (tmp_path / "case.json").write_bytes(case())
    result = run("replay", str(tmp_path / "case.json"))
    assert result.code == 0
    assert "consistent" in result.out


def test_replay_formats_are_json(run: Run) -> None:
    for form in ("json", "jsonl"):
        result = run("replay", "--format", form, "-", stdin=case())
        assert json.loads(result.out)["rows"]["exact"] == 12


def test_a_replay_batch_is_answered_in_order_with_the_worst_exit_code(run: Run) -> None:
    unseeded = json.loads((SAMPLES / "request.json").read_text())
    del unseeded["sampling_params"]["seed"]
    stdin = b"\n".join([case(id=1), case("0.30.0", id=2), case(id=3, request=unseeded)])
    result = run("replay", "--batch", "-", "--format", "jsonl", stdin=stdin)
    assert [(r["id"], r["verdict"]) for r in result.lines] == [
        (1, "consistent"),
        (2, "consistent"),
        (3, "unproven"),
    ]
    assert result.code == 3


def test_nan_in_a_batch_is_located(run: Run) -> None:
    broken = case(id=1).replace(b"-0.1797446459531784", b"NaN", 1)
    result = run("replay", "--batch", "-", stdin=broken + b"\n" + case(id=2))
    refused, fine = result.lines
    assert refused["error"]["errors"][0]["pointer"].endswith("/logprobs/content/0/logprob")
    assert (refused["id"], refused["line"], fine["verdict"]) == (1, 1, "consistent")
    assert result.code == 2


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_compressed_files_are_read(
    run: Run, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "cases").write_bytes(compress(case(id=1) + b"\n" + case(id=2)))
    (tmp_path / "case").write_bytes(compress(case()))
    assert [line["id"] for line in run("replay", "--batch", str(tmp_path / "cases")).lines] == [
        1,
        2,
    ]
    assert run("replay", str(tmp_path / "case")).code == 0
    (tmp_path / "cut").write_bytes(compress(case())[:-9])
    for option in ([], ["--batch"]):
        result = run("replay", *option, str(tmp_path / "cut"))
        assert result.code == 2
        assert "early" in result.err


@pytest.mark.parametrize("option", [[], ["--batch"]])
def test_rows_of_a_parquet_file_are_cases(run: Run, tmp_path: Path, option: list[str]) -> None:
    members = json.loads(case())
    rows = [{"id": n, **{k: json.dumps(v) for k, v in members.items()}} for n in range(3)]
    for row in rows:
        row["vllm_version"] = "0.32.0"
    rows[1]["response"] = "{"
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rollouts.parquet")
    result = run("replay", *option, str(tmp_path / "rollouts.parquet"))
    first, broken, last = result.lines
    assert first["verdict"] == last["verdict"] == "consistent"
    assert (broken["line"], broken["error"]["errors"][0]["pointer"]) == (2, "/response")
    assert result.code == 2
    assert run("replay", "--format", "json", str(tmp_path / "rollouts.parquet")).code == 2


@pytest.mark.parametrize("name", ["rows.ndjson", "rows.parquet", "rows.arrow"])
def test_rows_are_written_where_asked(run: Run, tmp_path: Path, name: str) -> None:
    file = tmp_path / name

    def written() -> list[dict[str, Any]]:
        if name.endswith("ndjson"):
            return [json.loads(line) for line in file.read_text().splitlines()]
        if name.endswith("parquet"):
            return list(parquet.read_table(file).to_pylist())
        return list(pa.ipc.open_file(str(file)).read_all().to_pylist())

    stdin = case(id="a") + b"\n{}\n" + case(id="b")
    result = run("replay", "--batch", "-", "--rows", str(file), stdin=stdin)
    assert len(result.lines) == 3
    rows = written()
    assert [(row["id"], row["line"]) for row in rows] == [("a", 1)] * 12 + [("b", 3)] * 12
    assert [row["row"] for row in rows[:12]] == list(range(12))
    assert {row["outcome"] for row in rows} == {"exact"}
    assert all(abs(row["kept_mass"] - 1) < 1e-3 for row in rows)
    assert run("replay", "-", "--rows", str(file), stdin=case()).code == 0
    assert len(written()) == 12
    assert "id" not in written()[0] or written()[0]["id"] is None


def test_rows_that_cannot_be_written_are_said(run: Run, tmp_path: Path) -> None:
    for name in ("none/rows.ndjson", "none/rows.parquet", "none/rows.arrow"):
        result = run("replay", "-", "--rows", str(tmp_path / name), stdin=case())
        assert result.code == 2
        assert "rows" in result.err
        assert "Traceback" not in result.err


def test_words_split_by_a_shell_keep_their_meaning(run: Run) -> None:
    words = ["VLLM_USE_V2_MODEL_RUNNER=0", *GOOD, "--served-model-name", "a b", "$HOME", "x=y"]
    result = run("validate", "--format", "json", "--vllm-version", "0.32.0", "--", *words)
    verdict = json.loads(result.out)
    assert verdict["settings"]["given"]["served_model_name"]["value"] == ["a b", "$HOME", "x=y"]
    assert verdict["verdict"] == "rejected"


def test_files_that_a_proposal_names_are_given_beside_it(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("model: m\nno-such-option: 1\n")
    words = ["vllm", "serve", "--config", "serve.yaml"]
    version = ["--vllm-version", "0.32.0"]
    assert run("validate", *version, "--", *words).code == 3
    result = run("validate", *version, "--file", f"serve.yaml={config}", "--", *words)
    assert result.code == 1
    assert "no-such-option" in result.out


def test_all_settings_are_listed_if_asked_for(run: Run) -> None:
    given = run("validate", "--format", "json", "--", "vllm", "serve", "m")
    every = run("validate", "--format", "json", "--settings", "all", "--", "vllm", "serve", "m")
    assert "all" not in json.loads(given.out)["settings"]
    assert json.loads(every.out)["settings"]["all"]["seed"]["origin"] == "default"


def test_an_upgrade_is_told_with_the_edited_command(run: Run) -> None:
    words = ["vllm", "serve", "m", "--enable-mamba-fine-grained-prefix-cache"]
    result = run("upgrade", "--from", "0.30.0", "--to", "0.33.0", "--", *words)
    assert result.code == 1
    assert "vllm serve m --enable-mamba-shared-prefix-checkpoint" in result.out
    machine = run("upgrade", "--from", "0.30.0", "--format", "json", "--", *words)
    assert json.loads(machine.out)["to"] == "0.33.0"


def test_an_upgrade_that_changes_nothing_exits_0(run: Run) -> None:
    stdin = b"docker run vllm/vllm-openai:v0.31.0 m --max-model-len 8192"
    assert run("upgrade", "--to", "0.32.0", "-", stdin=stdin).code == 0


def test_an_upgrade_needs_the_version_in_use(run: Run) -> None:
    result = run("upgrade", "--", "vllm", "serve", "m")
    assert result.code == 2
    assert "from" in result.err
    assert run("upgrade", "--from", "0.30.0").code == 2


def test_the_drafts_config_json_is_read_too(run: Run, tmp_path: Path) -> None:
    """Two vocabularies that differ: only the draft's config.json can tell."""
    draft, target = tmp_path / "draft.json", tmp_path / "target.json"
    dense = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    draft.write_text(json.dumps({**dense, "vocab_size": 32000}))
    target.write_text(json.dumps({**dense, "vocab_size": 151936}))
    spec = '{"method": "draft_model", "model": "d", "num_speculative_tokens": 2}'
    command = ["--", "vllm", "serve", "m", "--speculative-config", spec]
    options = ["--vllm-version", "0.32.0", "--format", "json", "--model-config", str(target)]
    with_draft = run("validate", *options, "--draft-model-config", str(draft), *command)
    rules = {finding["rule"] for finding in json.loads(with_draft.out)["findings"]}
    assert "speculative-vocabulary" in rules
    without = run("validate", *options, *command)
    assert "speculative-vocabulary" not in without.out.split('"not_checked"')[0]


MANIFESTS = b"""\
# Source: chart/templates/deployment.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: q}
spec:
  template:
    spec:
      containers:
      - {name: c, image: 'vllm/vllm-openai:v0.32.0', args: [m, --return-sampling-mask]}
---
apiVersion: v1
kind: Service
metadata: {name: q}
"""


def test_manifests_come_on_standard_input_with_line_and_column(run: Run) -> None:
    result = run("validate", "-", stdin=MANIFESTS)
    assert result.code == 1
    assert "[Deployment/q c] rejected: vLLM 0.32.0" in result.out
    assert "-:9:64" in result.out
    fixed = MANIFESTS.replace(b"--return", b"--logprobs-mode, processed_logprobs, --return")
    assert run("validate", "-", stdin=fixed).code == 0
    without = run("validate", "-", stdin=MANIFESTS.partition(b"---\n")[2])
    assert without.code == 2
    assert "Service/q" in without.err
