"""Control messages: `$ack`, `$nack`, `$reject` and `$extend` of consumers [queues-5] [queues-28]."""

from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.tick_store import EVERYBODY, queue_owner
from embermq.queues.errors import PropertyRefused
from embermq.queues.mqtt.deliveries import Deliveries
from embermq.queues.names import QUEUE_PREFIX, Verb
from embermq.queues.queues import Queues
from embermq.queues.settling import answer, read_request
from embermq.sessions.client_events import EventKind
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Verdict

DENIED = "settling needs the right to subscribe to the queue"
NO_BODY = "a control message has no body"


class Control:
    """Settles at once; the answer leaves when that is durable. Nobody is disconnected for what it says."""

    def __init__(self, state: BrokerState, core: Queues, deliveries: Deliveries) -> None:
        self._state = state
        self._core = core
        self._deliveries = deliveries

    def settle(self, link: Link, session: Session, packet: Publish, name: str, verb: Verb) -> Verdict:
        """What a PUBLISH to a control topic comes to."""
        permissions = session.permissions
        if permissions is not None and not permissions.may_subscribe(QUEUE_PREFIX + name):
            self._state.counters.publishes_denied += 1
            event = link.event(EventKind.DENIED, DENIED, ReasonCode.NOT_AUTHORIZED, topic=packet.topic)
            self._state.tell(event)
            return Verdict(ReasonCode.NOT_AUTHORIZED, DENIED)
        if packet.payload:
            return Verdict(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, NO_BODY)
        user_properties = packet.properties.user_properties if packet.properties is not None else ()
        try:
            request = read_request(verb, user_properties)
            # Else a fast nack would be of a message that was never delivered.
            self._deliveries.note_written(session)
            now_ms = self._state.tick.now_ms
            outcomes = self._core.settle(name, request, session.client_id, session.held_under, now_ms)
        except PropertyRefused as refusal:
            return Verdict(refusal.reason_code, refusal.message)
        said, queue = answer(outcomes), self._core.find(name)
        owner = queue_owner(queue.generation) if queue is not None else EVERYBODY
        return Verdict(said.reason_code, said.reason_string, owner=owner)
