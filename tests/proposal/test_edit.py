from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.catalogue import CatalogueLibrary
from app.errors import AdmissionError
from app.proposal.edit import apply_edits
from app.proposal.envelope import read_envelope
from app.proposal.proposal import Proposal
from app.proposal.read import read_text
from app.proposal.render import render
from app.proposal.shell import parse_command
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain
from app.verdict.fix import (
    Edit,
    RemoveFlag,
    ReplaceArgument,
    SetEnvironment,
    SetFlag,
    UnsetEnvironment,
)

CATALOGUE = CatalogueLibrary().get("0.32.0")
SPEC = "speculative_config"


def edited(proposal: Proposal, *edits: Edit) -> dict[str, Any]:
    return render(apply_edits(proposal, edits, CATALOGUE))


def command(text: str, *edits: Edit) -> str:
    result = edited(parse_command(text), *edits)["command"]
    assert isinstance(result, str)
    return result


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("vllm serve m", SetFlag("port", 1), "vllm serve m --port 1"),
        ("vllm serve m --port 8", SetFlag("port", 1), "vllm serve m --port 1"),
        ("vllm serve m --port=8", SetFlag("port", 1), "vllm serve m --port=1"),
        ("vllm serve m --port 8 --port 9", SetFlag("port", 1), "vllm serve m --port 8 --port 1"),
        ("vllm serve m -tp 8 # c", SetFlag("tensor_parallel_size", 1), "vllm serve m -tp 1 # c"),
        ("vllm serve m | tee x", SetFlag("port", 1), "vllm serve m --port 1 | tee x"),
        ("vllm serve -- m", SetFlag("port", 1), "vllm serve --port 1 -- m"),
        (
            "vllm serve m -O3",
            SetFlag("optimization_level", 1),
            "vllm serve m --optimization-level 1",
        ),
        ("vllm serve m", SetFlag("model", "a b"), "vllm serve 'a b'"),
        ("vllm serve", SetFlag("model", "m"), "vllm serve m"),
        ("vllm serve --model m", SetFlag("model", "n"), "vllm serve --model n"),
        ("vllm serve --model=m", SetFlag("model", "n"), "vllm serve --model=n"),
        ("m --port 1", SetFlag("model", "n"), "n --port 1"),
        ("vllm serve m", SetFlag("enforce_eager", True), "vllm serve m --enforce-eager"),
        ("vllm serve m", SetFlag("enforce_eager", False), "vllm serve m --no-enforce-eager"),
        (
            "vllm serve m --enforce-eager",
            SetFlag("enforce_eager", False),
            "vllm serve m --no-enforce-eager",
        ),
        ("vllm serve m --disable-log-stats", SetFlag("disable_log_stats", False), "vllm serve m"),
        (
            "vllm serve m --served-model-name a b --port 1",
            SetFlag("served_model_name", ["c"]),
            "vllm serve m --served-model-name c --port 1",
        ),
        ("vllm serve m --port 1", RemoveFlag("port"), "vllm serve m"),
        (
            "vllm serve m \\\n  --port 1 \\\n  --seed 2",
            RemoveFlag("port"),
            "vllm serve m \\\n  --seed 2",
        ),
        ("vllm serve m --port 1 --port 2", RemoveFlag("port"), "vllm serve m"),
        ("vllm serve m", RemoveFlag("port"), "vllm serve m"),
        ("vllm serve m --prot 1", ReplaceArgument(1, "--port"), "vllm serve m --port 1"),
        ("vllm serve m", ReplaceArgument(9, "--port"), "vllm serve m"),
        (
            "vllm serve m",
            SetFlag(f"{SPEC}.method", "mtp"),
            'vllm serve m --speculative-config \'{"method": "mtp"}\'',
        ),
        (
            'vllm serve m --speculative-config \'{"a": 1, "b": 2}\'',
            SetFlag(f"{SPEC}.a", False),
            'vllm serve m --speculative-config \'{"a": false, "b": 2}\'',
        ),
        (
            'vllm serve m --speculative-config \'{"a": 1, "b": 2}\'',
            RemoveFlag(f"{SPEC}.a"),
            "vllm serve m --speculative-config '{\"b\": 2}'",
        ),
        (
            "vllm serve m --speculative-config '{\"a\": 1}' --port 1",
            RemoveFlag(f"{SPEC}.a"),
            "vllm serve m --port 1",
        ),
        ("vllm serve m -sc.a=1 -sc.b 2", SetFlag(f"{SPEC}.a", 3), "vllm serve m -sc.a=3 -sc.b 2"),
        ("vllm serve m -sc.a 1", SetFlag(f"{SPEC}.b", "x"), "vllm serve m -sc.a 1 -sc.b x"),
        ("vllm serve m -sc.a 1 -sc.b 2", RemoveFlag(f"{SPEC}.a"), "vllm serve m -sc.b 2"),
        (
            'vllm serve m --speculative-config "{\\"a\\": 1, \\"b\\": \\"$B\\"}"',
            SetFlag(f"{SPEC}.a", 2),
            'vllm serve m --speculative-config "{\\"a\\": 2, \\"b\\": \\"$B\\"}"',
        ),
        ("vllm serve m", SetEnvironment("A", "x y"), "A='x y' vllm serve m"),
        ("A=1 vllm serve m", SetEnvironment("A", "2"), "A=2 vllm serve m"),
        ("export A=1\nvllm serve m", SetEnvironment("A", "2"), "export A=2\nvllm serve m"),
        ("export A=1\nvllm serve m", UnsetEnvironment("A"), "vllm serve m"),
        ("export A=1 B=2\nvllm serve m", UnsetEnvironment("A"), "export B=2\nvllm serve m"),
        ("A=1 \\\n B=2 vllm serve m", UnsetEnvironment("A"), "B=2 vllm serve m"),
        ("export A=1\nA=2 vllm serve m", UnsetEnvironment("A"), "vllm serve m"),
        ("X='a b'\nvllm serve m $X", SetFlag("port", 1), "X='a b'\nvllm serve m $X --port 1"),
    ],
)
def test_shell_text_changes_only_where_it_must(before: str, edit: Edit, after: str) -> None:
    assert command(before, edit) == after


