"""Who a Kafka of the tests lets in: with a password, over TLS, with a certificate."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from msgspec import Struct

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class KafkaGate(Struct, frozen=True, kw_only=True):
    """With a `username`, clients show it with its password (without commas), by PLAIN or SCRAM; with a `certificate`
    (PEM, with key) and the `authority` of it they speak TLS, and with `mutual` they show one of that authority
    themselves."""

    username: str = ""
    password: str = ""
    certificate: Path | None = None
    authority: Path | None = None
    mutual: bool = False

    @property
    def protocol(self) -> str:
        """As Kafka calls it."""
        transport = "SSL" if self.certificate else "PLAINTEXT"
        return f"SASL_{transport}" if self.username else transport

    def url(self, port: int) -> str:
        """As `stores.log` takes it."""
        scheme = "kafka+ssl" if self.certificate else "kafka"
        user = f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@" if self.username else ""
        return f"{scheme}://{user}127.0.0.1:{port}"

    def settings(self, folder: Path) -> dict[str, str]:
        """Lines of server.properties for the listener BROKER; writes what Java can read of the certificate."""
        settings: dict[str, str] = {}
        if self.username:
            login = "org.apache.kafka.common.security"
            password = self.password.replace("\\", r"\\").replace('"', r"\"")
            plain = f'{login}.plain.PlainLoginModule required user_{self.username}="{password}";'
            settings |= {
                "sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM]),
                "plain.sasl.jaas.config": plain,
            }
            for mechanism in SCRAM:
                settings[f"{mechanism.lower()}.sasl.jaas.config"] = (
                    f"{login}.scram.ScramLoginModule required;"
                )
        if self.certificate:
            assert self.authority is not None
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(for_java(self.certificate, folder / "server.pem")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority),
                "ssl.client.auth": "required" if self.mutual else "none",
            }
        return {f"listener.name.broker.{name}": value for name, value in settings.items()}

    def format_words(self) -> list[str]:
        """What the making of the folder of data is told, since passwords of SCRAM are kept there."""
        user = f"[name={self.username},password={self.password}]"
        return [word for kind in SCRAM for word in ("--add-scram", f"{kind}={user}")] if self.username else []


def for_java(certificate: Path, to: Path) -> Path:
    """The same key and certificates, the key as PKCS #8, which is all that Java understands."""
    pem = certificate.read_bytes()
    key = load_pem_private_key(pem, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [found.public_bytes(Encoding.PEM) for found in x509.load_pem_x509_certificates(pem)]
    to.write_bytes(key + b"".join(chain))
    return to
