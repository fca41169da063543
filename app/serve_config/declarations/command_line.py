"""What argparse and its extensions say of the command line."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import PARSER, parser_rule
from app.verdict.finding import Severity

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    parser_rule(
        "cli-unknown-flag",
        Severity.ERROR,
        "The option is not one of this version",
        "argparse refuses an option that this version does not register and that is not the "
        "beginning of one it does. Options come and go between versions.",
        "Use the name the message suggests, or leave the option out.",
        bad="vllm serve org/model --enable-return-sampling-mask",
        covers=("cli-unknown-flag", "cli-task-flag-removed", "cli-O-json"),
    ),
    parser_rule(
        "cli-ambiguous-flag",
        Severity.ERROR,
        "The abbreviated option could be several",
        "argparse completes an option that is cut short only if one option begins so.",
        "Write the option in full.",
        bad="vllm serve org/model --max-num 4",
        covers=("cli-ambiguous-prefix",),
    ),
    parser_rule(
        "cli-abbreviated-flag",
        Severity.WARNING,
        "The option is abbreviated",
        "It works now, but any release may add an option that begins the same way, and the "
        "command then fails.",
        "Write the option in full.",
        bad="vllm serve org/model --max-model 8192",
        covers=("cli-abbreviated-flag",),
    ),
    parser_rule(
        "cli-python-dependent",
        Severity.WARNING,
        "Python's own releases read this differently",
        "argparse was mended in the course of Python 3.12 and 3.13: an abbreviated option with one "
        "dash takes `=value`, and the `--` of `--option=--` is its value. vLLM runs on either.",
        "Write the option in full, with a value that is not `--`.",
        source="CPython, Lib/argparse.py::ArgumentParser._get_option_tuples",
        bad="vllm serve org/model -as=2",
    ),
    parser_rule(
        "cli-missing-value",
        Severity.ERROR,
        "The option needs a value",
        "The option is the last word, or another option follows it.",
        "Give the value after the option, or as `--option=value` if it begins with a dash.",
        bad="vllm serve org/model --port",
        covers=("cli-missing-value", "cli-model-flag-no-value", "yaml-bool-for-valued-flag"),
    ),
    parser_rule(
        "cli-unexpected-value",
        Severity.ERROR,
        "The switch takes no value",
        "On/off options are written `--option` and `--no-option`; `--option=true` is refused, and "
        "a separate `true` is taken for the model or for a superfluous word.",
        "Write the option alone, or its `--no-` form.",
        bad="vllm serve org/model --enforce-eager=true",
        covers=("cli-bool-explicit-value", "yaml-quoted-bool"),
    ),
    parser_rule(
        "cli-switch-value-as-model",
        Severity.WARNING,
        "A word after a switch is taken for the model",
        "On/off options take no value. A `true` or `false` behind one, with no model before it, is "
        "the first word that belongs to no option, which is the model; it also replaces a model "
        "that the config file names.",
        "Take the word out, or write the `--no-` form for a `false`, and give the model first.",
        bad="vllm serve --enforce-eager true",
        covers=("cli-bool-trailing-word",),
    ),
    parser_rule(
        "cli-invalid-choice",
        Severity.ERROR,
        "The value is not one of the choices",
        "The choices differ between versions; they are compared exactly, with upper and lower "
        "case.",
        "Use one of the choices in the message.",
        source="vllm/engine/arg_utils.py::literal_to_kwargs",
        bad="vllm serve org/model --dtype bf16",
    ),
    parser_rule(
        "cli-invalid-value",
        Severity.ERROR,
        "The value cannot be converted",
        "The text is not a number where one is needed, or not JSON where JSON is needed (often "
        "because a shell or template took the quotes away).",
        "Write the value as the message says; put JSON in single quotes.",
        source="vllm/engine/arg_utils.py::parse_type",
        bad="vllm serve org/model --max-model-len 32kb",
        covers=(
            "hr-int-binary-decimal",
            "hr-int-unparsable",
            "parse-type-failed",
            "json-flag-invalid",
            "yaml-null-becomes-text",
            "yaml-list-for-json-flag",
            "yaml-list-of-mappings",
        ),
    ),
    parser_rule(
        "cli-decimal-suffix",
        Severity.WARNING,
        "k means 1000 and K means 1024",
        "vLLM reads `k`, `m`, `g`, `t` as powers of 1000 and `K`, `M`, `G`, `T` as powers of "
        "1024, so `32k` is 32000 and not 32768.",
        "Write the number, or the capital letter.",
        source="vllm/utils/argparse_utils.py::human_readable_int",
        bad="vllm serve org/model --max-model-len 32k",
        covers=("hr-int-decimal-vs-binary",),
    ),
    parser_rule(
        "cli-extra-argument",
        Severity.ERROR,
        "A word belongs to no option",
        "`vllm serve` takes one word that is no option, the model. Usual causes of a second: a "
        "value after a switch, JSON that a shell split, a model given twice.",
        "Take the word out, or quote what belongs together.",
        bad="vllm serve org/model other/model",
        covers=("cli-extra-positional", "cli-model-both"),
    ),
    parser_rule(
        "cli-no-model",
        Severity.WARNING,
        "No model is given",
        "vLLM then serves its default model. Often the model stands behind an option that takes "
        "several values and swallows it.",
        "Give the model first: `vllm serve MODEL …`.",
        source="vllm/entrypoints/cli/serve.py::ServeSubcommand.cmd",
        bad="vllm serve --port 8000",
        covers=("cli-nargs-plus-swallows-model",),
    ),
    parser_rule(
        "cli-model-flag",
        Severity.WARNING,
        "The model is given with --model",
        "`vllm serve` takes the model as its first word; `--model` still works and is announced "
        "for removal.",
        "Write `vllm serve MODEL …`.",
        bad="vllm serve --model org/model",
        covers=("cli-model-as-flag",),
    ),
    parser_rule(
        "cli-served-name-without-model",
        Severity.ERROR,
        "--served-model-name without a model before it",
        "With `--served-model-name`, vLLM demands the model as the first word.",
        "Write `vllm serve MODEL --served-model-name NAME`.",
        bad="vllm serve --served-model-name name",
        covers=("cli-served-name-without-model",),
    ),
    parser_rule(
        "cli-repeated-flag",
        Severity.WARNING,
        "The option is given more than once",
        "The last one wins; the values of list options are not joined.",
        "Keep one of them.",
        bad="vllm serve org/model --port 8000 --port 9000",
        covers=("cli-duplicate-flag", "cli-list-flag-repeated"),
    ),
    parser_rule(
        "cli-json-overwritten",
        Severity.WARNING,
        "Keys of a JSON option are lost",
        "vLLM collects `--option.key value` into one JSON object for each spelling of the option "
        "and puts it last. It replaces, and is not merged into, a JSON value of the same option "
        "or the keys given with another spelling.",
        "Put all keys into one JSON value, or give all as dotted keys with one spelling.",
        bad="vllm serve org/model --compilation-config '{\"mode\": 3}' "
        "--compilation-config.cudagraph_mode NONE",
        covers=("cli-json-plus-dotted-overwritten", "cli-dotted-alias-mix"),
    ),
    parser_rule(
        "cli-dotted-value",
        Severity.ERROR,
        "A word is taken for a dotted key",
        "Every word that begins with `-` and has a dot before any `=` is read as "
        "`--option.key`, also a negative number that is meant as a value.",
        "Write `--option=-0.5`, and give each dotted key its value.",
        bad="vllm serve org/model --compilation-config.mode",
        covers=("cli-dotted-missing-value", "cli-negative-float-as-dotted"),
    ),
    parser_rule(
        "cli-dotted-text",
        Severity.WARNING,
        "A dotted key's value is text",
        "The value of `--option.key` is read as JSON, then as a number such as 8k; what is neither "
        "stays text. `True`, `False` and `None` are Python's words and no JSON.",
        "Write true, false or null.",
        bad="vllm serve org/model --hf-overrides.tie_word_embeddings True",
        covers=("cli-dotted-value-coercion",),
    ),
    parser_rule(
        "cli-value-unset",
        Severity.INFO,
        "The value means that the option is not set",
        "An empty word and the word `None` (which a YAML null becomes) set an optional setting to "
        "none, also where that is not its default.",
        "Leave the option out, if that is meant.",
        source="vllm/engine/arg_utils.py::optional_type",
        bad="vllm serve org/model --hf-config-path None",
        covers=("optional-none-token",),
    ),
    parser_rule(
        "cli-json-number",
        Severity.INFO,
        "A number inside JSON has a suffix",
        "Bare numbers such as `80m` and `4K` inside a JSON option are replaced before it is read: "
        "k, m, g, t count in powers of 1000 and K, M, G, T in powers of 1024. Inside quotes they "
        "stay text.",
        "Write the number.",
        source="vllm/engine/arg_utils.py::_expand_json_human_readable_numbers",
        bad="vllm serve org/model --compilation-config '{\"max_cudagraph_capture_size\": 1k}'",
        covers=("json-bare-human-number",),
    ),
    parser_rule(
        "cli-deprecated-flag",
        Severity.WARNING,
        "The option is deprecated",
        "vLLM says so when it starts and drops the option in a later release.",
        "Take the option out, or use what the release notes name instead.",
        source="vllm/utils/argparse_utils.py::FlexibleArgumentParser.parse_known_args",
        good="vllm serve org/model",
        covers=("cli-deprecated-flag-used",),
    ),
    parser_rule(
        "cli-help",
        Severity.ERROR,
        "The command prints help and ends",
        "With `--help` or `-h` no server starts.",
        "Leave it out.",
        bad="vllm serve org/model --help",
    ),
    parser_rule(
        "cli-omni",
        Severity.WARNING,
        "The command is handed to vLLM-Omni",
        "With the word `--omni` anywhere on it, `vllm` gives the whole command line to the package "
        "vLLM-Omni and ends with an error where that is not installed. Whether it is, and which "
        "options it takes, is not known here.",
        "Leave `--omni` out to start vLLM itself.",
        source="vllm/entrypoints/cli/main.py::main",
        bad="vllm serve org/model --omni",
    ),
    parser_rule(
        "cli-config-equals",
        Severity.WARNING,
        "--config=FILE is never read",
        "vLLM looks for the word `--config` alone; with `=` argparse accepts the option and no "
        "setting of the file has any effect.",
        "Write `--config FILE`.",
        bad="vllm serve org/model --config=serve.yaml",
        covers=("cli-config-equals-form-ignored",),
    ),
    parser_rule(
        "cli-config-usage",
        Severity.ERROR,
        "--config is not usable",
        "The file must be named once, end in .yaml or .yml, and there must be a model in it or "
        "right after `serve`.",
        "Write `vllm serve MODEL --config FILE.yaml`.",
        source=f"{PARSER}._pull_args_from_config",
        bad="vllm serve org/model --config",
        covers=(
            "cli-config-twice",
            "cli-config-no-path",
            "cli-config-no-model",
            "yaml-bad-extension",
        ),
    ),
)
