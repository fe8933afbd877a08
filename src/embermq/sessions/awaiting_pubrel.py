"""QoS 2 messages between PUBREC and PUBREL.

Receivers of the direct way get them when the publisher lets go of the packet id: at PUBREL, or when its connection is
over [MQTT 3.1.1, 4.3.3, method A]. Whoever publishes and subscribes over the same connection so has its PUBCOMP before
the message. For sessions that are kept the message is stored at once: they do not wait, and nothing is lost by a crash.
"""

from __future__ import annotations

from embermq.sessions.forwarded_frames import counted_anew
from embermq.sessions.link import Link
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

HELD_BYTES_MAX = 1024 * 1024
"""Bytes of messages held for one connection, their topics and properties too; past it they go on without PUBREL."""
HELD_MAX = 1_024
"""Messages held for one connection; past it they go on without their PUBREL."""


class Held:
    """What one connection has published and not released, by packet id, in the order in which it came."""

    __slots__ = ("accepted", "said_bytes")

    def __init__(self) -> None:
        self.accepted: dict[int, Accepted] = {}
        self.said_bytes = 0


class Holding:
    """Holds messages for links and lets them go."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def hold(self, link: Link, accepted: Accepted) -> None:
        """Until PUBREL; at once when the connection ends, or when it holds too much."""
        held = link.held
        if held is None:
            held = link.held = Held()
        elif accepted.packet_id in held.accepted:  # used anew: it was released before its PUBREC
            self.release(link, accepted.packet_id)
        held.accepted[accepted.packet_id] = accepted
        held.said_bytes += accepted.said_bytes()
        if link.closing or held.said_bytes > HELD_BYTES_MAX or len(held.accepted) > HELD_MAX:
            self.release_all(link)

    def release(self, link: Link, packet_id: int) -> None:
        """PUBREL came. What came before goes with it, so that the order stays [MQTT-4.6.0-5]."""
        held = link.held
        if held is None:
            return
        while packet_id in held.accepted:
            accepted = held.accepted.pop(next(iter(held.accepted)))
            held.said_bytes -= accepted.said_bytes()
            self._deliver(accepted)

    def release_all(self, link: Link) -> None:
        held, link.held = link.held, None
        if held is not None:
            for accepted in held.accepted.values():
                self._deliver(accepted)

    def _deliver(self, accepted: Accepted) -> None:
        if accepted.message.expires_ms:  # the interval that is forwarded counts from here
            accepted.message = counted_anew(accepted.message, self._state.tick.now_ms)
            accepted.frame_key = None
        for receiver in accepted.match.direct:
            self._state.direct.deliver(receiver.session, receiver, accepted)
