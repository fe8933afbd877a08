"""SCRAM, with the client of the library on the other side."""

from __future__ import annotations

import asyncio
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Coroutine, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scramp import ScramClient, ScramException

from embermq.access.authentication.checks import Checks
from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.identity import Proof, Question
from embermq.access.authentication.scram import (
    DATA_BYTES_MAX,
    METHODS,
    SALT_BYTES,
    ScramStep,
    make_verifiers,
    verifier_of,
    verifier_of_nobody,
)
from embermq.access.authentication.settings import AuthenticationSettings
from embermq.access.authentication.step import Admit, Deny, Talk, Welcome
from embermq.adapters.sqlite.users import SqliteUsers
from embermq.app.accounts import Accounts
from embermq.app.authentication import Authentication
from embermq.app.errors import UserError
from embermq.edge.settings import ClientSettings
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreUnavailable
from embermq.ports.users import User

NAME, PASSWORD = "pump-7", "correct horse"
BAD = ReasonCode.NOT_AUTHORIZED
Result = TypeVar("Result")
both_methods = pytest.mark.parametrize("method", METHODS)


class Bench:
    """A store, the step on it, and one loop for all."""

    def __init__(self, path: Path) -> None:
        self.users = SqliteUsers(path)
        self.checks = Checks(1, 10)
        self.step = ScramStep(self.users, self.checks)
        self._loop = asyncio.new_event_loop()

    def says(self, talk: Talk, text: str | bytes | None) -> Question | Welcome | Deny:
        data = text.encode() if isinstance(text, str) else text
        return self.run(talk.answer(data))

    def run(self, coroutine: Coroutine[None, None, Result]) -> Result:
        return self._loop.run_until_complete(coroutine)

    def asked(self, talk: Talk, text: str | bytes | None) -> str:
        """The answer to what the client says, which is a question."""
        answer = self.says(talk, text)
        assert isinstance(answer, Question), answer
        return (answer.data or b"").decode()

    def close(self) -> None:
        self.checks.close()
        self._loop.close()
        self.users.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path / "users.db")
    add(found, NAME, PASSWORD)
    yield found
    found.close()


def add(bench: Bench, name: str, password: str, *, client_type: ClientType = ClientType.DEVICE) -> None:
    Accounts(bench.users).add(name, password.encode(), client_type, scram=True)


def exchange(
    bench: Bench, method: str, name: str, password: str
) -> tuple[ScramClient, Question | Welcome | Deny]:
    """Both messages of the client; returns it and what the step makes of the second."""
    client = ScramClient([method], name, password)
    talk = bench.step.talk(method)
    client.set_server_first(bench.asked(talk, client.get_client_first()))
    return client, bench.says(talk, client.get_client_final())


@both_methods
@pytest.mark.parametrize(
    ("name", "password"),
    [
        (NAME, PASSWORD),
        ("a=b,c", "p,a=ss"),
        ("grün", "ключ"),
        ("x" * 512, "y" * 4_096),
        ("," * 512, "p"),
    ],
    ids=["usual", "escaped", "not ascii", "longest", "longest escaped"],
)
def test_client_and_broker_prove_themselves(bench: Bench, method: str, name: str, password: str) -> None:
    if name != NAME:
        add(bench, name, password)
    client, answer = exchange(bench, method, name, password)
    assert isinstance(answer, Welcome)
    user = bench.users.find(name)
    assert user is not None
    assert answer.admit == Admit(name, ClientType.DEVICE, account_version=user.version)
    assert answer.data is not None
    client.set_server_final(answer.data.decode())  # raises unless the broker has shown that it knows the keys


def test_a_password_is_prepared_as_the_client_does(bench: Bench) -> None:
    add(bench, "prepared", "\u2168 \u00ad\u00aa\u00a0x")  # the examples of RFC 4013
    assert isinstance(exchange(bench, METHODS[0], "prepared", "IX a x")[1], Welcome)
    assert isinstance(exchange(bench, METHODS[1], "\u00adprepared", "\u2168 a x")[1], Welcome)


def test_the_type_is_that_of_the_account(bench: Bench) -> None:
    add(bench, "billing", "x", client_type=ClientType.APPLICATION)
    _, answer = exchange(bench, METHODS[0], "billing", "x")
    assert isinstance(answer, Welcome)
    assert answer.admit.client_type is ClientType.APPLICATION


