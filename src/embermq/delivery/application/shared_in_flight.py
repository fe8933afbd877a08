"""What sessions have under way from logs of shared subscriptions, and what of it is stored.

A mark stands for QoS 2, with its message, from before it is sent until it is settled; for QoS 1 only once it is settled
out of its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from embermq.delivery.application.owed import OWED_LOG, owed_delivery
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.shared_lane import Member, SharedLane
from embermq.formats.log_record import encode_record
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedMark
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState


class Sent(Struct, eq=False):
    """One message under way to a session. `lane` is None when it comes from a connection before, or its partition is
    another member's; `offset` is that in the partition."""

    delivery: Delivery
    group: int
    partition: int
    offset: int
    lane: SharedLane | None


class SharedInFlight:
    """The messages in flight from shared logs, of all connected sessions, by packet id. `claim` is told of what
    nobody else of a group may get: the group's generation, partition and offset."""

    def __init__(self, state: BrokerState, parking: Parking, claim: Callable[[int, int, int], None]) -> None:
        self._state = state
        self._parking = parking
        self._claim = claim
        self._sent: dict[Session, dict[int, Sent]] = {}

    # Connections

    def begin(self, session: Session, marks: Iterable[SharedMark]) -> list[Delivery]:
        """The client is connected; returns what the marks stand for, to be sent again."""
        sent = self._sent[session] = {}
        for mark in marks:
            delivery = owed_delivery(mark)
            sent[mark.packet_id] = Sent(delivery, mark.group, mark.partition, mark.offset, None)
        return [one.delivery for one in sent.values()]

    def end(self, session: Session) -> None:
        """The client is gone: what is to be known then is in store."""
        self._sent.pop(session, None)

    # What is sent, and what becomes of it

    def mark(self, session: Session, delivery: Delivery, state: int) -> None:
        """See `Journal`."""
        sent = self.of(session, delivery)
        if sent is None:
            return
        if state == QueueState.DONE:
            self.done(session, sent)
        else:
            self._write(sent, session.generation, state)

    def sent(self, lane: SharedLane, delivery: Delivery) -> None:
        """See `Journal`."""
        sents = self._sent.get(lane.session)
        if sents is None:
            return
        group = lane.member.group.generation
        before = sents.get(delivery.packet_id)
        if before is not None and before.lane is not None:
            before.lane.member.under_way -= 1  # it was parked, skipped or too large
        sent = sents[delivery.packet_id] = Sent(delivery, group, lane.number, delivery.offset, lane)
        lane.member.under_way += 1
        if delivery.qos == 2:
            lane.qos2.append(delivery.offset)
            self._write(sent, lane.session.generation, QueueState.SENT, encode_record(delivery.message, b""))

    def store_anew(self, session: Session) -> None:
        """What it has of QoS 2: the store has lost it."""
        for sent in self._sent.get(session, {}).values():
            delivery = sent.delivery
            if delivery.qos != 2 or delivery.settled:
                continue
            self._write(sent, session.generation, QueueState.SENT, encode_record(delivery.message, b""))
            if delivery.released:
                self._write(sent, session.generation, QueueState.RELEASED)

    def _write(self, sent: Sent, session: int, state: int, record: bytes = b"") -> None:
        delivery = sent.delivery
        mark = SharedMark(
            sent.group,
            sent.partition,
            sent.offset,
            session,
            delivery.packet_id,
            state,
            record,
            delivery.identifiers,
            delivery.retain,
        )
        self._state.tick.writes.shared.marks.append(mark)

    def done(self, session: Session, sent: Sent, *, is_kept: bool = False) -> None:
        """Settled, and nobody else shall get it; or `is_kept` by its session, which is stored first. Its packet id may
        be another message's from now on."""
        if sent.lane is None:
            self._parking.sender.forget_attempts(session, OWED_LOG, sent.delivery.packet_id)
        self._claim(sent.group, sent.partition, sent.offset)
        with_session = is_kept or sent.delivery.qos == 2
        self._write(sent, session.generation if with_session else 0, QueueState.DONE)

    def of(self, session: Session, delivery: Delivery) -> Sent | None:
        """None when it does not come from a shared log."""
        sents = self._sent.get(session)
        sent = sents.get(delivery.packet_id) if sents else None
        return sent if sent is not None and sent.delivery is delivery else None

    def forget(self, session: Session, delivery: Delivery) -> None:
        """Forget a message that is under way no more."""
        del self._sent[session][delivery.packet_id]

    def count(self, member: Member) -> None:
        """What was parked, skipped or too large is not under way any more, and nobody has said so."""
        sents = self._sent[member.session]
        for packet_id, sent in list(sents.items()):
            if sent.lane is not None and sent.lane.member is member and sent.delivery.settled:
                del sents[packet_id]
                member.under_way -= 1

    # Its partition goes, or its member

    def take_back(self, lane: SharedLane, delivery: Delivery) -> None:
        """It was not sent: it is the next member's, and its packet id is free."""
        session = lane.session
        if session.window.get(delivery.packet_id) is not delivery:
            return
        del session.window[delivery.packet_id]
        delivery.settled = True
        if self._sent.get(session, {}).pop(delivery.packet_id, None) is not None:
            lane.member.under_way -= 1

    def keep(self, lane: SharedLane) -> list[Delivery]:
        """Its partition goes: what is under way of QoS 2 stays with the session, and nobody else shall get it."""
        kept: list[Delivery] = []
        for sent in self._sent.get(lane.session, {}).values():
            if sent.lane is lane and sent.delivery.qos == 2 and not sent.delivery.settled:
                lane.partition.claim(sent.offset)
                lane.member.under_way -= 1
                sent.lane = None
                kept.append(sent.delivery)
        return kept

    def leave_to_queue(self, member: Member) -> None:
        """It has unsubscribed: QoS 1 that has been sent is owed without the subscription, also when the client goes and
        comes again [MQTT-3.10.4-3]; from now on it is the device queue's."""
        for sent in list(self._sent.get(member.session, {}).values()):
            if sent.lane is not None and sent.lane.member is member:
                self._leave(member.session, sent)

    def outlive_log(self, group: int, lost: Mapping[int, int]) -> None:
        """What stood at these offsets of the group's partitions and behind is not in the log any more: QoS 1 that has
        been sent can come from nowhere else, so it is stored at once."""
        for session, sents in self._sent.items():
            gone = [
                sent
                for sent in sents.values()
                if sent.group == group and sent.partition in lost and sent.offset >= lost[sent.partition]
            ]
            for sent in gone:
                self._leave(session, sent)
            if gone:
                self._state.path(session).write_down(session)

    def _leave(self, session: Session, sent: Sent) -> None:
        delivery = sent.delivery
        packet_id = delivery.packet_id
        if delivery.qos != 1 or delivery.settled:
            return
        del self._sent[session][packet_id]
        self.done(session, sent, is_kept=True)
        session.window[packet_id] = Delivery(
            delivery.message,
            encode_record(delivery.message, b""),
            -1,
            1,
            delivery.retain,
            delivery.identifiers,
            0,
            packet_id,
        )
