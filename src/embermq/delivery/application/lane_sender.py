"""Putting a lane's messages on its link, and watching over their acknowledgements.

A socket above its high mark takes nothing more: what a pack still has waits in the lane's outbox, and the log is not
read on. What waits there is not late: the client has not been asked.

One timer a lane, made when something is sent and none is there: it looks at what is due and is made again for what is
due next. Attempts are counted for each session and log, and outlive the connection but not the broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from embermq.delivery.application.lane import (
    AckStrategy,
    LaneOwner,
    LogLane,
    Overdue,
    OverdueStep,
    OverdueVerdict,
    ResendCounts,
    Unmarked,
)
from embermq.delivery.application.settings import ApplicationSettings
from embermq.delivery.sending import BULK_BYTES_MAX, note_delay, put_on_link, send_pubrel, stored_frame
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.forwarded_frames import frame_bytes
from embermq.sessions.link import Link
from embermq.sessions.packet_ids import is_given_up
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.token_bucket import TokenBucket

HIGH_WATER_BYTES = 1_280 * 1024
"""Bytes waiting for the socket of an application above which its logs are not read [application-7]."""
LOW_WATER_BYTES = 640 * 1024
"""They are read again when so few are left."""
TOKENS_SHARE = 10
"""Once its rate is used up, a client's log is read again when this share of a second's messages may go."""


class LaneSender:
    """Sends the messages of all lanes of a broker."""

    def __init__(self, state: BrokerState, settings: ApplicationSettings) -> None:
        self._state = state
        self._settings = settings
        self._strategy = AckStrategy(settings.ack_strategy)
        self._timeout_ms = int(settings.pack_timeout_s * 1000)
        self._flush_every = 1 if settings.write_and_flush else settings.buffered_msg_count
        self._attempts: dict[int, dict[str, ResendCounts]] = {}
        """By the session's generation and the lane's name."""
        self._paces: dict[Session, TokenBucket] = {}
        self.unmarked = Unmarked()

    # Connections

    def begin(self, lane: LogLane, link: Link, owner: LaneOwner) -> None:
        """The lane is read on this connection. What it begins with, to be resent, is timed like a pack."""
        settings, session = self._settings, lane.session
        lane.link, lane.owner = link, owner
        lane.outbox.clear()
        lane.overdue = Overdue(
            self.attempts(session, lane.name),
            strategy=self._strategy,
            timeout_ms=self._timeout_ms,
            retries=settings.retries,
            may_resend=link.version is not ProtocolVersion.V5,  # [MQTT-4.4.0-1]
        )
        if not lane.name:
            link.set_water_marks(HIGH_WATER_BYTES, LOW_WATER_BYTES)
            if settings.replay_rate:
                self._paces[session] = TokenBucket(settings.replay_rate, self._state.tick.now_ms)
        if lane.last() >= 0:
            self.watch(lane, lane.last())

    def end(self, lane: LogLane) -> None:
        """The connection is over: stop sending, and forget what was not sent."""
        self._state.timers.cancel(lane.timer)
        lane.timer = lane.link = None
        lane.outbox.clear()
        attempts = self.attempts(lane.session, lane.name)
        attempts.forget_below(lane.lowest())
        if not attempts:
            self.forget_logs(lane.session, lane.name)
        if not lane.name:
            self._paces.pop(lane.session, None)

    def forget(self, session: Session) -> None:
        """The session has ended: forget its attempts."""
        self._attempts.pop(session.generation, None)

    def forget_logs(self, session: Session, *names: str) -> None:
        """The session does not read them any more, or has nothing under way in them."""
        of_session = self._attempts.get(session.generation, {})
        for name in names:
            of_session.pop(name, None)
        if not of_session:
            self._attempts.pop(session.generation, None)

    def forget_attempts(self, session: Session, name: str, offset: int) -> None:
        """Forget how often the message at this offset was sent: it is settled."""
        attempts = self._attempts.get(session.generation, {}).get(name)
        if attempts is not None:
            attempts.forget(offset)

    def attempts(self, session: Session, log: str) -> ResendCounts:
        """Of one lane of a session, on all its connections."""
        return self._attempts.setdefault(session.generation, {}).setdefault(log, ResendCounts())

    @property
    def remembered(self) -> int:
        """Lanes of which attempts are remembered."""
        return sum(map(len, self._attempts.values()))

    # The rate

    def share(self, session: Session, wanted: int) -> int:
        """How many of `wanted` messages may be read now; with 0 the caller asks again after `rest_ms`."""
        pace = self._paces.get(session)
        return wanted if pace is None else min(wanted, pace.whole(self._state.tick.now_ms))

    def used(self, session: Session, count: int) -> None:
        """So many were read to be sent."""
        pace = self._paces.get(session)
        if pace is not None:
            pace.take_many(count, self._state.tick.now_ms)

    def rest_ms(self, session: Session) -> int:
        """How long until it is worth reading again."""
        rate = self._settings.replay_rate
        return self._paces[session].wait_ms(max(1, rate // TOKENS_SHARE), self._state.tick.now_ms)

    # Sending

    def send_new(self, lane: LogLane, link: Link, deliveries: list[Delivery]) -> bool:
        """The same of some that go for the first time."""
        note_delay(self._state.application_delays, link, deliveries, self._state.tick)
        return self.send(lane, link, deliveries)

    def send(self, lane: LogLane, link: Link, deliveries: Iterable[Delivery]) -> bool:
        """They may go, in this order, and are timed, but for those that have no place in their log yet. False when some
        of them wait."""
        lane.outbox.extend(deliveries)
        if lane.outbox and lane.outbox[-1].offset >= 0:
            self.watch(lane, lane.outbox[-1].offset)
        return self.drain(lane, link)

    def drain(self, lane: LogLane, link: Link) -> bool:
        """Put on the link what waits, as long as it takes it. True when nothing waits any more."""
        outbox = lane.outbox
        if not outbox:
            return True
        now_ms = self._state.tick.now_ms
        unflushed = 0
        while outbox and not link.closing and not link.paused and link.bulk_bytes < BULK_BYTES_MAX:
            delivery = outbox.popleft()
            if delivery.settled:
                continue
            self._put(lane, link, delivery, now_ms)
            unflushed += 1
            if unflushed >= self._flush_every and outbox:
                link.flush_now()
                unflushed = 0
        if outbox and not link.closing and not link.paused:
            # The socket has its share of this tick; nothing stored is waited for.
            self._state.tick.batch.after_log.append(partial(self._go_on, lane, link))
        return not outbox

    def _go_on(self, lane: LogLane, link: Link) -> None:
        """The next tick takes as much again."""
        if lane.link is link and lane.session.link is link:
            self.drain(lane, link)

    def _put(self, lane: LogLane, link: Link, delivery: Delivery, now_ms: int) -> None:
        if delivery.released:
            send_pubrel(link, delivery)
            return
        frame = stored_frame(delivery, lane.session, now_ms)
        if put_on_link(link, delivery, frame, self._state.counters):
            link.bulk_bytes += frame_bytes(frame)
        else:
            del lane.session.window[delivery.packet_id]
            delivery.settled = True
            lane.owner.dropped(lane, delivery)

    # What is late

    def watch(self, lane: LogLane, last: int) -> None:
        """What there is up to this offset has been sent now."""
        lane.overdue.sent(last, self._state.tick.now_ms)
        if lane.timer is None:
            self._arm(lane)

    def _arm(self, lane: LogLane) -> None:
        due_ms = lane.overdue.due_ms(lane.lowest())
        if due_ms:
            lane.timer = self._state.timers.at(due_ms, partial(self._look, lane))

    def _look(self, lane: LogLane) -> None:
        lane.timer = None
        link, now_ms = lane.link, self._state.tick.now_ms
        if link is None or link.closing or lane.session.link is not link:
            return
        if link.paused or lane.outbox:
            lane.overdue.postpone(now_ms)
        elif lane.overdue.due_ms(lane.lowest()) <= now_ms:
            under_way = {delivery.offset: delivery for delivery in lane.under_way()}
            for verdict in lane.overdue.look(now_ms, under_way):
                self._carry_out(lane, link, verdict, under_way)
            if lane.session.resend and lane.last() >= 0:
                self.watch(lane, lane.last())  # there was no room for some of it yet
        if lane.timer is None:
            self._arm(lane)

    def _carry_out(
        self, lane: LogLane, link: Link, verdict: OverdueVerdict, under_way: dict[int, Delivery]
    ) -> None:
        again = [under_way[offset] for offset in verdict.overdue]
        if verdict.step is OverdueStep.SKIP:
            again = lane.owner.give_up(lane, again, keep=False)
        elif verdict.parked:
            again += lane.owner.give_up(lane, [under_way[offset] for offset in verdict.parked], keep=True)
        if link.version is ProtocolVersion.V5:
            if again or is_given_up(lane.session):
                self._send_away(link, len(verdict.overdue) + len(verdict.parked))
        elif again:
            self._state.counters.application_resent += len(again)
            for delivery in again:
                delivery.dup = True
            self.send(lane, link, again)

    def _send_away(self, link: Link, count: int) -> None:
        self._state.counters.application_sent_away += 1
        late_s = self._timeout_ms / 1000
        link.disconnect(
            ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
            f"{count} messages were not acknowledged within {late_s:g} s; what is not settled comes again",
        )