@pytest.mark.parametrize(
    ("client_id", "of_listener", "client_type"),
    [
        ("c", ClientType.DEVICE, ClientType.DEVICE),
        ("app-1", ClientType.DEVICE, ClientType.APPLICATION),
        ("c", ClientType.APPLICATION, ClientType.APPLICATION),
    ],
)
def test_the_gate_tells_the_broker_who_it_is(
    bench: Bench, client_id: str, of_listener: ClientType, client_type: ClientType
) -> None:
    authentication = Authentication(
        bench.users,
        AuthenticationSettings(),
        ClientSettings(application_ids=("app-*",)),
        Counters(),
    )
    exchange = authentication.gate.exchange(
        METHODS[0], client_id, Visitor(True, None, of_listener, "certificate")
    )
    assert exchange is not None
    client = ScramClient([METHODS[0]], NAME, PASSWORD)
    question = bench.run(exchange.step(client.get_client_first().encode()))
    assert isinstance(question, Question)
    client.set_server_first((question.data or b"").decode())
    proof = bench.run(exchange.step(client.get_client_final().encode()))
    assert isinstance(proof, Proof)
    assert (proof.identity.username, proof.identity.client_type) == (NAME, client_type)
    assert proof.identity.account_version
    bench.run(authentication.close())


def test_the_proof_of_rfc_7677(bench: Bench) -> None:
    """Its keys, and its client's proof, with the broker's own nonce in the place of the example's."""
    salt, nonce = b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), "rOprNGfwEbeRWgbNEkqO"
    lines = make_verifiers("user", b"pencil")
    assert "pencil" not in lines
    salted = _pbkdf2(b"pencil", salt, 4_096)
    stored = sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    texts = [b64encode(data).decode() for data in (salt, stored, server)]
    line = f"SCRAM-SHA-256$4096:{texts[0]}${texts[1]}:{texts[2]}"
    bench.users.add(User("user", "$argon2id$x", ClientType.DEVICE, False, 0, scram=line))
    talk = bench.step.talk("SCRAM-SHA-256")
    first = bench.asked(talk, f"n,,n=user,r={nonce}")
    assert first.startswith(f"r={nonce}")
    assert first.endswith(f",s={texts[0]},i=4096")
    without_proof = f"c=biws,{first.split(',')[0]}"
    message = f"n=user,r={nonce},{first},{without_proof}".encode()
    signature = hmac.digest(stored, message, "sha256")
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = bench.says(talk, f"{without_proof},p={b64encode(proof).decode()}")
    assert isinstance(answer, Welcome)
    assert answer.data == b"v=" + b64encode(hmac.digest(server, message, "sha256"))


def _pbkdf2(password: bytes, salt: bytes, iterations: int) -> bytes:
    """By the book (RFC 5802, 2.2), not by what the broker uses."""
    block = hmac.digest(password, salt + b"\0\0\0\1", "sha256")
    total = int.from_bytes(block)
    for _ in range(iterations - 1):
        block = hmac.digest(password, block, "sha256")
        total ^= int.from_bytes(block)
    return total.to_bytes(32)


@both_methods
def test_wrong_passwords_and_unknown_users_cannot_be_told_apart(bench: Bench, method: str) -> None:
    Accounts(bench.users).add("no-scram", PASSWORD.encode(), ClientType.DEVICE)
    seen = []
    for name in (NAME, "nobody", "no-scram"):
        client = ScramClient([method], name, PASSWORD + "?")
        talk = bench.step.talk(method)
        first = bench.asked(talk, client.get_client_first())
        client.set_server_first(first)
        answer = bench.says(talk, client.get_client_final())
        assert isinstance(answer, Deny)
        seen.append((re.sub(r"[\w+/=]", "x", first), answer))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1].reason_code is BAD


