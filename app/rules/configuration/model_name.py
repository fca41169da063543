"""What the model may be called: a directory of the server, a repository of the hub, an object.

Source: `huggingface_hub/utils/_validators.py::validate_repo_id`, which vLLM's first look at the
model goes through where the name is neither a file nor a directory nor in object storage
(`vllm/engine/arg_utils.py::EngineArgs.create_engine_config`); `--hf-config-path` comes later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from app.rules.configuration.load import OBJECT_STORES
from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, SetFlag

AREA: Final = "model"
_SOURCE: Final = "vllm/transformers_utils/config.py::maybe_override_with_speculators"
_REPOSITORY: Final = re.compile(r"(?:\b[\w\-.]+\b/)?\b[\w\-.]{1,96}\b")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.\-]*://", re.IGNORECASE)
_HUB: Final = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/([\w\-.]+/[\w\-.]+)/?", re.IGNORECASE
)
_HF_SCHEME: Final = re.compile(r"hf://([\w\-.]+/[\w\-.]+)/?", re.IGNORECASE)
_QUOTES: Final = "\"'"
# What a path begins with; `~` is expanded by a shell, if there is one.
_PATHS: Final = ("/", ".", "~")
_FORM: Final = "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"
_LETTERS: Final = "Repo id must use alphanumeric chars"


@rule(
    id="model-name-refused",
    title="No model can have this name",
    explanation="What is no directory on the server is looked for on the hub, and the hub's client "
    "refuses names that no repository has: URLs other than those of object storage, nothing at "
    "all, or an option and its value in one word, which vLLM takes for the model.",
    remedy="Name a directory, or a repository as `owner/name`. Give an option and its value as two "
    "words, or join them with `=`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example("vllm serve https://huggingface.co/org/m"),
        Example("vllm serve hf://org/m"),
        Example("vllm serve hf://org/m --hf-config-path org/m"),
    ),
    good=(
        Example("vllm serve org/m --max-model-len 4096"),
        Example("vllm serve /models/m"),
        Example("vllm serve s3://bucket/m"),
    ),
)
def name_refused(config: ServeConfig) -> Iterator[Finding]:
    """Look for what neither a directory nor a repository is called."""
    name = _name(config)
    if name is None:
        return
    why = _impossible(name)
    if why is not None:
        yield name_refused.finding(
            f"{name!r} {why}",
            location=config.place("model"),
            fix=_fix(name),
            evidence={"model": name},
            engine_message=_FORM if "://" in name else _LETTERS,
        )


@rule(
    id="model-name-odd",
    title="The model's name is none of the hub's",
    explanation="The hub's repositories are called `owner/name` (or `name`), of letters, digits, "
    "`_`, `-` and `.`. Another name is refused unless it is a directory on the server. Mostly it "
    "is a blank or a quote too many, or a variable that no shell expands: in a manifest `$(NAME)` "
    "is expanded by Kubernetes, `$NAME` by nobody.",
    remedy="Write the name as the hub has it, or the directory as an absolute path.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example("vllm serve 'org/m '"),
        Example("vllm serve '$MODEL'"),
        Example("vllm serve org/m:latest"),
        Example("vllm serve huggingface.co/org/m"),
    ),
    good=(
        Example("vllm serve org/m"),
        Example("vllm serve gpt2"),
        Example("vllm serve '/models/my model'"),
        Example("vllm serve models/llama/8b", note="a directory"),
    ),
)
def name_odd(config: ServeConfig) -> Iterator[Finding]:
    """Look for what no repository is called, and a directory hardly ever."""
    name = _name(config)
    if name is None or _impossible(name) is not None or name[:1] in _PATHS:
        return
    why = _odd(name)
    if why is not None:
        yield name_odd.finding(
            f"{name!r} {why}: vLLM refuses it unless the server has a directory of that name",
            location=config.place("model"),
            fix=_fix(name),
            evidence={"model": name},
        )


def _name(config: ServeConfig) -> str | None:
    """Give the name that was given.

    Raises:
        Abstain: another hub is asked, which may have other names.
    """
    name = config["model"]
    if not isinstance(name, str) or not config.given("model"):
        return None
    if config.variable("VLLM_USE_MODELSCOPE") is not None:
        raise Abstain("the names of ModelScope")
    return name


def _impossible(name: str) -> str | None:
    if not name:
        return "names no model"
    if name[0] == "-" and len(name.split()) > 1:
        return (
            "is one word, blanks and all, so vLLM takes it for the model: give the option and its "
            "value as two"
        )
    scheme = _SCHEME.match(name)
    if scheme is None or name.lower().startswith(OBJECT_STORES):
        return None
    return f"is neither a directory nor a repository: vLLM reads no {scheme[0]}"


def _odd(name: str) -> str | None:
    if name != name.strip():
        return "begins or ends with a blank"
    if _HUB.fullmatch(name):
        return "is an address, not the name of a repository"
    if name.count("/") > 1 or name.lower().startswith(OBJECT_STORES):
        return None
    if "$" in name:
        return "is a variable that no shell expands here"
    if name.strip(_QUOTES) != name:
        return "has quotes that belong to it"
    if _REPOSITORY.fullmatch(name) is None or "--" in name or ".." in name or name.endswith(".git"):
        return "is no name of a repository"
    return None


def _fix(name: str) -> Fix | None:
    """Propose the name that is meant, if that is plain."""
    meant = name.strip().strip(_QUOTES).strip()
    address = _HUB.fullmatch(meant) or _HF_SCHEME.fullmatch(meant)
    meant = address[1] if address is not None else meant
    if meant == name or _REPOSITORY.fullmatch(meant) is None:
        return None
    return Fix(f"serve {meant}", (SetFlag("model", meant),), safe=False)
