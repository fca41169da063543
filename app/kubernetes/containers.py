"""The vLLM servers in Kubernetes objects, as proposals."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from app.errors import AdmissionError, InvalidEnvelope, MalformedDocument
from app.kubernetes.annotations import Annotations, json_object
from app.kubernetes.custom import made_of
from app.kubernetes.dynamo import is_dynamo, with_ranks
from app.kubernetes.environment import POD_INDEX, Environment, not_a_string
from app.kubernetes.expansion import Expanded, Room
from app.kubernetes.gpus import Gpus
from app.kubernetes.json_writer import JsonWriter
from app.kubernetes.made_writer import MadeWriter
from app.kubernetes.manifest import (
    Manifest,
    Path,
    YamlPlaces,
    manifest_of,
    pointer_of,
    read_manifests,
    text_of,
)
from app.kubernetes.mounts import Mounted
from app.kubernetes.placed import MappedPlaces
from app.kubernetes.presumed import presumed_command
from app.kubernetes.ray import ray_servers
from app.kubernetes.remarks import one_word, quoted_json, script_unread, unlisted
from app.kubernetes.workloads import PodPlace, containers_of, is_of_ray, pods_of
from app.kubernetes.yaml_writer import YamlWriter
from app.proposal.image import Image
from app.proposal.launch import Container, Surroundings, contained
from app.proposal.pieces import Piece
from app.proposal.positions import LineIndex, NestedText
from app.proposal.proposal import Form, Proposal, Variable, Word
from app.proposal.shell import NOT_STARTED, read_shell
from app.proposal.workload import GpuShare, Workload
from app.verdict.finding import Finding

# What is in every script that starts a server: one without it need not be understood.
_STARTS_VLLM: Final = re.compile(
    r"vllm\s+serve|-m\s+\S*vllm|vllm\.entrypoints|-m\s+huggingfaceserver"
)
# Up to so many servers all are read again after an edit of one.
_FEW: Final = 8
# Far beyond what anybody writes: a list of 200,000 kept all other reviews waiting for seconds.
_MAX_ITEMS: Final = 10_000


def servers_in(
    manifests: Sequence[Manifest], *, editable: bool = True, at_most: int | None = None
) -> tuple[Proposal, ...]:
    """Give every vLLM server that the objects start, in their order, or the first ones.

    A container that is none of vLLM's is passed over. What `--config` names is looked for in the
    ConfigMaps of the stream. What is not `editable` cannot be mended, and is read quicker.
    """
    found = list(islice(_found(manifests, editable), at_most))
    subjects = list(_told_apart(entry.server.subject or "" for entry in found))
    everyone = [entry.server for entry in found]
    return tuple(
        replace(
            entry.server,
            subject=subjects[number],
            workload=_among(everyone, entry.server),
            reread=_rereading(manifests, entry, number, len(found)) if editable else None,
        )
        for number, entry in enumerate(found)
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A server, the object it is of, and what finds it again in an edited stream."""

    manifest: Manifest
    server: Proposal
    again: Callable[[Sequence[Manifest]], Proposal | None]


def _found(manifests: Sequence[Manifest], editable: bool) -> Iterator[_Found]:
    for m, manifest in enumerate(manifests):
        for number, server in enumerate(ray_servers(manifest, editable=editable)):
            yield _Found(manifest, server, partial(_engine, m, number))
        made = made_of(manifest, manifests)
        for k, described in enumerate((manifest,) if made is None else made):
            for pod in pods_of(described):
                reader = _Pod(described, pod, manifests, editable)
                for place, server in reader.servers():
                    again = partial(_container, m, None if made is None else k, pod, place)
                    yield _Found(manifest, server, again)


def _engine(m: int, number: int, manifests: Sequence[Manifest]) -> Proposal | None:
    return next(islice(ray_servers(manifests[m]), number, None), None)


def _container(
    m: int, k: int | None, pod: PodPlace, place: Path, manifests: Sequence[Manifest]
) -> Proposal | None:
    described = manifests[m]
    if k is not None:
        made = made_of(described, manifests) or ()
        if k >= len(made):
            return None
        described = made[k]
    held = described.at((*pod.path, *place))
    reader = _Pod(described, pod, manifests, editable=True)
    return reader.server(held, place) if isinstance(held, Mapping) else None


def _told_apart(subjects: Iterable[str]) -> Iterator[str]:
    """Number what is named alike: objects of several namespaces, or a mistake."""
    seen: Counter[str] = Counter()
    for subject in subjects:
        seen[subject] += 1
        yield subject if seen[subject] == 1 else f"{subject} #{seen[subject]}"