@both_methods
def test_the_salt_of_nobody_is_stable_and_secret(bench: Bench, method: str, tmp_path: Path) -> None:
    def salt_of(name: str, bench: Bench = bench, method: str = method) -> str:
        talk = bench.step.talk(method)
        return bench.asked(talk, f"n,,n={name},r=abc").split(",")[1]

    assert salt_of("nobody") == salt_of("nobody")
    other_method = next(other for other in METHODS if other != method)
    other = Bench(tmp_path / "other.db")
    again = Bench(tmp_path / "users.db")
    salts = [
        salt_of(NAME),
        salt_of("nobody"),
        salt_of("nobody2"),
        salt_of("nobody", method=other_method),
        salt_of("nobody", other),
    ]
    assert len(set(salts)) == len(salts)
    assert {len(b64decode(salt[2:])) for salt in salts} == {SALT_BYTES}
    assert salt_of("nobody", again) == salt_of("nobody"), "the same after a restart"
    other.close()
    again.close()


@both_methods
def test_an_account_without_scram_looks_like_none(bench: Bench, method: str) -> None:
    talks = [bench.step.talk(method) for _ in range(2)]
    before = bench.asked(talks[0], "n,,n=late,r=abc").partition(",")[2]
    Accounts(bench.users).add("late", PASSWORD.encode(), ClientType.DEVICE)
    assert bench.asked(talks[1], "n,,n=late,r=abc").partition(",")[2] == before


@both_methods
def test_no_password_fits_nobody(method: str) -> None:
    fake = verifier_of_nobody(b"s" * 32, method, "nobody")
    real = verifier_of(make_verifiers("nobody", b"p"), method)
    assert real is not None
    for name in ("salt", "stored_key", "server_key"):
        assert len(getattr(fake, name)) == len(getattr(real, name))
    assert len({fake.salt, fake.stored_key, fake.server_key}) == 3


@both_methods
def test_a_disabled_account_does_not_enter(bench: Bench, method: str) -> None:
    user = bench.users.find(NAME)
    assert user is not None
    bench.users.update(replace(user, disabled=True))
    for password in (PASSWORD, "wrong"):
        _, answer = exchange(bench, method, NAME, password)
        assert isinstance(answer, Deny)
        assert answer.reason_code is BAD


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("removed", BAD),
        ("no scram", BAD),
        ("disabled", BAD),
        ("other password", ReasonCode.SERVER_UNAVAILABLE),  # nothing lasting: it may come again with that one
    ],
)
def test_an_account_that_changes_on_the_way(bench: Bench, change: str, code: ReasonCode) -> None:
    client = ScramClient([METHODS[0]], NAME, PASSWORD)
    talk = bench.step.talk(METHODS[0])
    client.set_server_first(bench.asked(talk, client.get_client_first()))
    user = bench.users.find(NAME)
    assert user is not None
    if change == "removed":
        bench.users.remove(NAME)
    elif change == "disabled":
        bench.users.update(replace(user, disabled=True))
    elif change == "no scram":
        bench.users.update(replace(user, scram=""))
    else:
        bench.users.update(replace(user, scram=make_verifiers(NAME, b"other")))
    answer = bench.says(talk, client.get_client_final())
    assert isinstance(answer, Deny)
    assert answer.reason_code is code


def _final(bench: Bench, talk: Talk) -> str:
    """A good last message, and the library's idea of the first one is gone through."""
    client = ScramClient([METHODS[0]], NAME, PASSWORD)
    client.set_server_first(bench.asked(talk, client.get_client_first()))
    final: str = client.get_client_final()
    return final


@pytest.mark.parametrize(
    "tampered",
    [
        lambda text: text.replace("r=", "r=x", 1),
        lambda text: re.sub(r"r=[^,]+", "r=abc", text),
        lambda text: text.replace("c=biws", "c=eSws"),
        lambda text: text[:-1],
        lambda text: text.rpartition(",p=")[0],
        lambda text: text.rpartition("p=")[0] + "p=" + b64encode(bytes(32)).decode(),
        lambda text: text.rpartition("p=")[0] + "p=AAAA",
        lambda text: text.rpartition("p=")[0] + "p=" + b64encode(bytes(64)).decode(),
        lambda text: "m=x," + text,
        lambda text: text + ",x=y",
        lambda text: "",
        lambda text: "n,,n=pump-7,r=abc",
    ],
    ids=[
        "nonce longer",
        "nonce of another",
        "other header",
        "truncated",
        "no proof",
        "zeros",
        "short proof",
        "long proof",
        "mandatory extension",
        "after the proof",
        "empty",
        "first again",
    ],
)
def test_a_last_message_that_is_not_the_right_one(bench: Bench, tampered: object) -> None:
    talk = bench.step.talk(METHODS[0])
    answer = bench.says(talk, tampered(_final(bench, talk)))  # type: ignore[operator]
    assert isinstance(answer, Deny)
    assert answer.reason_code is BAD


