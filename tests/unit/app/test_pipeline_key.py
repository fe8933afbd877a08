"""The key that is shown to Kafka is read by Java as well, which understands one form of it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from msgspec.structs import replace

from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.app.pipeline_side import driver_settings

PLAIN = NoEncryption()


def settings_with(path: Path) -> Settings:
    settings = Settings()
    stores = replace(settings.stores, log=f"kafka+ssl://127.0.0.1:9093?cert_file={quote(str(path))}")
    return replace(settings, stores=stores)


def key_file(folder: Path, form: PrivateFormat, encryption: KeySerializationEncryption = PLAIN) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = folder / "own.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, form, encryption) + b"-----BEGIN CERTIFICATE-----\n")
    return path


@pytest.mark.parametrize(
    ("form", "encryption", "kind"),
    [
        (PrivateFormat.TraditionalOpenSSL, PLAIN, "form RSA PRIVATE KEY"),
        (PrivateFormat.PKCS8, BestAvailableEncryption(b"x"), "form ENCRYPTED PRIVATE KEY"),
    ],
)
def test_a_key_that_java_cannot_read_is_refused_by_what_it_is(
    tmp_path: Path, form: PrivateFormat, encryption: KeySerializationEncryption, kind: str
) -> None:
    path = key_file(tmp_path, form, encryption)
    with pytest.raises(StartError, match=rf"stores.log: cert_file '{path}' has a key of the {kind}.*PKCS #8"):
        driver_settings(settings_with(path))


def test_a_key_as_java_wants_it_is_taken_and_none_is_not(tmp_path: Path) -> None:
    path = key_file(tmp_path, PrivateFormat.PKCS8)
    assert driver_settings(settings_with(path)).kafka is not None
    path.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(StartError, match="has no private key"):
        driver_settings(settings_with(path))
    with pytest.raises(StartError, match=r"cannot read .*: No such file or directory"):
        driver_settings(settings_with(tmp_path / "missing.pem"))


def test_a_key_of_a_kind_that_java_does_not_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.pem"
    curve, edwards = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, PLAIN))
    assert driver_settings(settings_with(path)).kafka is not None
    path.write_bytes(edwards.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, PLAIN))
    with pytest.raises(StartError, match="has an Ed25519PrivateKey: the pipeline runs on Java"):
        driver_settings(settings_with(path))
    path.write_text("-----BEGIN PRIVATE KEY-----\nTk9ORQ==\n-----END PRIVATE KEY-----\n")
    with pytest.raises(StartError, match="has a key that cannot be read"):
        driver_settings(settings_with(path))