def _rereading(
    manifests: Sequence[Manifest], entry: _Found, number: int, count: int
) -> Callable[[str], Proposal]:
    """Give what reads the server again from an edited text: all of a stream, or one object.

    Of many servers it alone is read again, beside the others as they were.
    """
    manifest = entry.manifest

    def reread(text: str) -> Proposal:
        if isinstance(manifest.places, YamlPlaces):
            edited = read_manifests(text, manifest.places.source)
        else:
            changed = manifest_of(json.loads(text))
            edited = tuple(changed if other is manifest else other for other in manifests)
        server: Proposal | None
        if count <= _FEW:
            servers = servers_in(edited, at_most=count)
            server = servers[number] if number < len(servers) else None
        else:
            server = entry.again(edited) if len(edited) == len(manifests) else None
            if server is not None:
                further = replace(entry, manifest=edited[_index(manifests, manifest)])
                again = _rereading(edited, further, number, count)
                server = replace(server, reread=again)
        if server is None:
            raise InvalidEnvelope("it starts vLLM no longer")
        return server

    return reread


def _index(manifests: Sequence[Manifest], manifest: Manifest) -> int:
    return next(i for i, other in enumerate(manifests) if other is manifest)


def _among(servers: Sequence[Proposal], server: Proposal) -> Workload | None:
    others = tuple(other for other in servers if other is not server)
    return None if server.workload is None else replace(server.workload, neighbours=others)


