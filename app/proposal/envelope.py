"""The JSON envelope: a proposal with what is known about where it will run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from app.errors import InvalidEnvelope, Problem
from app.kubernetes.read import read_kubernetes
from app.proposal.compose import read_compose
from app.proposal.config_yaml import parse_config_yaml
from app.proposal.proposal import Entrypoint, Form, Hardware, Proposal, Variable, Word
from app.proposal.python_source import parse_python
from app.proposal.shell import MAX_WORDS, parse_command
from app.proposal.suppression import Profile, Suppression
from app.verdict.location import Location

FORMS: Final = ("args", "command", "config", "config_yaml", "compose", "kubernetes", "python")
_KEYS: Final = (
    *FORMS,
    *("env", "files", "vllm_version", "vllm_versions", "model_config", "draft_model_config"),
    *("hardware", "ignore", "profile", "id"),
)
_HARDWARE: Final = ("gpu", "count", "memory_gib", "capability", "nodes", "memory_in_use")
_CAPABILITY: Final = re.compile(r"(\d{1,2})\.(\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A proposal to judge, for the versions named, with the caller's `id` for it.

    `more` are the others of the same document: further vLLM services of a compose file, further
    containers of manifests.
    """

    proposal: Proposal
    more: tuple[Proposal, ...] = ()
    vllm_versions: tuple[str, ...] = ()
    profile: Profile = Profile.DEFAULT
    id: Any = None

    def along(self, along: Along) -> Envelope:
        """Give the envelope with what is known beside it added to each proposal."""
        first, *more = map(along.added_to, self.proposals)
        return replace(self, proposal=first, more=tuple(more))

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        """All proposals, in the order of the document."""
        return (self.proposal, *self.more)


def read_envelope(data: object) -> Envelope:
    """Read an envelope from decoded JSON.

    Exactly one of `args` (what follows `vllm serve`, a list of strings), `command` (shell text),
    `config` (engine kwargs as an object, keys with `_` or `-`), `config_yaml` (the text of a
    `--config` file), `compose` (that of a compose file), `kubernetes` (that of manifests, YAML or
    JSON) and `python` (source with an `LLM(…)` call). `env` gives environment variables: strings,
    or integers, which become their digits; null means unset. Booleans and fractions are refused,
    since `true`, `True` and `1` are three different values to vLLM. `files` gives the text of the
    files that `--config` names; `model_config` the model's config.json and `draft_model_config`
    that of a speculative draft model; `hardware` is
    `{"gpu": …, "count": …, "memory_gib": …, "capability": "9.0", "nodes": …, "memory_in_use": …}`,
    each optional; the last is the share of a GPU's memory that others hold, such as 0.2.
    `ignore` lists exceptions, `{"rule": …, "reason": …}` each; `profile` is `default`, or
    `strict` for warnings to count.

    Raises:
        InvalidEnvelope: with a pointer to each thing that is wrong.
        MalformedDocument: the command or YAML text in it cannot be read.
    """
    if not isinstance(data, Mapping):
        raise _invalid(Problem("not-an-object", "the envelope is a JSON object", pointer=""))
    problems = [_unknown_key(key) for key in data if key not in _KEYS]
    given = [form for form in FORMS if data.get(form) is not None]
    if len(given) != 1:
        which = f"it has {' and '.join(given)}" if given else "it has none"
        detail = f"give exactly one of {', '.join(FORMS)}; {which}"
        problems.append(Problem("one-form", detail, pointer=""))
    reader = _Members(problems)
    environment = reader.environment(data.get("env"))
    files = reader.texts(data.get("files"), "files")
    versions = reader.versions(data)
    model_config = reader.mapping(data.get("model_config"), "model_config")
    draft = reader.mapping(data.get("draft_model_config"), "draft_model_config")
    hardware = reader.hardware(data.get("hardware"))
    form = given[0] if len(given) == 1 else None
    suppressions = reader.suppressions(data.get("ignore"))
    profile = reader.profile(data.get("profile"))
    given_along = Along(environment, files, model_config, draft, hardware, suppressions)
    proposals = () if form is None else reader.proposals(form, data[form], given_along)
    if not proposals or problems:
        raise _invalid(*problems)
    first, *more = map(given_along.added_to, proposals)
    return Envelope(
        proposal=first,
        more=tuple(more),
        vllm_versions=versions,
        profile=profile,
        id=data.get("id"),
    )


