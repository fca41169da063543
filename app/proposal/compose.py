"""Compose files: every service that starts vLLM, as a proposal.

Sources: the Compose Specification (services, interpolation, merging of `environment` and
`env_file`), and for what Compose does to strings `app.proposal.compose_words`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.errors import InvalidEnvelope, MalformedDocument, Problem
from app.proposal.compose_words import Interpolated, interpolate, split_words
from app.proposal.compose_writer import ComposeWriter
from app.proposal.config_yaml import node_location, read_nodes
from app.proposal.env_file import read_env_file, unseen_env_file
from app.proposal.image import Image
from app.proposal.launch import Container, Surroundings, contained
from app.proposal.pieces import Piece
from app.proposal.positions import LineIndex
from app.proposal.proposal import Form, Proposal, Variable, Word
from app.proposal.shell import read_shell
from app.proposal.yaml_text import scalar_text
from app.verdict.finding import Finding, Severity
from app.verdict.location import Location

MAX_SERVICES: Final = 200
_NULL: Final = "tag:yaml.org,2002:null"
_STRING: Final = "tag:yaml.org,2002:str"


def read_compose(
    text: str, *, source: str = "compose", files: Mapping[str, str] | None = None
) -> tuple[Proposal, ...]:
    """Read the services of a compose file that start vLLM, in the order of the file.

    `files` are texts that the file names: `env_file`s, and `.env` for the variables of the file
    itself. A service that is none of vLLM's is passed over.

    Raises:
        MalformedDocument: not YAML, or something in it that Compose refuses.
        InvalidEnvelope: none of the services starts vLLM.
        PayloadTooLarge: it is larger than any compose file.
    """
    roots = read_nodes(text, source)
    root = roots[0] if roots else None
    index = LineIndex(text, source)
    services = _child(root, "services")
    if not isinstance(services, MappingNode):
        raise _broken("`services` is no mapping", root, index)
    reader = _Reader(index, files or {})
    found: list[Proposal] = []
    seen: list[str] = []
    for key, node in services.value[:MAX_SERVICES]:
        if isinstance(key, ScalarNode) and isinstance(node, MappingNode):
            if key.value in seen:
                raise _broken(f"the service {key.value!r} is there twice", key, index)
            seen.append(key.value)
            proposal = reader.service(key.value, node)
            if proposal is not None:
                found.append(proposal)
    if not found:
        detail = f"none of its services ({', '.join(seen) or 'there are none'}) starts vLLM"
        raise InvalidEnvelope(
            "the compose file has no vLLM server", (Problem("no-server", detail),)
        )
    return tuple(found)


class _Reader:
    def __init__(self, index: LineIndex, files: Mapping[str, str]) -> None:
        self._index = index
        self._files = files
        env = files.get(".env")
        self._variables: dict[str, str] | None = None
        if env is not None:
            read = read_env_file(env, ".env", {}, quotes=True)
            self._variables = {variable.name: variable.value for variable in read}
        self._findings: list[Finding] = []

    def service(self, name: str, node: MappingNode) -> Proposal | None:
        self._findings = []
        pointer = f"/services/{_escaped(name)}"
        image = self._image(_child(node, "image"))
        entrypoint = self._command(_child(node, "entrypoint"), f"{pointer}/entrypoint")
        arguments = self._command(_child(node, "command"), f"{pointer}/command") or []
        environment = self._environment(node)
        around = Surroundings(Form.COMPOSE, self._index, self._read_script, self._files)
        at = _child(node, "image") or _child(node, "command") or node
        container = Container(
            image=image,
            entrypoint=entrypoint,
            arguments=arguments,
            environment=environment,
            at=node_location(self._index, at),
            gpus=_devices(node),
        )
        proposal = contained(container, around)
        if proposal is None:
            return None

        def reread(edited: str) -> Proposal:
            services = read_compose(edited, source=self._index.source, files=self._files)
            for service in services:
                if service.subject == name:
                    return service
            raise InvalidEnvelope(f"the service {name} starts vLLM no longer")

        return replace(
            proposal,
            subject=name,
            source=self._index.text,
            files={**self._files, **proposal.files},
            findings=(*self._findings, *proposal.findings),
            reread=reread,
            writer=ComposeWriter(self._index, node, self._variables),
        )

    def _read_script(
        self,
        text: LineIndex,
        environment: Mapping[str, Variable],
        open_names: Sequence[str],
        dialect: str,
    ) -> Proposal:
        return read_shell(
            text,
            form=Form.COMPOSE,
            environment=environment,
            files=self._files,
            depth=1,
            open_names=open_names,
            dialect=dialect,
        )

    def _text(self, node: ScalarNode) -> Interpolated:
        read = interpolate(scalar_text(self._index, node), self._variables)
        self._findings.extend(read.findings)
        return read

    def _image(self, node: Node | None) -> Image | None:
        if not isinstance(node, ScalarNode) or node.tag == _NULL:
            return None
        read = self._text(node)
        text = read.text.text
        location = node_location(self._index, node)
        return Image(text, location, read.unresolved(0, len(text)))

    def _command(self, node: Node | None, pointer: str) -> list[Piece] | None:
        """Read `command` or `entrypoint`; None if it is not given."""
        if node is None or node.tag == _NULL:
            return None
        if isinstance(node, SequenceNode):
            return [self._item(item, f"{pointer}/{i}") for i, item in enumerate(node.value)]
        if not isinstance(node, ScalarNode):
            raise _broken("a command is a string or a list of strings", node, self._index)
        split = split_words(self._text(node))
        self._findings.extend(split.findings)
        return [
            replace(piece, word=replace(piece.word, location=_at(piece.word.location, pointer)))
            for piece in split.pieces
        ]

    def _item(self, node: Node, pointer: str) -> Piece:
        if not isinstance(node, ScalarNode):
            raise _broken("the words of a command are strings", node, self._index)
        location = _at(node_location(self._index, node), pointer)
        if node.tag != _STRING:
            self._findings.append(
                Finding(
                    rule="compose-not-a-string",
                    severity=Severity.WARNING,
                    message=f"Compose wants a string here; write {node.value!r} in quotes",
                    location=location,
                )
            )
        read = self._text(node)
        text = read.text.text
        word = Word(text, location, read.unresolved(0, len(text)))
        return Piece(word, lambda: read.text)

    # environment

    def _environment(self, node: MappingNode) -> dict[str, Variable]:
        environment: dict[str, Variable] = {}
        for file, required in self._env_files(_child(node, "env_file")):
            name = self._text(file).text.text
            text = self._files.get(name, self._files.get(name.removeprefix("./")))
            if text is not None:
                read = read_env_file(text, name, {}, quotes=True)
                environment.update({variable.name: variable for variable in read})
            elif required:
                self._findings.append(unseen_env_file(name, node_location(self._index, file)))
        for variable in self._variables_of(_child(node, "environment")):
            environment[variable.name] = variable
        return environment

    def _env_files(self, node: Node | None) -> Iterator[tuple[ScalarNode, bool]]:
        items = node.value if isinstance(node, SequenceNode) else [] if node is None else [node]
        for item in items:
            required = True
            if isinstance(item, MappingNode):
                required_node = _child(item, "required")
                required = not (
                    isinstance(required_node, ScalarNode) and required_node.value == "false"
                )
                item = _child(item, "path")
            if isinstance(item, ScalarNode) and item.tag != _NULL:
                yield item, required

    def _variables_of(self, node: Node | None) -> Iterator[Variable]:
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if isinstance(key, ScalarNode) and isinstance(value, ScalarNode):
                    yield self._mapped(key, value)
        elif isinstance(node, SequenceNode):
            for item in node.value:
                if isinstance(item, ScalarNode):
                    yield self._listed(item)

    def _mapped(self, key: ScalarNode, value: ScalarNode) -> Variable:
        location = replace(self._span(key, value), variable=key.value)
        if value.tag == _NULL:
            return _passed_on(key.value, location)
        read = self._text(value)
        text = read.text.text
        return Variable(key.value, text, location, read.unresolved(0, len(text)))

    def _listed(self, item: ScalarNode) -> Variable:
        read = self._text(item)
        name, equals, value = read.text.text.partition("=")
        location = replace(node_location(self._index, item), variable=name)
        if not equals:
            return _passed_on(name, location)
        start = len(name) + 1
        return Variable(name, value, location, read.unresolved(start, start + len(value)))

    def _span(self, key: Node, value: Node) -> Location:
        end = max(key.end_mark.index, value.end_mark.index)
        return self._index.location(key.start_mark.index, len(self._index.text[:end].rstrip()))


def _at(location: Location, pointer: str) -> Location:
    return replace(location, pointer=pointer)


def _escaped(key: str) -> str:
    """Escape one step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _passed_on(name: str, location: Location) -> Variable:
    """A variable without a value: Compose passes on the one that it has itself."""
    return Variable(name, f"${name}", location, (name,))


def _devices(service: MappingNode) -> int | None:
    """Give the number of devices that a service reserves; None for all and what is not known."""
    requests = _child(service, "gpus")
    if not isinstance(requests, SequenceNode):
        requests = service
        for step in ("deploy", "resources", "reservations", "devices"):
            requests = _child(requests, step)
    if not isinstance(requests, SequenceNode):
        return None
    counts = [_device_count(request) for request in requests.value]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _device_count(request: Node) -> int | None:
    ids, count = _child(request, "device_ids"), _child(request, "count")
    if isinstance(ids, SequenceNode):
        return len(ids.value)
    if isinstance(count, ScalarNode) and count.value.isdecimal() and len(count.value) < 6:
        return int(count.value)
    return None


def _child(node: Any, key: str) -> Any:
    if not isinstance(node, MappingNode):
        return None
    found = [value for name, value in node.value if getattr(name, "value", None) == key]
    return found[-1] if found else None


def _broken(detail: str, node: Node | None, index: LineIndex) -> MalformedDocument:
    line, column = (1, 1) if node is None else index.line_column(node.start_mark.index)
    problem = Problem("compose", detail, line=line, column=column)
    return MalformedDocument("the compose file cannot be read", (problem,))