class _Pod:
    def __init__(
        self, manifest: Manifest, pod: PodPlace, stream: Sequence[Manifest], editable: bool
    ) -> None:
        self._editable = editable
        self._manifest = manifest
        self._pod = pod
        self._stream = stream
        self._spec: Mapping[str, Any] = manifest.at(pod.path)

    def servers(self) -> Iterator[tuple[Path, Proposal]]:
        """Give the servers with the places of their containers in the pod."""
        for place, container in containers_of(self._spec):
            server = self.server(container, place)
            if server is not None:
                yield place, server

    def server(
        self, container: Mapping[str, Any], place: Path, index: int | None = None
    ) -> Proposal | None:
        """Read one container; None if it starts no vLLM. `index` is that of a pod in its group."""
        path: Path = (*self._pod.path, *place)
        mounted = Mounted(self._spec, container, self._stream, self._manifest.namespace)
        scripts = mounted.places()
        if _is_another_program(container) and not any(_starts_vllm(s) for s in scripts.values()):
            return None
        self._refuse_long_lists(container, path)
        environment = Environment(self._manifest, path, self._stream, index)
        variables = environment.read()
        words = _Words(self._manifest, variables, environment.room)
        image = self._image(container, path)
        command = words.read((*path, "command"))
        arguments = words.read((*path, "args")) or ()
        files = mounted.texts()
        reader = _reader(files, scripts)
        around = Surroundings(Form.KUBERNETES, words.holder(path), reader, files, scripts)
        at = self._manifest.places.location(path)
        if command is None:
            if not arguments and (is_dynamo(self._manifest, self._pod) or is_of_ray(self._pod)):
                return None  # the operator knows what it runs: a frontend, a node of Ray
            command = presumed_command(container.get("name"), image, arguments, at)
        started = Container(image, command, arguments, variables, at)
        proposal = self._started(started, around)
        if proposal is None:
            return None
        if proposal.only_environment and environment.indices:
            each = self._each(container, place, environment.indices)
            if each is not None:
                return each
        remarks: list[Finding] = []
        if not isinstance(proposal.text, NestedText):  # no shell reads the words
            remarks.extend(quoted_json(proposal))
        gpus = Gpus(self._manifest, self._pod, path)
        asked = gpus.hardware(image, None, None)
        present = None if asked is None else asked.count
        proposal = with_ranks(proposal, self._manifest, self._pod, present)
        annotations = Annotations(self._manifest, self._pod.path)
        # What a script that cannot be read asks of the pod is not known.
        unread = proposal.only_environment
        workload = None if unread else self._workload(container, place, gpus.share())
        return replace(
            proposal,
            **self._editing(path),
            subject=self._subject(container),
            files={**files, **proposal.files},
            file_texts=scripts if self._editable else {},
            write_file=mounted.written,
            model_config=annotations.model_config or _model_config(proposal, files),
            hardware=gpus.hardware(image, proposal.program, annotations.memory_in_use),
            findings=(
                *(*environment.findings, *words.findings, *annotations.findings),
                *(*proposal.findings, *remarks),
            ),
            workload=workload,
            vllm_version=annotations.vllm_version,
            suppressions=tuple(annotations.suppressions()),
            pods=tuple(self._pods(proposal, container, place, environment.indices)),
        )

    def _pods(
        self,
        proposal: Proposal,
        container: Mapping[str, Any],
        place: Path,
        indices: Iterable[int],
    ) -> Iterator[tuple[str, Proposal]]:
        """Read the container as pods of its group start it, if it asks for their index."""
        words = (name for word in proposal.words for name in word.unresolved)
        variables = proposal.environment.values()
        others = (name for v in variables if v.name != POD_INDEX for name in v.unresolved)
        if POD_INDEX not in {*words, *others}:
            return
        for index in indices:
            read = self.server(container, place, index)
            if read is not None:
                yield f"{POD_INDEX}={index}", read

    def _each(
        self, container: Mapping[str, Any], place: Path, indices: Iterable[int]
    ) -> Proposal | None:
        """Read what pods of a group start whose script hangs on their index.

        It is the first one's that starts a server; the others of those are its `pods`. None if
        the script of one cannot be read, or none of them starts any.
        """
        read = ((i, self.server(container, place, i)) for i in indices)
        started = [(f"{POD_INDEX}={i}", server) for i, server in read if server is not None]
        if not started or any(server.only_environment for _, server in started):
            return None
        return replace(started[0][1], pods=tuple(started) if len(started) > 1 else ())

    def _started(self, started: Container, around: Surroundings) -> Proposal | None:
        """Give what the container starts; a script that is none of vLLM's is passed over."""
        try:
            proposal = contained(started, around)
        except AdmissionError as error:
            if any(problem.code == NOT_STARTED for problem in error.problems):
                return None
            words = (*(started.entrypoint or ()), *started.arguments)
            held = around.scripts
            scripts = [p for p in words if _STARTS_VLLM.search(p.text) or _names_one(p, held)]
            if not scripts:
                return None
            return Proposal(
                form=Form.KUBERNETES,
                environment=started.environment,
                command=started.at,
                image=started.image,
                only_environment=True,
                text=around.text,
                findings=(script_unread(scripts[0], error),),
            )
        return proposal or _one_word(started.entrypoint, started.environment, around)

    def _refuse_long_lists(self, container: Mapping[str, Any], path: Path) -> None:
        for member in ("command", "args", "env"):
            held = container.get(member)
            if isinstance(held, list) and len(held) > _MAX_ITEMS:
                raise InvalidEnvelope(
                    f"{self._manifest.title} {pointer_of((*path, member))} has {len(held)} items; "
                    f"at most {_MAX_ITEMS} are read"
                )

    def _editing(self, path: Path) -> dict[str, Any]:
        """Give what edits go through: the text, and what writes into it."""
        places = self._manifest.places
        if not self._editable:
            return {"source": None, "writer": None}
        manifest = self._manifest
        if isinstance(places, MappedPlaces):
            manifest, container = places.original, places.direct
            if container is None:
                return {"source": text_of(manifest), "writer": MadeWriter(places)}
            places, path = manifest.places, container
        if isinstance(places, YamlPlaces):
            return {"source": places.index.text, "writer": YamlWriter(places, path)}
        return {"source": text_of(manifest), "writer": JsonWriter(manifest, path)}

    def _subject(self, container: Mapping[str, Any]) -> str:
        parts = [self._manifest.title, self._pod.role, container.get("name")]
        return " ".join(part for part in parts if isinstance(part, str) and part)

    def _image(self, container: Mapping[str, Any], path: Path) -> Image | None:
        text = container.get("image")
        if not isinstance(text, str) or not text:
            return None
        return Image(text, self._manifest.places.location((*path, "image")))

    def _is_partial(self) -> bool:
        places = self._manifest.places
        if isinstance(places, MappedPlaces):
            return places.plan.partial
        return is_dynamo(self._manifest, self._pod)

    def _workload(
        self, container: Mapping[str, Any], place: Path, share: GpuShare | None
    ) -> Workload:
        manifest, pod = self._manifest, self._pod
        return Workload(
            kind=manifest.kind,
            name=manifest.name,
            namespace=manifest.namespace,
            pod=self._spec,
            container=container,
            group_size=pod.group_size,
            role=pod.role,
            services=tuple(
                other.name
                for other in self._stream
                if (other.group, other.kind) == ("", "Service")
                and _is_told_of(other)
                and manifest.namespace in {"", other.namespace or manifest.namespace}
            ),
            locate=lambda path: manifest.places.location((*pod.path, *path)),
            container_path=place,
            gpu_share=share,
            partial=self._is_partial(),
        )


