"""The HTTP hook, asked over real sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.hook_server import HookServer, Said, said
from tests.support.waiting import wait_for

from embermq.access.authentication import http_hook
from embermq.access.authentication.errors import ChainError
from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.http_hook import CACHED_MAX, HttpHookStep
from embermq.access.authentication.settings import HttpHookSettings
from embermq.access.authentication.step import CHECK, NOT_MINE, Admit, Applicant, Deny, StepAnswer
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode

VISITOR = Visitor(False, None, ClientType.DEVICE, None, "192.0.2.1")
PASSWORD = b"correct horse battery"


def applicant(
    username: str | None = "ann", password: bytes | None = PASSWORD, client_id: str = "c1"
) -> Applicant:
    return Applicant(client_id, username, password, VISITOR)


def with_step(url: str, scenario: Callable[[HttpHookStep], Awaitable[None]], **settings: object) -> None:
    async def run() -> None:
        step = HttpHookStep(HttpHookSettings(url=url, **settings))  # type: ignore[arg-type]
        try:
            await scenario(step)
        finally:
            await step.close()

    asyncio.run(run())


def answers(server: HookServer, *who: Applicant, **settings: object) -> list[StepAnswer]:
    found: list[StepAnswer] = []

    async def scenario(step: HttpHookStep) -> None:
        found.extend([await step.check(one) for one in who or [applicant()]])

    with_step(server.url, scenario, **settings)
    return found


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said("allow"), Admit("ann")),
        (said("allow", client_type="application"), Admit("ann", ClientType.APPLICATION)),
        (said("allow", client_type="device", unknown=1), Admit("ann")),
        (said("allow", expires_at=4_000_000_000), Admit("ann", expires_ms=4_000_000_000_000)),
        (said("allow", expires_at=4_000_000_000.5), Admit("ann", expires_ms=4_000_000_000_500)),
        (said("allow", expires_at=253_402_300_799), Admit("ann", expires_ms=253_402_300_799_000)),
        ((204, b""), Admit("ann")),
        (said("ignore"), NOT_MINE),
    ],
)
def test_what_the_hook_may_say(answer: Said, expected: StepAnswer) -> None:
    with HookServer(answer) as server:
        assert answers(server) == [expected]


@pytest.mark.parametrize("answer", [said("deny"), said("allow", expires_at=1_000)])
def test_a_refusal(answer: Said) -> None:
    with HookServer(answer) as server:
        (found,) = answers(server)
    assert isinstance(found, Deny)
    assert found.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.parametrize(
    "answer",
    [
        (200, b""),
        (200, b"allow"),
        (200, b'"allow"'),
        (200, b"[" * 50_000),
        (200, b"{}"),
        (200, b"\xff"),
        said("Allow"),
        said("allow", client_type="boss"),
        said("allow", client_type=["device"]),
        said("allow", expires_at="tomorrow"),
        said("allow", expires_at=True),
        said("allow", expires_at=0),
        said("allow", expires_at=float("nan")),
        said("allow", expires_at=1e300),
        said("allow", expires_at=4_000_000_000_000),
        (200, b'{"result": "allow"}' + b" " * 70_000),
        (201, b'{"result": "allow"}'),
        (302, b""),
        (307, b""),
        (401, b""),
        (500, b'{"result": "allow"}'),
    ],
)
def test_anything_else_lets_nobody_in(answer: Said) -> None:
    with HookServer(answer) as server:
        (found,) = answers(server)
        assert server.paths == ["/enter"]
    assert isinstance(found, Deny)
    assert found.reason_code is ReasonCode.SERVER_UNAVAILABLE


def test_what_the_hook_is_told() -> None:
    with HookServer(said("allow")) as server:
        certified = Visitor(False, None, ClientType.DEVICE, "pump-7", "2001:db8::1")
        answers(
            server,
            applicant(),
            applicant(None, None, ""),
            applicant("ann", b"\xff\x00"),
            Applicant("c2", None, None, certified),
        )
        assert server.asked == [
            {
                "client_id": "c1",
                "username": "ann",
                "password": PASSWORD.decode(),
                "address": "192.0.2.1",
                "certificate": None,
            },
            {
                "client_id": "",
                "username": None,
                "password": None,
                "address": "192.0.2.1",
                "certificate": None,
            },
            {
                "client_id": "c1",
                "username": "ann",
                "password": None,
                "password_base64": "/wA=",
                "address": "192.0.2.1",
                "certificate": None,
            },
            {
                "client_id": "c2",
                "username": None,
                "password": None,
                "address": "2001:db8::1",
                "certificate": "pump-7",
            },
        ]


def test_allow_is_remembered_for_exactly_who_showed_it() -> None:
    with HookServer(
        lambda asked: said("allow" if asked["password"] == PASSWORD.decode() else "deny")
    ) as server:
        same, other = applicant(), applicant(client_id="c2")
        wrong = applicant(password=b"wrong")
        found = answers(server, same, same, other, wrong, wrong, same)
        assert [isinstance(answer, Admit) for answer in found] == [True, True, True, False, False, True]
        assert [(asked["client_id"], asked["password"]) for asked in server.asked] == [
            ("c1", PASSWORD.decode()),
            ("c2", PASSWORD.decode()),
            ("c1", "wrong"),
            ("c1", "wrong"),
        ]


def test_what_is_remembered_ends_and_is_bounded_and_holds_no_password() -> None:
    async def scenario(step: HttpHookStep) -> None:
        await step.check(applicant())
        (place,) = step._allowed
        assert PASSWORD not in place
        assert PASSWORD.decode() not in repr(step._allowed)
        known = step._allowed[place]
        step._allowed[place] = type(known)(known.admit, time.monotonic() - 1)
        await step.check(applicant())
        assert len(server.asked) == 2
        for number in range(CACHED_MAX + 5):
            step._keep(b"%d" % number, Admit("x"))
        assert len(step._allowed) == CACHED_MAX

    with HookServer(said("allow")) as server:
        with_step(server.url, scenario)


def test_nothing_is_remembered_when_that_is_off_or_it_has_ended() -> None:
    with HookServer(said("allow")) as server:
        answers(server, applicant(), applicant(), cache_s=0)
        assert len(server.asked) == 2

    async def scenario(step: HttpHookStep) -> None:
        place = b"p"
        step._keep(place, Admit("ann", expires_ms=1_000))
        assert step._known(place) is None
        assert not step._allowed

    with_step("http://127.0.0.1:1/", scenario)


def test_requests_and_those_who_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_hook, "REQUESTS_MAX", 2)
    monkeypatch.setattr(http_hook, "WAITING_MAX", 3)

    async def scenario(step: HttpHookStep) -> None:
        tasks = [asyncio.create_task(step.check(applicant(client_id=f"c{number}"))) for number in range(5)]
        await wait_for(lambda: server.at_once == 2, what="two requests")
        busy = await step.check(applicant(client_id="one more"))
        assert isinstance(busy, Deny)
        assert busy.reason_code is ReasonCode.SERVER_BUSY
        server.free.set()
        assert await asyncio.gather(*tasks) == [Admit("ann")] * 5
        assert isinstance(await step.check(applicant(client_id="later")), Admit)

    with HookServer(said("allow")) as server:
        server.free.clear()
        with_step(server.url, scenario, timeout_ms=20_000)
        assert server.at_once_max == 2


def test_a_hook_that_is_silent_or_gone_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with HookServer(said("allow")) as server:
        server.free.clear()
        found = answers(server, applicant(), applicant(), timeout_ms=50)
        server.free.set()
        url = server.url
    assert {answer.reason_code for answer in found if isinstance(answer, Deny)} == {
        ReasonCode.SERVER_UNAVAILABLE
    }
    lines = [record.getMessage() for record in caplog.records if "HTTP hook" in record.getMessage()]
    assert lines == [
        "the HTTP hook gives no usable answer: no answer within 50 ms; clients refused for it: 1"
    ]

    async def scenario(step: HttpHookStep) -> None:
        answer = await step.check(applicant())
        assert isinstance(answer, Deny)
        step._complained_s -= 10
        await step.check(applicant())

    caplog.clear()
    with_step(url, scenario)
    assert [record.getMessage() for record in caplog.records if "HTTP hook" in record.getMessage()] == [
        "the HTTP hook gives no usable answer: ConnectError; clients refused for it: 1",
        "the HTTP hook gives no usable answer: ConnectError; clients refused for it: 1",
    ]
    everything = "\n".join(record.getMessage() for record in caplog.records)
    assert PASSWORD.decode() not in everything


def test_https_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    with HookServer(said("allow"), certificate=authority.server()) as server:
        assert answers(server, ca_file=str(authority.certificate)) == [Admit("ann")]
        for refused in (answers(server, ca_file=str(stranger.certificate)), answers(server)):
            assert isinstance(refused[0], Deny)
            assert refused[0].reason_code is ReasonCode.SERVER_UNAVAILABLE
        assert len(server.asked) == 1


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    async def never(step: HttpHookStep) -> None:
        raise AssertionError

    (tmp_path / "nonsense").write_text("nonsense")
    for name, why in (("nowhere", "cannot read"), ("nonsense", "cannot be used")):
        with pytest.raises(ChainError, match=rf"^http_hook\.ca_file: .*{why}|^http_hook\.ca_file: {why}"):
            with_step("https://127.0.0.1:1/", never, ca_file=str(tmp_path / name))


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://hook.example/", True),
        ("http://192.0.2.1/", True),
        ("http://localhost:1/", False),
        ("http://[::1]:1/", False),
        ("https://hook.example/", False),
    ],
)
def test_passwords_in_plain_text_over_a_network_are_warned_of(
    url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def nothing(step: HttpHookStep) -> None:
        assert step.look(applicant()) is CHECK

    with_step(url, nothing)
    assert ("plain text" in caplog.text) is warned


def test_no_cookie_of_one_client_goes_out_with_the_next() -> None:
    """A service with sessions would take the next client for the one before."""
    with HookServer(said("allow"), headers={"set-cookie": "session=ann; Path=/"}) as server:
        answers(server, applicant("ann"), applicant("bob"))
        assert [asked["username"] for asked in server.asked] == ["ann", "bob"]
        assert server.cookies == [None, None]
