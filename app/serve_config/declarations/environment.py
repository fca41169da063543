"""What is said of environment variables and of shell text."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import parser_rule
from app.verdict.finding import Severity

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    parser_rule(
        "env-invalid-value",
        Severity.ERROR,
        "An environment variable has a value that vLLM cannot read",
        "vLLM reads all its variables when the engine core starts; one that must be a number or "
        "one of a few names ends the server with a ValueError, also if the feature is not used.",
        "Use a value as the message says (mostly 0 or 1), or unset the variable.",
        source="vllm/envs.py::environment_variables",
        bad="VLLM_USE_V2_MODEL_RUNNER=zz vllm serve org/model",
        good="VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/model",
        covers=(
            "env-choice-invalid",
            "env-list-choice-invalid",
            "env-strict-parse",
            "env-vllm-port-uri",
            "env-vllm-port-not-int",
        ),
    ),
    parser_rule(
        "env-ignored-value",
        Severity.WARNING,
        "An environment variable has a value that counts as off",
        "The variable is on only for the values that the message names; anything else is off, "
        "without a word.",
        "Use 1 or 0.",
        source="vllm/envs.py::environment_variables",
        good="VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/model",
    ),
    parser_rule(
        "env-unknown",
        Severity.WARNING,
        "An environment variable that vLLM does not know",
        "vLLM warns of every variable that begins with VLLM_ and that this version does not read; "
        "with --fail-on-environ-validation it refuses to start.",
        "Use the name that the message suggests, or unset it.",
        source="vllm/envs.py::validate_environ",
        bad="VLLM_USE_V2_MODEL_RUNER=1 vllm serve org/model",
        good="VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/model",
        covers=("env-unknown",),
    ),
    parser_rule(
        "env-unknown-refused",
        Severity.ERROR,
        "An unknown environment variable with --fail-on-environ-validation",
        "The option turns the warning about unknown VLLM_ variables into a refusal.",
        "Unset the variable, or leave the option out.",
        source="vllm/envs.py::validate_environ",
        bad="VLLM_USE_V2_MODEL_RUNER=1 vllm serve org/model --fail-on-environ-validation",
        good="vllm serve org/model --fail-on-environ-validation",
        covers=("env-unknown-refused",),
    ),
    parser_rule(
        "env-rust-path-unused",
        Severity.WARNING,
        "VLLM_RUST_FRONTEND_PATH alone has no effect",
        "The path of the Rust binary is read only with VLLM_USE_RUST_FRONTEND=1 or "
        "VLLM_USE_RUST_BENCH=1.",
        "Set one of them to 1, or unset the path.",
        source="vllm/envs.py::_resolve_rust_cli_path",
        bad="VLLM_RUST_FRONTEND_PATH=/opt/vllm-rs vllm serve org/model",
        good="VLLM_RUST_FRONTEND_PATH=/opt/vllm-rs VLLM_USE_RUST_FRONTEND=1 vllm serve org/model",
        covers=("env-rust-path-without-switch",),
    ),
    parser_rule(
        "shell-unresolved-words",
        Severity.WARNING,
        "A variable may hold further options",
        "A word that is only known when the shell runs stands where options may stand; what it "
        "holds may decide.",
        "Write the options out, or assign the variable in the same text.",
        source="POSIX.1-2024, XCU 2.6",
        bad="vllm serve org/model $EXTRA_ARGS",
    ),
    parser_rule(
        "shell-not-followed",
        Severity.WARNING,
        "A shell command that may set variables",
        "`source`, `eval` and the like can set environment variables that vLLM reads. Activating a "
        "virtual environment (`source …/bin/activate`) sets none of these.",
        "Write the assignments out.",
        source="POSIX.1-2024, XCU 2.15",
        bad="source env.sh\nvllm serve org/model",
    ),
    parser_rule(
        "shell-not-exported",
        Severity.WARNING,
        "A variable is assigned but not exported",
        "A shell hands a variable to the server only if it is exported or stands before the "
        "command on the same line.",
        "Write `export NAME=value`.",
        source="POSIX.1-2024, XCU 2.5.3",
        bad="VLLM_USE_V2_MODEL_RUNNER=1\nvllm serve org/model",
        good="export VLLM_USE_V2_MODEL_RUNNER=1\nvllm serve org/model",
    ),
)