class _Words:
    """Reads `command` and `args`; `findings` are what came up."""

    def __init__(self, manifest: Manifest, variables: Mapping[str, Variable], room: Room) -> None:
        self._room = room
        self._manifest = manifest
        self._variables = variables
        self.findings: list[Finding] = []

    def read(self, path: Path) -> list[Piece] | None:
        """Give the words of a list; None if there is none."""
        items = self._manifest.at(path)
        if isinstance(items, str):  # Kubernetes wants a list; a few custom resources do not
            items, paths = [items], [path]
        elif isinstance(items, list) and items:
            paths = [(*path, i) for i in range(len(items))]
        else:
            return None
        return [self._piece(item, at) for item, at in zip(items, paths, strict=True)]

    def holder(self, path: Path) -> LineIndex:
        """Give a text that holds none of the words: each is a string of its own."""
        return LineIndex("", self._manifest.places.location(path).source or "object")

    def _piece(self, item: object, path: Path) -> Piece:
        places = self._manifest.places
        location = places.location(path)
        if not isinstance(item, str):
            self.findings.append(not_a_string(self._manifest, path, item))
            text = str(item)
            return Piece(Word(text, location), lambda: LineIndex(text, location.source or ""))
        read = Expanded(places.text(path), self._variables, self._room)
        return Piece(Word(read.text.text, location, read.unresolved), lambda: read.text)


def _is_another_program(container: Mapping[str, Any]) -> bool:
    """Whether nothing in a container names vLLM, so that it need not be read."""
    image = container.get("image")
    if not isinstance(image, str) or not image or Image(image).serves_vllm:
        return False
    words = [image]
    for member in ("command", "args"):
        held = container.get(member)
        words.extend(map(str, held if isinstance(held, list) else [held]))
    text = "\n".join(words)
    # A variable may hold the name.
    return not any(mark in text for mark in ("vllm", "huggingfaceserver", "$("))


def _one_word(
    command: Sequence[Piece] | None, variables: Mapping[str, Variable], around: Surroundings
) -> Proposal | None:
    """Read what a command that is one word was meant to be."""
    word = unlisted(command)
    if word is None or "vllm" not in word.text:
        return None
    try:
        meant = around.read_script(word.nested(), variables, (), "sh")
    except AdmissionError:
        return None  # it is none of vLLM's
    return replace(meant, findings=(one_word(word), *meant.findings))


def _starts_vllm(script: LineIndex) -> bool:
    return _STARTS_VLLM.search(script.text) is not None


def _names_one(piece: Piece, scripts: Mapping[str, LineIndex]) -> bool:
    """Whether a word is the path of a script that starts a server."""
    script = scripts.get(piece.text.removeprefix("exec ").strip())
    return script is not None and _starts_vllm(script)


def _reader(files: Mapping[str, str], scripts: Mapping[str, LineIndex]) -> Any:
    def read_script(
        text: LineIndex,
        environment: Mapping[str, Variable],
        open_names: Sequence[str],
        dialect: str,
    ) -> Proposal:
        read = read_shell(
            scripts.get(text.text.removeprefix("exec ").strip(), text),
            form=Form.KUBERNETES,
            environment=environment,
            files=files,
            depth=1,
            open_names=open_names,
            dialect=dialect,
        )
        at = read.command
        if at is not None and at.line and (at.line, at.column) == (at.end_line, at.end_column):
            # Nothing but variables, or words that would be taken for arguments elsewhere.
            raise MalformedDocument("the script starts no vLLM")
        return read

    return read_script


def _is_told_of(service: Manifest) -> bool:
    """Whether pods get variables for it: those with an address of the cluster's do."""
    address = service.at(("spec", "clusterIP"))
    return address not in ("None", "") and service.at(("spec", "type")) != "ExternalName"


def _model_config(proposal: Proposal, files: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Read the config.json that a ConfigMap of the stream puts into the model's directory."""
    for path, text in files.items():
        directory, slash, name = path.rpartition("/")
        named = {directory, f"{directory}/", f"--model={directory}"}
        if slash and name == "config.json" and any(w.text in named for w in proposal.words):
            return json_object(text)
    return None
