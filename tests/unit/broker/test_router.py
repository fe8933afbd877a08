"""What the router remembers of topics, and what it does not."""

from __future__ import annotations

from embermq.broker.router import TOPIC_CHARACTERS_MAX, Router


def test_long_topics_are_not_remembered() -> None:
    router = Router()
    short, long = "a" * TOPIC_CHARACTERS_MAX, "a" * (TOPIC_CHARACTERS_MAX + 1)
    router.match(short)
    router.match(long)
    assert router.known(short) is not None
    assert router.known(long) is None
