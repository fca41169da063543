"""The shapes of the upgrade check's answer, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from app.api.schemas import FindingModel, LocationModel, Model


class ChangeModel(Model):
    """Something that is different for what the proposal gives."""

    kind: Literal[
        "removed",
        "renamed",
        "deprecated",
        "choices",
        "meaning",
        "key-removed",
        "environment-removed",
        "environment-meaning",
    ]
    name: str = Field(description="The option, key or variable.")
    message: str
    since: str | None = Field(None, description="The first version that has the difference.")
    location: LocationModel | None = None
    before: Any = None
    after: Any = None
    replacement: str | None = Field(None, description="What stands in its place.")


class DefaultChangeModel(Model):
    """A default that differs, of something that the proposal leaves open."""

    kind: Literal["flag", "key", "environment"]
    name: str
    before: Any = None
    after: Any = None
    since: str | None = None


class FindingsChangedModel(Model):
    """Findings that only one of the versions has."""

    new: list[FindingModel]
    gone: list[FindingModel]


class UpgradeModel(Model):
    """What changes for one proposal."""

    schema_name: str = Field(alias="schema")
    id: Any = None
    subject: str | None = Field(None, description="Which service of a compose file.")
    from_version: str = Field(alias="from")
    to_version: str = Field(alias="to")
    verdict: Literal["accepted", "rejected", "undetermined"] = Field(
        description="The newer version's verdict on the proposal as it is."
    )
    accepted: bool
    before: Literal["accepted", "rejected", "undetermined"]
    changes: list[ChangeModel]
    findings: FindingsChangedModel
    defaults: list[DefaultChangeModel]
    corrected: dict[str, Any] | None = Field(
        description="The proposal for the newer version, in its own form."
    )


class UpgradesModel(Model):
    """Reports for the services of a compose file."""

    accepted: bool
    upgrades: list[UpgradeModel]
