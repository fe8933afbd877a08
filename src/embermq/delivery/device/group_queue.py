"""The queue of one shared subscription: what no member has acknowledged belongs to the group.

A message for a member that is there and has room is sent at once; all others wait in the group's own device queue,
under the limits of one session, and go to whoever has room first, in their order. While something waits, everything new
goes behind it. A QoS 1 message stays the group's until it is acknowledged: when its member's connection ends, the next
one gets it, at its place. A QoS 2 message is the member's from the moment in which it is given to it
[MQTT-4.8.2-4], [MQTT-4.8.2-5], and is given before it is taken: it is stored for the member first, then removed
from the group, then sent. A start that finds it with both removes it from the group.

While the store takes nothing, QoS 2 waits: its packet id would be known to the client before it is stored.

Rows up to `session.queue_read_seq` are in memory: in flight to a member, or `_ready`. Those behind it are in the store
alone, and all that is not durable yet has a later place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from embermq.delivery.device.draining import UNSTORED_MAX
from embermq.delivery.device.requests import PAGE_MESSAGES
from embermq.delivery.sending import BULK_BYTES_MAX, put_on_link, stored_frame
from embermq.model.client_type import ClientType
from embermq.model.session import NEVER_EXPIRES, SessionRow
from embermq.model.session_writes import QueueRow, QueueState
from embermq.routing.router import NO_MATCH, GroupTurn, Receiver
from embermq.routing.shared_choice import choose_present
from embermq.sessions.forwarded_frames import accepted_frame
from embermq.sessions.packet_ids import next_packet_id
from embermq.sessions.session import Delivery, Session
from embermq.sessions.shared_queue import SharedQueue, number_of
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

if TYPE_CHECKING:
    from embermq.delivery.device.limit import QueueLimit
    from embermq.delivery.device.path import DevicePath
    from embermq.model.message import Message
    from embermq.ports.sessions import StoredSession


class GroupSession(Session):
    """Stands for a shared subscription where sessions are stored. `window` has stored messages that are in memory, by
    their place."""

    __slots__ = ("group_queue",)
    is_group: ClassVar[bool] = True
    group_queue: GroupQueue


class GroupQueue(SharedQueue):
    """See the module."""

    def __init__(self, state: BrokerState, path: DevicePath, turn: GroupTurn) -> None:
        self._state = state
        self._path = path
        self._turn = turn
        self.number = number_of(turn.name)
        row = SessionRow(
            turn.name,
            state.new_generation(),
            1,
            ClientType.DEVICE,
            "",
            5,
            NEVER_EXPIRES,
            False,
            0,
            state.tick.date_ms,
        )
        self._session = GroupSession(row, persistent=True)
        self._session.group_queue = self
        self._is_stored = False
        self._ready: deque[Delivery] = deque()
        """In memory and not in flight, in their order."""
        self._ready_bytes = 0
        self._present: set[int] = set()
        """Generations of members that are connected."""
        self._waits = 0
        """What of it the store does not show yet, so that nothing is read: changes before the store is read anew."""
        self._sent = 0
        """Messages of QoS 1 that members have and have not acknowledged: no more than the queue may hold, since all of
        them may have to be stored."""
        self._giving = 0
        """Messages on their way from the group to a session, in the store."""
        self._given_before: set[int] = set()
        """Offsets of what a crash may have left with a member and the group."""
        state.shared_queues.open.add(self)

    @property
    def session(self) -> Session:
        return self._session

    # Messages come in

    def deliver(self, receivers: list[Receiver], accepted: Accepted) -> None:
        message, session = accepted.message, self._session
        if message.expires_ms and message.is_expired(self._state.tick.now_ms):
            self._state.counters.dropped_expired += 1
            return
        delivery = Delivery(message, accepted.record, accepted.offset, message.qos, False, ())
        delivery.shared = self.number
        delivery.shared_queue = self
        delivery.place = session.next_place()
        if self._present and not (self._ready or session.backlog or self._sent >= self._path.queue_limit):
            turn = self._turn
            strategy = self._state.settings.shared_strategy
            receiver = choose_present(receivers, turn.next, strategy, message.topic)
            turn.next += 1
            if receiver is not None:
                session.queue_read_seq = delivery.place
                self._send(receiver, delivery, accepted)
                if not delivery.settled:
                    self._path.linger.fresh.append((session, delivery))
                return
        self._keep(delivery)

    def _keep(self, delivery: Delivery) -> None:
        """Nobody takes it now: it waits in memory, or behind what waits in the store."""
        session, settings = self._session, self._state.settings
        if (
            not self._present
            or session.backlog
            or len(self._ready) >= settings.queued_messages_max
            or self._ready_bytes > settings.queued_bytes_max
        ):
            session.backlog = True
            self._store(delivery)
        else:
            session.queue_read_seq = delivery.place
            self._push(delivery)
            self._path.linger.fresh.append((session, delivery))
        self._wake()

    def _push(self, delivery: Delivery) -> None:
        self._ready.append(delivery)
        self._ready_bytes += len(delivery.record)

    def write_down(self, delivery: Delivery) -> None:
        """It is in memory and was not acknowledged in time."""
        if delivery.shared_queue is self and not delivery.seq:
            self._store(delivery)
            self._session.window[delivery.seq] = delivery

    def _store(self, delivery: Delivery) -> None:
        if not self._is_stored:
            self._is_stored = True
            self._state.tick.session_writes.sessions.append(self._session.row())
        self._path.add_row(self._session, delivery, QueueState.QUEUED)

    # Handing out

    def _look(self) -> None:
        """Whether there is something to hand out."""
        queues = self._state.shared_queues
        if self._present and (self._ready or self._session.backlog):
            queues.wanting[self] = self._present
        else:
            queues.wanting.pop(self, None)

    def _wake(self) -> None:
        self._look()
        if self in self._state.shared_queues.wanting:
            self._state.shared_queues.awake[self] = None

    def give(self) -> None:
        session, state = self._session, self._state
        if session.dead or not self._present:
            return
        if (
            state.drains
            and sum(len(one.session.queue_marks) for one in state.tick.unstored()) >= UNSTORED_MAX
        ):
            return
        while self._give_ready() and session.backlog and not (session.paging or self._waits):
            read_seq = session.queue_read_seq
            self._ask_page()
            if session.queue_read_seq == read_seq:
                break  # the answer comes later, or there was nothing
        self._look()

    def _give_ready(self) -> bool:
        """True when everything that was in memory is under way."""
        ready, turn = self._ready, self._turn
        strategy = self._state.settings.shared_strategy
        held: list[Delivery] = []
        while ready:
            delivery = ready[0]
            message = delivery.message
            if self._sent >= self._path.queue_limit or (message.qos == 2 and self._state.drains):
                break
            if message.is_expired(self._state.tick.now_ms):
                self._state.counters.dropped_expired += 1
                self._pop()
                self._finish(delivery)
                continue
            receivers = self._receivers(message.topic)
            if not receivers:
                self._state.counters.deliveries_denied += 1
                self._pop()
                self._finish(delivery)
                continue
            receiver = choose_present(receivers, turn.next, strategy, message.topic)
            if receiver is None:
                if self._present.intersection(one.session.generation for one in receivers):
                    break  # they have no room
                held.append(self._pop())  # for those who may receive the topic, and are away
                continue
            link = receiver.session.link
            assert link is not None, "it is there"
            if link.bulk_bytes >= BULK_BYTES_MAX:
                self._state.shared_queues.awake[self] = None
                self._path.requests.begin_tick()
                break
            turn.next += 1
            self._pop()
            self._send(receiver, delivery, None)
        is_through = not ready
        for delivery in reversed(held):
            ready.appendleft(delivery)
            self._ready_bytes += len(delivery.record)
        return is_through and len(held) < PAGE_MESSAGES

    def _pop(self) -> Delivery:
        delivery = self._ready.popleft()
        self._ready_bytes -= len(delivery.record)
        return delivery

    def _receivers(self, topic: str) -> list[Receiver]:
        """Members that may receive it."""
        for group in self._state.router.match(topic).groups:
            if group.turn is self._turn and not group.stamped:
                return group.receivers
        return []

    def _send(self, receiver: Receiver, delivery: Delivery, accepted: Accepted | None) -> None:
        """To a member with room. `accepted` is None for what has waited."""
        session, message, state = receiver.session, delivery.message, self._state
        link = session.link
        assert link is not None, "it was chosen because it is there"
        qos = min(message.qos, receiver.qos)
        retain = message.retain and receiver.retain_as_published
        if qos == 2 and session.persistent:
            self._give_for_good(receiver, delivery)
            return
        if qos != 1:  # a session that is not kept may lose it with its connection
            accepted = accepted or Accepted(message, delivery.record, NO_MATCH, None, 0, delivery.offset)
            state.direct.deliver(session, receiver, accepted)
            link.bulk_bytes += len(delivery.record)
            self._finish(delivery)
            return
        delivery.qos, delivery.retain, delivery.identifiers = 1, retain, receiver.identifiers
        delivery.packet_id = next_packet_id(session)
        if accepted is not None:
            frame = accepted_frame(accepted, 1, retain, link.version, receiver.identifiers)
        else:
            frame = stored_frame(delivery, session, state.tick.now_ms)
            link.bulk_bytes += len(frame[0]) + len(frame[1])
        if put_on_link(link, delivery, frame, state.counters):
            session.window[delivery.packet_id] = delivery
            self._sent += 1
        else:
            self._finish(delivery)

    def _give_for_good(self, receiver: Receiver, delivery: Delivery) -> None:
        session, message = receiver.session, delivery.message
        retain = message.retain and receiver.retain_as_published
        given = Delivery(message, delivery.record, delivery.offset, 2, retain, receiver.identifiers)
        given.shared = self.number
        if delivery.seq:
            self._giving += 1
            self._path.store_sent(session, given, partial(self._given, session, delivery))
        else:
            delivery.settled = True
            self._path.store_sent(session, given, None)

    def _given(self, session: Session, delivery: Delivery, send: Callable[[], None]) -> None:
        """It is stored for the member: the group lets go of it, and then it is sent."""
        self._giving -= 1
        if self._session.dead:
            send()
        elif session.dead:  # before it was sent
            self._take_back([delivery])
            self._wake()
        else:
            self._finish(delivery)
            self._state.tick.batch.when_stored(self._session.generation, send)
        self._rest()

    # What has been handed out

    def settled(self, delivery: Delivery) -> None:
        self._sent -= 1
        if not delivery.seq:
            self._state.counters.messages_elided += 1
        self._finish(delivery)

    def _finish(self, delivery: Delivery) -> None:
        """The group has nothing to do with it any more."""
        delivery.settled = True
        if delivery.seq and not self._session.dead:
            self._session.window.pop(delivery.seq, None)
            self._path.mark_done(self._session, delivery)

    def _in_flight(self, session: Session) -> list[Delivery]:
        found = [delivery for delivery in session.window.values() if delivery.shared_queue is self]
        for delivery in found:
            del session.window[delivery.packet_id]
            delivery.packet_id = 0
        self._sent -= len(found)
        return found

    def _take_back(self, deliveries: list[Delivery]) -> None:
        """They were in flight to a member that is gone: they are the next ones, at their places."""
        if deliveries:
            self._ready = deque(sorted([*deliveries, *self._ready], key=_place))
            self._ready_bytes += sum(len(delivery.record) for delivery in deliveries)

    # Members

    def joined(self, session: Session) -> None:
        if session.link is not None:
            self.comes(session)

    def comes(self, session: Session) -> None:
        self._present.add(session.generation)
        self._wake()

    def goes(self, session: Session) -> None:
        self._present.discard(session.generation)
        self._take_back(self._in_flight(session))
        self._wake()
        self._rest()

    def left(self, session: Session) -> None:
        if session.dead:
            self.goes(session)
            return
        self._present.discard(session.generation)
        self._look()
        for delivery in [one for one in session.window.values() if one.shared_queue is self]:
            # It is under way, and the client is owed the end of it [MQTT-3.10.4-3]: the session stores it now, and the
            # group's row goes when that is durable.
            kept = Delivery(
                delivery.message,
                delivery.record,
                delivery.offset,
                1,
                delivery.retain,
                delivery.identifiers,
                packet_id=delivery.packet_id,
                shared=self.number,
            )
            session.window[delivery.packet_id] = kept
            self._sent -= 1
            if session.persistent:
                self._giving += 1
                self._path.add_row(session, kept, QueueState.SENT)
                self._state.tick.batch.when_stored(session.generation, partial(self._kept, delivery))
            else:
                self._finish(delivery)
        self._rest()

    def _kept(self, delivery: Delivery) -> None:
        """It is stored for the session that has left."""
        self._giving -= 1
        self._finish(delivery)
        self._rest()

    def end(self) -> None:
        session = self._session
        session.dead = True
        if self._is_stored:
            self._state.tick.session_writes.deleted_sessions.append(session.generation)
        self._ready.clear()
        session.window.clear()
        self._present.clear()
        self._path.forget(session)
        queues = self._state.shared_queues
        queues.open.discard(self)
        queues.awake.pop(self, None)
        queues.wanting.pop(self, None)

    # The store

    def adopt(self, stored: StoredSession) -> None:
        before, row = self._session, stored.row
        session = self._session = GroupSession(row, persistent=True)
        before.dead = True
        session.group_queue = self
        session.epoch += 1  # what the earlier run left on its way is refused from now on
        session.queue_seq_next = stored.queue_seq_next
        session.queued, session.queued_bytes = stored.queued, stored.queued_bytes
        session.backlog = session.queued > 0
        self._is_stored = True
        self._state.tick.session_writes.sessions.append(session.row())

    def store_late(self, message: Message, record: bytes, offset: int, seq: int) -> None:
        delivery = Delivery(message, record, offset, message.qos, False, (), seq, shared=self.number)
        self._store(delivery)

    def begin(self, given: set[int]) -> None:
        self._given_before = given
        if self._session.queued:
            self._session.backlog = True
            self._wait()

    def stored(self, limit: QueueLimit) -> None:
        """Some of its rows have become durable."""
        session = self._session
        self._drop_oldest(limit)
        limit.enforce(session)
        self._rest()
        if session.backlog and not session.paging:
            self._wake()

    def _drop_oldest(self, limit: QueueLimit) -> None:
        """Past the limit the oldest that are not in flight go first: those in memory before those in the store."""
        session = self._session
        for delivery in list(self._ready) if limit.excess(session) else ():
            if delivery.seq and limit.excess(session):
                self._ready.remove(delivery)
                self._ready_bytes -= len(delivery.record)
                self._state.counters.dropped_offline_limit += 1
                self._finish(delivery)

    def _rest(self) -> None:
        """Nobody is there: what is stored need not be in memory."""
        session = self._session
        if self._present or self._giving or session.queue_read_seq == session.queue_dropped_seq:
            return
        if session.dead or any(not delivery.seq for delivery in self._ready):
            return
        self._path.cursors.leaves(session)
        session.window.clear()
        self._ready.clear()
        self._ready_bytes = 0
        session.queue_read_seq = session.queue_dropped_seq
        session.backlog = session.queued > 0
        self._wait()

    def _wait(self) -> None:
        """Read the store when it shows everything that has been decided up to now."""
        self._waits += 1
        self._state.tick.batch.when_stored(self._session.generation, self._shown)

    def _shown(self) -> None:
        self._waits -= 1
        self._wake()

    def _ask_page(self) -> None:
        session = self._session
        session.paging = True
        # Rows that are not durable yet are not seen, and more may come while the store is asked.
        next_seq = 0 if session.uncommitted else session.queue_seq_next
        self._path.requests.page(
            session.generation,
            session.queue_read_seq,
            PAGE_MESSAGES,
            partial(self._take_page, session, next_seq),
            bytes_max=BULK_BYTES_MAX,
        )

    def _take_page(self, session: GroupSession, next_seq: int, rows: list[QueueRow]) -> None:
        if session.dead:
            return
        session.paging = False
        if not self._present:
            self._rest()
            return  # what was read is queued still
        if not rows:
            if next_seq == session.queue_seq_next:
                session.backlog = False
                # What a broker that was killed had on its way may have removed some that were counted at the start.
                session.queued = len(session.window)
                self._path.cursors.read_all(session)
            elif not session.uncommitted:
                self._wake()
            return
        self._path.cursors.comes(session)
        now_ms = self._state.tick.now_ms
        for row in rows:
            if row.seq <= session.queue_read_seq:
                continue
            session.queue_read_seq = row.seq
            delivery = self._path.readable(session, row, now_ms)
            if delivery is None:
                continue
            delivery.shared_queue, delivery.place = self, row.seq
            session.window[row.seq] = delivery
            if row.offset in self._given_before:
                self._finish(delivery)
            else:
                self._push(delivery)
        self._path.cursors.read_to(session, rows[-1].offset)
        self._wake()


def _place(delivery: Delivery) -> int:
    return delivery.place
