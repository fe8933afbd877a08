"""Messages that were sent again in vain: kept aside, each with its body, until somebody has them sent again.

A parked message is owed by its session and has no place in a log any more: it is stored in the tick that settles it
there. An operator redrives it: it is sent with DUP, and when that is in vain as well it is parked again. What the
client acknowledges is gone from here, also when it does so late and unasked.

Packet ids. One of QoS 2 stays that message's own, over connections too: the client may have it and wait for PUBREL. It
is sent again under this id, so a client that has it already does not take it twice; and no other message gets the id,
since the client would take that for this one. While the connection lasts on which it was given up, one of QoS 1 is
kept as well [MQTT-2.2.1-4].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice

from embermq.delivery.application.lane import NOTHING, SKIPPED, LogLane, SideLane
from embermq.delivery.application.lane_sender import LaneSender
from embermq.delivery.application.settings import ApplicationSettings
from embermq.delivery.sending import BULK_BYTES_MAX, is_denied, send_pubrel
from embermq.formats.log_record import encode_record
from embermq.model.message import said_bytes
from embermq.model.parked_message import ParkedChange, ParkedEnd, ParkedMessage, ParkedStage, ParkedState
from embermq.model.session_writes import QueueState
from embermq.mqtt.value import replace
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError
from embermq.ports.parked_messages import ParkedFound, ParkedMessages
from embermq.sessions.link import Link
from embermq.sessions.packet_ids import answered, forget_given_up, give_up, next_packet_id, reserve_packet_id
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState

PARKED_LOG = "parked"
"""The lane's name; no log is called so."""
PARKED_MAX = 10_000
"""Messages that are parked for one client: twice as many fit into its packet ids. While there are as many, others are
sent again without end."""
READ_MAX = 200
"""Messages that are read at a time to be sent again."""


class _ParkedLane(SideLane):
    """What is sent again of a session's parked messages, by their numbers."""

    __slots__ = ("due", "reading")

    def __init__(self, session: Session) -> None:
        super().__init__(session, PARKED_LOG)
        self.reading = False
        """The store has been asked for messages."""
        self.due: deque[int] = deque()
        """Numbers that wait for room."""


