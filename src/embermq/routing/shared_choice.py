"""Which member of a shared subscription (`$share`) gets the next message [MQTT 5.0, 4.8.2]."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # settings name the strategies
    from embermq.routing.router import Receiver

SharedStrategy = Literal["round-robin", "sticky-by-topic", "least-waiting"]
May = Callable[["Receiver"], bool]
Choose = Callable[[Sequence["Receiver"], int, str, May], "Receiver | None"]
"""The receiver among these, at this turn, for this topic, of which this holds; None when it holds of none."""


def is_here(receiver: Receiver) -> bool:
    """Whether its client is connected."""
    return receiver.session.is_here


def has_room(receiver: Receiver) -> bool:
    """Whether it can be sent one more message now."""
    return receiver.session.has_room


def keeps(receiver: Receiver) -> bool:
    """Whether a message of QoS 1 or 2 would be kept for it."""
    return receiver.session.persistent and receiver.qos > 0


def _round_robin(receivers: Sequence[Receiver], turn: int, _topic: str, may: May) -> Receiver | None:
    count = len(receivers)
    for step in range(count):
        receiver = receivers[(turn + step) % count]
        if may(receiver):
            return receiver
    return None


def _sticky_by_topic(receivers: Sequence[Receiver], _turn: int, topic: str, may: May) -> Receiver | None:
    """One of those who are there, the same as long as nobody comes or goes; who comes or goes moves its own topics
    alone. When that one has no room its topics wait for it."""
    here = [receiver for receiver in receivers if is_here(receiver)]
    if not here:
        return None
    of_topic = crc32(topic.encode())
    chosen = max(here, key=lambda receiver: _mixed(of_topic ^ crc32(receiver.session.client_id.encode())))
    return chosen if may(chosen) else None


def _mixed(value: int) -> int:
    """A CRC is linear: the greatest of several would nearly always be that of the same member."""
    value = (value ^ value >> 16) * 0x45D9F3B & 0xFFFFFFFF
    value = (value ^ value >> 16) * 0x45D9F3B & 0xFFFFFFFF
    return value ^ value >> 16


def _least_waiting(receivers: Sequence[Receiver], turn: int, _topic: str, may: May) -> Receiver | None:
    """Whoever has the fewest messages unacknowledged; by turns among those with as few."""
    count = len(receivers)
    in_turn = [receivers[(turn + step) % count] for step in range(count)]
    return min((one for one in in_turn if may(one)), key=_load, default=None)


def _load(receiver: Receiver) -> int:
    session = receiver.session
    return len(session.window) + len(session.waiting or ())


STRATEGIES: Mapping[SharedStrategy, Choose] = {
    "round-robin": _round_robin,
    "sticky-by-topic": _sticky_by_topic,
    "least-waiting": _least_waiting,
}
