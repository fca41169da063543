"""Machine-applicable repairs.

One fix serves every edge: the command line shows it as an edited command, the API as data,
the Kubernetes webhook as a JSONPatch. Edits are therefore said in terms of settings, not of
text; `app.proposal.edit` applies them to a proposal in its own form.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class SetFlag:
    """Give a setting a value, whatever it had.

    `dest` is the catalogue's argparse destination (`logprobs_mode`). `value` is a JSON value;
    true and false mean the positive and negative switch. A dotted `dest`
    (`speculative_config.enable_adaptive_verification`) changes one key of a JSON setting.
    """

    dest: str
    value: Any


@dataclass(frozen=True, slots=True)
class RemoveFlag:
    """Take out every place where the setting is given. A dotted `dest` removes one key."""

    dest: str


@dataclass(frozen=True, slots=True)
class ReplaceArgument:
    """Replace one word of the command line or one key of the document by another spelling.

    For what has no destination, such as a misspelt flag. `index` is an argv index, or the
    JSON pointer of a key.
    """

    at: int | str
    text: str


@dataclass(frozen=True, slots=True)
class SetEnvironment:
    """Set an environment variable."""

    variable: str
    value: str


@dataclass(frozen=True, slots=True)
class UnsetEnvironment:
    """Take an environment variable out."""

    variable: str


Edit: TypeAlias = SetFlag | RemoveFlag | ReplaceArgument | SetEnvironment | UnsetEnvironment

_KINDS = {
    SetFlag: "set_flag",
    RemoveFlag: "remove_flag",
    ReplaceArgument: "replace_argument",
    SetEnvironment: "set_environment",
    UnsetEnvironment: "unset_environment",
}


@dataclass(frozen=True, slots=True)
class Fix:
    """The smallest change that mends a finding.

    `safe` fixes keep what the user asked for (adding the logprobs mode that a sampling mask
    needs); unsafe ones give something up (dropping speculative decoding). Both are offered,
    only safe ones are ever applied without being asked.
    """

    description: str
    edits: tuple[Edit, ...]
    safe: bool

    def as_json(self) -> dict[str, Any]:
        """Render as plain data; each edit carries its `kind`."""
        return {
            "description": self.description,
            "safe": self.safe,
            "edits": [{"kind": _KINDS[type(e)], **asdict(e)} for e in self.edits],
        }
