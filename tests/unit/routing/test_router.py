"""What the router remembers of topics, and what it does not."""

from __future__ import annotations

import tracemalloc

import pytest

from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow
from embermq.routing.match_cache import TOPIC_CHARACTERS_MAX
from embermq.routing.router import MATCHES_BYTES_MAX, Router, Subscriber
from embermq.sessions.absent_session import AbsentSession
from embermq.sessions.session import Session


def loaded(holder: Session | AbsentSession) -> Session:
    """All are, here."""
    assert isinstance(holder, Session)
    return holder


def test_long_topics_are_not_remembered() -> None:
    router = Router(loaded)
    short, long = "a" * TOPIC_CHARACTERS_MAX, "a" * (TOPIC_CHARACTERS_MAX + 1)
    router.match(short)
    router.match(long)
    assert router.known(short) is not None
    assert router.known(long) is None


@pytest.mark.parametrize(("letter", "readers"), [("a", 0), ("\U0001f600", 0), ("a", 2)])
def test_what_is_remembered_is_bounded_by_its_memory(
    letter: str, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of it, for 10,000 topics of 256 characters, of one byte or of four, with so many receivers each."""
    bytes_max = MATCHES_BYTES_MAX // 10
    monkeypatch.setattr("embermq.routing.router.MATCHES_BYTES_MAX", bytes_max)
    router = Router(loaded)
    for generation in range(readers):
        row = SessionRow("reader", generation, 1, ClientType.DEVICE, "", 5, 0, False, 0, 0)
        session = Session(row, persistent=False)
        router.put(Subscriber(session, "#", "", 0, 0, 0))
    most = 0
    tracemalloc.start()
    for number in range(10_000):
        router.match(f"{number:{letter}>{TOPIC_CHARACTERS_MAX}}")
        if number % 50 == 0:
            most = max(most, tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert bytes_max // 3 < most < 1.1 * bytes_max
