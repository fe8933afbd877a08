"""Lets the Java that is installed beside EmberMQ trust the authorities that this machine trusts."""

import ssl
import warnings
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

_PASSWORD = "no secret"
"""Java wants one; the file holds public certificates."""


def trust_of_the_machine(file: Path) -> list[str]:
    """Flags for a JVM that trusts what Python trusts, SSL_CERT_FILE included; writes `file`.

    None when Python knows no authority: then Java's own list holds.
    """
    trusted: list[PKCS12Certificate] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old authorities have serial numbers that are frowned upon today
        for number, der in enumerate(ssl.create_default_context().get_ca_certs(binary_form=True)):
            with suppress(ValueError):  # an authority that cannot be read is none
                trusted.append(PKCS12Certificate(x509.load_der_x509_certificate(der), f"{number}".encode()))
    if not trusted:
        return []
    file.write_bytes(serialize_java_truststore(trusted, BestAvailableEncryption(_PASSWORD.encode())))
    return [f"-Djavax.net.ssl.trustStore={file}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]
