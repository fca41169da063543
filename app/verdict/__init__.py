"""What the gates answer: findings about places, fixes, and the verdict they add up to."""

from app.verdict.finding import Finding, Severity
from app.verdict.fix import (
    Edit,
    Fix,
    RemoveFlag,
    ReplaceArgument,
    SetEnvironment,
    SetFlag,
    UnsetEnvironment,
)
from app.verdict.location import Location
from app.verdict.verdict import NotChecked, Outcome, Verdict

__all__ = [
    "Edit",
    "Finding",
    "Fix",
    "Location",
    "NotChecked",
    "Outcome",
    "RemoveFlag",
    "ReplaceArgument",
    "SetEnvironment",
    "SetFlag",
    "Severity",
    "UnsetEnvironment",
    "Verdict",
]