class Parking:
    """The parked messages of all sessions. `tell` is told in a sentence what an operator has to know."""

    def __init__(
        self,
        state: BrokerState,
        settings: ApplicationSettings,
        store: ParkedMessages,
        tell: Callable[[str], None],
    ) -> None:
        self._state = state
        self.settings = settings
        self.sender = LaneSender(state, settings)
        self._tell = tell
        self._store = store
        self._parked: dict[int, dict[int, ParkedState]] = {}
        """Generation -> number -> all but the message."""
        self._numbers: dict[int, int] = {}
        """Generation -> the last number given."""
        self._clients: dict[int, str] = {}
        """Generation -> client id, of those that had something parked."""
        self._lanes: dict[Session, _ParkedLane] = {}
        """Of connected sessions that have something here."""
        self._full: set[int] = set()
        self._failing = ""

    def restore(self, sessions: Iterable[Session]) -> None:
        """Go on from what is stored, before anybody is connected. Raises StoreError."""
        known = {session.generation: session.client_id for session in sessions}
        for at in self._store.load():
            if at.generation in known:
                self._parked.setdefault(at.generation, {})[at.number] = at
                self._numbers[at.generation] = at.number
                self._clients[at.generation] = known[at.generation]
            else:
                self._state.tick.writes.parked.append(ParkedEnd(at.generation, at.number))

    def __len__(self) -> int:
        """How many there are, those included that are being sent again."""
        return sum(len(_shown(parked)) for parked in self._parked.values())

    # Parking

    def park(self, session: Session, delivery: Delivery) -> bool:
        """Keep a message aside that is under way on this connection; it is settled as far as its log goes. False when
        there is no room: nothing has happened then."""
        if len(self._parked.get(session.generation, ())) >= PARKED_MAX:
            self._say_full(session)
            return False
        number = self._put(session, delivery, ParkedStage.PARKED, self.settings.retries + 1)
        self._state.counters.application_parked += 1
        self._set_aside(session, delivery, -number)
        return True

    def take_up(self, session: Session, delivery: Delivery) -> None:
        """Go on with a message that the log has lost in which it was under way: it is sent again, under its packet id,
        when the client is let in. It had its room already, so `PARKED_MAX` is not asked."""
        self._put(session, delivery, ParkedStage.UNDER_WAY, 1)

    def _put(self, session: Session, delivery: Delivery, stage: ParkedStage, attempts: int) -> int:
        """Returns its number."""
        generation = session.generation
        number = self._numbers[generation] = self._numbers.get(generation, 0) + 1
        self._clients[generation] = session.client_id
        state = QueueState.RELEASED if delivery.released else QueueState.SENT
        at = ParkedState(generation, number, stage, state, delivery.packet_id, delivery.qos)
        message = delivery.message
        record = b"" if message is NOTHING else encode_record(message, b"")
        self._parked.setdefault(generation, {})[number] = at
        self._state.tick.writes.parked.append(
            ParkedMessage(
                at,
                self._state.tick.now_ms,
                attempts,
                delivery.retain,
                delivery.identifiers,
                message.topic,
                len(message.payload),
                record,
            )
        )
        return number

    def skip(self, session: Session, delivery: Delivery) -> None:
        """Go on without it; its packet id stays taken as long as the connection lasts."""
        self._set_aside(session, delivery, SKIPPED)

    def _set_aside(self, session: Session, delivery: Delivery, seq: int) -> None:
        delivery.seq = seq
        give_up(session, delivery)
        link = session.link
        too_many = len(session.reserved or ()) > 2 * PARKED_MAX + session.client_window_max
        if link is not None and (too_many or session.client_window_max <= 0):
            link.disconnect(ReasonCode.QUOTA_EXCEEDED)  # a new connection frees ids of QoS 1

    def _say_full(self, session: Session) -> None:
        if session.generation not in self._full:
            self._full.add(session.generation)
            self._tell(
                f"no more is parked for {session.client_id!r}: it has {PARKED_MAX} messages already; "
                "others are sent again without end"
            )

    def _say_failing(self, text: str) -> None:
        if text and not self._failing:
            self._tell(f"what is parked cannot be sent again now: {text}")
        self._failing = text

    def say_parked(self, session: Session, count: int) -> None:
        """So many have just been parked together."""
        self._tell(
            f"parked {count} messages that {session.client_id!r} did not acknowledge, sent {self.settings.retries + 1} "
            "times each; see embermq sessions parked"
        )

    # Connections

    def resume(self, session: Session, link: Link) -> None:
        """The client is connected; nothing has been sent yet, and no packet id given."""
        forget_given_up(session)
        parked = self._parked.get(session.generation)
        if not parked:
            return
        lane = self._lane(session, link)
        for at in parked.values():
            if at.qos == 2 or at.stage == ParkedStage.UNDER_WAY:
                reserve_packet_id(session, _reserved(at))
        lane.due.extend(number for number, at in parked.items() if _is_under_way(at))
        lane.due.extend(number for number, at in parked.items() if at.stage == ParkedStage.DUE)

    def suspend(self, session: Session) -> None:
        """Stop sending parked messages: the client is gone."""
        forget_given_up(session)
        lane = self._lanes.pop(session, None)
        if lane is not None:
            self.sender.end(lane)

    def forget(self, session: Session) -> None:
        """The session has ended: what is stored goes with its log."""
        self.suspend(session)
        self.sender.forget(session)
        self._parked.pop(session.generation, None)
        self._numbers.pop(session.generation, None)
        self._clients.pop(session.generation, None)
        self._full.discard(session.generation)

    def _lane(self, session: Session, link: Link) -> _ParkedLane:
        lane = self._lanes.get(session)
        if lane is None:
            lane = self._lanes[session] = _ParkedLane(session)
            self.sender.begin(lane, link, self)
        return lane

    # What operators do

    def clients(self) -> list[tuple[str, int, int]]:
        """Of each client, by id, how many there are, and how many of them are only kept: nobody has them sent again."""
        found = []
        for generation, parked in self._parked.items():
            shown = _shown(parked)
            kept = sum(at.stage == ParkedStage.PARKED for at in shown)
            if shown:
                found.append((self._clients[generation], len(shown), kept))
        return sorted(found)

    def page(self, session: Session, after: int, limit: int, then: ParkedFound) -> None:
        """The next `limit` behind a number, without their records."""
        shown = (at.number for at in _shown(self._parked.get(session.generation, {})) if at.number > after)
        self._store.read(session.generation, tuple(islice(shown, limit)), 0, then)

    def read(self, session: Session, number: int, then: ParkedFound) -> None:
        self._store.read(session.generation, [number], 1, then)

    def redrive(self, session: Session, numbers: Iterable[int] | None) -> int:
        """Have them sent again, all with None; returns how many. Known to the store with the present tick."""
        parked = self._parked.get(session.generation, {})
        attempts = self.sender.attempts(session, PARKED_LOG)
        wanted = list(parked) if numbers is None else [number for number in numbers if number in parked]
        due = [number for number in wanted if parked[number].stage == ParkedStage.PARKED]
        for number in due:
            self._change(replace(parked[number], stage=ParkedStage.DUE))
            attempts.forget(number)
        self._state.counters.application_redriven += len(due)
        if due and session.link is not None:
            call = partial(self._redriven, session, session.link, due)
            self._state.tick.batch.when_stored(session.generation, call)
        return len(due)

    def _redriven(self, session: Session, link: Link, numbers: list[int]) -> None:
        if session.link is link and not link.closing:
            self._lane(session, link).due.extend(numbers)
            self.feed(session, link)

    def delete(self, session: Session, numbers: Iterable[int] | None) -> int:
        """Forget those that are parked, all with None; returns how many. What is being sent again stays, and so does
        the packet id of what the client may have of QoS 2, until it answers or the session ends."""
        parked = self._parked.get(session.generation, {})
        wanted = list(parked) if numbers is None else [number for number in numbers if number in parked]
        gone = [number for number in wanted if parked[number].stage == ParkedStage.PARKED]
        for number in gone:
            if parked[number].qos == 2:
                self._change(replace(parked[number], stage=ParkedStage.DELETED))
            else:
                self._end(session, number)
        return len(gone)

    # Sending again

    def waits(self, session: Session) -> bool:
        """Whether something is to be sent before the session's logs are read on."""
        lane = self._lanes.get(session)
        return lane is not None and bool(lane.due or lane.outbox or lane.sending)

    def is_storing(self, session: Session) -> bool:
        """Whether packet ids of what comes before the session's logs are being stored: it is told when they are."""
        lane = self._lanes.get(session)
        return lane is not None and lane.sending

    def feed(self, session: Session, link: Link) -> None:
        """Send what is due, as far as there is room; first its packet ids are stored."""
        lane = self._lanes.get(session)
        if lane is None or lane.sending or lane.reading or link.closing or link.paused or session.resend:
            return
        if not self.sender.drain(lane, link):
            return
        wanted = self._wanted(lane)
        if wanted:
            lane.reading = True
            then = partial(self._read, lane, link)
            self._store.read(session.generation, wanted, BULK_BYTES_MAX, then)
        else:
            self._pack(lane, link, {})

    def _wanted(self, lane: _ParkedLane) -> list[int]:
        """Numbers of the messages that have to be read, of those that are due and for which there is room."""
        session = lane.session
        parked = self._parked.get(session.generation, {})
        room = min(session.window_max - len(session.window), READ_MAX)
        due = [number for number in islice(lane.due, max(room, 0)) if number in parked]
        return [number for number in due if parked[number].state != QueueState.RELEASED]

    def _read(
        self, lane: _ParkedLane, link: Link, found: Mapping[int, ParkedMessage | None] | StoreError
    ) -> None:
        lane.reading = False
        session = lane.session
        if session.link is not link or lane.link is not link or link.closing or session.resend:
            return
        if isinstance(found, StoreError):
            self._say_failing(str(found))  # looked at again when the client's log is
            return
        self._say_failing("")
        self._state.tick.wake()
        self._pack(lane, link, found)

    def _pack(self, lane: _ParkedLane, link: Link, found: Mapping[int, ParkedMessage | None]) -> None:
        """Send what is due and has been read."""
        session = lane.session
        pack: list[Delivery] = []
        size = 0
        while lane.due and size < BULK_BYTES_MAX and len(session.window) < session.window_max:
            at = self._parked.get(session.generation, {}).get(lane.due[0])
            if at is None or at.number in lane.in_flight:
                lane.due.popleft()  # deleted, acknowledged or sent meanwhile
                continue
            if _is_held(session, at):
                link.disconnect(
                    ReasonCode.ADMINISTRATIVE_ACTION, "messages are sent again when you have come again"
                )  # [MQTT-4.4.0-1] allows it on a new connection only
                break
            if at.state != QueueState.RELEASED and at.number not in found:
                break
            delivery = self._delivery(session, at, found.get(at.number))
            lane.due.popleft()
            if delivery is not None:
                size += said_bytes(delivery.message)
                pack.append(delivery)
        if pack:
            lane.sending = True
            self._state.tick.batch.when_stored(session.generation, partial(self._send, lane, link, pack))

    def _delivery(self, session: Session, at: ParkedState, stored: ParkedMessage | None) -> Delivery | None:
        """It enters the window under the packet id that it has, or gets; None when it is not to be sent any more."""
        message, retain = NOTHING, False
        identifiers: tuple[int, ...] = ()
        if at.state != QueueState.RELEASED:
            if stored is None or not stored.record:
                self._end(session, at.number)
                return None
            place = f"the parked message {at.number} of {session.client_id!r}"
            record = self._state.damaged.decode(stored.record, place)
            if record is None:
                self._end(session, at.number)
                return None
            message, retain, identifiers = record.message, stored.retain, stored.identifiers
            if at.qos == 1 and message.is_expired(self._state.tick.now_ms):  # [MQTT-4.3.3-7]
                self._state.counters.dropped_expired += 1
                self._end(session, at.number)
                return None
            if is_denied(session, message, self._state.counters):
                self._change(replace(at, stage=ParkedStage.PARKED))
                return None
        held = session.reserved.get(at.packet_id) if session.reserved else None
        if held is not None and held.seq == -at.number and session.reserved is not None:
            del session.reserved[at.packet_id]
            packet_id = at.packet_id
        else:
            packet_id = next_packet_id(session)
        delivery = Delivery(
            message, b"", at.number, at.qos, retain, identifiers, -at.number, packet_id, application=True
        )
        delivery.released = at.state == QueueState.RELEASED
        delivery.dup = True
        session.window[packet_id] = delivery
        self._change(replace(_at_stage(at, ParkedStage.UNDER_WAY), packet_id=packet_id))
        self._lanes[session].in_flight[at.number] = delivery
        return delivery

    def _send(self, lane: _ParkedLane, link: Link, pack: list[Delivery]) -> None:
        """The packet ids are durable."""
        if lane.session.link is not link or lane.link is not link or link.closing:
            return
        lane.sending = False
        for delivery in pack:
            lane.outbox.append(delivery)
            self.sender.watch(lane, delivery.offset)
        self.feed(lane.session, link)
        self._state.durable.writable(lane.session)

    # What becomes of them

    def settled(self, session: Session, delivery: Delivery) -> None:
        """PUBACK or PUBCOMP came for what is parked or skipped, late or because it was sent again."""
        answered(session, delivery)
        if delivery.seq != SKIPPED:
            self._end(session, -delivery.seq)

    def released(self, session: Session, delivery: Delivery) -> None:
        """PUBREC came: the client has it, and all that is left is to complete the exchange."""
        link = session.link
        at = self._parked.get(session.generation, {}).get(-delivery.seq)
        delivery.settled = False
        answered(session, delivery)
        if at is not None:
            self._change(replace(_at_stage(at, ParkedStage.UNDER_WAY), state=QueueState.RELEASED))
            if link is not None:
                lane = self._lane(session, link)
                lane.put(at.number, delivery)
                self.sender.watch(lane, at.number)
        if link is not None:
            self._state.tick.batch.when_stored(
                session.generation, partial(self._release, session, link, delivery)
            )

    def _release(self, session: Session, link: Link, delivery: Delivery) -> None:
        if session.link is link:
            send_pubrel(link, delivery)

    def dropped(self, lane: LogLane, delivery: Delivery) -> None:
        """It is larger than the client takes now. It has had room in the window, and nothing comes of it."""
        self._end(lane.session, delivery.offset)
        # Not before the next tick: it is called from where the lane is sent. Nothing stored is waited for.
        self._state.tick.batch.after_log.append(partial(self._state.durable.writable, lane.session))

    def give_up(self, lane: LogLane, deliveries: list[Delivery], *, keep: bool) -> list[Delivery]:
        """Sent again in vain: they are parked again, also where the log's are skipped."""
        session = lane.session
        for delivery in deliveries:
            at = self._parked[session.generation][delivery.offset]
            self._change(_at_stage(at, ParkedStage.PARKED))
            self._lanes[session].in_flight.pop(at.number, None)
            self._set_aside(session, delivery, -at.number)
        self._state.counters.application_parked += len(deliveries)
        self.say_parked(session, len(deliveries))
        # Likewise: the lanes are being looked through.
        self._state.tick.batch.after_log.append(partial(self._state.durable.writable, session))
        return []

    def _change(self, at: ParkedState) -> None:
        self._parked[at.generation][at.number] = at
        self._state.tick.writes.parked.append(ParkedChange(at))

    def _end(self, session: Session, number: int) -> None:
        parked = self._parked.get(session.generation)
        if parked is None or parked.pop(number, None) is None:
            return
        self._state.tick.writes.parked.append(ParkedEnd(session.generation, number))
        self._full.discard(session.generation)
        lane = self._lanes.get(session)
        if lane is not None:
            lane.in_flight.pop(number, None)


