"""How many client events are logged, and what becomes of the others."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import pytest

from embermq.observability.client_events import (
    REPORT_S,
    TEXT_CHARACTERS_MAX,
    LimitedEvents,
    LogSink,
    TopicSink,
)
from embermq.sessions.client_events import ClientEvent, EventKind

RATE = 100


class HandLoop:
    """Time of a test's own."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.later: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> HandLoop:
        assert delay_s == REPORT_S
        self.later.append(call)
        return self

    def cancel(self) -> None:
        self.later.clear()


def event(kind: EventKind, number: int = 0, *, peer: str = "", user: str = "") -> ClientEvent:
    return ClientEvent(
        kind=kind, peer=peer or f"192.0.2.{number}:1", listener="l", client_id=f"c{number}", user=user
    )


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    caplog.set_level(logging.INFO, "embermq.clients")

    def take() -> list[dict[str, Any]]:
        found = [dict(vars(record)) for record in caplog.records]
        caplog.clear()
        return found

    return take


def made(loop: HandLoop, rate_max: int = RATE) -> LimitedEvents:
    return LimitedEvents(LogSink(), rate_max, cast(asyncio.AbstractEventLoop, loop))


def test_so_many_a_second_of_each_kind_and_a_count_of_the_others(
    told: Callable[[], list[dict[str, Any]]],
) -> None:
    loop = HandLoop()
    log = made(loop)
    for kind in (EventKind.CONNECTED, EventKind.DENIED):
        for number in range(RATE + 7):
            log.tell(event(kind, number))
    assert [line["event"] for line in told()] == ["connected"] * RATE + ["denied"] * RATE
    loop.later.pop()()
    assert [(line["event"], line["left_out"]) for line in told()] == [("connected", 7), ("denied", 7)]
    loop.now_s += 1
    log.tell(event(EventKind.CONNECTED))
    assert len(told()) == 1 and not loop.later


def test_one_client_hides_nobody(told: Callable[[], list[dict[str, Any]]]) -> None:
    log = made(HandLoop())
    for _ in range(1_000):
        log.tell(event(EventKind.DENIED, 1))
    log.tell(event(EventKind.DENIED, 2))
    assert [line["client_id"] for line in told()] == ["c1"] * (RATE // 10) + ["c2"]


def test_who_guesses_passwords_counts_by_address_whatever_it_calls_itself(
    told: Callable[[], list[dict[str, Any]]],
) -> None:
    log = made(HandLoop())
    for number in range(1_000):
        log.tell(event(EventKind.LOGIN_FAILED, number, peer=f"[2001:db8::1]:{number}"))
    log.tell(event(EventKind.LOGIN_FAILED, peer="192.0.2.9:1"))
    assert len(told()) == RATE // 10 + 1


def test_the_end_says_what_was_left_out_last(told: Callable[[], list[dict[str, Any]]]) -> None:
    log = made(HandLoop(), 1)
    for number in range(3):
        log.tell(event(EventKind.REFUSED, number))
    log.close()
    assert [line.get("left_out") for line in told()] == [None, 2]


def test_nothing_is_told_at_a_rate_of_0(told: Callable[[], list[dict[str, Any]]]) -> None:
    log = made(HandLoop(), 0)
    log.tell(event(EventKind.CONNECTED))
    log.close()
    assert told() == []


def test_tokens_are_not_logged_and_long_names_not_whole(told: Callable[[], list[dict[str, Any]]]) -> None:
    log = made(HandLoop())
    log.tell(event(EventKind.CONNECTED, user="eyJhbGciOiJIUzI1NiJ9.e30.s3cret"))
    log.tell(event(EventKind.CONNECTED, user="x" * 65_535))
    assert [line["user"] for line in told()] == ["(a token)", "x" * TEXT_CHARACTERS_MAX + "…"]


class Topics:
    """Messages below `$SYS/events/` of a test."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.told: list[tuple[str, dict[str, Any]]] = []

    def is_wanted(self, name: str) -> bool:
        return name in self.wanted

    def tell(self, name: str, payload: bytes) -> None:
        self.told.append((name, json.loads(payload)))


def test_messages_at_the_same_rate_and_of_what_somebody_wants_alone() -> None:
    loop, topics = HandLoop(), Topics({"login_failed"})
    events = LimitedEvents(TopicSink(topics), RATE, cast(asyncio.AbstractEventLoop, loop))
    for number in range(RATE + 7):
        events.tell(event(EventKind.LOGIN_FAILED, number, user="ann"))
        events.tell(event(EventKind.CONNECTED, number))
    assert len(topics.told) == RATE
    name, fields = topics.told[0]
    assert name == "login_failed" and datetime.fromisoformat(fields.pop("time")).tzinfo is not None
    assert fields == {
        "event": "login failed",
        "client_id": "c0",
        "user": "ann",
        "peer": "192.0.2.0:1",
        "listener": "l",
    }
    loop.later.pop()()
    name, fields = topics.told[-1]
    assert (name, fields["event"], fields["left_out"]) == ("login_failed", "login failed", 7)
