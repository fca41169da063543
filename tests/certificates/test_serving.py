"""A certificate is exchanged under a running server, and no call fails."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.certificates.issue import Issued, issue
from app.certificates.serving import ServingCertificate, now
from app.errors import UnusableInput
from app.serving import listen

NAMES = ("localhost",)


def write(folder: Path, issued: Issued) -> tuple[Path, Path]:
    """Write both files as Kubernetes does: a new directory, and a link that is swapped."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    (version / "tls.crt").write_bytes(issued.certificate)
    (version / "tls.key").write_bytes(issued.key)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(version.name)
    fresh.rename(folder / "..data")
    return folder / "..data" / "tls.crt", folder / "..data" / "tls.key"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(held: ServingCertificate) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        answer, lifespan="off", log_level="error", ssl_context_factory=lambda *_: held.context
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watching = asyncio.create_task(held.watch(0.02))
    try:
        yield f"https://localhost:{listener.getsockname()[1]}"
    finally:
        watching.cancel()
        server.should_exit = True
        await serving
        with suppress(asyncio.CancelledError):
            await watching


@pytest.mark.asyncio
async def test_no_call_fails_while_the_certificate_is_renewed(tmp_path: Path) -> None:
    first = issue(NAMES, now())
    second = issue(NAMES, now(), first.authorities)
    held = ServingCertificate(*write(tmp_path, first))
    trusted = ssl.create_default_context(cadata=second.authorities.decode())
    seen: list[bytes | None] = []

    async def call(url: str) -> None:
        async with (
            httpx.AsyncClient(verify=trusted, trust_env=False) as client,
            client.stream("GET", url) as response,
        ):
            assert response.status_code == 200
            tls = response.extensions["network_stream"].get_extra_info("ssl_object")
            seen.append(tls.getpeercert(binary_form=True))

    async with served(held) as url:
        for i in range(60):
            await call(url)
            if i == 10:
                write(tmp_path, second)
            if len(set(seen)) == 2:
                break
            await asyncio.sleep(0.01)
        await call(url)
    assert len(set(seen)) == 2
    assert seen[-1] != seen[0]


@pytest.mark.asyncio
async def test_a_half_written_pair_leaves_the_old_one_in_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other = issue(NAMES, now()), issue(NAMES, now())
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(first.certificate)
    key.write_bytes(first.key)
    held = ServingCertificate(certificate, key)
    trusted = ssl.create_default_context(cadata=first.authorities.decode())
    async with served(held) as url:
        certificate.write_bytes(other.certificate)
        with pytest.raises(ssl.SSLError, match=r"(?i)mismatch"):
            held.reload()
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            assert (await client.get(url)).text == "ok"
        await asyncio.sleep(0.1)
    assert capsys.readouterr().out.count("certificate not reloaded") == 1


def test_what_is_no_pair_is_refused_at_start(tmp_path: Path) -> None:
    certificate, key = write(tmp_path, issue(NAMES, now()))
    key.write_bytes(issue(NAMES, now()).key)
    with pytest.raises(UnusableInput, match=r"tls\.crt with the key .*tls\.key cannot be used"):
        ServingCertificate(certificate, key)
    with pytest.raises(UnusableInput, match="No such file"):
        ServingCertificate(tmp_path / "none.crt", key)


def test_the_end_of_its_validity_is_told(tmp_path: Path) -> None:
    held = ServingCertificate(*write(tmp_path, issue(NAMES, now())))
    assert held.problem(now()) is None
    assert "ended at" in (held.problem(now() + timedelta(days=366)) or "")
