"""Delivery from the application logs of clients.

A client is let in when its log is there and what it has not acknowledged has been read again. Then it is read for from
its base on (`positions`). What a feed brings waits until the client may have it; as long as it waits the feed counts
it, and brings no more than its limit: a client that takes nothing is not read for. A feed that brings nothing is asked
when there is room.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from embermq.delivery.application.fed_lane import FedLane, FedReader, StartPosition, cut_at, standing
from embermq.delivery.application.fenced_reader import FencedReader
from embermq.delivery.application.lane import NOTHING, LogLane, behind_unmarked
from embermq.delivery.application.log_lifecycle import CommittedFound
from embermq.delivery.application.log_place import LogPlace, LogProvider, PartOfLog
from embermq.delivery.application.log_tail import TailsEnd
from embermq.delivery.application.marked_records import CutSearch, FetchedRecords, MarkedRecords
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.readers import ApplicationDelivery
from embermq.delivery.application.rounds import Rounds
from embermq.delivery.application.window import (
    PackEntry,
    SlidingWindow,
    log_delivery,
    released_delivery,
    settled_delivery,
)
from embermq.delivery.sending import BULK_BYTES_MAX
from embermq.formats.log_record import LogRecord
from embermq.model.position import offset_of, partition_of
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.model.unacknowledged import Unacknowledged, WhyUnacknowledged
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.application_feed import FeedEntry
from embermq.ports.application_logs import FoundLog, Place
from embermq.ports.errors import StoreError
from embermq.ports.reader_positions import StoredReader
from embermq.ports.source_records import FoundRecords
from embermq.routing.router import Receiver
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

LOG = logging.getLogger("embermq")
OVERTAKING_MAX = 100_000
"""So many messages may be sent behind one that is not acknowledged: each is known by 100 bytes until that one is; then
the log is not read on."""
READ_THROUGH = 5_000
"""Where marks are farther apart, the records between them are not all read to see whether they are those that are
marked: a client would wait too long to be let in."""


class FedReaders(ApplicationDelivery):
    """All readers of this broker. `life` is set before the first client comes, where logs have a place of their own."""

    life: LogProvider

    def __init__(self, state: BrokerState, place: LogPlace, parking: Parking) -> None:
        self._state = state
        self._place = place
        self.offsets_are_sources = place.own is None
        self._parking = parking
        self._recalling: dict[Session, _WaitingClient] = {}
        self._ready: dict[Session, FedReader] = {}
        self._readers: dict[Session, FedReader] = {}
        self._known: dict[int, set[int]] = {}
        """Generation -> records that logs have lost, and that are settled or go on from elsewhere."""
        self._window = SlidingWindow(state, self, self.pump, parking)
        self._partly_free: set[Session] = set()
        """With something that waits, and room in windows of which most is under way."""
        self.log_end = TailsEnd()
        self._handed: set[Session] = set()
        """Whose tails have got something since the log was handed on last."""
        own = place.own
        self._rounds = None if own is None else Rounds(state.tick, self, self._window, own.progress, own.logs)
        self._fetches = None if own is None else FetchedRecords(state, own.records)
        if own is None:
            self.life = PartOfLog(state)

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def failing(self) -> str:
        return self._place.feeds.failing

    def committed(self, generation: int, then: CommittedFound) -> None:
        """By partition of a session's log, below which offset all is settled, as it is stored."""
        self._place.store.load(generation, partial(_committed, then))

    # What the window wants stored

    def sent(self, lane: LogLane, delivery: Delivery, entry: PackEntry) -> None:
        if delivery.offset >= 0:  # else it is marked, and stored when the pack is complete
            self.mark(lane.session, delivery, QueueState.SENT, entry.source)

    def mark(self, session: Session, delivery: Delivery, state: int, source: int = -1) -> None:
        if delivery.offset < 0:
            self._mark_early(session, delivery)
            return
        mark = ApplicationMark(session.generation, delivery.offset, delivery.packet_id, state, source)
        self._state.tick.writes.application_marks.append(mark)

    def _mark_early(self, session: Session, delivery: Delivery) -> None:
        reader = self._readers.get(session)
        if isinstance(reader, FencedReader):
            reader.mark_early(delivery)
            self._write(reader)

    def gave_ids(self, session: Session) -> None:
        """Another log of the session has used its packet ids: the last one is stored with the place in its own."""
        if session in self._readers:
            self._write(self._readers[session])

    def floor(self, lane: LogLane) -> None:
        reader = self._readers.get(lane.session)
        if reader is lane:
            reader.positions.commit(lane.floor)
            self._write(reader)

    def unacknowledged(self, lane: LogLane, source: int, why: WhyUnacknowledged) -> None:
        if source >= 0:
            one = Unacknowledged(lane.session.generation, source, why)
            self._state.tick.writes.unacknowledged.append(one)
        elif isinstance(lane, FedReader):
            lane.is_counted = False

    def refused(self, session: Session, delivery: Delivery) -> None:
        reader = self._readers.get(session)
        if reader is not None and not delivery.seq:
            self.unacknowledged(reader, delivery.source, WhyUnacknowledged.REFUSED)

    def _write(self, reader: FedReader) -> None:
        self._state.tick.writes.application_positions[reader.session.generation] = reader.stored_place()

    def store_anew(self, session: Session) -> None:
        """The store has lost how far its client had come. Of one that is away nothing else knows it: what its log
        still has comes again."""
        reader = self._readers.get(session)
        if reader is None:
            return
        reader.is_counted = False  # why others were not acknowledged has gone as well
        self._write(reader)
        for delivery in [*reader.pending, *(session.resend or ())]:
            if delivery.settled:
                self.mark(session, delivery, QueueState.DONE)
            elif delivery.application and delivery.offset >= reader.floor:
                self.mark(session, delivery, QueueState.RELEASED if delivery.released else QueueState.SENT)

    # A client comes

    def recall(self, session: Session, then: Callable[[], None]) -> None:
        self.suspend(session)
        waiting = self._recalling[session] = _WaitingClient(then)
        self.life.recall(session, partial(self._found, session, waiting))
        waiting.has_waited = True

    def _found(self, session: Session, waiting: _WaitingClient, found: FoundLog) -> None:
        """The log is there. What another connection of the client has decided meanwhile, which was to be let in before
        this one, has to be in store before that is read."""
        if self._recalling.get(session) is not waiting:
            return
        waiting.log = found
        self._state.tick.wake()
        load = partial(self._load, session, waiting, found)
        if waiting.has_waited:
            self._state.tick.batch.when_stored(session.generation, load)
        else:
            load()

    def _load(self, session: Session, waiting: _WaitingClient, found: FoundLog) -> None:
        """See whether the log is the one that is known."""
        if self._recalling.get(session) is waiting:
            then = partial(self._loaded, session, waiting, found)
            self._place.store.load(session.generation, then)

    def _loaded(
        self, session: Session, waiting: _WaitingClient, found: FoundLog, stored: StoredReader | StoreError
    ) -> None:
        if self._recalling.get(session) is not waiting:
            return
        if isinstance(stored, StoreError):
            self._refuse(session, waiting, stored)
            return
        self._state.tick.wake()
        waiting.stored = stored = self._with_unstored(session, stored)
        subscribed = bool(session.subscriptions)
        self._read_marked(session, waiting, standing(stored, found, subscribed=subscribed))

    def _refuse(self, session: Session, waiting: _WaitingClient, error: StoreError) -> None:
        """Who waits gives up; with the embedded log nobody does, so `resume` sends the client away."""
        LOG.error("client %r is refused: %s", session.client_id, error)
        if self._place.own is None:
            del self._recalling[session]
            waiting.then()

    def _with_unstored(self, session: Session, stored: StoredReader) -> StoredReader:
        """While the store takes nothing it may stand behind; no mark is unstored (`DurablePath.may_return`)."""
        for writes in self._state.tick.unstored():
            position = writes.application_positions.get(session.generation)
            if position is not None:
                floor = position.positions.committed_offset
                marks = tuple(mark for mark in stored.marks if mark.offset >= floor)
                stored = StoredReader(position, marks)
        return stored

    def _read_marked(self, session: Session, waiting: _WaitingClient, stand: StartPosition) -> None:
        sent = [mark.offset for mark in stand.marks if mark.state == QueueState.SENT]
        try:
            found = self._place.feeds.fetch(self.life.name(session), sent)
        except StoreError as error:
            self._refuse(session, waiting, error)
            return
        if found is not None:
            self._begin(session, waiting, stand, found, {})
            return
        marks = [mark for mark in stand.marks if mark.source >= 0]
        if marks and marks[-1].offset - marks[0].offset > READ_THROUGH:
            then = partial(self._searched, session, waiting, stand)
            feeds, log = self._place.feeds, self.life.name(session)
            waiting.marked = search = CutSearch(session, marks, feeds, log, then)
            search.begin()
        else:
            self._read_sent(session, waiting, stand, marks)

    def _searched(
        self, session: Session, waiting: _WaitingClient, stand: StartPosition, end: int | None
    ) -> None:
        stand = stand if end is None else self._cut_at(waiting, end)
        self._read_sent(session, waiting, stand, ())

    def _read_sent(
        self,
        session: Session,
        waiting: _WaitingClient,
        stand: StartPosition,
        compared: Collection[ApplicationMark],
    ) -> None:
        """What was sent is read again, and what it is `compared` with."""
        offsets = {mark.offset for mark in compared}
        wanted = [mark for mark in stand.marks if mark.state == QueueState.SENT or mark.offset in offsets]
        if wanted:
            waiting.marked = marked = MarkedRecords(session, wanted)
            then = partial(self._compare, session, waiting, stand, marked)
            marked.begin(self._place.feeds, self.life.name(session), then)
        else:
            self._compare(session, waiting, stand, None)

    def _cut_at(self, waiting: _WaitingClient, end: int) -> StartPosition:
        text = f"has lost its end, before {end}, and has got others since"
        return cut_at(waiting.stored, waiting.log, end, text)

    def _compare(
        self, session: Session, waiting: _WaitingClient, stand: StartPosition, marked: MarkedRecords | None
    ) -> None:
        """What is marked has been read again, if it is what was marked; what is not there any more stands in the
        message log, or nowhere."""
        found: Mapping[int, FeedEntry] = {} if marked is None else marked.found
        end = None if marked is None else _another_from(stand.marks, marked.sources)
        if end is not None:
            stand = self._cut_at(waiting, end)
        if stand.trouble:
            LOG.error("application log %s %s", self.life.name(session), stand.trouble)
        then = partial(self._begin, session, waiting, stand, found)
        sent = [mark for mark in stand.gone if mark.state == QueueState.SENT and mark.source >= 0]
        if sent:
            assert self._fetches is not None
            self._fetches.fetch(session.generation, frozenset(mark.source for mark in sent), then)
        else:
            then({})

    def _begin(
        self,
        session: Session,
        waiting: _WaitingClient,
        stand: StartPosition,
        found: Mapping[int, FeedEntry],
        records: FoundRecords | StoreError,
    ) -> None:
        """All is known: store where the reader begins, then let the client in."""
        if self._recalling.get(session) is not waiting:
            return
        if isinstance(records, StoreError):
            LOG.error("client %r is refused: %s", session.client_id, records)
            return
        self._state.tick.wake()
        if self._fetches is not None:
            self._fetches.drop(session.generation)
        reader = self._made(session, stand)
        if not session.last_packet_id and waiting.stored.position is not None:
            reader.last_packet_id = behind_unmarked(stand.packet_id)
        reader.known = self._still_known(session.generation, stand)
        if reader.known:
            self._known[session.generation] = reader.known
        reader.resend = [self._from_mark(reader, mark, found.get(mark.offset)) for mark in stand.marks]
        then = partial(self._answer, waiting, reader)
        if stand.place is waiting.stored.position:
            then()
            return
        writes = self._state.tick.writes
        if stand.restarts:
            writes.restarted_applications.append(session.generation)
            writes.application_marks += stand.marks
            self._take_up(reader, stand.gone, records)
        writes.application_positions[session.generation] = stand.place
        self._state.tick.batch.when_stored(session.generation, then)

    def _made(self, session: Session, stand: StartPosition) -> FedReader:
        log = self.life.name(session)
        if self._place.own is None:
            return FedReader(self, session, log, stand)
        return FencedReader(self, session, log, stand, self._state.tick)

    def _take_up(self, reader: FedReader, gone: Sequence[ApplicationMark], records: FoundRecords) -> None:
        """What was under way goes on with its packet ids, from where parked messages are kept; what comes of it by the
        log once more, because the pipeline repeats itself, is a repeat."""
        under_way = lost = 0
        known = self._known[reader.session.generation] = reader.known
        for mark in gone:
            record = records.get(mark.source)
            delivery = self._from_log(reader, mark, record)
            if mark.source >= 0 and (delivery is not None or mark.state == QueueState.DONE):
                known.add(mark.source)
            under_way += mark.state != QueueState.DONE
            if delivery is not None:
                self._parking.take_up(reader.session, delivery)
            elif mark.state == QueueState.SENT:
                lost += 1
                self.unacknowledged(reader, mark.source, WhyUnacknowledged.UNREADABLE)
        if under_way:
            LOG.error(
                "client %r had %d messages under way that %s has lost: %d go on, %d are lost",
                reader.session.client_id,
                under_way,
                reader.log,
                under_way - lost,
                lost,
            )
        self.lost += lost

    def _still_known(self, generation: int, stand: StartPosition) -> set[int]:
        """Without those that the floors tell of."""
        floors = dict(stand.place.positions.floors)
        known = self._known.pop(generation, ())
        return {one for one in known if offset_of(one) >= floors.get(partition_of(one), 0)}

    def _from_log(
        self, reader: FedReader, mark: ApplicationMark, record: LogRecord | None
    ) -> Delivery | None:
        if mark.state == QueueState.RELEASED:
            return released_delivery(mark.offset, mark.packet_id)
        if mark.state == QueueState.DONE or record is None:
            return None
        entry = reader.stamped(FeedEntry(mark.offset, 0, None, record))
        return None if entry is None else log_delivery(entry, mark.packet_id)

    def _answer(self, waiting: _WaitingClient, reader: FedReader) -> None:
        """Its place is in store."""
        session = reader.session
        if self._recalling.get(session) is waiting:
            self._state.tick.wake()
            del self._recalling[session]
            self._ready[session] = reader
            waiting.then()

    def _from_mark(self, reader: FedReader, mark: ApplicationMark, entry: FeedEntry | None) -> Delivery:
        source = mark.offset if self.offsets_are_sources else mark.source
        if mark.state == QueueState.RELEASED:
            return released_delivery(mark.offset, mark.packet_id, source)
        stamped = reader.stamped(entry) if entry is not None and mark.state == QueueState.SENT else None
        if stamped is None:
            if mark.state == QueueState.SENT:
                self.lost += 1
                self.unacknowledged(reader, source, WhyUnacknowledged.UNREADABLE)
                return settled_delivery(mark.offset)
            return settled_delivery(mark.offset, mark.packet_id)
        delivery = log_delivery(stamped, mark.packet_id)
        delivery.dup = True
        return delivery

    def resume(self, session: Session) -> None:
        reader = self._ready.pop(session, None)
        if reader is None:  # what it has not acknowledged was not read: to go on without it breaks the order
            if session.link is not None:
                session.link.disconnect(ReasonCode.SERVER_BUSY)
            return
        self._readers[session] = reader
        session.last_packet_id = reader.last_packet_id or session.last_packet_id
        reader.pending.extend(reader.resend)
        resend = [delivery for delivery in reader.resend if not delivery.settled]
        reader.resend = []
        if session.link is not None:
            self._window.begin(reader, session.link)
        resend += reader.begin(self.log_end, self._state.log_end)
        if resend:
            session.resend = session.resend or deque()
            session.resend.extend(resend)
        reader.feed = self._place.feeds.open(reader.log, {0: reader.read_to}, reader)

    # The log's end

    def deliver(self, receiver: Receiver, accepted: Accepted) -> None:
        reader = self._readers.get(receiver.session)
        if reader is not None and reader.tail is not None:
            reader.tail.deliver(receiver, accepted)
            self._handed.add(receiver.session)

    def delivered(self, log_end: int) -> None:
        self.log_end.offset = log_end
        if self._handed:
            handed, self._handed = self._handed, set()
            for session in handed:
                self.pump(session)

    # A client goes

    def suspend(self, session: Session) -> None:
        waiting = self._recalling.pop(session, None)
        if waiting is not None and waiting.marked is not None:
            waiting.marked.close()
        self._ready.pop(session, None)
        self._handed.discard(session)
        self._partly_free.discard(session)
        reader = self._readers.pop(session, None)
        if reader is not None:
            self._window.end(reader)
            reader.close()

    def ended(self, session: Session) -> None:
        self.suspend(session)
        self._known.pop(session.generation, None)
        if self._fetches is not None:
            self._fetches.drop(session.generation)
        self._parking.forget(session)

    def gone(self, reader: FedReader, reason: str) -> None:
        session = reader.session
        if self._readers.get(session) is not reader:
            return
        self._state.tick.wake()
        LOG.error(
            "client %r is disconnected, its log is made again when it returns: %s", session.client_id, reason
        )
        self.suspend(session)
        if session.link is not None:
            session.link.disconnect(ReasonCode.SERVER_BUSY, "its messages cannot be read")

    def missed(self, reader: FedReader, count: int) -> None:
        """So many records were deleted before they were read; the feed has logged that."""
        self.lost += count

    def restored(self, session: Session, identity: str) -> None:
        """Its log was missing. When it has been made again, whoever made it, offsets of the one that is read mean
        nothing in it."""
        reader = self._readers.get(session)
        if reader is not None and reader.place.log_id != identity:
            self.gone(reader, f"{reader.log} was missing and is another one now")

    def unreadable(self, reader: FedReader, offset: int, source: int, problem: str) -> None:
        self.unacknowledged(reader, source, WhyUnacknowledged.UNREADABLE)
        if self._place.own is None:
            self._state.damaged.note(problem)
            self.lost += 1
            return
        self._state.counters.application_unreadable += 1
        LOG.error("%s, offset %d: skipped, it cannot be decoded: %s", reader.log, offset, problem)

    # Messages

    def came(self, reader: FedReader) -> None:
        """Something may wait in it now."""
        self._state.tick.wake()
        self.pump(reader.session)

    def pump(self, session: Session) -> None:
        reader = self._readers.get(session)
        link = session.link
        if reader is not None and link is not None:
            while self._pump(reader, link):
                pass
            if isinstance(reader, FencedReader) and reader.changed:
                self._write(reader)

    def _pump(self, reader: FedReader, link: Link) -> bool:
        """Send the next pack; False when there is none, or no room."""
        session = reader.session
        if isinstance(reader, FencedReader):
            self._pass_over(reader)
        room = min(self._window.room(reader, link), OVERTAKING_MAX - len(reader.pending))
        if room <= 0:
            return False
        if not reader.fill(room):
            self._window.follow_idle(reader)
            return False
        room = self._window.drainable(session, room, reader.waiting)
        if room <= 0:
            return False
        pack, size = reader.next_pack(room, BULK_BYTES_MAX)
        reader.feed.release(size)
        self._window.send_pack(reader, link, pack)
        reader.follow()
        return True

    def _pass_over(self, reader: FencedReader) -> None:
        """What was sent early and has a place in its log now is marked there, and timed."""
        bound, freed = reader.pass_over()
        reader.feed.release(freed)
        for source, delivery in bound:
            state = QueueState.RELEASED if delivery.released else QueueState.SENT
            self.mark(reader.session, delivery, state, source)
        if bound:
            self._parking.sender.watch(reader, bound[-1][1].offset)

    def settled(self, session: Session, delivery: Delivery) -> None:
        reader = self._readers.get(session)
        if reader is not None:
            self._window.settle(reader, delivery)
            delivery.message = NOTHING  # it may keep its place for long behind one that is not acknowledged
            if session.has_room_again:
                self.pump(session)
            elif reader.waiting or reader.has_more:
                self._partly_free.add(session)

    def released(self, session: Session, delivery: Delivery) -> None:
        self._window.released(session, delivery)

    # Once in a while

    def poll(self) -> None:
        if self._partly_free:
            partly_free, self._partly_free = self._partly_free, set()
            for session in partly_free:
                self.pump(session)
        if self._place.feeds.look():
            for session in list(self._readers):
                self.pump(session)
        if self._rounds is not None:
            self._rounds.look(self._state.tick.now_ms)

    def lanes(self) -> Iterable[FedReader]:
        """See `RoundsOwner`."""
        return self._readers.values()

    def moved(self, lane: FedLane) -> None:
        """See `RoundsOwner`."""
        assert isinstance(lane, FedReader)
        self.pump(lane.session)
        if lane.positions.base_offset != lane.written_base:
            self._write(lane)

    def trim(self) -> None:
        """Below bases that are in store when it happens."""
        bases: dict[Place, int] = {}
        sessions: list[int] = []
        for reader in self._readers.values():
            if reader.written_base > reader.trimmed_to:
                sessions.append(reader.session.generation)
                reader.trimmed_to = reader.written_base
                bases[reader.log, 0] = reader.written_base
        own = self._place.own
        if bases and own is not None:
            self._state.tick.batch.when_all_stored(sessions, partial(own.logs.trim, bases))


def _committed(then: CommittedFound, stored: StoredReader | StoreError) -> None:
    if isinstance(stored, StoreError):
        then(stored)
    else:
        then({} if stored.position is None else {0: stored.position.positions.committed_offset})


def _another_from(marks: Sequence[ApplicationMark], sources: Mapping[int, int | None]) -> int | None:
    """Where a log has other records than those that are marked: it was cut, and has grown again since."""
    for mark in marks:
        if mark.source >= 0 and mark.offset in sources and sources[mark.offset] != mark.source:
            return mark.offset
    return None


class _WaitingClient:
    """A client that is to be let in; `marked` while its unacknowledged messages are read."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then
        self.has_waited = False
        """For its log: not in the tick any more in which it came."""
        self.stored: StoredReader
        self.log: FoundLog
        self.marked: MarkedRecords | CutSearch | None = None