@dataclass(frozen=True, slots=True)
class Along:
    """What is given beside a proposal; it counts for every proposal of a document."""

    environment: Mapping[str, Variable] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model_config: Mapping[str, Any] | None = None
    draft_model_config: Mapping[str, Any] | None = None
    hardware: Hardware | None = None
    suppressions: tuple[Suppression, ...] = ()

    def added_to(self, proposal: Proposal) -> Proposal:
        """Give the proposal with it; what the proposal's own container says of GPUs remains."""
        return replace(
            proposal,
            environment={**proposal.environment, **self.environment},
            files={**proposal.files, **self.files},
            file_texts={n: t for n, t in proposal.file_texts.items() if n not in self.files},
            model_config=self.model_config or proposal.model_config,
            draft_model_config=self.draft_model_config or proposal.draft_model_config,
            hardware=_merged(proposal.hardware, self.hardware),
            suppressions=(*proposal.suppressions, *self.suppressions),
        )


def _merged(own: Hardware | None, given: Hardware | None) -> Hardware | None:
    """Let what was given count, and what the container says fill the gaps."""
    if own is None or given is None:
        return given or own
    members = {f.name: getattr(given, f.name) for f in fields(Hardware)}
    return replace(own, **{name: value for name, value in members.items() if value is not None})


