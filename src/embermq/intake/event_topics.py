"""Topics below $SYS/events: what happens at the door, for who has a rule that names them.

Messages of QoS 0 that stay nowhere, to clients of this node. Without rules there are none: nobody has that right.
"""

from embermq.access.authorization.rules import EVENTS_PREFIX
from embermq.intake.publishing import Publishing
from embermq.model.message import Message
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.state import BrokerState


class EventTopics:
    """Publishes what it is told of; how much that is, is up to who tells."""

    def __init__(self, state: BrokerState, publishing: Publishing) -> None:
        self._state = state
        self._publishing = publishing
        self._waiting: list[tuple[str, bytes]] = []

    def is_wanted(self, name: str) -> bool:
        """Whether anybody has subscribed who may receive it: else there is no need to make the message."""
        state = self._state
        if state.rules is None:
            return False
        return not state.router.match_for(EVENTS_PREFIX + name, "").is_empty

    def tell(self, name: str, payload: bytes) -> None:
        """Publish below `$SYS/events/`, with the next tick: events arise where links end, also in the midst of a
        delivery."""
        self._waiting.append((name, payload))
        if len(self._waiting) == 1:
            tick = self._state.tick
            self._state.timers.at(tick.now_ms, self._publish)
            tick.wake()

    def _publish(self) -> None:
        if self._state.rules is None:
            self._waiting.clear()
            return
        waiting, self._waiting = self._waiting, []
        for name, payload in waiting:
            date_ms = self._state.tick.date_ms
            self._publishing.publish_unstored(
                Message(EVENTS_PREFIX + name, payload, 0, False, "", ProtocolVersion.V5, date_ms)
            )