def test_a_replayed_proof_is_worth_nothing(bench: Bench) -> None:
    talk = bench.step.talk(METHODS[0])
    client = ScramClient([METHODS[0]], NAME, PASSWORD, c_nonce="same")
    client.set_server_first(bench.asked(talk, client.get_client_first()))
    final = client.get_client_final()
    assert isinstance(bench.says(talk, final), Welcome)
    again = bench.step.talk(METHODS[0])
    bench.asked(again, "n,,n=pump-7,r=same")
    assert isinstance(bench.says(again, final), Deny)


def test_the_client_notices_fewer_iterations_on_the_way(bench: Bench) -> None:
    """Who cuts the work of a guess down has a proof that does not fit."""
    client = ScramClient([METHODS[0]], NAME, PASSWORD)
    talk = bench.step.talk(METHODS[0])
    first = bench.asked(talk, client.get_client_first())
    assert first.endswith("i=4096")
    client.set_server_first(first.replace("i=4096", "i=5000"))
    assert isinstance(bench.says(talk, client.get_client_final()), Deny)


@pytest.mark.parametrize("method", METHODS)
def test_a_signature_of_another_broker_is_noticed(bench: Bench, method: str) -> None:
    client, answer = exchange(bench, method, NAME, PASSWORD)
    assert isinstance(answer, Welcome)
    with pytest.raises(ScramException):
        client.set_server_final("v=" + b64encode(bytes(32)).decode())


@pytest.mark.parametrize(
    ("header", "enters"),
    [("n,,", True), ("y,,", True), ("p=tls-unique,,", False), ("p=tls-exporter,,", False), ("x,,", False)],
)
def test_channel_binding(bench: Bench, header: str, enters: bool) -> None:
    """`y`: the client could and believes that we cannot, which is so. `p`: it insists (RFC 5802, 6)."""
    talk = bench.step.talk(METHODS[0])
    answer = bench.says(talk, f"{header}n={NAME},r=abc")
    assert isinstance(answer, Question if enters else Deny)
    if isinstance(answer, Deny):
        assert answer.reason_code is BAD