def test_an_added_flag_takes_a_line_of_its_own_where_the_others_do() -> None:
    before = "A=1 \\\n  vllm serve m \\\n    --port 1 # web\n"
    after = "A=1 \\\n  vllm serve m \\\n    --port 1 \\\n    --seed 2 # web\n"
    assert command(before, SetFlag("seed", 2)) == after


def test_replaced_words_are_found_by_their_index_whatever_else_changes() -> None:
    text = "vllm serve m --seed 1 --prot 2"
    edits = (RemoveFlag("seed"), ReplaceArgument(3, "--port"))
    assert command(text, *edits) == "vllm serve m --port 2"


def test_the_environment_of_an_envelope_stays_beside_the_command() -> None:
    proposal = read_envelope({"command": "A=1 vllm serve m", "env": {"B": "2"}}).proposal
    assert edited(proposal, SetEnvironment("B", "3"), SetFlag("port", 1)) == {
        "command": "A=1 vllm serve m --port 1",
        "env": {"B": "3"},
    }
    assert edited(proposal, UnsetEnvironment("B")) == {"command": "A=1 vllm serve m"}


def test_args_stay_a_list() -> None:
    proposal = read_envelope({"args": ["m", "--port", "1"], "env": {"A": "1"}}).proposal
    edits = (SetFlag("port", 2), SetFlag("logprobs_mode", "raw_logits"), UnsetEnvironment("A"))
    assert edited(proposal, *edits) == {
        "args": ["m", "--port", "2", "--logprobs-mode", "raw_logits"]
    }


