"""Who sends to whom."""

from __future__ import annotations

import msgspec

from embermq_bench.errors import LoadError
from embermq_bench.frames import PUBLISHERS_MAX, topic_index


class SubscriberShape(msgspec.Struct, frozen=True):
    """client_id None: one of this run. topic_filter: its last level. sources: publisher numbers. Subscribers of one
    `group` share a subscription; "" is a subscription of its own."""

    topic_filter: str
    sources: range
    client_id: str | None = None
    group: str = ""


class Shape(msgspec.Struct, frozen=True):
    """Who sends to whom. Publisher i writes to topic i; each subscriber has a filter and its sources."""

    name: str
    publishers: int
    subscribers: tuple[SubscriberShape, ...]

    @property
    def deliveries_per_message(self) -> int:
        """How many subscribers get each message; of a group it is one."""
        alone = [subscriber for subscriber in self.subscribers if not subscriber.group]
        groups = {subscriber.group: subscriber for subscriber in self.subscribers if subscriber.group}
        wanted = sum(len(subscriber.sources) for subscriber in (*alone, *groups.values()))
        return wanted // self.publishers


def pairs(count: int) -> Shape:
    """Publisher i to subscriber i."""
    _check_count("pairs", count)
    return Shape("p2p", count, tuple(SubscriberShape(topic_index(i), range(i, i + 1)) for i in range(count)))


def fan_in(
    publishers: int, subscriber_id: str | None = None, *, subscribers: int = 1, group: str = ""
) -> Shape:
    """All publishers to one subscriber, whose client id may be given: several have a number behind it. Each of several
    gets everything, or with a `group` its part."""
    _check_count("publishers", publishers)
    _check_count("subscribers", subscribers)
    if "/" in group or "+" in group or "#" in group:
        raise LoadError(f"the group is {group!r}; its name is without / + and #")
    ids = (
        [subscriber_id]
        if subscriber_id is None or subscribers == 1
        else [f"{subscriber_id}-{number}" for number in range(subscribers)]
    )
    return Shape(
        "fanin",
        publishers,
        tuple(
            SubscriberShape("+", range(publishers), ids[number % len(ids)], group)
            for number in range(subscribers)
        ),
    )


def fan_out(subscribers: int) -> Shape:
    """One publisher to all subscribers."""
    _check_count("subscribers", subscribers)
    return Shape("fanout", 1, tuple(SubscriberShape(topic_index(0), range(1)) for _ in range(subscribers)))


def _check_count(what: str, count: int) -> None:
    if not 1 <= count <= PUBLISHERS_MAX:
        raise LoadError(f"{what} is {count}; it is 1 to {PUBLISHERS_MAX}")