@pytest.mark.parametrize(
    "text",
    [
        b"n",
        b"n,,",
        b"n,,n=pump-7",
        b"n,,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=pump-7,r=",
        b"n,,n=pu=mp,r=abc",
        b"n,,m=x,n=pump-7,r=abc",
        b"n,a=admin,n=pump-7,r=abc",
        b"n,,n=pump-7,r=\xff",
        b"\xff\xfe",
        b"n,,n=\xd8\xa7x,r=abc",
        b"n,,n=pump\x007,r=abc",
        b"n,,n=" + b"x" * DATA_BYTES_MAX + b",r=abc",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_first_message_that_is_none(bench: Bench, text: bytes) -> None:
    answer = bench.says(bench.step.talk(METHODS[0]), text)
    assert isinstance(answer, Deny)
    assert answer.reason_code is BAD


def test_a_client_that_waits_is_asked_once(bench: Bench) -> None:
    talk = bench.step.talk(METHODS[0])
    assert bench.says(talk, None) == Question(None)
    client = ScramClient([METHODS[0]], NAME, PASSWORD)
    client.set_server_first(bench.asked(talk, client.get_client_first()))
    assert isinstance(bench.says(talk, client.get_client_final()), Welcome)
    other = bench.step.talk(METHODS[0])
    assert bench.says(other, b"") == Question(None)
    assert isinstance(bench.says(other, b""), Deny)


def test_accounts_that_cannot_be_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> User | None:
        raise StoreUnavailable("busy")

    talk = bench.step.talk(METHODS[0])
    final = _final(bench, talk)
    monkeypatch.setattr(bench.users, "find", find)
    for answer in (bench.says(talk, final), bench.says(bench.step.talk(METHODS[0]), "n,,n=pump-7,r=abc")):
        assert isinstance(answer, Deny)
        assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE


def test_too_many_at_once_are_told_to_come_later(bench: Bench) -> None:
    bench.checks.now = 11
    answer = bench.says(bench.step.talk(METHODS[0]), "n,,n=pump-7,r=abc")
    bench.checks.now = 0
    assert isinstance(answer, Deny)
    assert answer.reason_code is ReasonCode.SERVER_BUSY


@pytest.mark.parametrize(
    "kept",
    [
        "SCRAM-SHA-256",
        "SCRAM-SHA-256$x:AAAA$AAAA:AAAA",
        "SCRAM-SHA-256$4096:AAAA$AAAA",
        "SCRAM-SHA-256$4096:?$?:?",
    ],
)
def test_what_cannot_be_read_is_no_verifier(bench: Bench, kept: str) -> None:
    bench.users.add(User("broken", "x", ClientType.DEVICE, False, 0, scram=kept))
    assert isinstance(exchange(bench, METHODS[0], "broken", "x")[1], Deny)


@pytest.mark.parametrize(
    ("name", "password", "why"),
    [
        ("\u2168", b"x", "as 'IX'"),
        ("x" * 513, b"x", "513 bytes, more than the largest possible 512 for SCRAM"),
        ("ann", b"\xff", "not UTF-8"),
        ("ann", "\u00ad".encode(), "nothing is left"),
        ("ann", b"a\x00b", "control characters"),
        ("ann", b"x" * 4_097, "4097 bytes, more than the largest possible 4096 for SCRAM"),
        ("\u0627x", b"x", "bidi"),
        ("🦊", b"x", "unassigned code points"),
    ],
)
def test_accounts_that_scram_cannot_carry(bench: Bench, name: str, password: bytes, why: str) -> None:
    accounts = Accounts(bench.users)
    with pytest.raises(UserError, match=re.escape(why)):
        accounts.add(name, password, ClientType.DEVICE, scram=True)
    assert bench.users.find(name) is None


def test_nothing_that_is_kept_is_the_password(bench: Bench, tmp_path: Path) -> None:
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"SCRAM-SHA-512$4096:" in held
    assert PASSWORD.encode() not in held
    user = bench.users.find(NAME)
    assert user is not None
    verifier = verifier_of(user.scram, METHODS[0])
    assert verifier is not None
    for shown in (f"{user!r}", f"{verifier!r}"):
        assert b64encode(verifier.stored_key).decode() not in shown
        assert str(verifier.stored_key) not in shown


_PIECES = st.sampled_from(
    [
        "n,,",
        "y,,",
        "p=x,,",
        "n=",
        "r=",
        "c=biws",
        "p=",
        "a=",
        "m=",
        ",",
        "=",
        "pump-7",
        "=2C",
        "\0",
        "ä",
        "\u0627",
        "AA==",
    ]
)


@given(
    st.lists(
        st.one_of(st.binary(max_size=30), st.lists(_PIECES).map(lambda parts: "".join(parts).encode())),
        min_size=1,
        max_size=4,
    )
)
def test_nothing_that_a_client_sends_is_our_fault(fuzzed: Bench, messages: list[bytes]) -> None:
    talk = fuzzed.step.talk(METHODS[0])
    for message in messages:
        answer = fuzzed.says(talk, message)
        assert not isinstance(answer, Welcome)
        if isinstance(answer, Deny):
            assert answer.reason_code is BAD
            return


@given(st.data())
def test_any_change_of_the_last_message_is_refused(fuzzed: Bench, data: st.DataObject) -> None:
    talk = fuzzed.step.talk(METHODS[0])
    final = _final(fuzzed, talk).encode()
    place = data.draw(st.integers(0, len(final) - 1))
    changed = final[:place] + data.draw(st.binary(max_size=3)) + final[place + 1 :]
    answer = fuzzed.says(talk, changed)
    assert isinstance(answer, Welcome if _reads_as(changed) == _reads_as(final) else Deny)


def _reads_as(message: bytes) -> tuple[bytes, bytes]:
    """What is signed, and the proof: base64 has bits at its end that mean nothing."""
    signed, _, proof = message.rpartition(b",p=")
    try:
        return signed, b64decode(proof, validate=True)
    except ValueError:
        return signed, b""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("scram") / "users.db")
    add(found, NAME, PASSWORD)
    yield found
    found.close()