class _Members:
    """Reads the members, collecting what is wrong so that all of it is told at once."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def proposals(self, form: str, value: object, along: Along) -> tuple[Proposal, ...]:
        if form == "args":
            return self._args(value)
        if form == "config":
            kwargs = self.mapping(value, "config")
            engine = Entrypoint.ENGINE_ARGS
            return (Proposal(form=Form.CONFIG, entrypoint=engine, kwargs=kwargs),)
        if not isinstance(value, str):
            self._wrong(f"/{form}", "a string")
            return ()
        if form == "compose":
            return read_compose(value, files=along.files)
        if form == "kubernetes":
            return read_kubernetes(value)
        if form == "python":
            return (parse_python(value),)
        if form == "command":
            return (parse_command(value, given=along.environment, files=along.files),)
        return (parse_config_yaml(value),)

    def _args(self, value: object) -> tuple[Proposal, ...]:
        if not isinstance(value, list):
            self._wrong("/args", "a list of strings, what follows `vllm serve`")
            return ()
        if len(value) > MAX_WORDS:
            self._wrong("/args", f"at most {MAX_WORDS} words")
            return ()
        words = []
        for i, text in enumerate(value):
            if not isinstance(text, str):
                self._wrong(f"/args/{i}", f"a string{_quoted(text)}")
                continue
            if "\0" in text:
                self._wrong(f"/args/{i}", "without NUL, which no command line can hold")
                continue
            words.append(Word(text, Location(argv_index=i, pointer=f"/args/{i}", text=text[:120])))
        return (Proposal(form=Form.ARGS, words=tuple(words)),)

    def environment(self, value: object) -> dict[str, Variable]:
        variables = {}
        for name, text in self.mapping(value, "env", absent={}).items():
            pointer = f"/env/{escape_pointer(name)}"
            if text is None:
                continue
            if not name or "=" in name or "\0" in name:
                self._wrong(pointer, "named as a variable can be: not empty, without = and NUL")
                continue
            if isinstance(text, bool) or not isinstance(text, str | int):
                self._wrong(pointer, f"a string{_quoted(text)}")
                continue
            if "\0" in str(text):
                self._wrong(pointer, "without NUL, which no variable can hold")
                continue
            location = Location(pointer=pointer, variable=name)
            variables[name] = Variable(name, str(text), location)
        return variables

    def texts(self, value: object, member: str) -> dict[str, str]:
        texts = {}
        for name, text in self.mapping(value, member, absent={}).items():
            if isinstance(text, str):
                texts[name] = text
            else:
                self._wrong(f"/{member}/{escape_pointer(name)}", "the text of the file")
        return texts

    def suppressions(self, value: object) -> tuple[Suppression, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self._wrong("/ignore", 'a list such as [{"rule": "env-unknown", "reason": "…"}]')
            return ()
        found = []
        for i, item in enumerate(value):
            members = item if isinstance(item, Mapping) else {}
            rule, reason = members.get("rule"), members.get("reason")
            if members.keys() != {"rule", "reason"} or not isinstance(rule, str):
                self._wrong(f"/ignore/{i}", 'an object {"rule": …, "reason": …}')
            elif not isinstance(reason, str) or not reason.strip():
                self._wrong(f"/ignore/{i}/reason", "the reason, in words")
            else:
                place = Location(pointer=f"/ignore/{i}", text=rule)
                found.append(Suppression(rule, reason.strip(), place))
        return tuple(found)

    def profile(self, value: object) -> Profile:
        if value is None:
            return Profile.DEFAULT
        if not isinstance(value, str) or value not in set(Profile):
            self._wrong("/profile", f"one of {', '.join(Profile)}")
            return Profile.DEFAULT
        return Profile(value)

    def versions(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        one, several = data.get("vllm_version"), data.get("vllm_versions")
        if one is not None and several is not None:
            detail = "give vllm_version or vllm_versions, not both"
            self._problems.append(Problem("given-twice", detail, pointer="/vllm_versions"))
        if several is not None:
            if not isinstance(several, list) or not several:
                self._wrong("/vllm_versions", 'a list such as ["0.32.0"]')
                return ()
            for i, version in enumerate(several):
                if not isinstance(version, str):
                    self._wrong(f"/vllm_versions/{i}", 'a string such as "0.32.0"')
            return tuple(dict.fromkeys(v for v in several if isinstance(v, str)))
        if one is not None and not isinstance(one, str):
            self._wrong("/vllm_version", 'a string such as "0.32.0"')
            return ()
        return () if one is None else (one,)

    def hardware(self, value: object) -> Hardware | None:
        if value is None:
            return None
        members = self.mapping(value, "hardware", absent={})
        for key in members:
            if key not in _HARDWARE:
                detail = f"unknown key {key!r}; hardware has {', '.join(_HARDWARE)}"
                pointer = f"/hardware/{escape_pointer(key)}"
                self._problems.append(Problem("unknown-key", detail, pointer=pointer))
        gpu = members.get("gpu")
        if gpu is not None and not isinstance(gpu, str):
            self._wrong("/hardware/gpu", 'a product name such as "H100-80GB", or "cpu"')
        return Hardware(
            gpu if isinstance(gpu, str) else None,
            self._whole(members.get("count"), "/hardware/count", "the number of devices", 0),
            self._gib(members.get("memory_gib")),
            self._capability(members.get("capability")),
            self._whole(members.get("nodes"), "/hardware/nodes", "the number of nodes", 1),
            self._share(members.get("memory_in_use")),
        )

    def _whole(self, value: object, pointer: str, what: str, least: int) -> int | None:
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(pointer, f"{what}, an integer")
            return None
        if value < least:
            self._wrong(pointer, f"{least} or more")
        return value

    def _gib(self, value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self._wrong("/hardware/memory_gib", "the memory of one device in GiB, above 0")
            return None
        return float(value)

    def _share(self, value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self._wrong("/hardware/memory_in_use", "a share such as 0.2, from 0 to below 1")
            return None
        return float(value)

    def _capability(self, value: object) -> tuple[int, int] | None:
        if value is None:
            return None
        match = _CAPABILITY.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            self._wrong("/hardware/capability", 'a compute capability such as "9.0"')
            return None
        return int(match[1]), int(match[2])

    def mapping(self, value: object, member: str, absent: dict[str, Any] | None = None) -> Any:
        if value is None:
            return absent
        if not isinstance(value, Mapping):
            self._wrong(f"/{member}", "an object")
            return {}
        return value

    def _wrong(self, pointer: str, wanted: str) -> None:
        self._problems.append(Problem("wrong-type", f"must be {wanted}", pointer=pointer))


def _quoted(value: object) -> str:
    """Show how a scalar would be written as a string; nothing for what is none."""
    if isinstance(value, bool):
        return f', such as "{int(value)}"'
    return f', such as "{value}"' if isinstance(value, int | float) else ""


def escape_pointer(key: object) -> str:
    """Escape one step of a JSON pointer (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _unknown_key(key: object) -> Problem:
    close = difflib.get_close_matches(str(key)[:64], _KEYS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(_KEYS)}"
    return Problem("unknown-key", f"unknown key {key!r}{hint}", pointer=f"/{escape_pointer(key)}")


def _invalid(*problems: Problem) -> InvalidEnvelope:
    return InvalidEnvelope("the envelope is not valid", problems)
