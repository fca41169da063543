"""A certificate for the webhook's Service, signed by an authority made for it alone.

The authority's key is thrown away: nothing else can ever be signed with it. A renewal makes a new
authority, and the bundle that clients trust keeps the one before, so that no call fails while the
new certificate reaches the pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID: Final = timedelta(days=365)
RENEW_BEFORE: Final = timedelta(days=120)
# Clocks of nodes differ.
_EARLIER: Final = timedelta(hours=1)
_KEPT_AUTHORITIES: Final = 2


@dataclass(frozen=True, slots=True)
class Issued:
    """PEM texts: what clients trust (newest first), the server's certificate, and its key."""

    authorities: bytes
    certificate: bytes
    key: bytes


def issue(names: Sequence[str], now: datetime, former: bytes = b"") -> Issued:
    """Make a certificate for the DNS names; `former` is the bundle that clients trust today."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name(f"vllm-admission {now:%Y-%m-%dT%H:%M:%SZ}")
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = (
        _builder(_name(names[0][:64]), authority_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(server, critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    kept = _read(former)[: _KEPT_AUTHORITIES - 1]
    return Issued(
        authorities=b"".join(a.public_bytes(Encoding.PEM) for a in (authority, *kept)),
        certificate=certificate.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def still_good(
    certificate: bytes, key: bytes, authorities: bytes, names: Sequence[str], now: datetime
) -> bool:
    """Whether the certificate, all PEM, can stay.

    It is for these names, belongs to the key, is vouched for by one of the authorities, and is not
    due for renewal.
    """
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
        extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        own = load_pem_private_key(key, None).public_key() == leaf.public_key()
    except (TypeError, ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False
    held = set(extension.value.get_values_for_type(x509.DNSName))
    valid = leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc - RENEW_BEFORE
    return own and valid and held >= set(names) and _vouched_for(leaf, authorities)


def _vouched_for(leaf: x509.Certificate, authorities: bytes) -> bool:
    for authority in _read(authorities):
        with suppress(ValueError, TypeError, InvalidSignature):
            leaf.verify_directly_issued_by(authority)
            return True
    return False


def _read(authorities: bytes) -> list[x509.Certificate]:
    """Give what is in a bundle; nothing, if that is no certificate."""
    try:
        return x509.load_pem_x509_certificates(authorities)
    except ValueError:
        return []


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + VALID)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
