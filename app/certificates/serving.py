"""A server's TLS context whose certificate is exchanged without a restart.

Kubernetes renews a mounted Secret by swapping a symbolic link, and cert-manager renews the Secret.
New handshakes take the new certificate; connections that are open keep theirs.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509

from app.errors import UnusableInput

WATCH_SECONDS: Final = 5.0

_log = structlog.get_logger("vllm_admission")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate chain and its key, in a context of their own."""

    context: ssl.SSLContext
    not_before: datetime
    not_after: datetime

    def problem(self, present: datetime) -> str | None:
        if present < self.not_before:
            return f"begins at {self.not_before.isoformat()}"
        if present > self.not_after:
            return f"ended at {self.not_after.isoformat()}"
        return None


@dataclass
class ServingCertificate:
    """A certificate chain and its key on disk, and the context that serves them.

    The context of the listener has no certificate: each handshake is given the context of the pair
    in service. A pair is exchanged by one assignment, and is never half of one and half of another.

    Raises:
        UnusableInput: the files cannot be read, or do not belong together.
    """

    certificate: Path
    key: Path
    context: ssl.SSLContext = field(init=False)
    _pair: _Pair = field(init=False)
    _stamp: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Load the pair for the first time."""
        self.context = _empty_context()
        # Called without a server name too.
        self.context.sni_callback = lambda tls, _name, _listener: self._serve(tls)
        try:
            self._stamp = self._current_stamp()
            self._pair = self._load()
        except (OSError, ValueError) as error:
            raise UnusableInput(
                f"the TLS certificate {self.certificate} with the key {self.key} cannot be used: "
                f"{error}"
            ) from None

    def reload(self) -> bool:
        """Take the files' new contents, if they changed and are a pair; else keep the old.

        Raises:
            OSError, ValueError: what is there now is not usable, or not valid at present where the
                old pair is; the old one stays in service.
        """
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return False
        pair = self._load()
        present = now()
        problem = pair.problem(present)
        if problem is not None and self._pair.problem(present) is None:
            raise ValueError(f"the certificate {self.certificate} {problem}")
        self._pair = pair
        self._stamp = stamp
        return True

    async def watch(self, seconds: float = WATCH_SECONDS) -> None:
        """Reload for ever, looking every so many seconds."""
        told = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                if self.reload():
                    told = ""
                    _log.info("certificate reloaded", not_after=self._pair.not_after.isoformat())
            except Exception as error:  # whatever is in the files, it must not end the watch
                # Told once: between the two files of a pair this is what a renewal looks like.
                if str(error) != told:
                    told = str(error)
                    _log.warning("certificate not reloaded", error=told)

    @property
    def not_after(self) -> datetime:
        """When the certificate in service ends."""
        return self._pair.not_after

    def problem(self, now: datetime) -> str | None:
        """Say why the certificate in service is not valid, for `/readyz`."""
        problem = self._pair.problem(now)
        return None if problem is None else f"the certificate {self.certificate} {problem}"

    def _serve(self, tls: ssl.SSLObject) -> None:
        tls.context = self._pair.context

    def _load(self) -> _Pair:
        context = _empty_context()
        context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        leaf = x509.load_pem_x509_certificates(self.certificate.read_bytes())[0]
        return _Pair(context, leaf.not_valid_before_utc, leaf.not_valid_after_utc)

    def _current_stamp(self) -> tuple[int, ...]:
        found = (path.stat() for path in (self.certificate, self.key))
        return tuple(number for s in found for number in (s.st_ino, s.st_mtime_ns, s.st_size))


def _empty_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_passphrase() -> str:
    """Refuse, where OpenSSL would ask at the terminal and wait."""
    raise ValueError("the key has a passphrase, which nobody is here to say")


def now() -> datetime:
    """The present, as certificates write it."""
    return datetime.now(UTC)
