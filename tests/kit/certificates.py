"""Certificates of authorities that no program trusts by default."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class SelfSigned(NamedTuple):
    """The files of a certificate that is its own authority, and of its key."""

    certificate: str
    key: str

    @classmethod
    def of(cls, directory: Path, address: str) -> Self:
        """Makes a certificate for a server at the address."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = cls(str(directory / "certificate.pem"), str(directory / "key.pem"))
        _write(made.certificate, _certificate("Internal", key, "Internal", key, address, is_authority=True))
        _write_key(made.key, key)
        return made


class Issued(NamedTuple):
    """The files of an authority's certificate, and of one that it has issued, with its key. For programs that do not
    accept an authority's certificate for a server."""

    authority: str
    certificate: str
    key: str

    @classmethod
    def of(cls, directory: Path, address: str) -> Self:
        """Makes a certificate for a server at the address."""
        issuer, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        made = cls(*(str(directory / name) for name in ("authority.pem", "issued.pem", "issued-key.pem")))
        _write(made.authority, _certificate("Authority", issuer, "Authority", issuer, address, is_authority=True))
        _write(made.certificate, _certificate("Server", key, "Authority", issuer, address, is_authority=False))
        _write_key(made.key, key)
        return made


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuers_key: ec.EllipticCurvePrivateKey,
    address: str,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(issuers_key, hashes.SHA256())
    )


def _write(path: str, certificate: x509.Certificate) -> None:
    Path(path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: str, key: ec.EllipticCurvePrivateKey) -> None:
    Path(path).write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
