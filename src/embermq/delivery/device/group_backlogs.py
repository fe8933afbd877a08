"""What waits in the queues of shared subscriptions goes to members that are there and have room, in order.

A message is stored with the member as sent, then it is removed from the group's queue, then it is sent; each step when
the one before is durable, since the two may be on different servers. Whoever dies in between leaves it with both, never
sent, and the start drops the group's (`durability.recovery`). A member that leaves before it is sent leaves it to the
group. For a session that ends with its connection nothing is stored: the message is removed, then sent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.delivery.device.requests import Requests
from embermq.delivery.device.stored import delivery_from
from embermq.delivery.sending import BULK_BYTES_MAX
from embermq.model.session_writes import QueueRow
from embermq.routing.router import NO_MATCH, GroupTurn, MatchedGroup, Receiver, Subscriber
from embermq.routing.shared_choice import is_here
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

if TYPE_CHECKING:
    from embermq.delivery.device.path import DevicePath

Given = list[tuple[QueueRow, Delivery]]
"""Messages of a group's queue, each with what is made of it for a member."""


class _Backlog(Struct, eq=False):
    """A queue that is being read. `present` are the members that are there; `again`: messages were passed over, because
    nobody there may receive them, or have come back, so the reading begins once more."""

    turn: GroupTurn
    queue: Session
    present: dict[Session, None]
    again: bool = True


