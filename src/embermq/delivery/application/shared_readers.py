"""Delivery from the logs of shared subscriptions: each has a reader and a window of its own for each member.

Which member reads which partition, the store's groups decide. A member that goes leaves its group, and what it has
not acknowledged of QoS 1 is read by the next one. QoS 2 that has been sent stays with its session: its mark has the
message, so that it can be finished without the log, and whoever gets the partition passes it over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from msgspec import Struct

from embermq.delivery.application.fed_lane import FedLane
from embermq.delivery.application.lane import NOTHING, LogLane, SideLane
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.rounds import Rounds
from embermq.delivery.application.shared_lane import OWED_LOG, Member, SharedInFlight, SharedLane, ShareGroup
from embermq.delivery.application.window import PackEntry, SlidingWindow
from embermq.delivery.sending import BULK_BYTES_MAX, is_denied
from embermq.model.application_positions import StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.mqtt.value import replace
from embermq.ports.application_feed import SharedFeeds
from embermq.ports.application_logs import ApplicationLogs, Place
from embermq.ports.errors import StoreError
from embermq.ports.pipeline_progress import PipelineProgress
from embermq.ports.shared_groups import SharedGroups
from embermq.routing.router import NO_MATCH, Receiver, Subscriber
from embermq.routing.shared_logs import SharedGroup, SharedLog, SharedLogReaders, SharedLogs
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

LOG = logging.getLogger("embermq")
OVERTAKING_MAX = 10_000
"""Messages of a partition behind one that is not acknowledged."""


class SharedPlace(Struct, frozen=True):
    """What shared readers stand on."""

    feeds: SharedFeeds
    logs: ApplicationLogs
    progress: PipelineProgress
    store: SharedGroups


class SharedReaders(SharedLogReaders):
    """All members of this broker. `gave_ids` has the last packet id of a session stored."""

    def __init__(
        self, state: BrokerState, place: SharedPlace, parking: Parking, gave_ids: Callable[[Session], None]
    ) -> None:
        self._state = state
        self._gave_ids = gave_ids
        self._place = place
        self._parking = parking
        self._window = SlidingWindow(state, self, self.pump, parking)
        self._under_way_max = parking.settings.max_poll_records
        self._groups: dict[int, ShareGroup] = {}
        self._members: dict[Session, dict[int, Member]] = {}
        """Of connected sessions, by the group's generation."""
        self._recalling: dict[Session, Callable[[], None]] = {}
        self._ready: dict[Session, list[SharedMark]] = {}
        """Of sessions that are about to be connected: what they have under way."""
        self._in_flight = SharedInFlight(state, parking, self._claim)
        self._owed: dict[Session, SideLane] = {}
        self._shared_logs: SharedLogs
        self._stored: dict[tuple[int, int], StoredPositions] = {}
        self._claims: dict[tuple[int, int], set[int]] = {}
        self._trimmed: dict[Place, int] = {}
        self._not_found_why: dict[str, str] = {}
        self._rounds = Rounds(state.tick, self, self._window, place.progress, place.logs)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def failing(self) -> str:
        """Why shared logs cannot be read now; "" when they can."""
        return self._place.feeds.failing if self._members else ""

    def restore(self, shared_logs: SharedLogs) -> None:
        """Go on from what is stored, before sessions are restored. Raises StoreError."""
        self._shared_logs = shared_logs
        stored = self._place.store.load()
        self._stored = stored.positions
        for group, partition, offset in stored.claims:
            self._claims.setdefault((group, partition), set()).add(offset)
        shared_logs.restore(stored.groups)

    def committed(self, log: str) -> list[Mapping[int, int]]:
        """Of each group of this log, by partition: below which offset all is settled."""
        groups = [self._group(shared) for shared in self._shared_logs.groups() if shared.log.name == log]
        return [group.committed() for group in groups]

    def store_anew(self, is_lost: Callable[[SharedGroupRow], bool], lost: Collection[Session]) -> None:
        """Have groups stored which the store has lost, and what `lost` sessions have under way of any."""
        writes = self._state.tick.writes.shared
        for shared in self._shared_logs.groups():
            if not is_lost(shared.row):
                continue
            writes.groups.append(shared.row)
            generation = shared.row.generation
            for number, partition in self._group(shared).partitions.items():
                writes.positions[generation, number] = partition.stored
                writes.marks += [
                    SharedMark(generation, number, offset, 0, 0, QueueState.DONE)
                    for offset in partition.claims
                ]
        for session in lost:
            self._in_flight.store_anew(session)

    # Groups

    def _group(self, shared: SharedGroup) -> ShareGroup:
        generation = shared.row.generation
        group = self._groups.get(generation)
        if group is None:
            stored = {
                partition: positions
                for (owner, partition), positions in self._stored.items()
                if owner == generation
            }
            group = self._groups[generation] = ShareGroup(shared, stored)
            for number, partition in group.partitions.items():
                for offset in self._claims.pop((generation, number), ()):
                    partition.claim(offset)
        return group

    def _claim(self, generation: int, partition: int, offset: int) -> None:
        group = self._groups.get(generation)
        if group is not None:
            group.partition(partition).claim(offset)

    def joined(self, session: Session, subscriber: Subscriber, shared: SharedGroup) -> None:
        member = self._members.get(session, {}).get(shared.row.generation)
        if member is not None:
            member.takes(subscriber)
        elif session.link is not None:
            self._state.tick.batch.when_stored(session.generation, partial(self._join, session, subscriber))

    def left(self, session: Session, shared: SharedGroup) -> None:
        member = self._members.get(session, {}).pop(shared.row.generation, None)
        if member is not None:
            self._close(member)
            self._parking.sender.forget_logs(session, *member.group.lane_names())
            if not session.dead:
                self._in_flight.leave_to_queue(member)
        if not shared.members:
            self._groups.pop(shared.row.generation, None)

    def not_found(self, log: SharedLog, error: StoreError) -> None:
        if self._not_found_why.get(log.name) != str(error):
            LOG.error("members of shared log %s get nothing, it is tried again: %s", log.name, error)
        self._not_found_why[log.name] = str(error)

    def found(self, log: SharedLog) -> None:
        self._not_found_why.pop(log.name, None)
        for session in list(self._members):
            for subscriber in session.subscriptions.values():
                if subscriber.group and subscriber.topic_filter == log.topic_filter:
                    self._join(session, subscriber)

    def reached(self, log: SharedLog) -> Mapping[int, Mapping[int, int]]:
        return {shared.row.generation: self._group(shared).reach() for shared in log.groups.values()}

    def begin_anew(self, shared: SharedGroup, before: SharedGroupRow) -> None:
        """The log is another one, whose positions begin anew, and only repeats are known; or it has lost its end, and
        what stands before that is still settled or not. Members leave, and join when it is found."""
        found = shared.log.found
        assert found is not None
        ends = found.ends if before.identity == found.identity else {}
        if not shared.row.starts:
            LOG.warning(
                "group %s: how far it had come is not known here, it goes on where Kafka has it", shared.name
            )
        elif before.identity:  # else the group is new
            LOG.error(
                "the shared log %s %s: what is gone and group %s had not got is lost",
                shared.log.name,
                "has lost its end" if ends else "is another one than before",
                shared.name,
            )
        for members in self._members.values():
            member = members.pop(before.generation, None)
            if member is not None:
                self._close(member)
        known = self._groups.pop(before.generation, None) or ShareGroup(shared, {})
        reached = shared.log.reached.get(before.generation, {})
        group = self._groups[shared.row.generation] = ShareGroup(shared, {})
        writes = self._state.tick.writes.shared
        lost: dict[int, int] = {}
        for number, partition in group.partitions.items():
            had, end = known.partition(number), ends.get(number, 0)
            if ends and reached.get(number, 0) <= end:
                partition.go_on(had)
            else:  # cut at `end`, or another log: that is 0 then
                partition.take_over(had, end)
                lost[number] = end
            for offset in partition.claims:
                writes.marks.append(SharedMark(group.generation, number, offset, 0, 0, QueueState.DONE))
            writes.positions[group.generation, number] = partition.stored
            self._trimmed.pop((shared.log.name, number), None)
        self._in_flight.outlive_log(before.generation, lost)

    # Members

    def _join(self, session: Session, subscriber: Subscriber) -> None:
        members = self._members.get(session)
        shared = self._shared_logs.group(subscriber)
        if members is None or shared is None or shared.log.found is None or session.link is None:
            return
        if session.generation not in shared.members:
            return
        member = members.get(shared.row.generation)
        if member is not None:
            member.takes(subscriber)
            return
        group = self._group(shared)
        member = members[shared.row.generation] = Member(self, group, subscriber)
        member.feed = self._place.feeds.join(shared.name, shared.log.name, member, group.known)

    def begins_lane(self, lane: SharedLane) -> None:
        """A member has got a partition."""
        link = lane.session.link
        if link is not None:
            self._window.begin(lane, link)

    def ends_lane(self, lane: SharedLane) -> None:
        """QoS 2 under way stays with the session; QoS 1 comes to the next member, unless it is acknowledged first."""
        for delivery in lane.unsent():
            if delivery.qos == 1:
                self._in_flight.take_back(lane, delivery)
        link, kept = lane.link, self._in_flight.keep(lane)
        if link is not None:
            storing = [one for one in kept if lane.sending and one.offset >= lane.packed_from]
            self._owe(lane, link, [one for one in kept if one not in storing])
            if storing:  # nothing of it may be sent before, not even as late
                owe = partial(self._owe, lane, link, storing)
                self._state.tick.batch.when_stored(lane.session.generation, owe)
        self._window.end(lane)
        freed = lane.clear()
        if freed:
            lane.member.feed.release(freed)

    def _owe(self, lane: SharedLane, link: Link, kept: list[Delivery]) -> None:
        """They are in store: sent and timed without the lane from now on, with what waits in its outbox."""
        session = lane.session
        waiting = [one for one in lane.outbox if not one.settled and one.qos == 2]
        lane.outbox.clear()
        if not kept or session.link is not link or link.closing:
            return
        self._state.tick.wake()
        owed = self._owed.get(session)
        if owed is None:
            owed = self._owed[session] = SideLane(session, OWED_LOG)
            self._window.begin(owed, link)
        for delivery in kept:
            owed.put(delivery.packet_id, delivery)
        sender = self._parking.sender
        owed.overdue.postpone(self._state.tick.now_ms)  # packet ids do not say what was sent first
        sender.watch(owed, owed.last())
        sender.send(owed, link, waiting)

    def gone(self, member: Member, reason: str) -> None:
        """A member's log is not there any more."""
        self._state.tick.wake()
        LOG.error("shared log %s: %s", member.group.shared.log.name, reason)
        self._close(member)
        self._members.get(member.session, {}).pop(member.group.generation, None)
        self._shared_logs.gone(member.group.shared.log)

    def unreadable(self, lane: SharedLane, offset: int, problem: str) -> None:
        """A record cannot be understood: it is passed over."""
        self._state.counters.application_unreadable += 1
        LOG.error(
            "%s, partition %d, offset %d: skipped, it cannot be decoded: %s",
            lane.member.group.shared.log.name,
            lane.number,
            offset,
            problem,
        )

    def _close(self, member: Member) -> None:
        for lane in member.lanes.values():
            self.ends_lane(lane)
        member.lanes.clear()
        member.feed.close()

    # Connections

    def recall(self, session: Session, then: Callable[[], None]) -> None:
        """The client is about to be connected: read what it has of QoS 2. `then` as for the client's own log, whose
        reader comes first: what an earlier connection has decided is in store."""
        self._recalling[session] = then
        self._place.store.in_flight(session.generation, partial(self._recalled, session, then))

    def _recalled(
        self, session: Session, then: Callable[[], None], marks: list[SharedMark] | StoreError
    ) -> None:
        if self._recalling.get(session) is not then:
            return
        if isinstance(marks, StoreError):
            LOG.error("client %r is refused: %s", session.client_id, marks)
            return
        self._state.tick.wake()
        del self._recalling[session]
        self._ready[session] = marks
        then()

    def resume(self, session: Session) -> None:
        """The client is connected: what it has of QoS 2 is finished, and it joins its groups."""
        marks = self._still_under_way(session, self._ready.pop(session))
        self._members[session] = {}
        deliveries = self._in_flight.begin(session, marks)
        if deliveries:
            session.resend = session.resend or deque()
            session.resend.extend(deliveries)
        if deliveries and session.link is not None:
            owed = self._owed[session] = SideLane(session, OWED_LOG)
            for delivery in deliveries:
                owed.put(delivery.packet_id, delivery)
            self._window.begin(owed, session.link)
        if marks and not session.last_packet_id:
            session.last_packet_id = marks[-1].packet_id
        for subscriber in session.subscriptions.values():
            if subscriber.group:
                self._join(session, subscriber)

    def _still_under_way(self, session: Session, marks: list[SharedMark]) -> list[SharedMark]:
        """Without those whose packet id another message has by now: they are done, parked or in the queue, and a crash
        came before the session could forget them."""
        others = {delivery.packet_id for delivery in session.resend or ()} | (session.reserved or {}).keys()
        newest = {mark.packet_id: mark for mark in marks if mark.packet_id not in others}
        for mark in marks:
            if newest.get(mark.packet_id) is not mark:
                self._claim(mark.group, mark.partition, mark.offset)
                done = replace(mark, state=QueueState.DONE, record=b"")
                self._state.tick.writes.shared.marks.append(done)
        return [mark for mark in marks if newest.get(mark.packet_id) is mark]

    def suspend(self, session: Session) -> None:
        """The client is gone, or will not come after `recall`."""
        self._recalling.pop(session, None)
        self._ready.pop(session, None)
        for member in self._members.pop(session, {}).values():
            self._close(member)
        self._in_flight.end(session)
        owed = self._owed.pop(session, None)
        if owed is not None:
            self._window.end(owed)

    # What the window wants stored

    def sent(self, lane: LogLane, delivery: Delivery, entry: PackEntry) -> None:
        assert isinstance(lane, SharedLane)
        self._in_flight.sent(lane, delivery)

    def mark(self, session: Session, delivery: Delivery, state: int) -> None:
        self._in_flight.mark(session, delivery, state)

    def floor(self, lane: LogLane) -> None:
        assert isinstance(lane, SharedLane)
        if lane.is_over:
            return
        generation, writes = lane.member.group.generation, self._state.tick.writes.shared
        while lane.qos2 and lane.qos2[0] < lane.floor:
            offset = lane.qos2.popleft()
            session = lane.session.generation
            writes.marks.append(SharedMark(generation, lane.number, offset, session, 0, QueueState.DONE))
        lane.positions.commit(lane.floor)
        self._come_to(lane)

    def unacknowledged(self, lane: LogLane, source: int, why: WhyUnacknowledged) -> None:
        """Nobody is told of it: the log is the group's."""

    def _come_to(self, lane: SharedLane) -> None:
        """It is told to the group when it is in store."""
        positions = self._state.tick.writes.shared.positions
        place = (lane.member.group.generation, lane.number)
        if place not in positions:
            self._state.tick.batch.when_stored(place[0], partial(self._committed, lane, positions))
        positions[place] = stored = lane.positions.stored()
        lane.partition.come_to(stored)

    def _committed(self, lane: SharedLane, positions: Mapping[tuple[int, int], StoredPositions]) -> None:
        stored = positions.get((lane.member.group.generation, lane.number))
        if stored is not None and not lane.is_over:
            lane.member.feed.commit(lane.number, stored)

    # Messages

    def came(self, member: Member) -> None:
        """Something may wait in it now."""
        self._state.tick.wake()
        while self._pump(member):
            pass

    def pump(self, session: Session) -> None:
        """Send what there is room for."""
        members = self._members.get(session)
        if members is None:
            return
        owed = self._owed.get(session)
        if owed is not None and owed.link is not None and not self._parking.sender.drain(owed, owed.link):
            return
        has_sent = True
        while has_sent:
            has_sent = False
            for generation, member in list(members.items()):
                if self._pump(member):
                    members[generation] = members.pop(generation)  # the others come before it the next time
                    has_sent = True

    def _pump(self, member: Member) -> bool:
        """Whether something is sent. The partition behind the last one that was served has the first turn."""
        link = member.session.link
        if link is None:
            return False
        lanes = list(member.lanes.values())
        first, has_sent = member.turn, False
        for step in range(len(lanes)):
            at = (first + step) % len(lanes)
            if self._pump_lane(member, lanes[at], link):
                member.turn, has_sent = at + 1, True
        return has_sent

    def _pump_lane(self, member: Member, lane: SharedLane, link: Link) -> bool:
        """Send its next pack. What another session has got, and what leaves at once, makes none."""
        while lane.waiting or lane.outbox:
            room = min(self._window.room(lane, link), self._share(member), self._overtaking(lane))
            if room <= 0 or not lane.waiting:
                return False
            pack, size = lane.next_pack(room, BULK_BYTES_MAX)
            member.feed.release(size)
            pack = [entry for entry in pack if not self._sent_at_once(member, entry)]
            if pack:
                lane.packed_from = pack[0].offset
                self._window.send_pack(lane, link, pack)
                self._gave_ids(member.session)
                lane.follow()
                return True
            lane.follow()
        return False

    def _share(self, member: Member) -> int:
        """How many more the member may have under way: a window of its own, and not all of the client's."""
        limit = max(1, min(self._under_way_max, member.session.window_max // 2))
        if member.under_way >= limit:
            self._in_flight.count(member)
        return limit - member.under_way

    def _overtaking(self, lane: SharedLane) -> int:
        """A message that is not acknowledged holds up those that are settled behind it in memory: so many may be."""
        return OVERTAKING_MAX - len(lane.pending)

    def _sent_at_once(self, member: Member, entry: PackEntry) -> bool:
        """What comes to QoS 0 waits for nothing."""
        message = entry.message
        if min(message.qos, entry.qos):
            return False
        session = member.session
        if session.permissions is None or not is_denied(session, message, self._state.counters):
            receiver = Receiver(session, 0, entry.retain_as_published, entry.identifiers)
            self._state.direct.deliver(session, receiver, Accepted(message, b"", NO_MATCH, None, 0))
        return True

    def has(self, session: Session, delivery: Delivery) -> bool:
        """Whether it is of a shared log."""
        return self._in_flight.of(session, delivery) is not None

    def settled(self, session: Session, delivery: Delivery) -> bool:
        """PUBACK or PUBCOMP came; False when it is not of a shared log. There is room then: `pump`."""
        sent = self._in_flight.of(session, delivery)
        if sent is None:
            return False
        lane = sent.lane
        if lane is not None:
            lane.member.under_way -= 1
        if not delivery.seq:  # else it is parked
            if lane is None or lane.is_over:
                self._in_flight.done(session, sent)
            else:
                self._window.settle(lane, delivery)
                # It may keep its place for long behind one that is not acknowledged.
                delivery.message = NOTHING
        self._in_flight.forget(session, delivery)
        return not delivery.seq

    def released(self, session: Session, delivery: Delivery) -> bool:
        """PUBREC came; False when it is not of a shared log."""
        if delivery.seq or self._in_flight.of(session, delivery) is None:
            return False
        self._window.released(session, delivery)
        return True

    # Once in a while

    def poll(self) -> None:
        """Called again and again while there is somebody to read for."""
        self._rounds.look(self._state.tick.now_ms)

    def lanes(self) -> Iterable[SharedLane]:
        """See `RoundsOwner`."""
        for members in self._members.values():
            for member in members.values():
                yield from member.lanes.values()

    def moved(self, lane: FedLane) -> None:
        """See `RoundsOwner`."""
        assert isinstance(lane, SharedLane)
        if lane.positions.stored() != lane.partition.stored:
            self._come_to(lane)

    def trim(self) -> None:
        """Below what every group needs, once that is in store."""
        bases: dict[Place, int] = {}
        readers: dict[str, set[int]] = {}
        """Groups that read a log."""
        kept: set[str] = set()
        """Where a group stands of which nothing is known yet."""
        for shared in self._shared_logs.groups():
            if shared.log.found is None:
                continue
            partitions = self._group(shared).partitions
            readers.setdefault(shared.log.name, set()).add(shared.row.generation)
            if len(partitions) < len(shared.log.found.ends):
                kept.add(shared.log.name)
            for number, partition in partitions.items():
                place = (shared.log.name, number)
                bases[place] = min(
                    bases.get(place, partition.stored.base_offset), partition.stored.base_offset
                )
        due = {
            place: base
            for place, base in bases.items()
            if place[0] not in kept and base > self._trimmed.get(place, 0)
        }
        if due:
            self._trimmed |= due
            groups = {group for log, _ in due for group in readers[log]}
            self._state.tick.batch.when_all_stored(groups, partial(self._place.logs.trim, due))
