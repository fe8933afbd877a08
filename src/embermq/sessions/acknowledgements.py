"""PUBACK, PUBREC, PUBREL and PUBCOMP of both directions.

Towards a client (we send PUBLISH):   PUBLISH -> PUBACK | PUBREC -> PUBREL -> PUBCOMP; the packet id is free at
PUBACK, at PUBCOMP, or at a PUBREC with an error [MQTT-4.3.3-4].
From a client (it sends PUBLISH):     PUBREL frees the id; PUBCOMP leaves when that is durable, because a client
that has it may use the id for another message.
"""

from functools import partial

from embermq.mqtt.wire.encoder import pubcomp
from embermq.mqtt.wire.packets import Puback, Pubcomp, Pubrec, Pubrel
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.awaiting_pubrel import Holding
from embermq.sessions.link import Link
from embermq.sessions.packet_ids import answered_late
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import StoredTogether


class Acknowledging:
    """Moves deliveries on, whichever way they came."""

    def __init__(self, state: BrokerState, holding: Holding) -> None:
        self._state = state
        self._holding = holding
        self._direct = state.direct
        self._durable = state.durable
        self._completing = StoredTogether(state.tick, self._complete)

    def puback(self, link: Link, packet: Puback) -> None:
        """A QoS 1 delivery is settled. An unknown id is ignored: it may be of a connection before."""
        session = link.session
        if session is None:
            return
        delivery = session.window.get(packet.packet_id) or answered_late(session, packet.packet_id)
        if delivery is None:
            self._is_of_member(link, packet)
            return
        if delivery.qos != 1:
            self._out_of_order(link, "PUBACK for a message of QoS 2")
            return
        del session.window[packet.packet_id]
        delivery.settled = True
        if packet.reason_code >= FIRST_ERROR:
            self._durable.refused(session, delivery)
        if session.queue_filters or delivery.from_queue:
            self._settle_beside_queues(session, delivery, packet)
        else:
            (self._durable if session.persistent else self._direct).settled(session, delivery)
        if session.beside is not None:
            session.beside()

    def pubrec(self, link: Link, packet: Pubrec) -> None:
        """The client has a QoS 2 message; PUBREL follows once that is stored."""
        session = link.session
        if session is None:
            return
        delivery = session.window.get(packet.packet_id) or answered_late(session, packet.packet_id)
        if delivery is None:
            if self._is_of_member(link, packet):
                return
            if packet.reason_code < FIRST_ERROR:  # also in 3.x: the client would hold the id for ever
                known = link.version is not ProtocolVersion.V5
                link.send_packet(
                    Pubrel(packet.packet_id, 0 if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
                )
            return
        if delivery.qos != 2:
            self._out_of_order(link, "PUBREC for a message of QoS 1")
        elif packet.reason_code >= FIRST_ERROR:
            self._settle(session, packet)
        elif delivery.from_queue and self._state.queues is not None:
            delivery.released = True
            self._state.queues.released(session, delivery)
        else:  # a repeated one is answered by PUBREL again [MQTT-4.3.3-4]
            delivery.released = True
            self._state.path(session).released(session, delivery)

    def pubcomp(self, link: Link, packet: Pubcomp) -> None:
        """A QoS 2 delivery is settled."""
        session = link.session
        if session is None:
            return
        delivery = session.window.get(packet.packet_id) or answered_late(session, packet.packet_id)
        if delivery is None:
            self._is_of_member(link, packet)
            return
        if delivery.released:
            self._settle(session, packet)
        else:
            self._out_of_order(link, "PUBCOMP before PUBREL")

    def _out_of_order(self, link: Link, text: str) -> None:
        """A step that the delivery is not at [MQTT 3.1.1, MQTT-4.8.0-1]. In 3.1, where clients repeat themselves, it is
        ignored."""
        if link.version is not ProtocolVersion.V31:
            link.disconnect(ReasonCode.PROTOCOL_ERROR, text)

    def _settle(self, session: Session, packet: Pubrec | Pubcomp) -> None:
        delivery = session.window.pop(packet.packet_id)
        delivery.settled = True
        if packet.reason_code >= FIRST_ERROR:
            self._durable.refused(session, delivery)
        if session.queue_filters or delivery.from_queue:
            self._settle_beside_queues(session, delivery, packet)
        else:
            self._state.path(session).settled(session, delivery)
        if session.beside is not None:
            session.beside()

    def _is_of_member(self, link: Link, packet: Puback | Pubrec | Pubcomp) -> bool:
        """Whether it answers what came from another slot, which has it then."""
        members = self._state.share.members
        return members is not None and members.answered(link, packet)

    def _settle_beside_queues(
        self, session: Session, delivery: Delivery, packet: Puback | Pubrec | Pubcomp
    ) -> None:
        """Queues and the ordinary path share a window: who waits for room in it may be of the other kind."""
        queues = self._state.queues
        if delivery.from_queue and queues is not None:
            properties = packet.properties
            text = properties.reason_string if properties is not None else None
            queues.settled(session, delivery, packet.reason_code, text or "")
            return
        self._state.path(session).settled(session, delivery)
        if queues is not None:
            queues.completed(session, delivery.packet_id)

    def pubrel(self, link: Link, packet: Pubrel) -> None:
        """The publisher releases the packet id of a QoS 2 message [MQTT-4.3.3-12]."""
        session = link.session
        if session is None:
            return
        packet_id = packet.packet_id
        receiving = session.receiving
        if receiving is None or packet_id not in receiving:
            members = self._state.share.members
            is_own = link.member_version is None  # a member's is held here or nowhere
            if members is not None and is_own and members.released(link, packet):
                return
            known = link.version is not ProtocolVersion.V5
            answer = Pubcomp(packet_id, 0 if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
            if session.persistent:  # the PUBREL that this one repeats may not be durable yet
                self._state.tick.batch.when_stored(session.generation, partial(link.send_packet, answer))
            else:
                link.send_packet(answer)
            return
        receiving.discard(packet_id)
        self._state.restored_ids.discard((session.generation, packet_id))
        if not session.persistent:
            self._complete(session, link, [packet_id])
            return
        self._state.tick.session_writes.released.append((session.generation, packet_id))
        self._completing.add(session, link, packet_id)

    def _complete(self, _session: Session, link: Link, packet_ids: list[int]) -> None:
        for packet_id in packet_ids:
            if link.unanswered:  # it may be of a connection before
                link.unanswered -= 1
            link.send(pubcomp(packet_id))
            self._holding.release(link, packet_id)
