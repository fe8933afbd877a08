"""Delivery to persistent sessions.

A QoS 1 message for a client that is there and has room is sent at once and only written when it is not acknowledged
in time (`linger`). Everything else is a row of the device queue first: QoS 2, messages for absent clients, and all
that comes while a backlog drains. A row is marked SENT, with its packet id, before its PUBLISH is sent.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from embermq.delivery.device.behind import Behind
from embermq.delivery.device.draining import Draining, unstored_writes
from embermq.delivery.device.floor import DispatcherFloor
from embermq.delivery.device.group_backlogs import GroupBacklogs
from embermq.delivery.device.limit import QueueLimit
from embermq.delivery.device.linger import Linger
from embermq.delivery.device.places import keep_places
from embermq.delivery.device.requests import Requests
from embermq.delivery.device.settings import DeviceSettings
from embermq.delivery.device.stored import StoredOffers, delivery_from, late_delivery
from embermq.delivery.sending import (
    BULK_BYTES_MAX,
    QUEUED_MESSAGES_MAX,
    hand_over_unstored,
    is_denied,
    note_delay,
    put_on_link,
    send_pubrel,
    send_pubrels,
    stored_frame,
)
from embermq.model.message import Message
from embermq.model.session_writes import QueueMark, QueueRow, QueueState
from embermq.ports.device_queue import DeviceQueue
from embermq.routing.router import MatchedGroup, Receiver
from embermq.sessions.delivery_path import DeliveryPath
from embermq.sessions.forwarded_frames import accepted_frame, frame_bytes
from embermq.sessions.link import Link
from embermq.sessions.packet_ids import next_packet_id, take_packet_id
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Batch, StoredTogether


class DevicePath(DeliveryPath):
    """See the module."""

    def __init__(self, state: BrokerState, queue: DeviceQueue, settings: DeviceSettings) -> None:
        self._state = state
        self.requests = Requests(queue, state.tick)
        self._limit = QueueLimit(state, self.requests, settings)
        self._draining = Draining(state, self.requests)
        self.behind = Behind(state, self)
        self.groups = GroupBacklogs(state, self, self.requests)
        self._settings = settings
        self.linger = Linger(settings.linger_ms)
        self._sending = StoredTogether(state.tick, self.send_rows)
        self._releasing = StoredTogether(state.tick, send_pubrels)
        self._wanting_page: list[Session] = []
        self._touched: set[Session] = set()
        self._touched_batch: Batch | None = None
        self._floor = DispatcherFloor()

    # Messages come in

    def deliver(self, session: Session, receiver: Receiver, accepted: Accepted) -> None:
        message = accepted.message
        if message.expires_ms and message.is_expired(self._state.tick.now_ms):
            self._state.counters.dropped_expired += 1
            return
        qos, granted = message.qos, receiver.qos
        if granted < qos:
            qos = granted
        delivery = Delivery(
            message,
            accepted.record,
            accepted.offset,
            qos,
            message.retain and receiver.retain_as_published,
            receiver.identifiers,
        )
        delivery.shared = receiver.shared
        link = session.link
        if link is None or session.backlog or qos == 2 or link.closing:
            if not self.behind.takes(session, delivery):
                self._store(session, delivery)
            elif link is not None and not session.backlog:
                self._queue_behind(session)
            return
        if session.waiting or session.resend or link.paused or len(session.window) >= session.window_max:
            # As `said_bytes`, without the call where there is nothing more to count.
            is_plain = message.properties is None
            size = len(message.topic) + len(message.payload) if is_plain else accepted.said_bytes()
            self._wait(session, delivery, size)
            return
        packet_id = delivery.packet_id = next_packet_id(session)
        if session.unsent:
            delivery.place = session.place_of_sent()
        frame = accepted_frame(accepted, qos, delivery.retain, link.version, receiver.identifiers)
        if put_on_link(link, delivery, frame, self._state.counters):
            session.window[packet_id] = delivery
            session.has_unplaced = True
            self.linger.fresh.append((session, delivery))

    def deliver_retained(self, session: Session, receiver: Receiver, message: Message, record: bytes) -> None:
        """QoS 1 and 2 are stored first: no log position stands behind them."""
        qos = min(receiver.qos, message.qos)
        if qos == 0:
            self._state.direct.deliver_retained(session, receiver, message, record)
            return
        self._store(session, Delivery(message, record, -1, qos, True, receiver.identifiers))

    def holds_back(self, group: MatchedGroup, accepted: Accepted) -> bool:
        return self.behind.takes_group(group, accepted)

    def deliver_late(self, receiver: Receiver, accepted: Accepted) -> None:
        """A record that is read from the log because the session or the shared subscription was behind."""
        self._store(receiver.session, late_delivery(receiver, accepted, 0))

    def _queue_behind(self, session: Session) -> None:
        """Everything new stays in the log: what is in memory only is written, for it comes before that."""
        self._spill(session)
        session.backlog = True

    def caught_up(self, session: Session) -> None:
        """What comes now is dispatched to it again."""
        if session.link is not None and session.backlog and not session.paging:
            self.want_page(session)

    def nobody_is_behind(self) -> None:
        """Any more: nothing holds the floor here."""
        self.linger.close_tick(self._state.log_end, self._state.tick.now_ms)

    def store_late(self, session: Session, receiver: Receiver, accepted: Accepted, seq: int) -> None:
        """A row that a crash kept from being written; `seq` puts it before what came after it, 0 at the end."""
        self._add_row(session, late_delivery(receiver, accepted, seq), QueueState.QUEUED)

    def _wait(self, session: Session, delivery: Delivery, size: int) -> None:
        if (waiting := session.waiting) is None:
            waiting = session.waiting = deque()
        waiting.append(delivery)
        delivery.waiting_bytes = size
        session.waiting_bytes = waiting_bytes = session.waiting_bytes + size
        self.linger.fresh.append((session, delivery))
        if len(waiting) > QUEUED_MESSAGES_MAX or waiting_bytes > self._state.settings.queued_bytes_max:
            self._spill(session)

    # The store

    def _store(self, session: Session, delivery: Delivery) -> None:
        """A new row. With room and nothing before it, it is sent as soon as it is durable. A session that ended
        while the message was being committed gets none: nobody would ever remove it."""
        if session.dead:
            return
        if session.waiting:
            self._spill(session)
        link = session.link
        if (
            link is None
            or link.closing
            or link.paused
            or session.backlog
            or session.resend
            or len(session.window) >= session.window_max
        ):
            if link is not None and not session.backlog:
                self._spill(session)  # else a page could be sent and, after a crash, be resent before it
            self._add_row(session, delivery, QueueState.QUEUED)
            session.backlog = link is not None
            return
        self.put_in_flight(session, delivery)
        self._sending.add(session, link, delivery)

    def put_in_flight(self, session: Session, delivery: Delivery) -> None:
        """Take a packet id for it, and store it as sent where the session is kept. The caller has it sent when that is
        durable, by `send_rows`."""
        if session.persistent:
            keep_places(session)
        delivery.packet_id = next_packet_id(session)
        session.window[delivery.packet_id] = delivery
        if session.persistent:
            self._add_row(session, delivery, QueueState.SENT)
        if session.unsent is None:
            session.unsent = deque()
        session.unsent.append(delivery)

    def _add_row(self, session: Session, delivery: Delivery, state: int) -> None:
        if not delivery.seq:
            delivery.seq = delivery.place or session.next_place()
        session.queued += 1
        session.queued_bytes += len(delivery.record)
        now_ms = self._state.tick.now_ms
        expires_ms = now_ms + self._settings.ttl_s * 1000
        if delivery.message.expires_ms:
            expires_ms = min(expires_ms, delivery.message.expires_ms)
        row = QueueRow(
            session.generation,
            delivery.seq,
            delivery.offset,
            delivery.packet_id,
            state,
            delivery.qos | delivery.retain << 2 | delivery.shared << 3,
            expires_ms,
            delivery.identifiers,
            delivery.record,
        )
        self._state.tick.session_writes.queue_rows.append(row)
        self._state.counters.messages_stored += 1
        self._limit.note(session)
        if self._touched_batch is not self._state.tick.batch:
            self._touched_batch, self._touched = self._state.tick.batch, set()
        if session not in self._touched:
            self._touched.add(session)
            session.uncommitted += 1
            self._when_stored(session, partial(self._rows_committed, session))

    def _when_stored(self, session: Session, call: Callable[[], None]) -> None:
        self._state.tick.batch.when_stored(session.generation, call)

    def _rows_committed(self, session: Session) -> None:
        session.uncommitted -= 1
        self._touched.discard(session)  # else it is held, and could not be put away
        self._limit.enforce(session)
        if session.group is not None:
            self.groups.committed(session)
        elif session.backlog and not session.paging:
            self.want_page(session)

    def _spill(self, session: Session) -> None:
        """Write what is in memory only: first what is in flight, then what waits, so that rows keep the order."""
        for delivery in session.window.values():
            if not (delivery.seq or delivery.application or delivery.from_queue):
                self._add_row(session, delivery, QueueState.SENT)
        waiting, session.waiting = session.waiting, None
        session.waiting_bytes = 0
        if waiting:
            for delivery in waiting:
                self._add_row(session, delivery, QueueState.QUEUED)
            session.backlog = session.link is not None

    def advance(self, now_ms: int) -> None:
        """Write deliveries that were not acknowledged in time; move the dispatcher's floor."""
        unsettled, end_offset = self.linger.due(now_ms)
        for session, delivery in unsettled:
            if session.dead or delivery.seq:
                continue
            ack_time = session.ack_time
            if ack_time is not None and ack_time.linger_ms:
                # Slower than it was, or silent. What is older may linger still, and comes before it [MQTT-4.6.0-1].
                ack_time.linger_ms = 0
                self._spill(session)
            elif delivery.packet_id in session.window:
                self._add_row(session, delivery, QueueState.SENT)
            else:
                self._spill(session)
            if session.link is not None and self.behind.begins(session):
                self._queue_behind(session)
        if end_offset >= 0 and self.behind:
            end_offset = min(end_offset, self.behind.floor)
        self._floor.moves_to(end_offset)
        self._floor.write(self._state.tick.writes, now_ms)

    @property
    def next_ms(self) -> int:
        """When `advance` next has something to do; 0 for never."""
        return self._floor.next_ms or self.linger.next_ms

    # Pages of the backlog

    def want_page(self, session: Session) -> None:
        """Have the next page of what is stored read when everything else of this tick has been done."""
        session.paging = True
        self._wanting_page.append(session)

    @property
    def wants_pages(self) -> bool:
        """Whether `read_pages` has something to do."""
        groups = self._state.groups
        return bool(self._wanting_page or groups.woken or groups.changed)

    def read_pages(self) -> None:
        """Read the next page of every session that has room for it, and of groups of which a member has."""
        if self._state.groups.woken or self._state.groups.changed:
            self.groups.wake()
        wanting, self._wanting_page = self._wanting_page, []
        for session in wanting:
            if session.paging and session.group is not None:
                self.groups.read(session)
            elif session.paging:
                self._read_page(session)

    def _read_page(self, session: Session) -> None:
        session.paging = False
        link = session.link
        room = session.window_max - len(session.window)
        if link is None or link.closing or link.paused or room <= 0 or session.resend:
            return
        session.paging = True
        # Rows that are not durable yet are not seen, and more may come while the store is asked.
        next_seq = 0 if session.uncommitted else session.queue_seq_next
        self.requests.page(
            session.generation,
            session.queue_read_seq,
            room,
            partial(self._take_page, session, link, next_seq),
            bytes_max=BULK_BYTES_MAX,
        )

    def _take_page(self, session: Session, link: Link, next_seq: int, rows: list[QueueRow]) -> None:
        if session.dead or session.link is not link or link.closing:
            return  # what was read is queued still
        session.paging = False
        if not rows and self._state.drains:
            rows = self._draining.unstored_rows(session)
        if not rows:
            if next_seq == session.queue_seq_next:
                session.backlog = self.behind.holds(session)
                if self._state.groups.stalled:
                    self._state.groups.has_room(session)
            elif not session.uncommitted:
                self.want_page(session)
            return
        room = session.window_max - len(session.window)
        taken = [row for row in rows if row.seq > session.queue_read_seq][: max(room, 0)]
        if self._state.drains:
            taken = self._draining.sendable(session, taken)
        if not taken:
            if room > 0 and not self._draining.is_stopped(session):
                self.want_page(session)
            return
        session.queue_read_seq = taken[-1].seq
        self._send_when_marked(session, link, taken)

    def _send_when_marked(self, session: Session, link: Link, rows: list[QueueRow]) -> None:
        now_ms = self._state.tick.now_ms
        writes = self._state.tick.session_writes
        deliveries: list[Delivery] = []
        for row in rows:
            is_expired = row.expires_ms <= now_ms or not row.record
            self._state.counters.dropped_expired += is_expired
            delivery = None if is_expired else delivery_from(row, self._state.damaged)
            if delivery is None:
                writes.queue_dropped.append((session.generation, row.seq))
                session.forget_stored(len(row.record))
                continue
            delivery.packet_id = take_packet_id(session, row.packet_id)
            session.window[delivery.packet_id] = delivery
            writes.queue_marks.append(
                QueueMark(
                    session.generation, row.seq, row.offset, QueueState.SENT, delivery.packet_id, delivery.qos
                )
            )
            deliveries.append(delivery)
        session.paging = True
        if not self._state.drains:
            self._when_stored(session, partial(self._send_page, session, link, deliveries))
        else:
            self._send_page(session, link, deliveries)
            self._state.tick.wake()

    def _send_page(self, session: Session, link: Link, deliveries: list[Delivery]) -> None:
        if session.link is not link or link.closing:
            return
        session.paging = False
        self.send_rows(session, link, deliveries)
        if session.backlog:
            self.want_page(session)

    def send_rows(self, session: Session, link: Link, deliveries: list[Delivery]) -> None:
        """The rows are durable as SENT: send them, in the order in which they now enter the window."""
        if session.link is not link or link.closing:
            return
        note_delay(self._state.device_delays, link, deliveries, self._state.tick)
        now_ms, window = self._state.tick.now_ms, session.window
        for delivery in deliveries:
            unsent = session.unsent
            if unsent and unsent[0] is delivery:
                unsent.popleft()
            elif unsent:  # a group gives in more steps, and is overtaken by what has fewer
                session.unsent = deque(one for one in unsent if one is not delivery)
            if window.pop(delivery.packet_id, None) is not delivery:
                continue
            window[delivery.packet_id] = delivery
            self._send_or_drop(session, link, delivery, now_ms)

    def _send_or_drop(self, session: Session, link: Link, delivery: Delivery, now_ms: int) -> None:
        counters = self._state.counters
        if delivery.released:
            send_pubrel(link, delivery)
            return
        denied = session.permissions is not None and is_denied(session, delivery.message, counters)
        # The store has taken its time, and may have let go of what it was told too late is sent [MQTT-3.3.2-5].
        is_late = not (delivery.dup or delivery.application) and delivery.message.is_expired(now_ms)
        counters.dropped_expired += is_late
        if denied and delivery.dup and delivery.qos == 2:
            # The client may have it and wait for PUBREL, and would take the next message of this packet id for it.
            delivery.released = True
            self._state.path(session).released(session, delivery)
        elif not (denied or is_late) and put_on_link(
            link, delivery, frame := stored_frame(delivery, session, now_ms), counters
        ):
            link.bulk_bytes += frame_bytes(frame)
        else:
            del session.window[delivery.packet_id]
            delivery.settled = True
            if delivery.application:
                self._state.path(session).settled(session, delivery)
            elif delivery.seq:
                self.mark_done(session, delivery)
            if self._state.groups.stalled:
                self._state.groups.has_room(session)

    # Acknowledgements

    def settled(self, session: Session, delivery: Delivery) -> None:
        if delivery.seq:
            self.mark_done(session, delivery)
        else:
            self._state.counters.messages_elided += 1
        ack_time = session.ack_time
        if ack_time is not None and ack_time.probe is delivery:
            ack_time.acknowledged(self._state.tick.now_ms)
        if session.waiting or session.backlog or session.resend or self._state.groups.stalled:
            self.refill(session)

    def mark_done(self, session: Session, delivery: Delivery) -> None:
        """A stored delivery is over."""
        session.forget_stored(len(delivery.record))
        mark = QueueMark(
            session.generation, delivery.seq, delivery.offset, QueueState.DONE, delivery.packet_id
        )
        self._state.tick.session_writes.queue_marks.append(mark)

    def released(self, session: Session, delivery: Delivery) -> None:
        """PUBREL leaves when the state is durable: else a crash would send the PUBLISH to a client that forgot it.
        Of what a durable queue keeps only this is stored here."""
        if not delivery.seq:
            self._add_row(session, delivery, QueueState.SENT)
        mark = QueueMark(
            session.generation, delivery.seq, delivery.offset, QueueState.RELEASED, delivery.packet_id
        )
        self._state.tick.session_writes.queue_marks.append(mark)
        if (link := session.link) is not None:
            self._releasing.add(session, link, delivery)

    def refill(self, session: Session) -> None:
        """The window has room: first what is owed from a connection before, then what waits, then the next page."""
        link = session.link
        if link is None or link.closing or link.paused:
            return
        if session.resend:
            self._resend(session, link)
        waiting = session.waiting
        if waiting and not session.resend:
            now_ms = self._state.tick.now_ms
            while (
                waiting
                and len(session.window) < session.window_max
                and link.bulk_bytes < BULK_BYTES_MAX  # what is in flight then will be acknowledged
            ):
                delivery = waiting.popleft()
                session.waiting_bytes -= delivery.waiting_bytes
                if delivery.message.is_expired(now_ms):
                    delivery.settled = True
                    self._state.counters.dropped_expired += 1
                    continue
                if session.permissions is not None and is_denied(
                    session, delivery.message, self._state.counters
                ):
                    delivery.settled = True
                    continue
                delivery.packet_id = next_packet_id(session)
                if session.unsent:
                    delivery.place = session.place_of_sent()
                session.window[delivery.packet_id] = delivery
                session.has_unplaced = True
                frame = stored_frame(delivery, session, now_ms)
                if put_on_link(link, delivery, frame, self._state.counters):
                    link.bulk_bytes += frame_bytes(frame)
                else:
                    del session.window[delivery.packet_id]
                    delivery.settled = True
        elif session.backlog and not session.paging and session.has_room_again:
            self.want_page(session)
        if self._state.groups.stalled:
            self._state.groups.has_room(session)

    # Connections come and go

    def may_return(self, session: Session) -> bool:
        return self._draining.may_return(session)

    def recall(self, session: Session, then: Callable[[list[Delivery]], None]) -> None:
        recalled = partial(self._recalled, session, then)
        if not session.queued:
            then([])
        elif self._state.drains:
            self._draining.recall(session, recalled)
        else:
            self.requests.in_flight(session.generation, recalled)

    def store_works(self) -> None:
        """Again: read on where that had to wait."""
        for session in self._draining.resume():
            self.want_page(session)
        self.groups.store_works()

    def _recalled(
        self, session: Session, then: Callable[[list[Delivery]], None], rows: list[QueueRow]
    ) -> None:
        if session.dead:
            then([])
            return
        owed: list[Delivery] = []
        for row in rows:
            is_there = row.record or row.state == QueueState.RELEASED
            delivery = delivery_from(row, self._state.damaged) if is_there else None
            if delivery is not None:
                owed.append(delivery)
                continue
            self._state.tick.session_writes.queue_dropped.append((session.generation, row.seq))
            session.forget_stored(len(row.record))
        then(owed)

    def resume(self, session: Session, owed: list[Delivery]) -> None:
        """Unacknowledged first, with their packet ids and DUP [MQTT-4.4.0-1], then the backlog."""
        link = session.link
        assert link is not None
        session.waiting = session.resend = session.unsent = session.ack_time = None
        session.waiting_bytes = 0
        session.window.clear()
        session.paging = False
        session.queue_read_seq = session.queue_dropped_seq
        self.groups.resumed(session)
        session.backlog = session.queued > len(owed) or self.behind.holds(session)
        if not self._state.drains:
            self._limit.enforce(session)
        for subscriber in session.subscriptions.values():
            if subscriber.group:
                self.groups.joined(subscriber)
        if not session.queued:
            return
        if owed and not session.last_packet_id:
            session.last_packet_id = owed[-1].packet_id
        session.resend = deque(owed)
        for delivery in owed:
            delivery.dup = True
        self._resend(session, link)
        if session.backlog:
            self.want_page(session)

    def _resend(self, session: Session, link: Link) -> None:
        now_ms = self._state.tick.now_ms
        resend = session.resend
        while resend and len(session.window) < session.window_max and link.bulk_bytes < BULK_BYTES_MAX:
            delivery = resend.popleft()
            session.window[delivery.packet_id] = delivery
            self._send_or_drop(session, link, delivery, now_ms)

    def hand_over(
        self,
        session: Session,
        take: Callable[[Delivery], bool],
        *,
        ended: bool,
        then: Callable[[], None] | None = None,
    ) -> None:
        known = {delivery.seq for delivery in session.window.values()}
        for delivery in hand_over_unstored(session, take):
            if delivery.seq:
                self.mark_done(session, delivery)
        if ended and session.queued:
            unstored = unstored_writes(self._state, session)
            StoredOffers(take, then, known, unstored, self._state.damaged).begin(self.requests, session)
        elif then is not None:
            then()

    def write_down(self, session: Session) -> None:
        self._spill(session)

    def suspend(self, session: Session) -> None:
        """The client is gone: write what is in memory only."""
        self._spill(session)
        self._draining.forget(session)
        session.window.clear()
        session.resend = session.unsent = session.ack_time = None
        session.backlog = session.paging = False

    def forget(self, session: Session) -> None:
        session.waiting = session.resend = session.unsent = None
        session.waiting_bytes = 0
        session.paging = session.backlog = False
        self._limit.forget(session)
        self._draining.forget(session)
        self.behind.forget(session)
        self.groups.forget(session)

    def writable(self, session: Session) -> None:
        self.refill(session)
