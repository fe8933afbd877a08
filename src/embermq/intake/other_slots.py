"""PUBLISH to a durable queue of another slot of the cluster: it goes to the node that has that."""

from __future__ import annotations

from collections.abc import Callable

from embermq.access.authorization.rule_set import Permissions
from embermq.formats.log_record import Origin
from embermq.intake.kept_properties import deadline_of, kept_properties
from embermq.intake.refusing import Refusing
from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.routing.queue_target import QueueAim, QueueTarget
from embermq.routing.router import Match
from embermq.sessions.link import Link
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, PublishRefusal

ELSEWHERE = PublishRefusal(
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    "the queue belongs to another slot of the cluster: ask a node that has that",
)
OTHER_SLOT = Match([], [], [], [], b"", False, False)
"""Of what is recorded here for a queue of another slot, which reads it from this one's log (`cluster.inflow`)."""
Record = Callable[[Accepted, Origin | None, Permissions | None], bool]


class OtherSlots:
    """What is asked of a message before it goes there has been asked; what its queue asks, is asked there."""

    def __init__(self, state: BrokerState, refusing: Refusing, record: Record) -> None:
        self._state = state
        self._refusing = refusing
        self._record = record

    def send(self, link: Link, packet: Publish, topic: str, target: QueueTarget) -> None:
        """Its acknowledgement comes from there. A message of QoS 0, which nobody acknowledges, becomes a record here,
        that the other slot takes over: so it needs no connection that may still have to be made."""
        state, session = self._state, link.session
        assert session is not None, "it has published"
        properties = kept_properties(packet.properties) if packet.properties is not None else None
        packet = replace(packet, topic=topic, properties=properties)
        state.counters.messages_received += 1
        state.counters.payload_bytes_received += len(packet.payload)
        members = state.share.members
        if members is None or link.member_version is not None:
            self._refusing.refuse(link, packet.qos, packet.packet_id, ELSEWHERE)
        elif packet.qos or target.aim is not QueueAim.ENQUEUE:
            members.publish(link, packet, target)
        elif not (
            (state.refuse_all or state.log_full) and self._refusing.is_pinned(link, packet, OTHER_SLOT)
        ):
            accepted = Accepted(self._message(link, session.client_id, packet), b"", OTHER_SLOT, link, 0)
            self._record(accepted, None, session.permissions)

    def _message(self, link: Link, publisher: str, packet: Publish) -> Message:
        tick, properties = self._state.tick, packet.properties
        due_ms = deadline_of(properties, tick.now_ms) if properties is not None else 0
        return Message(
            packet.topic,
            packet.payload,
            0,
            False,
            publisher,
            link.version,
            tick.date_ms,
            due_ms,
            properties,
        )
