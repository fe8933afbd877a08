"""What every PUBLISH below `$queue/` has in common, whatever it means: its packet id, and its answer."""

from embermq.intake.refusing import Refusing
from embermq.model.message import Message
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.reason_codes import FIRST_ERROR
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.routing.router import NO_MATCH
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Verdict


class Arriving:
    """Knows QoS 1 and 2; nothing of queues."""

    def __init__(self, state: BrokerState, refusing: Refusing) -> None:
        self._state = state
        self._tick = state.tick
        self._refusing = refusing

    def takes(self, link: Link, session: Session, packet: Publish) -> bool:
        """False when its answer is given already: it repeats a QoS 2 message, or must not use its packet id, or is one
        message too many."""
        counters = self._state.counters
        receiving = session.receiving
        if packet.qos == 2 and receiving and packet.packet_id in receiving:
            self._tick.batch.accepted.append(
                Accepted(self._blank(link, 2), b"", NO_MATCH, link, packet.packet_id, receiving=receiving)
            )
            return False
        if packet.qos == 1 and receiving and self._refusing.is_in_use(link, session, packet):
            return False
        counters.messages_received += 1
        counters.payload_bytes_received += len(packet.payload)
        if packet.qos:
            link.unanswered += 1
            limit = self._state.settings.receive_maximum
            if link.unanswered > limit and link.version is ProtocolVersion.V5:
                self._refusing.end_at_receive_maximum(link)
                return False
        return True

    def remember(self, session: Session, packet: Publish) -> set[int]:
        """The packet id of a QoS 2 message is in use until its PUBREL."""
        if session.receiving is None:
            session.receiving = set()
        session.receiving.add(packet.packet_id)
        return session.receiving

    def answer(self, link: Link, session: Session, packet: Publish, verdict: Verdict) -> Accepted:
        """Have a QoS 1 or 2 message acknowledged with the receipt of this tick, which stores nothing of it. Its packet
        id is kept in memory alone: after a crash the repeat is judged anew."""
        receiving = None
        # PUBREC with an error is the end of a message [MQTT-4.3.3-4]; MQTT 3 has no such thing.
        if packet.qos == 2 and (verdict.code < FIRST_ERROR or link.version is not ProtocolVersion.V5):
            receiving = self.remember(session, packet)
        accepted = Accepted(
            self._blank(link, packet.qos),
            b"",
            NO_MATCH,
            link,
            packet.packet_id,
            receiving=receiving,
            verdict=verdict,
        )
        self._tick.batch.accepted.append(accepted)
        return accepted

    def _blank(self, link: Link, qos: int) -> Message:
        """Its payload would wait in vain."""
        return Message("", b"", qos, False, "", link.version, self._tick.now_ms)
