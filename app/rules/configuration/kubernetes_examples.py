"""Manifests for the examples of rules that need the object, written the same way."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Example

AREA: Final = "kubernetes"
READY: Final = "readinessProbe: {httpGet: {path: /health, port: 8000}}"
SHM: Final = "- {name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}"
SHM_MOUNT: Final = "volumeMounts: [{name: shm, mountPath: /dev/shm}]"


def deployment(
    arguments: str,
    *members: str,
    pod: tuple[str, ...] = (),
    annotations: str = "",
    template_annotations: str = "",
    beside: str = "",
    after: str = "",
    note: str = "",
) -> Example:
    """Give a Deployment with one container of vLLM.

    Args:
        arguments: what follows `vllm serve`, separated by blanks.
        members: further members of the container, a line each.
        pod: further members of the pod's spec, a line each.
        annotations: one of the object's.
        template_annotations: one of its pods'.
        beside: what a second server of the pod serves, on port 8001.
        after: further documents of the stream.
        note: what is special about it.
    """
    words = ", ".join(f'"{word}"' for word in arguments.split())
    lines = [
        "apiVersion: apps/v1",
        "kind: Deployment",
        f"metadata: {{name: m, namespace: models{_annotated(annotations, ', ')}}}",
        "spec:",
        "  template:",
        *([f"    metadata: {{{_annotated(template_annotations)}}}"] * bool(template_annotations)),
        "    spec:",
        *(f"      {line}" for line in pod),
        "      containers:",
        "      - name: vllm",
        "        image: vllm/vllm-openai:v0.32.0",
        f"        args: [{words}]",
        *(f"        {line}" for line in members),
    ]
    if beside:
        second = ", ".join(f'"{word}"' for word in [*beside.split(), "--port", "8001"])
        image = "vllm/vllm-openai:v0.32.0"
        lines.append(f"      - {{name: second, image: '{image}', args: [{second}]}}")
    text = "\n".join(lines) + "\n"
    return Example(f"{text}---\n{after}" if after else text, note=note)


def _annotated(annotation: str, before: str = "") -> str:
    return f"{before}annotations: {{{annotation}}}" if annotation else ""
