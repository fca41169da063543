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


@dataclass
class ServingCertificate:
    """A certificate chain and its key on disk, and the context that serves them.

    Raises:
        UnusableInput: the files cannot be read, or do not belong together.
    """

    certificate: Path
    key: Path
    context: ssl.SSLContext = field(init=False)
    not_after: datetime = field(init=False)
    _stamp: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Load the pair for the first time."""
        self.context = _empty_context()
        try:
            self._stamp = self._current_stamp()
            self._load()
        except (OSError, ValueError) as error:
            raise UnusableInput(
                f"the TLS certificate {self.certificate} with the key {self.key} cannot be used: "
                f"{error}"
            ) from None

    def reload(self) -> bool:
        """Take the files' new contents, if they changed and are a pair; else keep the old.

        Raises:
            OSError, ValueError: what is there now is not usable; the old pair stays in service.
        """
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return False
        self._load()
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
                    _log.info("certificate reloaded", not_after=self.not_after.isoformat())
            except (OSError, ValueError) as error:
                # Told once: between the two files of a pair this is what a renewal looks like.
                if str(error) != told:
                    told = str(error)
                    _log.warning("certificate not reloaded", error=told)

    def problem(self, now: datetime) -> str | None:
        """Say why the certificate in service is not valid, for `/readyz`."""
        if now > self.not_after:
            return f"the certificate {self.certificate} ended at {self.not_after.isoformat()}"
        return None

    def _load(self) -> None:
        # In a context of its own first: a pair that does not match would leave the live one broken.
        _empty_context().load_cert_chain(self.certificate, self.key)
        leaf = x509.load_pem_x509_certificates(self.certificate.read_bytes())[0]
        self.context.load_cert_chain(self.certificate, self.key)
        self.not_after = leaf.not_valid_after_utc

    def _current_stamp(self) -> tuple[int, ...]:
        found = (path.stat() for path in (self.certificate, self.key))
        return tuple(number for s in found for number in (s.st_ino, s.st_mtime_ns, s.st_size))


def _empty_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def now() -> datetime:
    """The present, as certificates write it."""
    return datetime.now(UTC)
