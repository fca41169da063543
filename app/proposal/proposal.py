"""A proposal: what somebody wants to start, with where each part was written.

Every form (shell text, argv list, YAML `--config` file, engine kwargs) ends up here. Nothing
is interpreted yet: which words are flags is for `app.serve_config` to say, per vLLM version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.proposal.changes import Writer
from app.proposal.image import Image
from app.proposal.positions import LineIndex
from app.proposal.suppression import Suppression
from app.proposal.workload import Workload
from app.verdict.finding import Finding
from app.verdict.location import Location


class Form(StrEnum):
    """How the proposal was written; a corrected proposal comes back in the same form."""

    ARGS = "args"
    COMMAND = "command"
    CONFIG = "config"
    CONFIG_YAML = "config_yaml"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    PYTHON = "python"


class Entrypoint(StrEnum):
    """What reads the proposal, which decides a few meanings.

    `vllm serve` drops a `false` in a `--config` file and wants the model as a positional;
    the module `vllm.entrypoints.openai.api_server` does neither. Engine kwargs
    (`AsyncEngineArgs(**kwargs)`) pass no command line at all.
    """

    SERVE = "vllm serve"
    API_SERVER = "python -m vllm.entrypoints.openai.api_server"
    ENGINE_ARGS = "AsyncEngineArgs"


@dataclass(frozen=True, slots=True)
class Word:
    """One word of the command line after `vllm serve`, quotes removed.

    `unresolved` names the shell variables in it whose value we cannot know; the text then
    still contains them as written (`$PORT`), and rules that need the value abstain.
    """

    text: str
    location: Location
    unresolved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable; `unresolved` as for `Word`."""

    name: str
    value: str
    location: Location
    unresolved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The text of a vLLM `--config` file. `name` is as `--config` refers to it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the configuration will run on.

    Attributes:
        gpu: a product name, or `cpu`.
        count: devices per node.
        memory_gib: memory of one device, where the name does not tell it.
        capability: CUDA compute capability, such as (9, 0), where the name does not tell it.
        nodes: number of nodes.
        memory_in_use: share of each device's memory, 0 up to 1, that others hold when the server
            starts.
    """

    gpu: str | None = None
    count: int | None = None
    memory_gib: float | None = None
    capability: tuple[int, int] | None = None
    nodes: int | None = None
    memory_in_use: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposed configuration in one of its forms.

    Attributes:
        words: the command line of all forms but those that follow.
        kwargs: engine arguments, in the forms config and python.
        places: where each of them is written, in the form python.
        unseen: what may hold further engine arguments, such as `kwargs` in `LLM(**kwargs)`.
        yaml: the file, in the form config_yaml.
        environment: what the server's process gets, by name.
        files: `--config` and environment files given along, by the name that the proposal uses.
        file_texts: those of them that stand in the source, as texts within it.
        write_file: writes such a file, given its name and text, into the source; gives all of it.
        source: the text that locations with a line point into.
        findings: what came up while reading it, before any vLLM version was asked.
        command: spans from the command's first word (`exec`, `vllm`, the image) to before its
            first argument, where the form is text.
        subject: which of several in one document it is: a compose service, a container.
        suppressions: exceptions from rules that came beside the text.
        workload: the pod it runs in, where the form is kubernetes.
        program: what starts vLLM and takes options of its own beside vLLM's, such as
            `dynamo.vllm`.
        vllm_version: the version that is said beside the image (by an annotation), if any.
        image: the container image, if there is one; it may tell the vLLM version.
        only_environment: no command was given, only variables.
        text: the innermost text that the words are written in, such as a script in quotes.
        option_at: before which word of `docker run` further `-e` options go.
        reread: reads the whole text again after an edit.
        writer: writes changes into the text, where it is no shell text.
        pods: the pods of a group that it stands for, whose words and variables differ, each with
            what tells it apart (`LWS_WORKER_INDEX=1`).
    """

    form: Form
    entrypoint: Entrypoint = Entrypoint.SERVE
    words: tuple[Word, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    places: Mapping[str, Location] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    yaml: YamlFile | None = None
    environment: Mapping[str, Variable] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    file_texts: Mapping[str, LineIndex] = field(default_factory=dict, compare=False, repr=False)
    write_file: Callable[[str, str], str] | None = field(default=None, compare=False, repr=False)
    source: str | None = None
    model_config: Mapping[str, Any] | None = None
    draft_model_config: Mapping[str, Any] | None = None
    hardware: Hardware | None = None
    findings: tuple[Finding, ...] = ()
    command: Location | None = None
    subject: str | None = None
    suppressions: tuple[Suppression, ...] = ()
    workload: Workload | None = None
    image: Image | None = None
    program: str | None = None
    vllm_version: str | None = None
    only_environment: bool = False
    text: LineIndex | None = field(default=None, compare=False, repr=False)
    option_at: Location | None = None
    reread: Callable[[str], Proposal] | None = field(default=None, compare=False, repr=False)
    writer: Writer | None = field(default=None, compare=False, repr=False)
    pods: tuple[tuple[str, Proposal], ...] = ()
