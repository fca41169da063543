"""A proposal resolved for one vLLM version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.catalogue import Catalogue
from app.proposal.proposal import Hardware, Variable
from app.proposal.workload import Workload
from app.verdict.location import Location


class Abstain(Exception):
    """Raised where a value is asked for that nobody gave; the rule that asked abstains.

    `needs` says which fact would decide, in the words of the `not_checked` list.
    """

    def __init__(self, needs: str) -> None:
        super().__init__(needs)
        self.needs = needs


class UnresolvedValue(Abstain):
    """The proposal leaves the value open, as in `--logprobs-mode $MODE`.

    Unlike a fact that nobody gave, this is a question which the proposal itself raises: where
    it would decide, the verdict is undetermined. `location` is where it was written.
    """

    def __init__(self, needs: str, location: Location | None = None) -> None:
        super().__init__(needs)
        self.location = location


class Origin(StrEnum):
    """Where a setting's value comes from."""

    DEFAULT = "default"
    ARGV = "argv"
    CONFIG_FILE = "config_file"
    ENVIRONMENT = "environment"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that depends on something only known at start, such as `$PORT`.

    `variables` are the shell variables in `text`; with none, `text` says in words what is not
    known (`the contents of serve.yaml`).
    """

    variables: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        """The text as it was written."""
        return self.text

    @property
    def needs(self) -> str:
        """What would decide, in the words of the `not_checked` list."""
        return value_of(self.variables) if self.variables else self.text


@dataclass(frozen=True, slots=True)
class Setting:
    """The effective value of one destination.

    `value` is the parsed value (what argparse, or the keyword argument, gives vLLM; JSON
    settings as plain dict/list), or `Unresolved`. `location` is where the winning value was
    written, `overridden` where earlier values of the same flag stand.
    """

    value: Any
    origin: Origin
    location: Location | None = None
    overridden: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Every setting of `vllm serve` for one version, defaults included.

    `config["max_logprobs"]` gives the value and raises `Abstain` when it is unresolved;
    `config.setting(...)` gives value, origin and place without raising.
    """

    catalogue: Catalogue
    settings: Mapping[str, Setting]
    environment: Mapping[str, Variable] = field(default_factory=dict)
    model_config: Mapping[str, Any] | None = None
    draft_model_config: Mapping[str, Any] | None = None
    hardware: Hardware | None = None
    workload: Workload | None = None
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What `app.rules.derived` has worked out for this configuration."""

    def __getitem__(self, dest: str) -> Any:
        """Give the effective value; a dotted name reads one key of a JSON setting.

        A destination that this version does not have reads as None, so that one rule text
        serves all versions. Missing keys of a JSON setting read as None too.

        Raises:
            UnresolvedValue: the value that was given depends on an unresolved variable.
            Abstain: the value is not known for a reason that reading the proposal has told of.
        """
        setting = self.settings.get(dest)
        if setting is None and "." in dest:
            dest, *path = dest.split(".")
            value = self[dest]
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
                if isinstance(value, Unresolved):
                    raise self._open_value(value, dest)
            return value
        value = None if setting is None else setting.value
        if isinstance(value, Unresolved):
            raise self._open_value(value, dest)
        return value

    def setting(self, dest: str) -> Setting | None:
        """Give value, origin and place; None for a destination this version lacks."""
        return self.settings.get(dest.split(".")[0])

    def given(self, dest: str) -> bool:
        """Whether somebody gave the setting, as opposed to its default."""
        setting = self.setting(dest)
        return setting is not None and setting.origin is not Origin.DEFAULT

    def place(self, dest: str) -> Location | None:
        """Where the setting was written, if it was."""
        setting = self.setting(dest)
        return None if setting is None else setting.location

    def variable(self, name: str) -> Variable | None:
        """An environment variable of the proposal; None if unset.

        Raises:
            UnresolvedValue: its value depends on an unresolved variable.
        """
        variable = self.environment.get(name)
        if variable is not None and variable.unresolved:
            raise UnresolvedValue(value_of(variable.unresolved), variable.location)
        return variable

    def _open_value(self, value: Unresolved, dest: str) -> Abstain:
        # An option that only might be among words that cannot be seen is no question of its own.
        if value.variables and self.given(dest):
            return UnresolvedValue(value.needs, self.place(dest))
        return Abstain(value.needs)


def value_of(variables: Iterable[str]) -> str:
    """Name shell variables as something to be known."""
    return f"the value of {', '.join('$' + name for name in variables)}"
