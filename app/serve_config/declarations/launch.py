"""What is said of the containers and scripts around a server command."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import parser_rule
from app.verdict.finding import Severity

_IMAGE: Final = "docker/Dockerfile"

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    parser_rule(
        "shell-default-taken",
        Severity.INFO,
        "The default of a variable was taken",
        "`${NAME:-default}` gives the default if the variable is not set where the command runs. "
        "It is not assigned in the text, and was taken as not set.",
        "Give the variable's value if it is set where the command runs.",
        source="POSIX.1-2024, XCU 2.6.2",
        bad="vllm serve org/model --port ${PORT:-8000}",
    ),
    parser_rule(
        "shell-environment-only",
        Severity.INFO,
        "There are variables and no command",
        "The text assigns variables and starts nothing. They were checked as the environment of "
        "a server; nothing is said of a command line.",
        "Put the command into the same text, or give the variables as `env` beside it.",
        source="vllm/envs.py::environment_variables",
        bad="VLLM_PORT=8000",
    ),
    parser_rule(
        "shell-one-word-script",
        Severity.ERROR,
        "The shell is given one word of a command",
        "`sh -c` runs the one word that follows; further words become its parameters. A string "
        "`command` of a compose file is split into words before, so `sh -c` gets only the first.",
        "Put the whole command into one word, as one item of a list.",
        source="POSIX.1-2024, XCU sh",
        bad="bash -c vllm serve org/model",
        good="bash -c 'vllm serve org/model'",
    ),
    parser_rule(
        "image-entrypoint-repeated",
        Severity.WARNING,
        "The command repeats the image's entry point",
        "Images of the vLLM project run `vllm serve`; what follows the image becomes its "
        "arguments. Of `serve MODEL`, `serve` is then taken for the model.",
        "Give only the arguments of `vllm serve`.",
        source=_IMAGE,
        bad="docker run vllm/vllm-openai:v0.32.0 vllm serve org/model",
        good="docker run vllm/vllm-openai:v0.32.0 org/model",
    ),
    parser_rule(
        "image-entrypoint-assumed",
        Severity.INFO,
        "What the image runs is assumed",
        "The image is not one of the vLLM project, and its name says vLLM. Its arguments were "
        "read as those of `vllm serve`.",
        "Give the entry point, or the `vllm serve` command itself.",
        source=_IMAGE,
        bad="docker run registry.example/team/vllm-patched:7 org/model",
        good="docker run vllm/vllm-openai:v0.32.0 org/model",
    ),
    parser_rule(
        "image-version-unknown",
        Severity.INFO,
        "The image does not tell the vLLM version",
        "The tag is `latest`, a digest, a variable or of somebody's own. The proposal was judged "
        "for the default version.",
        "Name a release in the tag, or the version beside the proposal.",
        source=_IMAGE,
    ),
    parser_rule(
        "image-version-differs",
        Severity.WARNING,
        "The image has another vLLM version",
        "The proposal was judged for the version that was asked for, and its image holds another.",
        "Ask for the image's version, or change the image.",
        source=_IMAGE,
    ),
    parser_rule(
        "env-file-unseen",
        Severity.WARNING,
        "The variables of a file are not known",
        "A file of environment variables is named and was not given along. What is in it may "
        "decide.",
        "Give the file's text under `files`, or write the variables out.",
        source="vllm/envs.py::environment_variables",
        bad="docker run --env-file prod.env vllm/vllm-openai:v0.32.0 org/model",
        good="docker run -e VLLM_PORT=8000 vllm/vllm-openai:v0.32.0 org/model",
    ),
    parser_rule(
        "compose-variable",
        Severity.INFO,
        "A variable of the compose file was resolved by assumption",
        "Compose puts variables in from its own environment and `.env`, which were not given. "
        "Where the file has a default, it was taken.",
        "Give the `.env` file under `files`.",
        source="Compose Specification, interpolation",
    ),
    parser_rule(
        "compose-command-cut",
        Severity.WARNING,
        "The command ends before the text does",
        "Compose splits a string into words itself, without a shell. It ends silently at an "
        "unquoted `;`, `&`, `|`, `<` or `>`.",
        "Quote the character, write the command as a list, or run it through `sh -c`.",
        source="Compose Specification, command",
    ),
    parser_rule(
        "compose-not-a-string",
        Severity.WARNING,
        "A word of the command is not a string",
        "Compose takes only strings in a command; a number or a boolean needs quotes there. It "
        "was read as its text.",
        "Put it in quotes.",
        source="Compose Specification, command",
    ),
    parser_rule(
        "compose-line-end-escaped",
        Severity.WARNING,
        "A backslash before a line end becomes part of a word",
        "Compose splits a string into words itself; a backslash there does not continue the line, "
        "but puts the line end into the next word, which vLLM then refuses.",
        "Leave the backslashes out.",
        source="Compose Specification, command",
    ),
    parser_rule(
        "python-unseen-arguments",
        Severity.WARNING,
        "Engine arguments come from a variable",
        "`**name` passes arguments that are not written in the source; what they are may decide.",
        "Write the arguments out, or give the call with them.",
        source="vllm/entrypoints/llm.py::LLM.__init__",
    ),
)
