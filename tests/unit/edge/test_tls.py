"""Contexts from files, and names from certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from tests.support.certificates import Authority

from embermq.edge.settings import TlsSettings
from embermq.edge.tls import TlsFileError, identity_of, server_context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.server()
    made.revocations()
    return made


def refusal(settings: TlsSettings) -> tuple[str, str]:
    with pytest.raises(TlsFileError) as caught:
        server_context(settings, ("mqtt",))
    return caught.value.name, str(caught.value)


def test_files_that_cannot_be_used_are_told_by_key(authority: Authority, tmp_path: Path) -> None:
    server, ca = str(authority.folder / "server.pem"), str(authority.certificate)
    empty = tmp_path / "empty"
    empty.write_text("")
    other = str(authority.server("other"))
    wants = {"cert": server, "client_certificates": "required"}
    assert refusal(TlsSettings(cert="nowhere")) == ("cert", "cannot read nowhere: No such file or directory")
    assert refusal(TlsSettings(cert=server, key="nowhere"))[0] == "key"
    assert refusal(TlsSettings(cert=ca))[0] == "cert"
    assert refusal(TlsSettings(cert=str(empty)))[0] == "cert"
    assert refusal(TlsSettings(cert=server, key=other)) == (
        "key",
        f"does not belong to the certificate in {server}",
    )
    assert refusal(TlsSettings(**wants, ca=str(empty)))[0] == "ca"  # type: ignore[arg-type]
    assert refusal(TlsSettings(**wants, ca=ca, crl=ca))[0] == "crl"  # type: ignore[arg-type]
    assert refusal(TlsSettings(**wants, ca=str(authority.folder / "crl.pem")))[0] == "ca"  # type: ignore[arg-type]


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(
    authority: Authority, tmp_path: Path
) -> None:
    server = authority.folder / "server.pem"
    key = serialization.load_pem_private_key(server.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert refusal(TlsSettings(cert=str(server), key=str(locked))) == ("key", "the key has a passphrase")


def subject(*pairs: tuple[str, str]) -> dict[str, object]:
    """As `getpeercert` shows it, the least specific part first."""
    return {"subject": tuple((pair,) for pair in pairs)}


@pytest.mark.parametrize(
    ("certificate", "how", "name"),
    [
        (subject(("organizationName", "Acme"), ("commonName", "pump-7")), "cn", "pump-7"),
        (subject(("organizationName", "Acme"), ("commonName", "pump-7")), "subject", "CN=pump-7,O=Acme"),
        (subject(("commonName", "pump-7")), "off", None),
        (subject(("commonName", "a"), ("commonName", "b")), "cn", None),
        (subject(("organizationName", "Acme")), "cn", None),
        (subject(("commonName", "")), "cn", None),
        (subject(("commonName", "a\0b")), "cn", None),
        (subject(("commonName", "a\nb")), "subject", None),
        (subject(("commonName", "a,O=Other")), "subject", r"CN=a\,O\=Other"),
        (subject(("commonName", "#1 ")), "subject", "CN=\\#1\\ "),
        ({"subject": ((("commonName", "a"), ("userId", "7")),)}, "subject", "CN=a+UID=7"),
        (subject(("emailAddress", "a@example.org")), "subject", "emailAddress=a@example.org"),
        (subject(), "subject", None),
        ({}, "cn", None),
        (None, "cn", None),
    ],
)
def test_names_in_certificates(certificate: object, how: str, name: str | None) -> None:
    assert identity_of(certificate, how) == name


def test_a_subject_is_escaped_so_that_no_two_have_one_name(authority: Authority) -> None:
    assert identity_of(subject(("commonName", "a"), ("organizationName", "b")), "subject") != identity_of(
        subject(("commonName", "a,O=b")), "subject"
    )
    assert x509.load_pem_x509_certificate(
        authority.client().read_bytes()
    ).subject.rfc4514_string() == identity_of(subject(("commonName", "pump-7")), "subject")
