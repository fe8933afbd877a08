"""The threads that read application logs in Kafka end when they are told to, at whatever moment that is."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import pytest

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_feeds import KafkaApplicationFeeds
from embermq.adapters.kafka.shared_feeds import KafkaSharedFeeds

Feeds = KafkaApplicationFeeds | KafkaSharedFeeds


class ClosedAtTheClear(Event):
    """`close` comes between the look at `_closing` and this."""

    def __init__(self, feeds: Feeds) -> None:
        super().__init__()
        self._feeds = feeds

    def clear(self) -> None:
        self._feeds._closing = True
        self.set()
        super().clear()


@pytest.mark.parametrize("make", [KafkaApplicationFeeds, KafkaSharedFeeds])
def test_an_end_between_two_rounds_is_heard(make: Callable[..., Feeds]) -> None:
    feeds = make(parse_address("kafka://127.0.0.1:9"), KafkaSettings(), lambda call: call())
    waited_on = feeds._ordered
    feeds._ordered = ClosedAtTheClear(feeds)
    waited_on.set()
    feeds._thread.join(60)
    assert not feeds._thread.is_alive()
    feeds.close()
