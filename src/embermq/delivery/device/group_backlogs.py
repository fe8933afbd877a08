"""What waits in the queues of shared subscriptions goes to members that are there and have room, in order.

A message is stored with the member as sent, then it is removed from the group's queue, then it is sent; each step when
the one before is durable, since the two may be on different servers. Whoever dies in between leaves it with both, never
sent, and the start drops the group's (`durability.recovery`). A member that leaves before it is sent leaves it to the
group. For a session that ends with its connection nothing is stored: the message is removed, then sent.

What the members that may have it are too full for is passed over while others have room, and its topic with it, so that
each topic keeps its order. When one of them has room again the queue is read from its front, up to where that is used
up, and goes on where it was.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct, field

from embermq.delivery.device.requests import PAGE_MESSAGES, Requests
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
TOPICS_TOLD_APART = 4_096
"""Topics that were passed over are remembered by so many values of a hash: others of the same value wait with them."""


class _Backlog(Struct, eq=False):
    """A queue that is being read. `present` are the members that are there; `again`: somebody has come or gone, may
    receive something else, or messages have come back, so the reading begins once more at the front. `ahead` is read
    and not looked at. `passed` are the topics that were passed over since their members were full; `woken` those who
    have room since. For them, `served` from then on, the queue is read again up to `read_to`: `passed_before` are the
    topics that were passed over before that."""

    turn: GroupTurn
    queue: Session
    present: dict[Session, None]
    again: bool = True
    ahead: list[QueueRow] = field(default_factory=list)
    passed: set[int] = field(default_factory=set)
    passed_before: set[int] = field(default_factory=set)
    woken: set[Session] = field(default_factory=set)
    served: set[Session] = field(default_factory=set)
    read_to: int = 0

    def begins_again(self) -> None:
        """From the front, as if nothing had been passed over."""
        self.again, self.read_to, self.queue.queue_read_seq = False, 0, 0
        for each in (self.ahead, self.passed, self.passed_before, self.woken, self.served):
            each.clear()

    def reads_again(self) -> None:
        """From the front, for those who have room again."""
        self.read_to = max(self.read_to, self.queue.queue_read_seq)
        self.queue.queue_read_seq = 0
        self.served |= self.woken
        self.passed_before |= self.passed
        for each in (self.woken, self.passed, self.ahead):
            each.clear()

    def goes_on_behind(self) -> None:
        """Nobody has room for more of what was passed over."""
        self.served.clear()
        self.queue.queue_read_seq = max(self.queue.queue_read_seq, self.read_to)
        self.passed |= self.passed_before
        self.passed_before.clear()


class GroupBacklogs:
    """See the module. Queues of which no member is there are not looked at."""

    def __init__(self, state: BrokerState, path: DevicePath, requests: Requests) -> None:
        self._state = state
        self._groups = state.groups
        self._path = path
        self._requests = requests
        self._backlogs: dict[int, _Backlog] = {}
        """By the generation of their queues."""
        self._given: dict[int, list[Delivery]] = {}
        """By the generation of kept members, what is being stored with them."""

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
        if turn is not None and turn.is_passing:  # what waited for it is for others now
            backlog.again = True
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
        if turn.is_passing or not self._is_stalled(backlog):
            self._want(backlog)

    def resumed(self, session: Session) -> None:
        """The client of a kept session has come back and is told again what it was sent. That includes what was just
        being stored with it, if it has been away meanwhile."""
        for delivery in self._given.pop(session.generation, ()):
            delivery.given = False

    def forget(self, session: Session) -> None:
        """It has ended, a queue or a member."""
        backlog = self._backlogs.pop(session.generation, None)
        if backlog is not None:
            self._unstall(backlog)
        self._groups.stalled.pop(session.generation, None)
        self._given.pop(session.generation, None)

    def store_works(self) -> None:
        """Again: go on where nothing could be given."""
        for backlog in self._backlogs.values():
            if not backlog.turn.is_passing:
                self._unstall(backlog)
            self._want(backlog)

    def _begin(self, turn: GroupTurn, queue: Session) -> _Backlog:
        loaded = (one.session for one in turn.members.values() if one.holder.is_loaded)
        present = dict.fromkeys(session for session in loaded if session.is_here)
        backlog = self._backlogs[queue.generation] = _Backlog(turn, queue, present)
        queue.paging = False
        return backlog

    def _found(self, turn: GroupTurn) -> _Backlog | None:
        return self._backlogs.get(turn.queue.generation) if turn.queue is not None else None

    def _is_open(self, backlog: _Backlog) -> bool:
        return self._backlogs.get(backlog.queue.generation) is backlog

    # Room

    def wake(self) -> None:
        """Read on where a member has room again, and from the front where something has changed."""
        changed, self._groups.changed = self._groups.changed, []
        for turn in changed:
            found = self._found(turn)
            if found is not None:
                found.again = True
                self._unstall(found)
                self._want(found)
        woken, self._groups.woken = self._groups.woken, []
        for turn, session in woken:
            found = self._found(turn)
            if found is not None:
                if turn.is_passing:  # others wait on: this reading may not come as far as theirs
                    found.woken.add(session)
                    self._leaves_stalled(turn, session)
                else:
                    self._unstall(found)
                self._want(found)

    def _stall(self, backlog: _Backlog) -> None:
        stalled = self._groups.stalled
        for session in backlog.present:
            if not session.has_room:
                stalled.setdefault(session.generation, set()).add(backlog.turn)

    def _is_stalled(self, backlog: _Backlog) -> bool:
        stalled = self._groups.stalled
        return any(backlog.turn in stalled.get(session.generation, ()) for session in backlog.present)

    def _unstall(self, backlog: _Backlog) -> None:
        for session in backlog.present:
            self._leaves_stalled(backlog.turn, session)

    def _leaves_stalled(self, turn: GroupTurn, session: Session) -> None:
        turns = self._groups.stalled.get(session.generation)
        if turns is not None:
            turns.discard(turn)
            if not turns:
                del self._groups.stalled[session.generation]

    def _has_room(self, backlog: _Backlog) -> bool:
        """Whether somebody who is there can be sent a message; who has left is forgotten."""
        name = backlog.turn.name
        gone = [one for one in backlog.present if not (one.is_here and name in one.subscriptions)]
        for session in gone:
            self._leaves_stalled(backlog.turn, session)
            del backlog.present[session]
        return any(one.has_room for one in backlog.present)

    # Reading

    def _want(self, backlog: _Backlog) -> None:
        if not backlog.queue.paging:
            self._path.want_page(backlog.queue)

    def read(self, queue: Session) -> None:
        """Look at the next messages of a group's queue."""
        queue.paging = False
        backlog = self._backlogs.get(queue.generation)
        if backlog is None or self._state.drains:
            return
        has_room = self._has_room(backlog)
        if not backlog.present:
            backlog.turn.is_deserted = True
            backlog.turn.is_passing = False
            del self._backlogs[queue.generation]
            return
        if not has_room:
            self._stall(backlog)
            return
        if backlog.again:
            backlog.begins_again()
        elif backlog.woken and backlog.passed:
            backlog.reads_again()
        if backlog.ahead:
            self._look_at(backlog, backlog.ahead)
            return
        queue.paging = True
        # Rows that are not durable yet are not seen, and more may come while the store is asked.
        next_seq = 0 if queue.uncommitted else queue.queue_seq_next
        take = partial(self._take, backlog, next_seq)
        after_seq = queue.queue_read_seq
        self._requests.page(queue.generation, after_seq, PAGE_MESSAGES, take, bytes_max=BULK_BYTES_MAX)

    def _take(self, backlog: _Backlog, next_seq: int, rows: list[QueueRow]) -> None:
        queue = backlog.queue
        if not self._is_open(backlog):
            return
        queue.paging = False
        if backlog.again:  # what is in front comes first
            self._want(backlog)
        elif rows:
            self._look_at(backlog, rows)
        elif (next_seq != queue.queue_seq_next and not queue.uncommitted) or (
            backlog.woken and backlog.passed  # somebody has got room while the store was asked
        ):
            self._want(backlog)
        else:
            backlog.passed_before.clear()
            backlog.served.clear()
            self._note_passed(backlog)
            self._rest(backlog)

    def _look_at(self, backlog: _Backlog, rows: list[QueueRow]) -> None:
        """Give what can be given of these, and go on."""
        left = self._give(backlog, rows)
        leaving = backlog.turn.leaving
        backlog.ahead = [row for row in rows[left:] if row.seq not in leaving]
        self._note_passed(backlog)
        if backlog.ahead:
            self._stall(backlog)
        else:
            self._want(backlog)

    def _note_passed(self, backlog: _Backlog) -> None:
        backlog.turn.is_passing = bool(backlog.passed or backlog.passed_before)
        if backlog.turn.is_passing:
            self._stall(backlog)
        else:  # nobody is waited for, so what comes next is looked at
            self._unstall(backlog)

    def _give(self, backlog: _Backlog, rows: list[QueueRow]) -> int:
        """Returns how many of them have been looked at; nobody has room for the next one."""
        turn, queue, state = backlog.turn, backlog.queue, self._state
        given: dict[Session, Given] = {}
        over: list[QueueRow] = []
        looked = len(rows)
        for at, row in enumerate(rows):
            if row.seq <= queue.queue_read_seq or row.seq in turn.leaving:
                continue
            if row.seq > backlog.read_to:
                backlog.passed_before.clear()
            elif not any(one.has_room for one in backlog.served):
                backlog.goes_on_behind()
                continue
            is_expired = row.expires_ms <= state.tick.now_ms or not row.record
            state.counters.dropped_expired += is_expired
            kept = None if is_expired else delivery_from(row, state.damaged)
            if kept is not None:
                topic = crc32(kept.message.topic.encode()) % TOPICS_TOLD_APART
                receiver = self._receiver(backlog, kept.message.topic, topic)
                if receiver is None and not self._has_room(backlog):
                    looked = at
                    break
                queue.queue_read_seq = row.seq
                if receiver is None:
                    continue
                delivery = self._delivered(receiver, kept)
                if delivery is not None:
                    given.setdefault(receiver.session, []).append((row, delivery))
                    continue
            queue.queue_read_seq = row.seq
            over.append(row)
        self._take_out(backlog, given, over)
        return looked

    def _take_out(self, backlog: _Backlog, given: dict[Session, Given], over: list[QueueRow]) -> None:
        """What is over is removed, and what is given is on its way."""
        turn, batch = backlog.turn, self._state.tick.batch
        if over:
            turn.leaving.update(row.seq for row in over)
            self._remove(backlog.queue, over)
            batch.when_stored(backlog.queue.generation, partial(self._gone, backlog, over))
        for session, of_one in given.items():
            assert session.link is not None
            turn.leaving.update(row.seq for row, _ in of_one)
            with_member = partial(self._with_member, backlog, session, session.link, of_one)
            if session.persistent:
                self._given.setdefault(session.generation, []).extend(delivery for _, delivery in of_one)
                batch.when_stored(session.generation, with_member)
            else:
                with_member()

    def _receiver(self, backlog: _Backlog, topic: str, topic_hash: int) -> Receiver | None:
        """Who gets the next message of a topic: None when nobody there may have it, when those who may are full, and
        when one of the topic was passed over."""
        group = self._matched(backlog.turn, topic)
        if group is None or not any(map(is_here, group.receivers)):
            return None  # it is for a member who is away
        if topic_hash in backlog.passed:
            return None
        receiver = self._groups.for_waiting(group, topic)
        if receiver is None and self._has_room(backlog):
            backlog.passed.add(topic_hash)
        return receiver

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
        come back since has been sent them, or is about to be."""
        queue = backlog.queue
        is_away = session.link is None and session.claimant is None and not queue.dead
        kept: Given = []
        left: list[QueueRow] = []
        for row, delivery in given:
            if not session.dead and not (is_away and delivery.given):
                kept.append((row, delivery))
            else:
                left.append(row)
                if not session.dead:
                    self._path.mark_done(session, delivery)
            delivery.given = False
        self._are_stored(session)
        if left and not queue.dead:
            self._groups.gives_back(backlog.turn, [row.seq for row in left], session)
        deliveries = [delivery for _, delivery in kept]
        if queue.dead:
            self._path.send_rows(session, link, deliveries)
            return
        rows = [row for row, _ in kept]
        self._remove(queue, rows)
        send = partial(self._send, backlog, session, link, deliveries, rows)
        self._state.tick.batch.when_stored(queue.generation, send)

    def _are_stored(self, session: Session) -> None:
        still = [one for one in self._given.pop(session.generation, ()) if one.given]
        if still:
            self._given[session.generation] = still

    def _remove(self, queue: Session, rows: list[QueueRow]) -> None:
        for row in rows:
            self._state.tick.session_writes.queue_dropped.append((queue.generation, row.seq))
            queue.forget_stored(len(row.record))

    def _send(
        self,
        backlog: _Backlog,
        session: Session,
        link: Link,
        deliveries: list[Delivery],
        rows: list[QueueRow],
    ) -> None:
        self._path.send_rows(session, link, deliveries)
        self._gone(backlog, rows)

    def _gone(self, backlog: _Backlog, rows: list[QueueRow]) -> None:
        """They are not in the queue any more."""
        turn = backlog.turn
        if turn.queue is not backlog.queue:
            return  # it has ended
        turn.leaving.difference_update(row.seq for row in rows)
        found = self._backlogs.get(backlog.queue.generation)
        if found is not None and not found.queue.paging:
            self._rest(found)

    def _rest(self, backlog: _Backlog) -> None:
        """With nothing in the queue and nothing on its way it is left alone."""
        if not backlog.queue.queued and not backlog.turn.leaving:
            self._unstall(backlog)
            backlog.turn.is_passing = False
            del self._backlogs[backlog.queue.generation]
