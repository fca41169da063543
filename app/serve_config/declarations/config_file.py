"""What is said of a `--config` file."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import PARSER, parser_rule
from app.verdict.finding import Severity

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    parser_rule(
        "yaml-unknown-key",
        Severity.ERROR,
        "The --config file has a key that is no option of this version",
        "Every key becomes an option on the command line.",
        "Use the key that the message suggests, or leave it out.",
        source=f"{PARSER}.load_config_file",
        good="vllm serve org/model",
        covers=("yaml-unknown-key",),
    ),
    parser_rule(
        "yaml-invalid-key",
        Severity.ERROR,
        "A key of the --config file is not text",
        "vLLM writes `--` before each key; a number, boolean or null as key is a TypeError.",
        "Put the key in quotes, or name an option.",
        source=f"{PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    parser_rule(
        "yaml-not-a-mapping",
        Severity.ERROR,
        "The --config file has no `key: value` lines",
        "An empty file, a list and a bare value are refused with an AttributeError.",
        "Write one `option: value` a line.",
        source=f"{PARSER}.load_config_file",
        good="vllm serve org/model",
        covers=("yaml-not-a-mapping",),
    ),
    parser_rule(
        "yaml-unreadable",
        Severity.ERROR,
        "The --config file is not YAML",
        "PyYAML cannot read it.",
        "Mend the line that the message names.",
        source=f"{PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    parser_rule(
        "yaml-file-not-given",
        Severity.WARNING,
        "The --config file was not given along",
        "Settings in a file that cannot be seen may decide.",
        "Give its text along: `files` in the JSON envelope.",
        source=f"{PARSER}.load_config_file",
        bad="vllm serve org/model --config serve.yaml",
    ),
    parser_rule(
        "yaml-false-ignored",
        Severity.WARNING,
        "`false` in the --config file has no effect",
        "`vllm serve` drops a `false`: it looks for the `--no-` form among the options of the "
        "main command, which has none. The setting keeps its default.",
        "Write `no-OPTION: true`.",
        source=f"{PARSER}.load_config_file",
        good="vllm serve org/model",
        covers=("yaml-false-ignored",),
    ),
    parser_rule(
        "yaml-empty-list",
        Severity.WARNING,
        "An empty list in the --config file has no effect",
        "vLLM drops it; the setting keeps its default.",
        "Leave the key out, or give values.",
        source=f"{PARSER}.load_config_file",
        good="vllm serve org/model",
        covers=("yaml-empty-list-dropped",),
    ),
    parser_rule(
        "yaml-repeated-key",
        Severity.WARNING,
        "A key stands twice in the --config file",
        "PyYAML keeps the last one and says nothing.",
        "Keep one of them.",
        source=f"{PARSER}.load_config_file",
        good="vllm serve org/model",
        covers=("yaml-duplicate-key",),
    ),
    parser_rule(
        "yaml-overridden",
        Severity.INFO,
        "The command line overrides the --config file",
        "A setting in both takes the command line's value; JSON values are replaced whole.",
        "Nothing, if that is meant.",
        source=f"{PARSER}._pull_args_from_config",
        good="vllm serve org/model",
        covers=("yaml-cli-override",),
    ),
    parser_rule(
        "yaml-no-model",
        Severity.WARNING,
        "The --config file names no model",
        "Alone it cannot be served: vLLM needs the model in the file or right after `serve`.",
        "Add `model: NAME`, or start it as `vllm serve MODEL --config FILE`.",
        source=f"{PARSER}._pull_args_from_config",
        good="vllm serve org/model",
    ),
)
