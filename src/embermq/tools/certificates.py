"""An authority of one's own, and certificates of servers and clients that it signs: for a try, and for machines that
need no other one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from embermq.app.errors import UserError

AUTHORITY_DAYS = 3_650
CLOCKS_DIFFER = timedelta(hours=1)
"""A certificate holds from that long ago, for machines whose clock is behind."""
_HOST = re.compile(r"(?!-)[A-Za-z0-9_*-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_FILE = re.compile(r"[A-Za-z0-9_@+=-][A-Za-z0-9_.@+=-]{0,63}")
_NOT_IN_FILES = re.compile(r"[^A-Za-z0-9_.-]")


class Authority:
    """In a folder: `ca.pem` is for those who check, `ca.key` signs. Made when neither is there. Raises UserError for
    files that are none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate_file, self._key_file = folder / "ca.pem", folder / "ca.key"
        self.is_new = not (self.certificate_file.exists() or self._key_file.exists())
        if self.is_new:
            self._make()
        try:
            self._certificate = x509.load_pem_x509_certificate(self.certificate_file.read_bytes())
            key = load_pem_private_key(self._key_file.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{folder} has no authority that can sign: {error}") from error
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise UserError(f"{self._key_file} is not the key of {self.certificate_file}")
        self._key = key

    def server(self, hosts: Sequence[str], *, days: int, replace: bool = False) -> tuple[Path, Path]:
        """A certificate for these names and addresses, `server.pem`, and its key, `server.key`."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        files = self._files("server", replace=replace)
        return self._sign(files, hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, names, days)

    def client(self, name: str, *, days: int, replace: bool = False) -> tuple[Path, Path]:
        """A certificate that proves a user name, and its key: files of that name."""
        if not _FILE.fullmatch(name) or name in ("ca", "server"):
            raise UserError(
                f"{name!r} cannot be a file's name here: letters, digits and _ . @ + = -, at most 64"
            )
        files = self._files(name, replace=replace)
        return self._sign(files, name, ExtendedKeyUsageOID.CLIENT_AUTH, None, days)

    def node(self, hosts: Sequence[str], *, days: int, replace: bool = False) -> Path:
        """A certificate for these names and addresses with its key in one file, for both ends of connections between
        nodes of a cluster; the file is named after the first of them."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        path = self.folder / f"node-{_NOT_IN_FILES.sub('_', hosts[0])}.pem"
        _check_absent([path], replace=replace)
        both = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        certificate, key = self._signed(hosts[0], both, names, days)
        _write(path, certificate + key, 0o600)
        return path

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = generate_private_key(SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "EmberMQ authority")])
        builder = _builder(name, name, key.public_key(), datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        _write(self._key_file, _key_pem(key), 0o600)
        _write(self.certificate_file, builder.sign(key, SHA256()).public_bytes(Encoding.PEM), 0o644)

    def _files(self, name: str, *, replace: bool) -> tuple[Path, Path]:
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _check_absent(files, replace=replace)
        return files

    def _sign(
        self,
        files: tuple[Path, Path],
        name: str,
        purpose: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
        days: int,
    ) -> tuple[Path, Path]:
        certificate, key = self._signed(name, (purpose,), names, days)
        _write(files[1], key, 0o600)
        _write(files[0], certificate, 0o644)
        return files

    def _signed(
        self,
        name: str,
        purposes: Sequence[x509.ObjectIdentifier],
        names: x509.SubjectAlternativeName | None,
        days: int,
    ) -> tuple[bytes, bytes]:
        """A certificate and its key, as PEM."""
        now, authority_end = datetime.now(UTC), self._certificate.not_valid_after_utc
        if authority_end <= now:
            raise UserError(
                f"{self.certificate_file} has ended on {authority_end:%Y-%m-%d}: take another folder"
            )
        end = min(now + timedelta(days=days), authority_end)
        key = generate_private_key(SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        builder = _builder(subject, self._certificate.subject, key.public_key(), end)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM), _key_pem(key)


def _check_absent(files: Sequence[Path], *, replace: bool) -> None:
    there = [str(path) for path in files if path.exists()]
    if there and not replace:
        raise UserError(f"{' and '.join(there)} already there; --replace makes another one")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(datetime.now(UTC) - CLOCKS_DIFFER).not_valid_after(end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        if not _HOST.fullmatch(text) or len(text) > 253:
            raise UserError(f"{text!r} is neither a host name nor an address") from None
        return x509.DNSName(text)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, text: bytes, mode: int) -> None:
    """At once or not at all; nobody else can read a key even for a moment."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(text)
    fresh.replace(path)
