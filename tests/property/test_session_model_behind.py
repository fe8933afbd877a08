"""The model of one session again, with session data in a store of its own that answers when it likes.

What holds beside the log holds here too: what was acknowledged arrives, at QoS 2 once, in order, whatever waits for the
session store when the broker dies.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.property.test_session_model import OneSession
from tests.support.hand_driven import HandDrivenBroker
from tests.support.held_sessions import HeldSessions, table

from embermq.delivery.device import requests


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE_MESSAGES", 3)


class OneSessionBehind(OneSession):
    """See the module."""

    def begin(self) -> HandDrivenBroker:
        self.unheard: set[bytes] = set()
        """What may have been taken though the publisher does not know: refused when sent again, it still arrives."""
        self.sessions = HeldSessions(Path(":memory:"))
        return HandDrivenBroker(
            sessions=self.sessions,
            connect_wait_s=0.3,
        )

    @rule(held=st.booleans())
    def hold_answers(self, held: bool) -> None:
        self.sessions.held = held

    @precondition(lambda self: self.sessions.waiting)
    @rule(count=st.integers(1, 4))
    def answer_some(self, count: int) -> None:
        self.sessions.release(min(count, len(self.sessions.waiting)))
        self.step(whole=False)

    @rule()
    def crash_unheard(self) -> None:
        """The broker dies, and what it said last is lost on the way."""
        self.hand.run()
        self.unheard |= {packet.payload for packet in self.publisher.unacknowledged.values()}
        for client in (self.publisher, self.subscriber):
            if client.link is not None:
                client.seen = len(client.link.received)
        self.crash()

    def teardown(self) -> None:
        self.sessions.held = False
        super().teardown()
        self.sessions.close()

    def check(self) -> None:
        refused = self.publisher.refused
        self.publisher.refused = [packet for packet in refused if packet.payload not in self.unheard]
        super().check()

    def stored(self) -> tuple[list[object], list[object]]:
        return list(table(self.sessions, "receiving")), list(table(self.sessions, "device_queue"))


OneSessionBehind.TestCase.settings = settings(
    max_examples=max(50, settings().max_examples // 40), stateful_step_count=50, deadline=None
)
TestOneSessionBehind = pytest.mark.promise("device-8", "device-9", "device-11", "repositories-5a")(
    OneSessionBehind.TestCase
)
