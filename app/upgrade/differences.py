"""What two catalogues say differently about the settings of one proposal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.catalogue import Catalogue, Flag
from app.catalogue.catalogue import EnvironmentFact
from app.catalogue.compare import Absence, History, json_class
from app.proposal.proposal import Variable
from app.serve_config.serve_config import Origin, ServeConfig, Setting, Unresolved
from app.verdict.jsonable import jsonable
from app.verdict.location import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is different for this proposal.

    `kind` is one of: removed, renamed, deprecated, choices, meaning, key-removed,
    environment-removed, environment-meaning. `before` and `after` are the values compared, and
    `replacement` what stands in the place of what was removed. `since` is the first version that
    has the difference.
    """

    kind: str
    name: str
    message: str
    since: str | None = None
    location: Location | None = None
    before: Any = None
    after: Any = None
    replacement: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Render as plain data, leaving out what is not there."""
        members = {
            "kind": self.kind,
            "name": self.name,
            "message": self.message,
            "since": self.since,
            "location": None if self.location is None else self.location.as_json(),
            "before": jsonable(self.before),
            "after": jsonable(self.after),
            "replacement": self.replacement,
        }
        return {key: value for key, value in members.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DefaultChange:
    """A default that is another one in the newer version, of something the proposal leaves open.

    `kind` is flag, key (of a JSON flag) or environment.
    """

    kind: str
    name: str
    before: Any
    after: Any
    since: str | None

    def as_json(self) -> dict[str, Any]:
        """Render as plain data."""
        return {
            "kind": self.kind,
            "name": self.name,
            "before": jsonable(self.before),
            "after": jsonable(self.after),
            "since": self.since,
        }


class Differences:
    """Compares two versions, with those between them to say since when."""

    def __init__(self, old: Catalogue, new: Catalogue, between: History) -> None:
        """Keep the catalogues; `between` is every known version."""
        self._old = old
        self._new = new
        self._history = between
        self._steps = [c for c in between.catalogues if old.version < c.version <= new.version]

    def of_settings(
        self, before: ServeConfig, after: ServeConfig | None, spelt: Mapping[str, str]
    ) -> Iterator[Change]:
        """Compare the settings that were given; `spelt` has the options as they were written."""
        for dest, setting in before.settings.items():
            flag = self._old.by_dest.get(dest)
            if setting.origin is Origin.DEFAULT or flag is None:
                continue
            current = self._new.by_dest.get(dest)
            if current is None:
                yield self._removed(flag, setting, spelt.get(dest))
                continue
            yield from self._respelt(flag, setting, spelt.get(dest))
            if current.deprecated and not flag.deprecated:
                since = self._since(lambda c, d=dest: d in c.by_dest and c.by_dest[d].deprecated)
                yield self._change(
                    "deprecated", flag.name, f"{flag.name} is deprecated", since, setting
                )
            yield from self._choices(flag, current, setting)
            value = None if after is None else after.settings.get(dest)
            yield from self._meaning(flag, setting, value)
            yield from self._keys(flag, setting)

    def of_environment(self, variables: Mapping[str, Variable]) -> Iterator[Change]:
        """Compare how the variables that were given are read."""
        for name, variable in variables.items():
            old, new = self._old.env_vars.get(name), self._new.env_vars.get(name)
            if old is None or old == new:
                continue
            if new is None:
                absence = self._history.variable(name, self._new.vllm_version)
                yield Change(
                    kind="environment-removed",
                    name=name,
                    message=f"{name} is read no longer{_instead(absence)}",
                    since=None if absence is None else absence.gone,
                    location=variable.location,
                    replacement=None if absence is None else absence.replacement,
                )
            elif _how_read(old) != _how_read(new):
                since = self._since(lambda c, n=name, o=old: c.env_vars.get(n) != o)
                yield Change(
                    kind="environment-meaning",
                    name=name,
                    message=f"{name} is read differently: {_how_read(old)}, now {_how_read(new)}",
                    since=since,
                    location=variable.location,
                    before=_how_read(old),
                    after=_how_read(new),
                )

    def of_defaults(
        self, before: ServeConfig, variables: Mapping[str, Variable]
    ) -> Iterator[DefaultChange]:
        """List defaults that differ, of what the proposal does not give."""
        for dest, flag in self._old.by_dest.items():
            current = self._new.by_dest.get(dest)
            if current is None:
                continue
            if before.given(dest):
                yield from self._key_defaults(flag, before.settings[dest])
            elif flag.default != current.default and not _hidden(flag, current):
                since = self._since(
                    lambda c, d=dest, v=flag.default: d in c.by_dest and c.by_dest[d].default != v
                )
                yield DefaultChange("flag", flag.name, flag.default, current.default, since)
        for name, fact in self._old.env_vars.items():
            now = self._new.env_vars.get(name)
            if now is not None and name not in variables and now.default != fact.default:
                since = self._since(
                    lambda c, n=name, v=fact.default: n in c.env_vars and c.env_vars[n].default != v
                )
                yield DefaultChange("environment", name, fact.default, now.default, since)

    # one setting

    def _removed(self, flag: Flag, setting: Setting, spelt: str | None) -> Change:
        name = spelt or flag.name
        absence = self._history.option(name, self._new.vllm_version) or self._history.dest(
            flag.dest, self._new.vllm_version
        )
        replacement = None if absence is None else absence.replacement
        kind = "removed" if replacement is None else "renamed"
        text = f"{name} is gone" if replacement is None else f"{name} is now {replacement}"
        return self._change(
            kind, name, text, None if absence is None else absence.gone, setting, replacement
        )

    def _respelt(self, flag: Flag, setting: Setting, spelt: str | None) -> Iterator[Change]:
        """Tell of a spelling that is gone while the setting itself remains."""
        if spelt is None or spelt in self._new.by_option or spelt not in self._old.by_option:
            return
        absence = self._history.option(spelt, self._new.vllm_version)
        if absence is not None:
            text = f"{spelt} is now {absence.replacement or flag.name}"
            yield self._change("renamed", spelt, text, absence.gone, setting, absence.replacement)

    def _choices(self, flag: Flag, current: Flag, setting: Setting) -> Iterator[Change]:
        old, new = flag.choices or (), current.choices or ()
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        for value in values:
            if value in old and new and value not in new:
                since = self._since(
                    lambda c, d=flag.dest, v=value: (
                        d in c.by_dest and v not in (c.by_dest[d].choices or (v,))
                    )
                )
                text = f"{flag.name} has the choice {value!r} no longer"
                yield Change(
                    kind="choices",
                    name=flag.name,
                    message=text,
                    since=since,
                    location=setting.location,
                    before=value,
                    after=list(new),
                )

    def _meaning(self, flag: Flag, setting: Setting, after: Setting | None) -> Iterator[Change]:
        if after is None or after.origin is Origin.DEFAULT or after.value == setting.value:
            return
        if isinstance(after.value, Unresolved) or isinstance(setting.value, Unresolved):
            return
        yield Change(
            kind="meaning",
            name=flag.name,
            message=f"the value of {flag.name} is read as {after.value!r}, not {setting.value!r}",
            since=self._since(
                lambda c, f=flag: f.dest in c.by_dest and c.by_dest[f.dest].converter != f.converter
            ),
            location=setting.location,
            before=setting.value,
            after=after.value,
        )

    def _keys(self, flag: Flag, setting: Setting) -> Iterator[Change]:
        """Tell of keys of a JSON value that the newer class does not have."""
        cls = json_class(flag)
        if cls is None or not isinstance(setting.value, Mapping):
            return
        old, new = (c.config_classes.get(cls) for c in (self._old, self._new))
        if old is None or new is None:
            return
        for key in setting.value:
            if key in old.fields and key not in new.fields:
                absence = self._history.key(cls, key, self._new.vllm_version)
                yield Change(
                    kind="key-removed",
                    name=f"{flag.name}.{key}",
                    message=f"{flag.name} takes {key} no longer{_instead(absence)}",
                    since=None if absence is None else absence.gone,
                    location=setting.location,
                    replacement=None if absence is None else absence.replacement,
                )

    def _key_defaults(self, flag: Flag, setting: Setting) -> Iterator[DefaultChange]:
        cls = json_class(flag)
        if cls is None or not isinstance(setting.value, Mapping):
            return
        old, new = (c.config_classes.get(cls) for c in (self._old, self._new))
        if old is None or new is None:
            return
        for key, known in old.fields.items():
            current = new.fields.get(key)
            if current is None or key in setting.value or current.default == known.default:
                continue
            since = self._since(
                lambda c, n=cls, k=key, v=known.default: (
                    k in _fields(c, n) and _fields(c, n)[k].default != v
                )
            )
            name = f"{flag.name}.{key}"
            yield DefaultChange("key", name, known.default, current.default, since)

    def _change(
        self,
        kind: str,
        name: str,
        message: str,
        since: str | None,
        setting: Setting,
        replacement: str | None = None,
    ) -> Change:
        return Change(
            kind=kind,
            name=name,
            message=message,
            since=since,
            location=setting.location,
            replacement=replacement,
        )

    def _since(self, differs: Any) -> str | None:
        return next((c.vllm_version for c in self._steps if differs(c)), None)


def _fields(catalogue: Catalogue, cls: str) -> Mapping[str, Any]:
    known = catalogue.config_classes.get(cls)
    return {} if known is None else known.fields


def _hidden(old: Flag, new: Flag) -> bool:
    """Whether one of the defaults is a mark of the parser's own and no value."""
    return any(
        isinstance(flag.default, Mapping) and any(str(k).startswith("$") for k in flag.default)
        for flag in (old, new)
    )


def _instead(absence: Absence | None) -> str:
    if absence is None or absence.replacement is None:
        return ""
    return f"; {absence.replacement} stands in its place"


def _how_read(fact: EnvironmentFact) -> str:
    """Say how a variable's text is read."""
    text = fact.parse.replace("_", " ")
    return f"{text} of {', '.join(map(str, fact.choices))}" if fact.choices else text
