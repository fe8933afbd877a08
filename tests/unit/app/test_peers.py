"""What a node remembers of the logs of other slots, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.hand_driven import HandDrivenBroker
from tests.unit.app.test_slots import with_cluster

from embermq.app import peers
from embermq.app.redis_state import RedisState
from embermq.ports.message_log import MessageLog


class OtherLog:
    """Of a slot, read up to its end when `caught_up` is called."""

    def __init__(self, *_given: object) -> None:
        self.failing = ""
        self.caught_up: list[Callable[[], None]] = []

    def catch_up(self, then: Callable[[], None]) -> None:
        self.caught_up.append(then)

    def told(self, position: int) -> None:
        """That much is done."""


def test_the_end_of_a_retained_message_is_forgotten_when_the_logs_of_all_others_are_past_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs: list[OtherLog] = []

    def open_log(*given: object) -> OtherLog:
        logs.append(OtherLog(*given))
        return logs[-1]

    monkeypatch.setattr(peers, "KafkaPeerLog", open_log)
    hand = HandDrivenBroker()
    retained = hand.state.retained
    retained.remembers_ends = True
    noted: list[tuple[int, Callable[[], None]]] = []
    redis = SimpleNamespace(
        notes=SimpleNamespace(peers=lambda slots: dict.fromkeys(slots, (0, 0))),
        writer=SimpleNamespace(note_peer=lambda slot, _position, _end, then: noted.append((slot, then))),
    )
    log = SimpleNamespace(read=lambda *_given, **_limits: [])
    here = peers.Peers(
        with_cluster(slots=3),
        0,
        broker=hand.broker,
        redis=cast(RedisState, redis),
        log=cast(MessageLog, log),
        post=lambda call: call(),
    )
    hand.connects("p").publishes("t", b"", retain=True)
    hand.settle()
    here.look()
    assert list(retained.ends) == ["t"]

    def looks_for(ms: int) -> None:
        for _ in range(ms // peers.NOTE_MS):
            hand.passes(ms=peers.NOTE_MS)

    looks_for(peers.ENDS_KEPT_MS)
    assert [len(log.caught_up) for log in logs] == [1, 1], "it is asked once"
    for other in logs:
        other.caught_up.pop()()
    told = noted[-2:]
    assert {slot for slot, _ in told} == {1, 2}
    for _, then in told:
        then()
    hand.settle()
    assert list(retained.ends) == ["t"], "that was asked at once, when it had just come"
    looks_for(peers.AGAIN * peers.NOTE_MS)
    for other in logs:
        other.caught_up.pop()()
    first, second = noted[-2:]
    first[1]()
    hand.settle()
    assert list(retained.ends) == ["t"], "Redis does not know it of both yet"
    second[1]()
    hand.settle()
    assert not retained.ends
    assert not hand.store.retained