class GroupBacklogs:
    """See the module. Queues of which no member is there are not looked at."""

    def __init__(self, state: BrokerState, path: DevicePath, requests: Requests) -> None:
        self._state = state
        self._groups = state.groups
        self._path = path
        self._requests = requests
        self._backlogs: dict[int, _Backlog] = {}
        """By the generation of their queues."""

    # Who is there

    def joined(self, subscriber: Subscriber) -> None:
        """A member has come: its client is connected, or has subscribed."""
        turn = self._state.router.turn(subscriber)
        turn.is_deserted = False
        if turn.queue is None:
            return
        backlog = self._backlogs.get(turn.queue.generation)
        if backlog is None:
            if not turn.queue.queued:
                return
            backlog = self._begin(turn, turn.queue)
        self._unstall(backlog)
        backlog.present[subscriber.session] = None
        backlog.again = True
        self._want(backlog)

    def parted(self, subscriber: Subscriber) -> None:
        """A member has gone: its client, or its subscription."""
        turn = self._state.router.group(subscriber.group, subscriber.topic_filter)
        backlog = None
        if turn is not None and turn.queue is not None:
            backlog = self._backlogs.get(turn.queue.generation)
        if backlog is None or subscriber.session not in backlog.present:
            return
        self._unstall(backlog)
        del backlog.present[subscriber.session]
        self._want(backlog)

    def committed(self, queue: Session) -> None:
        """Messages that nobody could take are stored."""
        turn = queue.group
        assert turn is not None
        if turn.is_deserted:
            return
        backlog = self._backlogs.get(queue.generation)
        if backlog is None:
            backlog = self._begin(turn, queue)
        if not self._is_stalled(backlog):
            self._want(backlog)

    def forget(self, session: Session) -> None:
        """It has ended, a queue or a member."""
        backlog = self._backlogs.pop(session.generation, None)
        if backlog is not None:
            self._unstall(backlog)
        self._groups.stalled.pop(session.generation, None)

    def store_works(self) -> None:
        """Again: go on where nothing could be given."""
        for backlog in self._backlogs.values():
            self._unstall(backlog)
            self._want(backlog)

    def _begin(self, turn: GroupTurn, queue: Session) -> _Backlog:
        loaded = (one.session for one in turn.members.values() if one.holder.is_loaded)
        present = dict.fromkeys(session for session in loaded if session.is_here)
        backlog = self._backlogs[queue.generation] = _Backlog(turn, queue, present)
        queue.paging = False
        return backlog

    def _is_open(self, backlog: _Backlog) -> bool:
        return self._backlogs.get(backlog.queue.generation) is backlog

    # Room

    def wake(self) -> None:
        """Read on where a member has room again."""
        woken, self._groups.woken = self._groups.woken, []
        for turn in woken:
            backlog = self._backlogs.get(turn.queue.generation) if turn.queue is not None else None
            if backlog is not None:
                self._unstall(backlog)
                self._want(backlog)

    def _stall(self, backlog: _Backlog) -> None:
        stalled = self._groups.stalled
        for session in backlog.present:
            stalled.setdefault(session.generation, set()).add(backlog.turn)

    def _is_stalled(self, backlog: _Backlog) -> bool:
        stalled = self._groups.stalled
        return any(backlog.turn in stalled.get(session.generation, ()) for session in backlog.present)

    def _unstall(self, backlog: _Backlog) -> None:
        stalled = self._groups.stalled
        for session in backlog.present:
            turns = stalled.get(session.generation)
            if turns is not None:
                turns.discard(backlog.turn)
                if not turns:
                    del stalled[session.generation]

    def _room(self, backlog: _Backlog) -> int:
        """How many messages those who are there can be sent; who has left is forgotten."""
        name = backlog.turn.name
        gone = [one for one in backlog.present if not (one.is_here and name in one.subscriptions)]
        for session in gone:
            del backlog.present[session]
        return sum(one.window_max - len(one.window) for one in backlog.present if one.has_room)

    # Reading

    def _want(self, backlog: _Backlog) -> None:
        if not backlog.queue.paging:
            self._path.want_page(backlog.queue)

    def read(self, queue: Session) -> None:
        """Ask the store for the next messages of a group's queue."""
        queue.paging = False
        backlog = self._backlogs.get(queue.generation)
        if backlog is None or self._state.drains:
            return
        if backlog.again and not backlog.turn.giving:
            backlog.again, queue.queue_read_seq = False, 0
        room = self._room(backlog)
        if not backlog.present:
            backlog.turn.is_deserted = True
            del self._backlogs[queue.generation]
            return
        if not room:
            self._stall(backlog)
            return
        queue.paging = True
        # Rows that are not durable yet are not seen, and more may come while the store is asked.
        next_seq = 0 if queue.uncommitted else queue.queue_seq_next
        take = partial(self._take, backlog, next_seq)
        self._requests.page(queue.generation, queue.queue_read_seq, room, take, bytes_max=BULK_BYTES_MAX)

    def _take(self, backlog: _Backlog, next_seq: int, rows: list[QueueRow]) -> None:
        queue = backlog.queue
        if not self._is_open(backlog):
            return
        queue.paging = False
        if not rows:
            if next_seq != queue.queue_seq_next and not queue.uncommitted:
                self._want(backlog)
            elif not backlog.turn.giving:
                self._all_sent(backlog)
        elif self._give(backlog, rows):
            self._want(backlog)
        else:
            self._stall(backlog)

    def _give(self, backlog: _Backlog, rows: list[QueueRow]) -> bool:
        """Returns False when the next message waits for room."""
        turn, queue, state = backlog.turn, backlog.queue, self._state
        given: dict[Session, Given] = {}
        over: list[QueueRow] = []
        goes_on = True
        for row in rows:
            if row.seq <= max(queue.queue_read_seq, queue.queue_dropped_seq):
                continue
            is_expired = row.expires_ms <= state.tick.now_ms or not row.record
            state.counters.dropped_expired += is_expired
            kept = None if is_expired else delivery_from(row, state.damaged)
            if kept is not None:
                group = self._matched(turn, kept.message.topic)
                receiver = self._groups.for_waiting(group, kept.message.topic) if group is not None else None
                if receiver is None:
                    goes_on = group is None or not any(map(is_here, group.receivers))
                    if not goes_on:
                        break
                    queue.queue_read_seq = row.seq  # it is for a member who is away
                    continue
                delivery = self._delivered(receiver, kept)
                if delivery is not None:
                    given.setdefault(receiver.session, []).append((row, delivery))
                    queue.queue_read_seq = row.seq
                    continue
            queue.queue_read_seq = row.seq
            over.append(row)
        turn.giving += len(over) + sum(map(len, given.values()))
        if over:
            self._remove(queue, over)
            state.tick.batch.when_stored(queue.generation, partial(self._gone, backlog, len(over)))
        for session, of_one in given.items():
            assert session.link is not None
            with_member = partial(self._with_member, backlog, session, session.link, of_one)
            if session.persistent:
                state.tick.batch.when_stored(session.generation, with_member)
            else:
                with_member()
        return goes_on

    def _matched(self, turn: GroupTurn, topic: str) -> MatchedGroup | None:
        """The members that may receive the topic."""
        groups = self._state.router.match(topic).groups
        return next((group for group in groups if group.turn is turn and not group.stamped), None)

    def _delivered(self, receiver: Receiver, kept: Delivery) -> Delivery | None:
        """What is made of a message for a member; None for one that it gets with QoS 0, at once."""
        session, message = receiver.session, kept.message
        qos = min(kept.qos, receiver.qos)
        if not qos:
            accepted = Accepted(message, kept.record, NO_MATCH, None, 0, kept.offset)
            self._state.direct.deliver(session, receiver, accepted)
            return None
        retain = kept.retain and receiver.retain_as_published
        delivery = Delivery(message, kept.record, kept.offset, qos, retain, receiver.identifiers)
        delivery.shared, delivery.given = receiver.shared, True
        self._path.put_in_flight(session, delivery)
        return delivery

    # The steps

    def _with_member(self, backlog: _Backlog, session: Session, link: Link, given: Given) -> None:
        """They are stored with the member. One that has left without having been sent them has them no more; who has
        come back since is about to be sent them."""
        queue = backlog.queue
        is_away = session.link is None and session.claimant is None and not queue.dead
        kept: Given = []
        for row, delivery in given:
            delivery.given = False
            if not session.dead and not is_away:
                kept.append((row, delivery))
            elif not session.dead:
                self._path.mark_done(session, delivery)
        left = len(given) - len(kept)
        if left and not queue.dead:
            backlog.turn.giving -= left
            backlog.again = True
        deliveries = [delivery for _, delivery in kept]
        if queue.dead:
            self._path.send_rows(session, link, deliveries)
            return
        self._remove(queue, [row for row, _ in kept])
        send = partial(self._send, backlog, session, link, deliveries)
        self._state.tick.batch.when_stored(queue.generation, send)

    def _remove(self, queue: Session, rows: list[QueueRow]) -> None:
        for row in rows:
            self._state.tick.session_writes.queue_dropped.append((queue.generation, row.seq))
            queue.forget_stored(len(row.record))

    def _send(self, backlog: _Backlog, session: Session, link: Link, deliveries: list[Delivery]) -> None:
        self._path.send_rows(session, link, deliveries)
        self._gone(backlog, len(deliveries))

    def _gone(self, backlog: _Backlog, count: int) -> None:
        """So many are not in the queue any more."""
        turn = backlog.turn
        if turn.queue is not backlog.queue:
            return  # it has ended
        turn.giving -= count
        found = self._backlogs.get(backlog.queue.generation)
        if found is not None and not turn.giving:
            self._all_sent(found)

    def _all_sent(self, backlog: _Backlog) -> None:
        """Nothing is on its way. What came back is read again; with nothing more in the queue it is left alone."""
        if backlog.again:
            self._unstall(backlog)
            self._want(backlog)
        elif not backlog.queue.queued:
            self._unstall(backlog)
            del self._backlogs[backlog.queue.generation]