def test_kwargs_keep_their_spelling() -> None:
    proposal = read_envelope(
        {"config": {"max-logprobs": -2, "speculative_config": {"a": 1, "b": 2}, "xx": 1}}
    ).proposal
    edits = (
        SetFlag("max_logprobs", 5),
        SetFlag("enforce_eager", True),
        RemoveFlag(f"{SPEC}.a"),
        ReplaceArgument("/config/xx", "seed"),
    )
    assert edited(proposal, *edits) == {
        "config": {
            "max-logprobs": 5,
            "speculative_config": {"b": 2},
            "seed": 1,
            "enforce_eager": True,
        }
    }


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("model: m # c\n", SetFlag("port", 1), "model: m # c\nport: 1\n"),
        ("model: m", SetFlag("model", "a: b"), 'model: "a: b"'),
        ("max_logprobs: -2 # c\nseed: 1\n", SetFlag("max_logprobs", 5), ("max_logprobs: 5 # c\n"
         "seed: 1\n")),
        ("enforce-eager: false # c\n", SetFlag("enforce_eager", False), ("no-enforce-eager: true "
         "# c\n")),
        ("no_enforce_eager: true\n", SetFlag("enforce_eager", True), "enforce_eager: true\n"),
        ("a: 1\nseed: 1 # c\nb: 2\n", RemoveFlag("seed"), "a: 1\nb: 2\n"),
        ("cc: 1\ncompilation-config:\n  mode: 3 # x\n  level: 2\n",
         SetFlag("compilation_config.mode", 0),
         "cc: 1\ncompilation-config:\n  mode: 0 # x\n  level: 2\n"),
        ("compilation-config:\n  mode: 3\nport: 1\n", RemoveFlag("compilation_config"),
         "port: 1\n"),
        ("compilation-config:\n  mode: 3\n  a: 1\nport: 1\n",
         RemoveFlag("compilation_config.mode"), 'compilation-config: {"a": 1}\nport: 1\n'),
        ("{model: m, seed: 1}", SetFlag("port", 1), "{model: m, seed: 1, port: 1}"),
        ("modle: m\n", ReplaceArgument("/modle", "model"), "model: m\n"),
        ("'modle': m\n", ReplaceArgument("/modle", "model"), "model: m\n"),
        ("", SetFlag("served_model_name", ["a", "b"]), 'served-model-name: ["a", "b"]\n'),
        ("hf-overrides: '{\"a\": 1}'\n", SetFlag("hf_overrides.a", 2),
         'hf-overrides: "{\\"a\\": 2}"\n'),
    ],
)  # fmt: skip
def test_yaml_changes_only_where_it_must(before: str, edit: Edit, after: str) -> None:
    proposal = read_envelope({"config_yaml": before}).proposal
    assert edited(proposal, edit) == {"config_yaml": after}


@pytest.mark.parametrize(
    "text",
    [
        "model: m\nseed: 1",
        "model: m\nseed: 1\n# end\n\n",
        "---\nmodel: m\nseed: 1\n...\n",
        "# top\n  model: m\n  seed: 1\n",
        "model: m\r\nseed: 1\r\n",
        "seed: 1\nchat-template: |\n  {{ x }}\n\nmodel: m\n",
        "model: m\nseed: 1\nchat-template: |\n  {{ x }}\n",
        "%YAML 1.1\n---\nmodel: m\nseed: 1\n",
        "{model: m, seed: 1}",
        "# top }\n{model: m, seed: 1,} # }\n",
        "--- {model: m, seed: 1}\n...\n",
        "{\n  model: m, # first\n  seed: 1 # last\n}\n",
        "{model: m, seed: 1, hf-overrides: {d: 2001-01-01}}",
    ],
)
def test_yaml_of_any_layout_is_edited(text: str) -> None:
    proposal = read_envelope({"config_yaml": text}).proposal

    def after(*edits: Edit) -> dict[str, Any]:
        loaded = yaml.safe_load(edited(proposal, *edits)["config_yaml"])
        assert isinstance(loaded, dict)
        return loaded

    before = yaml.safe_load(text)
    assert after(SetFlag("port", 8)) == {**before, "port": 8}
    assert after(SetFlag("port", 8), SetFlag("enforce_eager", True), SetFlag("port", 9)) == {
        **before,
        "port": 9,
        "enforce-eager": True,
    }
    assert after(SetFlag("seed", 2)) == {**before, "seed": 2}
    assert after(RemoveFlag("seed")) == {k: v for k, v in before.items() if k != "seed"}


def test_a_yaml_edit_that_would_break_the_file_changes_nothing() -> None:
    text = "seed: &s 1\nport: *s\n"
    proposal = read_envelope({"config_yaml": text}).proposal
    assert edited(proposal, RemoveFlag("seed")) == {"config_yaml": text}


def test_a_flag_of_a_config_file_is_removed_from_the_file() -> None:
    proposal = read_envelope(
        {"args": ["m", "--config", "c.yaml"], "files": {"c.yaml": "seed: 1\nport: 2\n"}}
    ).proposal
    assert edited(proposal, RemoveFlag("seed")) == {
        "args": ["m", "--config", "c.yaml"],
        "files": {"c.yaml": "port: 2\n"},
    }


def test_a_key_of_json_in_a_config_file_is_set_without_losing_the_others() -> None:
    proposal = read_envelope(
        {
            "args": ["m", "--config", "c.yaml"],
            "files": {"c.yaml": "speculative-config: {method: ngram, num_speculative_tokens: 2}"},
        }
    ).proposal
    result = apply_edits(proposal, [SetFlag(f"{SPEC}.num_speculative_tokens", 3)], CATALOGUE)
    config = resolve(result, CATALOGUE).config
    assert config is not None
    assert config[SPEC] == {"method": "ngram", "num_speculative_tokens": 3}


