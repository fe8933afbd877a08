"""When a PUBLISH has reached the socket: from then on its consumer may work on it [queues-22].

A link tells how many bytes it hands to the network, and how many of them the socket has not taken. Links that were just
flushed are looked at again with the next ticks; those that stay behind a few times a second, whatever others do.
"""

from collections.abc import Callable, Sequence

from embermq.queues.mqtt.consumer import MqttConsumer
from embermq.queues.mqtt.in_window import QueueDelivery
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

TRIES = 3
"""A link that is behind so often is a slow one."""
SLOW_MS = 20
"""How often slow links are looked at."""


class Writing:
    """`began` is called with deliveries, in the order of sending, once the socket has them."""

    def __init__(self, state: BrokerState, began: Callable[[Session, Sequence[QueueDelivery]], None]) -> None:
        self._state = state
        self._began = began
        self._fresh: dict[MqttConsumer, None] = {}
        self._slow: dict[MqttConsumer, None] = {}
        self._slow_due_ms = 0

    def sent(self, consumer: MqttConsumer, link: Link, delivery: QueueDelivery) -> None:
        """A delivery was put on the link, and leaves with its next flush."""
        if link.flushed is None:
            consumer.handed_bytes = consumer.unsent_bytes = link.unsent_bytes() or 0
            link.flushed = consumer.flushed
        consumer.sent.append(delivery)
        self._fresh[consumer] = None

    def look(self, now_ms: int) -> None:
        """See what has been written since."""
        fresh, self._fresh = self._fresh, {}
        for consumer in fresh:
            self.note(consumer)
            if consumer.is_writing:
                consumer.tries += 1
                if consumer.tries < TRIES:
                    self._fresh[consumer] = None
                    continue
                if not self._slow:
                    self._slow_due_ms = now_ms + SLOW_MS
                self._slow[consumer] = None
        if self._slow and now_ms >= self._slow_due_ms:
            self._slow_due_ms = now_ms + SLOW_MS
            for consumer in list(self._slow):
                self.note(consumer)
                if not consumer.is_writing:
                    del self._slow[consumer]

    @property
    def next_due_ms(self) -> int | None:
        """When `look` has something to do; 0 for at once."""
        if self._fresh:
            return 0
        return self._slow_due_ms if self._slow else None

    def note(self, consumer: MqttConsumer) -> None:
        """See what has been written for one."""
        link, unwritten = consumer.link, consumer.unwritten
        unsent_bytes = link.unsent_bytes() if link is not None and unwritten else None
        if link is None or unsent_bytes is None:
            return
        consumer.unsent_bytes = unsent_bytes
        written_bytes = consumer.handed_bytes - unsent_bytes
        while unwritten and unwritten[0][0] <= written_bytes:
            self._began(consumer.session, unwritten.popleft()[1])
        if not consumer.is_writing:
            link.flushed = None

    def end(self, consumer: MqttConsumer) -> None:
        """The connection is over. What was handed to a socket that took everything until then counts as written: a
        message that kills its consumer must not be free of charge."""
        link = consumer.link
        if link is not None and not link.paused and not consumer.unsent_bytes:
            while consumer.unwritten:
                self._began(consumer.session, consumer.unwritten.popleft()[1])
        self._fresh.pop(consumer, None)
        self._slow.pop(consumer, None)
