"""A certificate is exchanged under a running server, and no call fails."""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from starlette.types import Receive, Scope, Send

from app.certificates.issue import Issued, issue
from app.certificates.serving import ServingCertificate, now
from app.errors import UnusableInput
from app.serving import listen
from tests.relay.harness import eventually

NAMES = ("localhost",)


def write(folder: Path, issued: Issued) -> tuple[Path, Path]:
    """Write both files as the kubelet does: a new directory, and a link to it that is swapped."""
    version = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    (version / "tls.crt").write_bytes(issued.certificate)
    (version / "tls.key").write_bytes(issued.key)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(version.name)
    fresh.rename(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return folder / "tls.crt", folder / "tls.key"


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


def served_by(held: ServingCertificate, trusted: ssl.SSLContext, name: str | None) -> bytes | None:
    """Shake hands in memory, and give the server's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = held.context.wrap_bio(to_server, to_client, server_side=True)
    client = trusted.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(3):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.getpeercert(binary_form=True)


def trust(*issued: Issued) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=b"".join(i.authorities for i in issued).decode())


def test_a_pair_that_is_exchanged_while_it_is_read_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two reads of a pair the kubelet may swap its link."""
    first, second, third = (issue(NAMES, now()) for _ in range(3))
    held = ServingCertificate(*write(tmp_path, first))
    trusted = trust(first, second, third)
    read = x509.load_pem_x509_certificates

    def swap_and_read(text: bytes) -> list[x509.Certificate]:
        write(tmp_path, replace(second, key=third.key))
        return read(text)

    write(tmp_path, second)
    monkeypatch.setattr(x509, "load_pem_x509_certificates", swap_and_read)
    with suppress(OSError, ValueError):
        held.reload()
    assert served_by(held, trusted, "localhost") is not None
    monkeypatch.undo()
    write(tmp_path, third)
    held.reload()
    leaf = x509.load_pem_x509_certificate(third.certificate)
    assert served_by(held, trusted, "localhost") == leaf.public_bytes(Encoding.DER)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_names_no_server_is_served_too(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    issued = issue(NAMES, now())
    held = ServingCertificate(*write(tmp_path, issued))
    trusted = trust(issued)
    trusted.check_hostname = False
    trusted.maximum_version = version
    assert served_by(held, trusted, None) is not None


def test_a_pair_that_is_not_valid_does_not_replace_one_that_is(tmp_path: Path) -> None:
    first = issue(NAMES, now())
    held = ServingCertificate(*write(tmp_path, first))
    for shift, says in ((timedelta(days=-400), "ended at"), (timedelta(days=2), "begins at")):
        write(tmp_path, issue(NAMES, now() + shift))
        for _ in range(2):
            with pytest.raises(ValueError, match=says):
                held.reload()
        assert held.problem(now()) is None
        assert served_by(held, trust(first), "localhost") is not None
    last = issue(NAMES, now())
    write(tmp_path, last)
    assert held.reload()
    assert served_by(held, trust(last), "localhost") is not None


def test_where_none_is_valid_the_newest_is_served(tmp_path: Path) -> None:
    held = ServingCertificate(*write(tmp_path, issue(NAMES, now() - timedelta(days=800))))
    assert "ended at" in (held.problem(now()) or "")
    write(tmp_path, issue(NAMES, now() + timedelta(days=2)))
    assert held.reload()
    assert "begins at" in (held.problem(now()) or "")


def test_nobody_is_asked_for_a_passphrase(tmp_path: Path) -> None:
    issued = issue(NAMES, now())
    key = load_pem_private_key(issued.key, None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    with pytest.raises(UnusableInput, match="passphrase"):
        ServingCertificate(*write(tmp_path, replace(issued, key=locked)))


@pytest.mark.asyncio
async def test_no_call_fails_whatever_is_in_the_files_meanwhile(tmp_path: Path) -> None:
    good = [issue(NAMES, now()) for _ in range(4)]
    stranger = issue(NAMES, now())
    expired = issue(NAMES, now() - timedelta(days=400))
    held = ServingCertificate(*write(tmp_path, good[0]))
    trusted = trust(*good)
    ended = asyncio.Event()
    seen: set[bytes | None] = set()

    async def call_for_ever(url: str) -> None:
        while not ended.is_set():
            async with (
                httpx.AsyncClient(verify=trusted, trust_env=False) as client,
                client.stream("GET", url) as response,
            ):
                tls = response.extensions["network_stream"].get_extra_info("ssl_object")
                seen.add(tls.getpeercert(binary_form=True))

    async def until_served(number: int) -> None:
        await eventually(lambda: len(seen) == number)

    async with served(held) as url, asyncio.timeout(30):
        callers = [asyncio.create_task(call_for_ever(url)) for _ in range(3)]
        for number, issued in enumerate(good[1:], 2):
            for broken in (
                replace(issued, key=stranger.key),
                replace(issued, certificate=issued.certificate[:200]),
                replace(issued, key=b""),
                replace(issued, certificate=b"\0\xff"),
                expired,
            ):
                write(tmp_path, broken)
                await asyncio.sleep(0.03)
            (tmp_path / "..data").unlink()
            await asyncio.sleep(0.03)
            write(tmp_path, issued)
            await until_served(number)
        ended.set()
        await asyncio.gather(*callers)
    assert len(seen) == len(good)


def test_what_is_no_pair_is_refused_at_start(tmp_path: Path) -> None:
    certificate, key = write(tmp_path, replace(issue(NAMES, now()), key=issue(NAMES, now()).key))
    with pytest.raises(UnusableInput, match=r"tls\.crt with the key .*tls\.key cannot be used"):
        ServingCertificate(certificate, key)
    with pytest.raises(UnusableInput, match="No such file"):
        ServingCertificate(tmp_path / "none.crt", key)


def test_the_end_of_its_validity_is_told(tmp_path: Path) -> None:
    held = ServingCertificate(*write(tmp_path, issue(NAMES, now())))
    assert held.problem(now()) is None
    assert "ended at" in (held.problem(now() + timedelta(days=366)) or "")
