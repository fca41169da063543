"""What the operator wants done about findings: an action for each rule, and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from app.errors import InvalidEnvelope
from app.request_rules.limits import Limits
from app.request_rules.rule import RequestRule
from app.serve_config.suggest import hint, nearest
from app.verdict.finding import Severity

RULES_VARIABLE: Final = "VLLM_ADMISSION_REQUEST_RULES"


class Action(StrEnum):
    """What is done about a finding."""

    REJECT = "reject"
    WARN = "warn"
    REPAIR = "repair"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings about request rules. Without an entry a rule does what it declares."""

    actions: Mapping[str, Action] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def action(self, rule: RequestRule) -> Action:
        """Give what is done about findings of `rule`."""
        return self.actions.get(rule.declaration.id) or default_action(rule)


def default_action(rule: RequestRule) -> Action:
    """Errors are rejected and warnings told of, unless the rule is off by default."""
    if not rule.on:
        return Action.OFF
    return Action.REJECT if rule.declaration.severity is Severity.ERROR else Action.WARN


def read_actions(
    given: Mapping[str, str], rules: Iterable[RequestRule], *, strict: Iterable[str] = ()
) -> dict[str, Action]:
    """Read the setting `VLLM_ADMISSION_REQUEST_RULES`.

    Args:
        given: action by rule id.
        rules: all rules there are.
        strict: ids of rules that reject unless `given` names them.

    Raises:
        InvalidEnvelope: it names a rule that does not exist, or an action that a rule has not.
    """
    known = {rule.declaration.id: rule for rule in rules}
    actions = dict.fromkeys(strict, Action.REJECT)
    for name, text in given.items():
        rule = known.get(name)
        if rule is None:
            near = hint(nearest(name, known)) or f"; there are {', '.join(sorted(known))}"
            raise InvalidEnvelope(f"{RULES_VARIABLE} names an unknown rule {name!r}{near}")
        possible = [a.value for a in Action if a is not Action.REPAIR or rule.can_repair]
        if text not in possible:
            raise InvalidEnvelope(
                f"{RULES_VARIABLE}: {name} cannot {text!r}, only {', '.join(possible)}"
                f"{hint(nearest(text, possible))}"
            )
        actions[name] = Action(text)
    return actions
