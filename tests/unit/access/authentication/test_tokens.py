"""Tokens: which are taken, which are not, and what the log says of them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from embermq.access.authentication.checks import Checks
from embermq.access.authentication.errors import ChainError
from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.settings import JwtSettings
from embermq.access.authentication.step import NOT_MINE, Admit, Applicant, Deny
from embermq.access.authentication.tokens import LEEWAY_S, LOOK_S, Key, KeyFiles, TokenStep
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode

SECRET = b"s" * 64
RSA_KEY = rsa.generate_private_key(65_537, 2_048)
SMALL_RSA_KEY = rsa.generate_private_key(65_537, 1_024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
EC_384_KEY = ec.generate_private_key(ec.SECP384R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
ALL = ("HS256", "HS384", "HS512", "RS256", "PS256", "ES256", "ES384", "EdDSA")
VISITOR = Visitor(False, None, ClientType.DEVICE, None, "192.0.2.1")


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(key: object, **more: object) -> dict[str, object]:
    if isinstance(key, rsa.RSAPrivateKey):
        made = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        made = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        assert isinstance(key, ed25519.Ed25519PrivateKey)
        made = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**made, **more}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, object]:
    """Settings with a key of each kind."""
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    (tmp_path / "rsa.pem").write_bytes(pem(RSA_KEY))
    (tmp_path / "ec.pem").write_bytes(pem(EC_KEY))
    (tmp_path / "ed.pem").write_bytes(pem(ED_KEY))
    return {
        "hmac_secret_file": str(tmp_path / "secret"),
        "public_key_files": tuple(str(tmp_path / name) for name in ("rsa.pem", "ec.pem", "ed.pem")),
        "algorithms": ALL,
    }


def claims(**more: object) -> dict[str, object]:
    return {"sub": "pump-7", "exp": int(time.time()) + 600, **more}


def signed(
    payload: dict[str, object], key: object = SECRET, algorithm: str = "HS256", **header: object
) -> bytes:
    return jwt.encode(payload, key, algorithm, headers=header or None).encode()  # type: ignore[arg-type]


def answer(
    files: dict[str, object], token: bytes | None, *, client_id: str = "c1", **settings: object
) -> Admit | Deny | object:
    async def scenario() -> object:
        checks = Checks(1, 1)
        step = TokenStep(JwtSettings(**{**files, **settings}), checks)  # type: ignore[arg-type]
        applicant = Applicant(client_id, "anything", token, VISITOR)
        looked = step.look(applicant)
        try:
            return NOT_MINE if looked is NOT_MINE else await step.check(applicant)
        finally:
            checks.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (SECRET, "HS256"),
        (SECRET, "HS512"),
        (RSA_KEY, "RS256"),
        (RSA_KEY, "PS256"),
        (EC_KEY, "ES256"),
        (ED_KEY, "EdDSA"),
    ],
)
def test_a_token_of_any_kind_names_the_user(files: dict[str, object], key: object, algorithm: str) -> None:
    exp = int(time.time()) + 600
    found = answer(files, signed(claims(exp=exp), key, algorithm))
    assert found == Admit("pump-7", ClientType.DEVICE, expires_ms=(exp + 5) * 1000)


def told(found: object) -> str:
    assert isinstance(found, Deny), found
    assert found.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD
    return found.why


@pytest.mark.parametrize(
    ("more", "settings", "why"),
    [
        ({"exp": 1_000_000_000}, {}, "expired"),
        ({"exp": "soon"}, {}, "malformed"),
        ({"exp": float("inf")}, {}, "malformed"),
        ({"exp": 1e300}, {}, "its exp is not a Unix time in seconds up to the year 9999"),
        ({"exp": 10**300}, {}, "its exp is not a Unix time in seconds up to the year 9999"),
        ({"exp": 4_000_000_000_000}, {}, "its exp is not a Unix time in seconds up to the year 9999"),
        ({"exp": None}, {}, "a claim is missing"),
        ({"nbf": 4_000_000_000}, {}, "not valid yet"),
        ({"iss": "evil"}, {"issuer": "us"}, "another issuer"),
        ({}, {"issuer": "us"}, "a claim is missing"),
        ({"aud": "other"}, {"audience": "mqtt"}, "another audience"),
        ({}, {"audience": "mqtt"}, "a claim is missing"),
        ({"aud": "mqtt"}, {}, "another audience"),
        ({"sub": ""}, {}, "names no user"),
        ({"sub": None}, {}, "names no user"),
        ({"sub": "a\nb"}, {}, "names no user"),
        ({"sub": "\ud800"}, {}, "names no user"),
        ({"sub": "ü" * 40_000}, {}, "more than 65535 bytes"),
        ({"name": 7}, {"user_claim": "name"}, "names no user"),
        ({"client_id": "c2"}, {"client_id_claim": "client_id"}, "another client id"),
        ({}, {"client_id_claim": "client_id"}, "another client id"),
        ({"type": "boss"}, {"client_type_claim": "type"}, "neither device nor application"),
        ({"type": []}, {"client_type_claim": "type"}, "neither device nor application"),
    ],
)
def test_claims_that_do_not_open(
    files: dict[str, object], more: dict[str, object], settings: dict[str, object], why: str
) -> None:
    payload = {name: value for name, value in claims(**more).items() if value is not None}
    assert why in told(answer(files | settings, by_hand({"alg": "HS256"}, payload)))


def by_hand(header: dict[str, object], payload: object, secret: bytes = SECRET) -> bytes:
    """A token that the library would not make."""
    parts = [encoded(json.dumps(part).encode()) for part in (header, payload)]
    signature = hmac.digest(secret, b".".join(parts), hashlib.sha256)
    return b".".join([*parts, encoded(signature)])


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"alg": "none"}, "not one of jwt.algorithms"),
        ({"alg": "HS384"}, "not one of jwt.algorithms"),
        ({"alg": "hs256"}, "not one of jwt.algorithms"),
        ({"alg": ["HS256"]}, "not one of jwt.algorithms"),
        ({"typ": "JWT"}, "not one of jwt.algorithms"),
        ({"alg": "HS256", "crit": ["exp"]}, "extensions that are not known"),
        ({"alg": "HS256", "b64": False}, "extensions that are not known"),
        ({"alg": "ES256"}, "its signature is wrong"),
    ],
)
def test_headers_that_do_not_open(files: dict[str, object], header: dict[str, object], why: str) -> None:
    token = by_hand(header, claims())
    assert why in told(answer(files, token, algorithms=("HS256", "ES256")))


def test_a_public_key_is_never_a_secret(files: dict[str, object], tmp_path: Path) -> None:
    """The old trick: HS256 with the text of the public key."""
    assert "there is no key" in told(
        answer(
            {"public_key_files": (str(tmp_path / "rsa.pem"),)},
            by_hand({"alg": "HS256"}, claims(), pem(RSA_KEY)),
        )
    )
    (tmp_path / "secret").write_bytes(pem(RSA_KEY))
    with pytest.raises(ChainError, match=r"^jwt\.hmac_secret_file: .*is a PEM file"):
        answer(files, b"")


def test_a_signature_must_fit_the_key(files: dict[str, object]) -> None:
    other = rsa.generate_private_key(65_537, 2_048)
    assert "signature is wrong" in told(answer(files, signed(claims(), other, "RS256")))
    assert "signature is wrong" in told(answer(files, signed(claims(), b"x" * 64)))
    assert "there is no key" in told(answer(files, signed(claims(), EC_384_KEY, "ES384")))
    stripped = signed(claims()).rpartition(b".")[0] + b"."
    assert "signature is wrong" in told(answer(files, stripped))


@pytest.mark.parametrize(
    "password",
    [
        None,
        b"",
        b"secret",
        b"a.b.c",
        b"ey.ey.ey",
        b"ey..",
        b"eyJ.x",
        b"ey\xff.a.b",
        b"ey" + b"[" * 20_000 + b".a.b",
    ],
)
def test_what_is_no_token_is_another_steps(files: dict[str, object], password: bytes | None) -> None:
    assert answer(files, password) is NOT_MINE


def test_depth_and_size_break_nothing(files: dict[str, object]) -> None:
    for payload in (
        b"[" * 30_000,
        b'{"exp":' + b"9" * 5_000 + b"}",
        b'{"exp":' + b"9" * 400 + b',"sub":"a"}',
    ):
        parts = [encoded(b'{"alg":"HS256"}'), encoded(payload)]
        signature = hmac.digest(SECRET, b".".join(parts), hashlib.sha256)
        found = answer(files, b".".join([*parts, encoded(signature)]))
        assert isinstance(found, Deny)
    deep = encoded(b'{"alg":"HS256","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}")
    assert answer(files, deep + b".a.b") is NOT_MINE or isinstance(answer(files, deep + b".a.b"), Deny)


def test_a_token_may_last_for_ever_when_that_is_allowed(files: dict[str, object]) -> None:
    payload: dict[str, object] = {"sub": "pump-7"}
    assert answer(files, signed(payload), require_exp=False) == Admit("pump-7")
    assert "a claim is missing" in told(answer(files, signed(payload)))


def test_claims_that_open(files: dict[str, object]) -> None:
    token = signed(claims(iss="us", aud=["x", "mqtt"], name="ann", client="c1", type="application"))
    found = answer(
        files,
        token,
        issuer="us",
        audience="mqtt",
        user_claim="name",
        client_id_claim="client",
        client_type_claim="type",
    )
    assert isinstance(found, Admit)
    assert (found.username, found.client_type) == ("ann", ClientType.APPLICATION)


def test_a_client_without_an_id_is_not_the_one_that_a_token_is_for(files: dict[str, object]) -> None:
    token = signed(claims(client=""))
    assert "another client id" in told(answer(files, token, client_id="", client_id_claim="client"))


def test_leeway_counts_at_both_ends(files: dict[str, object]) -> None:
    late, too_late = (signed(claims(exp=int(time.time()) - ago)) for ago in (LEEWAY_S // 3, LEEWAY_S + 1))
    assert isinstance(answer(files, late), Admit)
    assert "expired" in told(answer(files, too_late))


def key_set(path: Path, *keys: dict[str, object]) -> dict[str, object]:
    path.write_text(json.dumps({"keys": keys}))
    return {"public_key_files": (str(path),), "algorithms": ALL}


def test_a_key_set_is_chosen_from_by_kid(tmp_path: Path) -> None:
    other = rsa.generate_private_key(65_537, 2_048)
    files = key_set(
        tmp_path / "jwks", jwk(RSA_KEY, kid="a"), jwk(other, kid="b"), jwk(EC_KEY, kid="c", use="sig")
    )
    assert isinstance(answer(files, signed(claims(), RSA_KEY, "RS256", kid="a")), Admit)
    assert isinstance(answer(files, signed(claims(), other, "RS256", kid="b")), Admit)
    assert "signature is wrong" in told(answer(files, signed(claims(), RSA_KEY, "RS256", kid="b")))
    assert "there is no key" in told(answer(files, signed(claims(), RSA_KEY, "RS256", kid="z")))
    assert "there is no key" in told(answer(files, signed(claims(), RSA_KEY, "RS256")))
    assert isinstance(answer(files, signed(claims(), EC_KEY, "ES256")), Admit)  # the only one of its kind


def test_a_key_of_a_set_may_be_for_one_algorithm_or_for_another_use(tmp_path: Path) -> None:
    files = key_set(tmp_path / "jwks", jwk(RSA_KEY, kid="a", alg="PS256"), jwk(EC_KEY, kid="e", use="enc"))
    assert isinstance(answer(files, signed(claims(), RSA_KEY, "PS256", kid="a")), Admit)
    assert "there is no key" in told(answer(files, signed(claims(), RSA_KEY, "RS256", kid="a")))
    assert "there is no key" in told(answer(files, signed(claims(), EC_KEY, "ES256", kid="e")))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[]", "nor a JSON Web Key Set"),
        (b"{", "is not a JSON Web Key Set"),
        (b'{"keys": {}}', "no list of 1 to"),
        (b'{"keys": []}', "no list of 1 to"),
        (b'{"keys": [7]}', "number 1 that is no object"),
        (b'{"keys": [{}]}', "cannot be used, number 1"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "has a secret key, number 1"),
        (b'{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}', "cannot be used, number 1"),
        (json.dumps({"keys": [jwk(SMALL_RSA_KEY)]}).encode(), "RSA key of 1024 bits"),
    ],
)
def test_key_sets_that_cannot_be(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "jwks").write_bytes(content)
    with pytest.raises(ChainError, match=rf"^jwt\.public_key_files: .*{why}") as raised:
        KeyFiles(JwtSettings(public_key_files=(str(tmp_path / "jwks"),)))
    assert "c2VjcmV0" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a PEM file"),
        (b"-----BEGIN PUBLIC KEY-----\nnonsense", "is not a PEM file"),
        (pem(SMALL_RSA_KEY), "RSA key of 1024 bits"),
    ],
)
def test_public_keys_that_cannot_be(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ChainError, match=rf"^jwt\.public_key_files: .*{why}"):
        KeyFiles(JwtSettings(public_key_files=(str(tmp_path / "key"),)))


def test_secrets_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ChainError, match=r"^jwt\.hmac_secret_file: cannot read .*: No such file"):
        KeyFiles(JwtSettings(hmac_secret_file=str(tmp_path / "nowhere")))
    (tmp_path / "secret").write_bytes(b"too-short")
    with pytest.raises(ChainError, match="has 9 bytes, less than the smallest possible 32") as raised:
        KeyFiles(JwtSettings(hmac_secret_file=str(tmp_path / "secret")))
    assert "too-short" not in str(raised.value)


def test_a_short_secret_is_for_short_hashes(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * 32)
    files: dict[str, object] = {"hmac_secret_file": str(tmp_path / "secret"), "algorithms": ALL}
    assert isinstance(answer(files, signed(claims(), b"s" * 32)), Admit)
    keys = KeyFiles(JwtSettings(hmac_secret_file=str(tmp_path / "secret")))
    assert keys.candidates("HS384", None, 0) == []


def test_files_that_change_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "jwks"
    keys = KeyFiles(JwtSettings(**key_set(path, jwk(RSA_KEY, kid="a"))))  # type: ignore[arg-type]

    def kids(now_s: float) -> list[str]:
        return [key.kid for kid in ("a", "b") for key in keys.candidates("RS256", kid, now_s)]

    assert kids(10) == ["a"]
    key_set(path, jwk(RSA_KEY, kid="b"), jwk(EC_KEY, kid="c"))
    assert kids(10 + LOOK_S / 2) == ["a"]
    assert kids(10 + LOOK_S) == ["b"]
    path.write_text("half a fi")
    assert kids(20) == ["b"]
    path.unlink()
    assert kids(30) == ["b"]
    key_set(path, jwk(RSA_KEY, kid="a"))
    assert kids(40) == ["a"]
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(str(tmp_path))[0] for text in said] == [
        "the keys of tokens were read again: 2",
        "the keys of tokens stay as they were: jwt.public_key_files: ",
        "the keys of tokens stay as they were: jwt.public_key_files: cannot read ",
        "the keys of tokens were read again: 1",
    ]


def test_a_file_that_becomes_readable_later_counts_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new mode leaves size and time of a file as they were."""
    path = tmp_path / "jwks"
    keys = KeyFiles(JwtSettings(**key_set(path, jwk(RSA_KEY, kid="a"))))  # type: ignore[arg-type]
    key_set(path, jwk(RSA_KEY, kid="bb"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", _forbidden)
        for now_s in (10, 20, 30):
            assert keys.candidates("RS256", "bb", now_s) == []
    assert [key.kid for key in keys.candidates("RS256", "bb", 40)] == ["bb"]
    assert caplog.text.count("the keys of tokens stay as they were: jwt.public_key_files: cannot read") == 1


def _forbidden(path: Path, mode: str) -> None:
    raise PermissionError(13, "Permission denied")


def test_nothing_shows_a_key_or_a_token() -> None:
    assert "sss" not in repr(Key(SECRET, ("HS256",)))
    assert "ey" not in repr(Applicant("c", "u", signed(claims()), VISITOR))


def test_a_pipe_is_no_key_file(tmp_path: Path) -> None:
    pipe = tmp_path / "secret"
    os.mkfifo(pipe)
    with pytest.raises(ChainError, match="is not a file"):
        KeyFiles(JwtSettings(hmac_secret_file=str(pipe)))
