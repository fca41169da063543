"""The sidecar's manifest, lived through: what the kubelet would run and ask, in its order."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.deploy.manifests import Manifest, Programs, find
from tests.relay.faulty import FaultyBackend, Peer, Seen, faulty_backend
from tests.relay.harness import client_of, eventually

GATE_PORT, VLLM_PORT = 8080, 8000


class Pod:
    """The two containers: the gate as a process, vLLM as a backend of the test's."""

    def __init__(self, spec: Manifest) -> None:
        (self.gate,), (self.vllm,) = spec["initContainers"], spec["containers"]
        body = {"model": self.vllm["args"][0], "prompt": "p", "top_k": 8, "stream": True}
        self.request = json.dumps(body).encode()
        self.process: asyncio.subprocess.Process | None = None
        self.ports: dict[int, int] = {}

    async def start_gate(self, backend: FaultyBackend) -> None:
        given = {variable["name"]: variable["value"] for variable in self.gate["env"]}
        assert given["VLLM_ADMISSION_BACKEND_URL"] == f"http://127.0.0.1:{VLLM_PORT}"
        given["VLLM_ADMISSION_BACKEND_URL"] = backend.url
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from app.cli import main; main()"),
            *(word for word in self.gate["args"] if not word.startswith(("--port", "--host"))),
            "--port=0",
            env={**os.environ, **given},
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        while (event := json.loads(await self.process.stderr.readline()))["event"] != "listening":
            pass
        vllm = int(backend.url.rsplit(":", 1)[1])
        self.ports = {GATE_PORT: int(event["url"].rsplit(":", 1)[1]), VLLM_PORT: vllm}

    async def probe(self, container: Manifest, name: str) -> bool:
        """Ask as the kubelet does."""
        probe = container[f"{name}Probe"]
        if "exec" in probe:
            return await self.run(probe["exec"]["command"]) == 0
        named = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        port = named.get(probe["httpGet"]["port"], probe["httpGet"]["port"])
        async with client_of(self.ports[port]) as client:
            return (await client.ask("GET", probe["httpGet"]["path"])).status == 200

    async def run(self, command: list[str]) -> int:
        """Run a command of the manifest, with the ports there are here."""
        python, *words = command
        assert python == "python3"
        for port, real in self.ports.items():
            words = [word.replace(f"127.0.0.1:{port}/", f"127.0.0.1:{real}/") for word in words]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()


@asynccontextmanager
async def a_pod(programs: Programs) -> AsyncIterator[Pod]:
    manifests = programs.kustomize(programs.deploy / "kustomize" / "overlays" / "sidecar")
    (deployment,) = find(manifests, "Deployment")
    pod = Pod(deployment["spec"]["template"]["spec"])
    try:
        yield pod
    finally:
        if pod.process is not None:
            with suppress(ProcessLookupError):
                pod.process.kill()
            await pod.process.communicate()


@pytest.mark.asyncio
async def test_from_the_start_to_the_end(programs: Programs) -> None:
    loaded, go_on = asyncio.Event(), asyncio.Event()

    async def vllm(request: Seen, peer: Peer) -> None:
        if "completions" in request.line:
            await peer.start_stream()
            await peer.chunk(b"data: 1\n\n")
            await go_on.wait()
            await peer.chunk(b"data: [DONE]\n\n")
            await peer.end_stream()
            return
        await peer.answer(b"", status="200 OK" if loaded.is_set() else "503 Loading")

    async with faulty_backend(vllm) as backend, a_pod(programs) as pod:
        # The gate is up before vLLM is started, and waits for nothing while that loads.
        await pod.start_gate(backend)
        for name in ("startup", "liveness", "readiness"):
            assert await pod.probe(pod.gate, name), name
        assert not await pod.probe(pod.vllm, "startup")
        assert not await pod.probe(pod.vllm, "readiness")
        loaded.set()
        for name in ("startup", "liveness", "readiness"):
            assert await pod.probe(pod.vllm, name), name

        # The pod ends: first the hook of vLLM, as long as a stream is open.
        async with client_of(pod.ports[GATE_PORT]) as client:
            await client.send("POST", "/v1/completions", body=pod.request)
            head = await client.head()
            assert await client.part() == b"data: 1\n\n"
            command = pod.vllm["lifecycle"]["preStop"]["exec"]["command"]
            hook = asyncio.create_task(pod.run(command))
            async with asyncio.timeout(20):
                while await pod.probe(pod.gate, "readiness"):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.02)
            # What drains is alive, and so is what is drained.
            assert await pod.probe(pod.gate, "liveness")
            assert await pod.probe(pod.vllm, "liveness")
            assert not hook.done()
            go_on.set()
            assert (await client.rest(head)).complete
        assert await hook == 0

        # Then vLLM, and the gate last: at once, since nothing is left.
        assert pod.process is not None
        pod.process.terminate()
        await asyncio.wait_for(pod.process.wait(), 20)


@pytest.mark.asyncio
async def test_a_gate_that_is_gone_keeps_nobody(programs: Programs) -> None:
    """The hook fails at once, vLLM is as healthy as before, and its work is ended."""

    async def vllm(request: Seen, peer: Peer) -> None:
        if "completions" not in request.line:
            await peer.answer(b"")
            return
        await peer.start_stream()
        await peer.chunk(b"data: 1\n\n")
        await backend.hang(peer)

    async with faulty_backend(vllm) as backend, a_pod(programs) as pod:
        await pod.start_gate(backend)
        async with client_of(pod.ports[GATE_PORT]) as client:
            await client.send("POST", "/v1/completions", body=pod.request)
            await client.head()
            assert await client.part() == b"data: 1\n\n"
            assert pod.process is not None
            pod.process.kill()
            await pod.process.wait()
            await eventually(backend.aborted.is_set)
        assert await pod.run(pod.vllm["lifecycle"]["preStop"]["exec"]["command"]) != 0
        assert await pod.probe(pod.vllm, "liveness")
