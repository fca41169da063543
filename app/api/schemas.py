"""The shapes of requests and answers, for the OpenAPI document.

The values themselves are plain data made by the core (`as_json` methods); a test validates
real answers against these models, which allow no undeclared member.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """A closed object: a member that is not declared is a mistake."""

    model_config = ConfigDict(extra="forbid")


class SuppressionModel(Model):
    """An exception from a rule."""

    rule: str
    reason: str = Field(min_length=1)


class HardwareModel(Model):
    """What the configuration will run on."""

    gpu: str | None = Field(None, description="Product name, e.g. H100-80GB, or `cpu`.")
    count: int | None = Field(None, ge=0, description="How many on a node.")
    memory_gib: float | None = Field(
        None, gt=0, description="Memory of one device, where the name does not tell it."
    )
    capability: str | None = Field(
        None,
        pattern=r"^\d{1,2}\.\d$",
        description='CUDA compute capability, such as "9.0", where the name does not tell it.',
    )
    nodes: int | None = Field(None, ge=1, description="How many nodes.")
    memory_in_use: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Share of each device's memory that others hold when the server starts.",
    )


class ProposalEnvelope(Model):
    """A proposed configuration, in exactly one of the forms from `args` to `python`."""

    id: Any = Field(None, description="Given back with the verdict.")
    args: list[str] | None = Field(None, description="What follows `vllm serve`, a word each.")
    command: str | None = Field(None, description="A shell command.")
    config: dict[str, Any] | None = Field(
        None, description="Engine arguments as for `LLM(**kwargs)`; dashes are taken too."
    )
    config_yaml: str | None = Field(None, description="The text of a vLLM `--config` file.")
    compose: str | None = Field(
        None, description="The text of a compose file; each vLLM service gets a verdict."
    )
    kubernetes: str | None = Field(
        None, description="Kubernetes manifests; each container of vLLM gets a verdict."
    )
    python: str | None = Field(
        None, description="Python source with one `LLM(…)` or `AsyncEngineArgs(…)` call."
    )
    env: dict[str, str] | None = Field(None, description="Environment variables.")
    files: dict[str, str] | None = Field(
        None, description="Texts of the `--config` files that the command line names."
    )
    vllm_version: str | None = Field(None, description="The version to judge for.")
    vllm_versions: list[str] | None = Field(None, description="Several versions.")
    # `model_config` is pydantic's own name, hence the alias.
    hf_config: dict[str, Any] | None = Field(
        None, alias="model_config", description="The model's Hugging Face config.json."
    )
    draft_model_config: dict[str, Any] | None = Field(
        None, description="The speculative draft model's config.json."
    )
    hardware: HardwareModel | None = None
    ignore: list[SuppressionModel] | None = Field(
        None, description="Exceptions from rules; in text: `# vllm-admission: ignore[rule] reason`."
    )
    profile: Literal["default", "strict"] | None = Field(
        None, description="To `strict` a warning is one too many."
    )


class LocationModel(Model):
    """Where a finding points; any subset is known."""

    source: str | None = None
    argv_index: int | None = Field(None, description="0-based, after `vllm serve`.")
    pointer: str | None = Field(None, description="RFC 6901 pointer into the JSON sent.")
    variable: str | None = Field(None, description="Environment variable.")
    line: int | None = Field(None, description="1-based.")
    column: int | None = Field(None, description="1-based.")
    end_line: int | None = None
    end_column: int | None = Field(None, description="Exclusive.")
    text: str | None = Field(None, description="What stands there.")


class EditModel(Model):
    """One step of a fix."""

    kind: Literal[
        "set_flag", "remove_flag", "replace_argument", "set_environment", "unset_environment"
    ]
    dest: str | None = None
    value: Any = None
    at: int | str | None = None
    text: str | None = None
    variable: str | None = None


class FixModel(Model):
    """A machine-applicable repair."""

    description: str
    safe: bool = Field(description="Whether it keeps all that was asked for.")
    edits: list[EditModel]


class FindingModel(Model):
    """What a rule says about one place."""

    rule: str
    severity: Literal["error", "warning", "info"]
    message: str
    location: LocationModel | None = None
    related: list[LocationModel] | None = None
    undecided: bool | None = Field(None, description="An open question that would decide.")
    engine_message: str | None = Field(None, description="vLLM's own error text.")
    fix: FixModel | None = None
    evidence: dict[str, Any] | None = None


class SuppressedModel(FindingModel):
    """A finding that an exception took out of the verdict."""

    reason: str


class NotCheckedModel(Model):
    """A rule that abstained, and the fact that would let it decide."""

    rule: str
    needs: str


class SettingModel(Model):
    """The value of one setting, and where it comes from."""

    value: Any = None
    origin: Literal["default", "argv", "config_file", "environment", "derived"]
    effective: Any = Field(None, description="What vLLM makes of it, if that is another value.")
    unresolved: list[str] | None = Field(None, description="Variables that it hangs on.")
    location: LocationModel | None = None
    overridden: list[LocationModel] | None = Field(
        None, description="Earlier places of the same setting, which lose."
    )


class EffectiveModel(Model):
    """A setting that vLLM changes silently."""

    dest: str
    asked: Any = None
    effective: Any = None
    because: str
    rule: str


class SettingsModel(Model):
    """The settings of a proposal, by argparse destination."""

    given: dict[str, SettingModel] = Field(description="Those that somebody gave.")
    effective: list[EffectiveModel] = Field(
        description="Those that vLLM changes without refusing: asked for beside effective."
    )
    derived: dict[str, Any] = Field(description="What else vLLM works out.")
    all: dict[str, SettingModel] | None = Field(
        None, description="With `?settings=all`: every setting of the version."
    )


class VerdictModel(Model):
    """The verdict on a proposal for one vLLM version."""

    schema_name: str = Field(alias="schema")
    id: Any = None
    subject: str | None = Field(
        None, description="Which proposal of the document: a compose service, a container."
    )
    verdict: Literal["accepted", "rejected", "undetermined"]
    accepted: bool
    vllm_version: str
    findings: list[FindingModel]
    not_checked: list[NotCheckedModel]
    suppressed: list[SuppressedModel] | None = Field(
        None, description="What exceptions with a reason took out."
    )
    corrected: dict[str, Any] | None = Field(
        description="The proposal in its own form with fixes applied; accepted by this gate."
    )
    settings: SettingsModel | None = Field(description="What was given, and what becomes of it.")


class VerdictsModel(Model):
    """Verdicts for several versions or services; accepted only if all accept."""

    id: Any = None
    verdict: Literal["accepted", "rejected", "undetermined"]
    accepted: bool
    verdicts: list[VerdictModel]


class RuleModel(Model):
    """A rule, as declared."""

    id: str
    title: str
    severity: Literal["error", "warning", "info"]
    gate: Literal["configuration", "request", "replay"]
    area: str
    versions: str
    source: str
    explanation: str
    remedy: str
    bad: list[str]
    good: list[str]


class VersionsModel(Model):
    """Supported versions."""

    versions: list[str]
    default: str


class FlagModel(BaseModel):
    """One option of `vllm serve`, as extracted from that version."""

    dest: str
    options: list[str]
    group: str
    action: str