_FRAGMENTS = [
    *(
        "vllm serve m",
        "m",
        " ",
        "\n",
        "\r\n",
        "\t",
        "\\\n",
        "'",
        '"',
        "$'",
        "\\",
        "$",
        "é",
        "*",
        "&a",
        "*a",
    ),
    *("$A", "${B:-1}", "$(x)", "A=1 ", "export B=2\n", "<<E", "E\n", "&&", "|", "(", ")", "#c"),
    *("--port", "8000", "--", "-O3", "-cc", "-cc.mode", "=3", '{"mode": 3}', "--model", "true"),
    *("--speculative-config", '\'{"a": {"b": 1}}\'', "--served-model-name", "a b", "32k"),
    *("--hf-overrides.x+", "--enforce-eager", "--config c.yaml", "false"),
    *("{", "}", "[", "]", ":", "- ", "model: m\n"),
]
_EDITS: list[Edit] = [
    SetFlag("max_logprobs", 20),
    SetFlag("speculative_config.enable_adaptive_verification", False),
    SetFlag("compilation_config.mode", "NONE"),
    SetFlag("model", "x y"),
    SetFlag("enforce_eager", False),
    SetFlag("served_model_name", ["a", "b c"]),
    RemoveFlag("speculative_config"),
    RemoveFlag("compilation_config.mode"),
    RemoveFlag("model"),
    SetEnvironment("A", "q r"),
    UnsetEnvironment("A"),
    ReplaceArgument(1, "--xx"),
]
_TEXTS = st.lists(st.one_of(st.sampled_from(_FRAGMENTS), st.text(max_size=3)), max_size=12).map(
    "".join
)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=_TEXTS, edit=st.sampled_from(_EDITS), as_file=st.booleans())
def test_any_text_is_read_edited_and_read_back(text: str, edit: Edit, as_file: bool) -> None:
    try:
        proposal = read_text(text, source="f").proposal if as_file else parse_command(text)
    except AdmissionError:
        return
    resolution = resolve(proposal, CATALOGUE)
    json.dumps([found.as_json() for found in resolution.findings])
    result = apply_edits(proposal, [edit], CATALOGUE)
    again = read_envelope(json.loads(json.dumps(render(result)))).proposal
    assert [w.text for w in again.words] == [w.text for w in result.words]
    if isinstance(edit, UnsetEnvironment):
        assert edit.variable not in result.environment
    if isinstance(edit, SetEnvironment):
        assert result.environment[edit.variable].value == edit.value


_FLAG_EDITS = [edit for edit in _EDITS if isinstance(edit, SetFlag)]
_WORDS = st.lists(
    st.sampled_from(
        [
            ["--port", "1"],
            ["--port=2"],
            ["--max-logprobs", "-2"],
            ["--enforce-eager"],
            ["--no-enforce-eager"],
            ["--compilation-config", '{"mode": 3, "cudagraph_mode": "NONE"}'],
            ["-cc.mode=3"],
            ["-cc.pass_config.fuse_norm_quant", "true"],
            ["--speculative-config", '{"method": "mtp"}'],
            ["--served-model-name", "a", "b"],
            ["--served-model-name=c"],
            ["-O3"],
            ["--model", "n"],
        ]
    ),
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(groups=_WORDS, edit=st.sampled_from(_FLAG_EDITS), as_command=st.booleans())
def test_an_edited_setting_has_the_value_afterwards(
    groups: list[list[str]], edit: SetFlag, as_command: bool
) -> None:
    words = ["m", *(word for group in groups for word in group)]
    proposal = read_envelope({"args": words}).proposal
    if as_command:
        proposal = parse_command("vllm serve " + " ".join(f"'{word}'" for word in words))
    config = resolve(apply_edits(proposal, [edit], CATALOGUE), CATALOGUE).config
    assert config is not None
    try:
        assert config[edit.dest] == edit.value
    except Abstain:
        pytest.fail("the edited setting cannot be read")


@pytest.mark.parametrize("text", ["A=1", "A=1 ", "export A=1\n"])
def test_the_last_variable_of_a_text_of_variables_goes_too(text: str) -> None:
    edited = apply_edits(parse_command(text), [UnsetEnvironment("A")], CATALOGUE)
    assert not edited.environment
    assert read_envelope(render(edited)).proposal.words == ()
