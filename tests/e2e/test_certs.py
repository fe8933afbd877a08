"""`embermq certs`: what it makes lets a client and a broker find each other right, and nobody else."""

from __future__ import annotations

import ssl
import subprocess
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.support.broker_process import EMBERMQ, START_S, BrokerProcess, free_port
from tests.support.raw_client import RawClient, dial


def certs(*words: str | Path, code: int = 0) -> str:
    """Run `embermq certs`; returns what it printed."""
    command = [str(EMBERMQ), "certs", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def strict(folder: Path, client: str = "") -> ssl.SSLContext:
    """As Python 3.13 and newer check: an authority has to say what its key is for."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if client:
        context.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    return context


def test_a_client_and_a_broker_with_certificates_of_one_authority(tmp_path: Path) -> None:
    folder, other = tmp_path / 'an "own" one', tmp_path / "other"
    said = certs("server", "localhost", "127.0.0.1", "--folder", folder)
    certs("client", "pump-7", "--folder", folder)
    certs("client", "pump-7", "--folder", other)
    settings = tomllib.loads(said)
    assert settings["listeners"] == {"mqtts": "0.0.0.0:8883"}
    port = free_port()
    given = {f"tls.{name}": path for name, path in settings["tls"].items()}
    given |= {"listeners.mqtts": f"127.0.0.1:{port}"}
    with BrokerProcess(tmp_path / "data", settings=given) as broker:
        with dial(port, tls=strict(folder, "pump-7")) as sock:
            assert RawClient(sock).enter("one") == 0
        assert "user=pump-7" in broker.output()
        stranger = strict(folder)
        stranger.load_cert_chain(other / "pump-7.pem", other / "pump-7.key")
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)), dial(port, tls=stranger) as sock:
            RawClient(sock).enter("two")
        with pytest.raises(ssl.SSLError):
            dial(port, tls=strict(other, "pump-7"))


def test_files_are_kept_and_keys_are_for_their_owner(tmp_path: Path) -> None:
    certs("server", "broker.example", "--folder", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.name for path in tmp_path.glob("*.key") if path.stat().st_mode & 0o77} == set()
    assert "--replace" in certs("server", "broker.example", "--folder", tmp_path, code=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    certs("server", "broker.example", "--folder", tmp_path, "--replace", "--days", "30")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.pem", "server.key"}
    made = x509.load_pem_x509_certificate(after["server.pem"])
    assert 30 <= (made.not_valid_after_utc - made.not_valid_before_utc).days <= 31


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["server", "a b"], "is neither a host name nor an address"),
        (["client", "../x"], "cannot be a file's name"),
        (["client", "ca"], "cannot be a file's name"),
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path: Path, words: list[str], why: str) -> None:
    assert why in certs(*words, "--folder", tmp_path, code=1)


def test_an_authority_that_cannot_sign_is_left_alone(tmp_path: Path) -> None:
    certs("client", "one", "--folder", tmp_path)
    (tmp_path / "ca.key").unlink()
    before = (tmp_path / "ca.pem").read_bytes()
    assert "has no authority that can sign" in certs("client", "two", "--folder", tmp_path, code=1)
    assert (tmp_path / "ca.pem").read_bytes() == before


def test_a_nodes_certificate_is_for_both_ends_and_has_its_key(tmp_path: Path) -> None:
    said = tomllib.loads(certs("node", "::1", "box", "--folder", tmp_path))["cluster"]
    path = Path(said["cert"])
    assert path == tmp_path / "node-__1.pem" and path.stat().st_mode & 0o77 == 0
    assert Path(said["ca"]) == tmp_path / "ca.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(path)
    usage = x509.load_pem_x509_certificate(path.read_bytes()).extensions.get_extension_for_class(
        x509.ExtendedKeyUsage
    )
    assert {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} == set(usage.value)
    assert "--replace" in certs("node", "::1", "--folder", tmp_path, code=1)
