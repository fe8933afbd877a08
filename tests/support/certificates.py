"""Certificates for tests, made on the spot: an authority, servers, clients, and what the authority has revoked."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOSTS = ("localhost", "127.0.0.1", "::1")


class Authority:
    """Writes PEM files into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._ca = trustme.CA()
        self._certificate = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        self._revoked: list[int] = []
        self.certificate = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.certificate))

    def server(self, name: str = "server", *, hosts: Sequence[str] = HOSTS) -> Path:
        """Certificate and key in one file, which is replaced when it is there."""
        path = self.folder / f"{name}.pem"
        self._ca.issue_cert(*hosts, organization_name=name).private_key_and_cert_chain_pem.write_to_path(
            str(path)
        )
        return path

    def client(self, *subject: tuple[x509.ObjectIdentifier, str], lives_h: int = 24) -> Path:
        """Certificate and key in one file; without a subject given its common name is `pump-7`. With `lives_h` of 0 or
        less it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = subject or ((NameOID.COMMON_NAME, "pump-7"),)
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(kind, value) for kind, value in names]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=48))
            .not_valid_after(now + timedelta(hours=lives_h))
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"client-{certificate.serial_number}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return path

    def revocations(self, *revoked: Path) -> Path:
        """The list of all that were ever named here."""
        self._revoked += [x509.load_pem_x509_certificate(path.read_bytes()).serial_number for path in revoked]
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - timedelta(hours=1))
            .next_update(now + timedelta(days=1))
        )
        for serial in self._revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        path = self.folder / "crl.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def trusting(self, client: Path | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority, and shows a certificate if there is one."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if client is not None:
            context.load_cert_chain(client)
        return context

    @property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key