def _shown(parked: dict[int, ParkedState]) -> list[ParkedState]:
    """All but the deleted ones."""
    return [at for at in parked.values() if at.stage != ParkedStage.DELETED]


def _at_stage(at: ParkedState, stage: ParkedStage) -> ParkedState:
    """One that is deleted stays so: only its packet id is still to become free."""
    return at if at.stage == ParkedStage.DELETED else replace(at, stage=stage)


def _is_under_way(at: ParkedState) -> bool:
    """Whether it is to be sent again when the client comes: of a deleted one PUBREL, once PUBREC has come."""
    is_released = at.stage == ParkedStage.DELETED and at.state == QueueState.RELEASED
    return at.stage == ParkedStage.UNDER_WAY or is_released


def _reserved(at: ParkedState) -> Delivery:
    """Keeps the packet id of a message that is not under way."""
    return Delivery(
        NOTHING,
        b"",
        at.number,
        at.qos,
        False,
        (),
        -at.number,
        at.packet_id,
        application=True,
        released=at.state == QueueState.RELEASED,
        settled=True,
    )


def _is_held(session: Session, at: ParkedState) -> bool:
    """Whether it was given up on this connection, where a client of MQTT 5 must not get it again."""
    held = session.window.get(at.packet_id)
    return held is not None and held.seq == -at.number and held.settled
