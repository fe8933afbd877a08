"""Which member of a shared subscription (`$share`) gets the next message [MQTT 5.0, 4.8.2]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from zlib import crc32

if TYPE_CHECKING:
    from embermq.routing.router import Receiver


SharedStrategy = Literal["round-robin", "sticky-by-topic", "least-waiting"]
"""The order in which members are asked whether they have room."""


def choose_present(
    receivers: list[Receiver], turn: int, strategy: SharedStrategy, topic: str
) -> Receiver | None:
    """The member that is there, has room and is the first by the strategy; None when there is none."""
    if strategy == "sticky-by-topic":
        turn = crc32(topic.encode())
    count = len(receivers)
    found: Receiver | None = None
    found_held = 0
    for step in range(count):
        receiver = receivers[(turn + step) % count]
        session = receiver.session
        link = session.link
        if link is None or link.closing or link.paused or session.waiting or session.resend:
            continue
        held = len(session.window)
        if held >= session.window_max:
            continue
        if strategy != "least-waiting":
            return receiver
        if found is None or held < found_held:
            found, found_held = receiver, held
    return found


def choose_member(
    receivers: list[Receiver], turn: int, strategy: SharedStrategy, topic: str
) -> Receiver | None:
    """The member with room as above; else the next that is there."""
    found = choose_present(receivers, turn, strategy, topic)
    if found is not None:
        return found
    count = len(receivers)
    for step in range(count):
        receiver = receivers[(turn + step) % count]
        link = receiver.session.link
        if link is not None and not link.closing:
            return receiver
    return None
