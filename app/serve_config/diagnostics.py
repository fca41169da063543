"""The rules of reading a proposal: what the parser itself says, declared once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from app.rules.declaration import Declaration, Example
from app.verdict.finding import Finding, Severity

_PARSER: Final = "vllm/utils/argparse_utils.py::FlexibleArgumentParser"
MAX_FINDINGS: Final = 50
_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def _rule(
    id: str,  # noqa: A002 - the member's name
    severity: Severity,
    title: str,
    explanation: str,
    remedy: str,
    *,
    source: str = "",
    bad: str = "",
    good: str = "vllm serve org/model --max-model-len 8192",
    versions: str = "",
) -> Declaration:
    """Declare a rule whose examples hold on every version."""
    return Declaration(
        id=id,
        title=title,
        explanation=explanation,
        remedy=remedy,
        severity=severity,
        area=id.partition("-")[0],
        source=source or f"{_PARSER}.parse_args",
        versions=versions,
        bad=(Example(bad),) if bad else (),
        good=(Example(good),),
    )


DECLARATIONS: Final[tuple[Declaration, ...]] = (
    _rule(
        "cli-unknown-flag",
        _ERROR,
        "The option is not one of this version",
        "argparse refuses an option that this version does not register and that is not the "
        "beginning of one it does. Options come and go between versions.",
        "Use the name the message suggests, or leave the option out.",
        bad="vllm serve org/model --enable-return-sampling-mask",
    ),
    _rule(
        "cli-ambiguous-flag",
        _ERROR,
        "The abbreviated option could be several",
        "argparse completes an option that is cut short only if one option begins so.",
        "Write the option in full.",
        bad="vllm serve org/model --max-num 4",
    ),
    _rule(
        "cli-abbreviated-flag",
        _WARNING,
        "The option is abbreviated",
        "It works now, but any release may add an option that begins the same way, and the "
        "command then fails.",
        "Write the option in full.",
        bad="vllm serve org/model --max-model 8192",
    ),
    _rule(
        "cli-missing-value",
        _ERROR,
        "The option needs a value",
        "The option is the last word, or another option follows it.",
        "Give the value after the option, or as `--option=value` if it begins with a dash.",
        bad="vllm serve org/model --port",
    ),
    _rule(
        "cli-unexpected-value",
        _ERROR,
        "The switch takes no value",
        "On/off options are written `--option` and `--no-option`; `--option=true` is refused, and "
        "a separate `true` is taken for the model or for a superfluous word.",
        "Write the option alone, or its `--no-` form.",
        bad="vllm serve org/model --enforce-eager=true",
    ),
    _rule(
        "cli-invalid-choice",
        _ERROR,
        "The value is not one of the choices",
        "The choices differ between versions; they are compared exactly, with upper and lower "
        "case.",
        "Use one of the choices in the message.",
        source="vllm/engine/arg_utils.py::literal_to_kwargs",
        bad="vllm serve org/model --dtype bf16",
    ),
    _rule(
        "cli-invalid-value",
        _ERROR,
        "The value cannot be converted",
        "The text is not a number where one is needed, or not JSON where JSON is needed (often "
        "because a shell or template took the quotes away).",
        "Write the value as the message says; put JSON in single quotes.",
        source="vllm/engine/arg_utils.py::parse_type",
        bad="vllm serve org/model --max-model-len 32kb",
    ),
    _rule(
        "cli-decimal-suffix",
        _WARNING,
        "k means 1000 and K means 1024",
        "vLLM reads `k`, `m`, `g`, `t` as powers of 1000 and `K`, `M`, `G`, `T` as powers of "
        "1024, so `32k` is 32000 and not 32768.",
        "Write the number, or the capital letter.",
        source="vllm/utils/argparse_utils.py::human_readable_int",
        bad="vllm serve org/model --max-model-len 32k",
    ),
    _rule(
        "cli-extra-argument",
        _ERROR,
        "A word belongs to no option",
        "`vllm serve` takes one word that is no option, the model. Usual causes of a second: a "
        "value after a switch, JSON that a shell split, a model given twice.",
        "Take the word out, or quote what belongs together.",
        bad="vllm serve org/model other/model",
    ),
    _rule(
        "cli-no-model",
        _WARNING,
        "No model is given",
        "vLLM then serves its default model. Often the model stands behind an option that takes "
        "several values and swallows it.",
        "Give the model first: `vllm serve MODEL …`.",
        source="vllm/entrypoints/cli/serve.py::ServeSubcommand.cmd",
        bad="vllm serve --port 8000",
    ),
    _rule(
        "cli-model-flag",
        _WARNING,
        "The model is given with --model",
        "`vllm serve` takes the model as its first word; `--model` still works and is announced "
        "for removal.",
        "Write `vllm serve MODEL …`.",
        bad="vllm serve --model org/model",
    ),
    _rule(
        "cli-served-name-without-model",
        _ERROR,
        "--served-model-name without a model before it",
        "With `--served-model-name`, vLLM demands the model as the first word.",
        "Write `vllm serve MODEL --served-model-name NAME`.",
        bad="vllm serve --served-model-name name",
    ),
    _rule(
        "cli-repeated-flag",
        _WARNING,
        "The option is given more than once",
        "The last one wins; the values of list options are not joined.",
        "Keep one of them.",
        bad="vllm serve org/model --port 8000 --port 9000",
    ),
    _rule(
        "cli-json-overwritten",
        _WARNING,
        "Keys of a JSON option are lost",
        "vLLM collects `--option.key value` into one JSON object for each spelling of the option "
        "and puts it last. It replaces, and is not merged into, a JSON value of the same option "
        "or the keys given with another spelling.",
        "Put all keys into one JSON value, or give all as dotted keys with one spelling.",
        bad="vllm serve org/model --compilation-config '{\"mode\": 3}' "
        "--compilation-config.cudagraph_mode NONE",
    ),
    _rule(
        "cli-dotted-value",
        _ERROR,
        "A word is taken for a dotted key",
        "Every word that begins with `-` and has a dot before any `=` is read as "
        "`--option.key`, also a negative number that is meant as a value.",
        "Write `--option=-0.5`, and give each dotted key its value.",
        bad="vllm serve org/model --compilation-config.mode",
    ),
    _rule(
        "cli-deprecated-flag",
        _WARNING,
        "The option is deprecated",
        "vLLM says so when it starts and drops the option in a later release.",
        "Take the option out, or use what the release notes name instead.",
        source="vllm/utils/argparse_utils.py::FlexibleArgumentParser.parse_known_args",
        good="vllm serve org/model",
    ),
    _rule(
        "cli-help",
        _ERROR,
        "The command prints help and ends",
        "With `--help` or `-h` no server starts.",
        "Leave it out.",
        bad="vllm serve org/model --help",
    ),
    _rule(
        "cli-omni",
        _WARNING,
        "The command is handed to vLLM-Omni",
        "With the word `--omni` anywhere on it, `vllm` gives the whole command line to the package "
        "vLLM-Omni and ends with an error where that is not installed. Whether it is, and which "
        "options it takes, is not known here.",
        "Leave `--omni` out to start vLLM itself.",
        source="vllm/entrypoints/cli/main.py::main",
        bad="vllm serve org/model --omni",
    ),
    _rule(
        "cli-config-equals",
        _WARNING,
        "--config=FILE is never read",
        "vLLM looks for the word `--config` alone; with `=` argparse accepts the option and no "
        "setting of the file has any effect.",
        "Write `--config FILE`.",
        bad="vllm serve org/model --config=serve.yaml",
    ),
    _rule(
        "cli-config-usage",
        _ERROR,
        "--config is not usable",
        "The file must be named once, end in .yaml or .yml, and there must be a model in it or "
        "right after `serve`.",
        "Write `vllm serve MODEL --config FILE.yaml`.",
        source=f"{_PARSER}._pull_args_from_config",
        bad="vllm serve org/model --config",
    ),
    _rule(
        "unknown-key",
        _ERROR,
        "A JSON setting has a key that this version does not know",
        "The configuration classes forbid unknown keys, and keys are renamed between versions. "
        "Dashes in keys are not turned into underscores.",
        "Use the key that the message suggests, or leave it out.",
        source="vllm/config/utils.py::config",
        bad="vllm serve org/model --compilation-config '{\"modee\": 3}'",
    ),
    _rule(
        "invalid-field-value",
        _ERROR,
        "A setting has a value of the wrong kind",
        "The configuration classes check types and literal values.",
        "Use a value of the kind the message names.",
        source="vllm/config/utils.py::config",
        bad='vllm serve org/model --kv-transfer-config \'{"kv_role": "kv_all"}\'',
    ),
    _rule(
        "value-out-of-range",
        _ERROR,
        "A number is outside the range of its setting",
        "The configuration classes bound it, and vLLM ends with a pydantic ValidationError.",
        "Use a number in the range that the message names.",
        source="vllm/config/utils.py::config",
        bad="vllm serve org/model --gpu-memory-utilization 1.5",
    ),
    _rule(
        "max-logprobs-range",
        _ERROR,
        "max_logprobs is negative and not -1",
        "`max_logprobs` bounds the logprobs that a request may ask for; -1 allows the whole "
        "vocabulary, other negative numbers are refused.",
        "Use -1, or a number from 0 on.",
        source="vllm/config/model.py::ModelConfig.max_logprobs",
        bad="vllm serve org/model --max-logprobs -2",
        good="vllm serve org/model --max-logprobs -1",
    ),
    _rule(
        "kwargs-unknown",
        _ERROR,
        "The engine does not take this argument",
        "`AsyncEngineArgs(**kwargs)` raises TypeError for a name that it has not.",
        "Use the name that the message suggests, or leave it out.",
        source="vllm/engine/arg_utils.py::AsyncEngineArgs",
        good="vllm serve org/model",
    ),
    _rule(
        "kwargs-serve-only",
        _WARNING,
        "Only `vllm serve` takes this setting",
        "It belongs to the HTTP server and is no engine argument: `AsyncEngineArgs` raises "
        "TypeError for it. It was read as an option of `vllm serve`.",
        "Give it on the command line of `vllm serve`.",
        source="vllm/engine/arg_utils.py::AsyncEngineArgs",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-unknown-key",
        _ERROR,
        "The --config file has a key that is no option of this version",
        "Every key becomes an option on the command line.",
        "Use the key that the message suggests, or leave it out.",
        source=f"{_PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-invalid-key",
        _ERROR,
        "A key of the --config file is not text",
        "vLLM writes `--` before each key; a number, boolean or null as key is a TypeError.",
        "Put the key in quotes, or name an option.",
        source=f"{_PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-not-a-mapping",
        _ERROR,
        "The --config file has no `key: value` lines",
        "An empty file, a list and a bare value are refused with an AttributeError.",
        "Write one `option: value` a line.",
        source=f"{_PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-unreadable",
        _ERROR,
        "The --config file is not YAML",
        "PyYAML cannot read it.",
        "Mend the line that the message names.",
        source=f"{_PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-file-not-given",
        _WARNING,
        "The --config file was not given along",
        "Settings in a file that cannot be seen may decide.",
        "Give its text along: `files` in the JSON envelope.",
        source=f"{_PARSER}.load_config_file",
        bad="vllm serve org/model --config serve.yaml",
    ),
    _rule(
        "yaml-false-ignored",
        _WARNING,
        "`false` in the --config file has no effect",
        "`vllm serve` drops a `false`: it looks for the `--no-` form among the options of the "
        "main command, which has none. The setting keeps its default.",
        "Write `no-OPTION: true`.",
        source=f"{_PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-empty-list",
        _WARNING,
        "An empty list in the --config file has no effect",
        "vLLM drops it; the setting keeps its default.",
        "Leave the key out, or give values.",
        source=f"{_PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-repeated-key",
        _WARNING,
        "A key stands twice in the --config file",
        "PyYAML keeps the last one and says nothing.",
        "Keep one of them.",
        source=f"{_PARSER}.load_config_file",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-overridden",
        _INFO,
        "The command line overrides the --config file",
        "A setting in both takes the command line's value; JSON values are replaced whole.",
        "Nothing, if that is meant.",
        source=f"{_PARSER}._pull_args_from_config",
        good="vllm serve org/model",
    ),
    _rule(
        "yaml-no-model",
        _WARNING,
        "The --config file names no model",
        "Alone it cannot be served: vLLM needs the model in the file or right after `serve`.",
        "Add `model: NAME`, or start it as `vllm serve MODEL --config FILE`.",
        source=f"{_PARSER}._pull_args_from_config",
        good="vllm serve org/model",
    ),
    _rule(
        "env-invalid-value",
        _ERROR,
        "An environment variable has a value that vLLM cannot read",
        "vLLM reads all its variables when the engine core starts; one that must be a number or "
        "one of a few names ends the server with a ValueError, also if the feature is not used.",
        "Use a value as the message says (mostly 0 or 1), or unset the variable.",
        source="vllm/envs.py::environment_variables",
        bad="VLLM_USE_V2_MODEL_RUNNER=zz vllm serve org/model",
        good="VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/model",
    ),
    _rule(
        "env-ignored-value",
        _WARNING,
        "An environment variable has a value that counts as off",
        "The variable is on only for the values that the message names; anything else is off, "
        "without a word.",
        "Use 1 or 0.",
        source="vllm/envs.py::environment_variables",
        good="VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/model",
    ),
    _rule(
        "env-unknown",
        _WARNING,
        "An environment variable that vLLM does not know",
        "vLLM warns of every variable that begins with VLLM_ and that this version does not read; "
        "with --fail-on-environ-validation it refuses to start.",
        "Use the name that the message suggests, or unset it.",
        source="vllm/envs.py::validate_environ",
        bad="VLLM_USE_V2_MODEL_RUNER=1 vllm serve org/model",
        good="VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/model",
    ),
    _rule(
        "env-unknown-refused",
        _ERROR,
        "An unknown environment variable with --fail-on-environ-validation",
        "The option turns the warning about unknown VLLM_ variables into a refusal.",
        "Unset the variable, or leave the option out.",
        source="vllm/envs.py::validate_environ",
        bad="VLLM_USE_V2_MODEL_RUNER=1 vllm serve org/model --fail-on-environ-validation",
        good="vllm serve org/model --fail-on-environ-validation",
    ),
    _rule(
        "shell-unresolved-words",
        _WARNING,
        "A variable may hold further options",
        "A word that is only known when the shell runs stands where options may stand; what it "
        "holds may decide.",
        "Write the options out, or assign the variable in the same text.",
        source="POSIX.1-2024, XCU 2.6",
        bad="vllm serve org/model $EXTRA_ARGS",
    ),
    _rule(
        "shell-not-followed",
        _WARNING,
        "A shell command that may set variables",
        "`source`, `eval` and the like can set environment variables that vLLM reads.",
        "Write the assignments out.",
        source="POSIX.1-2024, XCU 2.15",
        bad="source env.sh\nvllm serve org/model",
    ),
    _rule(
        "shell-not-exported",
        _WARNING,
        "A variable is assigned but not exported",
        "A shell hands a variable to the server only if it is exported or stands before the "
        "command on the same line.",
        "Write `export NAME=value`.",
        source="POSIX.1-2024, XCU 2.5.3",
        bad="VLLM_USE_V2_MODEL_RUNNER=1\nvllm serve org/model",
        good="export VLLM_USE_V2_MODEL_RUNNER=1\nvllm serve org/model",
    ),
    _rule(
        "serve-auto-tool-choice",
        _ERROR,
        "--enable-auto-tool-choice needs a tool parser",
        "Without `--tool-call-parser` vLLM refuses to start.",
        "Add `--tool-call-parser NAME`.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        bad="vllm serve org/model --enable-auto-tool-choice",
        good="vllm serve org/model --enable-auto-tool-choice --tool-call-parser hermes",
    ),
    _rule(
        "serve-log-outputs",
        _ERROR,
        "--enable-log-outputs needs --enable-log-requests",
        "vLLM refuses one without the other.",
        "Add `--enable-log-requests`.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        bad="vllm serve org/model --enable-log-outputs",
        good="vllm serve org/model --enable-log-outputs --enable-log-requests",
    ),
    _rule(
        "serve-per-request-metrics",
        _ERROR,
        "--enable-per-request-metrics needs engine statistics",
        "It cannot be combined with `--disable-log-stats`.",
        "Leave one of the two out.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        bad="vllm serve org/model --enable-per-request-metrics --disable-log-stats",
        good="vllm serve org/model --enable-per-request-metrics",
    ),
    _rule(
        "serve-sse-keep-alive",
        _ERROR,
        "--sse-keep-alive-interval is negative",
        "0 turns the comments off; negative numbers are refused.",
        "Use 0 or more.",
        source="vllm/entrypoints/*/cli_args.py::validate_parsed_serve_args",
        versions=">=0.29",
    ),
    _rule(
        "serve-grpc-port",
        _ERROR,
        "--grpc-port does not fit the other settings",
        "It belongs to the Rust front end: it needs VLLM_USE_RUST_FRONTEND=1 and excludes --grpc, "
        "--headless, the multi-port load-balancer mode and the HTTP port.",
        "Change what the message names.",
        source="vllm/entrypoints/*/cli_args.py::validate_grpc_port_arg",
        versions=">=0.32",
    ),
    _rule(
        "serve-multi-port",
        _ERROR,
        "--data-parallel-multi-port-external-lb does not fit the other settings",
        "The supervisor starts one server for each local rank, with ports counted up from --port.",
        "Change what the message names.",
        source="vllm/entrypoints/*/dp_supervisor.py::validate_multi_port_external_lb_args",
        bad="vllm serve org/model --data-parallel-multi-port-external-lb",
    ),
    _rule(
        "serve-reasoning-effort-map",
        _ERROR,
        "--reasoning-effort-map is not a map of efforts to strings",
        "vLLM checks it before it starts.",
        'Write a JSON object such as \'{"low": "short"}\'.',
        source="vllm/entrypoints/common/cli_args.py::validate_reasoning_effort_map",
        versions=">=0.33",
    ),
    _rule(
        "serve-chat-template-file",
        _INFO,
        "The chat template must exist where the server runs",
        "A template that looks like a path is opened at start; a missing file is refused. Whether "
        "it exists cannot be seen from here.",
        "Mount the file, or name one that vLLM ships.",
        source="vllm/renderers/chat_utils.py::validate_chat_template",
        bad="vllm serve org/model --chat-template template.jinja",
    ),
)

BY_ID: Final[Mapping[str, Declaration]] = {rule.id: rule for rule in DECLARATIONS}


def bounded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the first findings of each rule; the last one kept says how many there are more."""
    kept: list[Finding] = []
    counts: Counter[str] = Counter()
    last: dict[str, int] = {}
    for found in findings:
        counts[found.rule] += 1
        if counts[found.rule] <= MAX_FINDINGS:
            last[found.rule] = len(kept)
            kept.append(found)
    for rule, count in counts.items():
        if count > MAX_FINDINGS:
            found = kept[last[rule]]
            more = f"{found.message} (and {count - MAX_FINDINGS} more of this kind)"
            kept[last[rule]] = replace(found, message=more)
    return tuple(kept)


def shorten(text: str, width: int = 80) -> str:
    """Cut what a user wrote to a length that fits a message."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def finding(rule: str, message: str, **members: Any) -> Finding:
    """Make a finding of a declared rule; its severity is the declared one."""
    return Finding(rule=rule, severity=BY_ID[rule].severity, message=message, **members)
