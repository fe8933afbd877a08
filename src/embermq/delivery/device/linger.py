"""Write elision: deliveries that may still be acknowledged before they have to be written.

Everybody is given the least, `device.linger_ms`. Of what is not acknowledged then, that of a client which usually takes
longer stays for as long as this client takes (`sessions.ack_time`). The dispatcher's floor, the offset from which the
log is read again after a crash, stays behind all of it.

The deliveries of a tick are looked at a few times only, at ages that double, and not one by one when their time is
over: so somebody may be given up to twice as long as measured.
"""

from collections import deque

from msgspec import Struct

from embermq.sessions.ack_time import LINGER_MAX_MS, AckTime
from embermq.sessions.session import Delivery, Session

Fresh = list[tuple[Session, Delivery]]

AGES_MS = (100, 200, 400, LINGER_MAX_MS)
"""At which a tick is looked at after the least."""
LONGER_BYTES_MAX = 64 * 1024 * 1024
"""Of records that stay longer than the least, acknowledged meanwhile or not; what would be more is written at once."""
DELIVERY_BYTES = 256
"""What one takes up beside its record."""


class _Lingering(Struct):
    """What one tick has sent. Everything before `offset` was dispatched by the ticks before."""

    sent_ms: int
    offset: int
    fresh: Fresh
    longer_bytes: int = 0
    is_over: bool = False


class Linger:
    """Deliveries by the tick that made them, oldest first."""

    def __init__(self, least_ms: float) -> None:
        least = int(least_ms)
        self._stages: list[tuple[int, deque[_Lingering]]] = [
            (age_ms, deque()) for age_ms in (least, *(age for age in AGES_MS if age > least))
        ]
        """By the age at which they are looked at next; in each the oldest first."""
        self._ticks: deque[_Lingering] = deque()
        """All of them, in the order of the log, behind the first one that is not over."""
        self._end_offset = -1
        self._longer_bytes = 0
        self.fresh: Fresh = []
        """Deliveries of the present tick."""
        self.next_ms = 0
        """When `due` next has something; 0 for never."""

    def close_tick(self, end_offset: int, now_ms: int) -> None:
        """The present tick dispatched every record below `end_offset`."""
        least_ms, stage = self._stages[0]
        if self.fresh or not stage or stage[-1].fresh:
            tick = _Lingering(now_ms, self._end_offset, self.fresh)
            stage.append(tick)
            self._ticks.append(tick)
            self.fresh = []
            self.next_ms = min(self.next_ms or now_ms + least_ms, now_ms + least_ms)
        self._end_offset = end_offset

    def due(self, now_ms: int) -> tuple[Fresh, int]:
        """Deliveries whose time is over, those of a session in the order in which they were sent, and the offset below
        which everything is settled once they are written, with all that the sessions have sent before them; -1 when
        nothing is due."""
        overdue: Fresh = []
        is_any = False
        for age_ms, stage in reversed(self._stages):
            while stage and stage[0].sent_ms + age_ms <= now_ms:
                self._look(stage.popleft(), now_ms, overdue)
                is_any = True
        self.next_ms = min((stage[0].sent_ms + age_ms for age_ms, stage in self._stages if stage), default=0)
        if not is_any:
            return overdue, -1
        return overdue, self._reached()

    def _reached(self) -> int:
        """Where the first tick begins that is not over. One of a slow client is not waited for when all of it has been
        settled or written."""
        ticks = self._ticks
        while ticks:
            first = ticks[0]
            if first.longer_bytes:
                fresh = first.fresh
                while fresh and (fresh[-1][1].settled or fresh[-1][1].seq):
                    fresh.pop()
                if not fresh:
                    self._longer_bytes -= first.longer_bytes
                    first.longer_bytes = 0
                    first.is_over = True
            if not first.is_over:
                return first.offset
            ticks.popleft()
        return self._end_offset

    def _look(self, tick: _Lingering, now_ms: int, overdue: Fresh) -> None:
        """A tick at one of its ages: it is over, or goes to the stage of the next one."""
        unsettled: Fresh = []
        for entry in tick.fresh:
            delivery = entry[1]
            if not delivery.settled and not delivery.seq:
                unsettled.append(entry)
        self._longer_bytes -= tick.longer_bytes
        tick.longer_bytes = 0
        tick.fresh = self._stays_longer(tick, unsettled, now_ms, overdue) if unsettled else []
        if not tick.fresh:
            tick.is_over = True
            return
        self._longer_bytes += tick.longer_bytes
        for age_ms, stage in self._stages:
            if tick.sent_ms + age_ms > now_ms:
                stage.append(tick)
                return
        raise AssertionError("a delivery stays longer than the longest")

    def _stays_longer(self, tick: _Lingering, unsettled: Fresh, now_ms: int, overdue: Fresh) -> Fresh:
        age_ms = now_ms - tick.sent_ms
        longer: Fresh = []
        if age_ms >= self._stages[-1][0]:
            overdue += unsettled
            return longer
        room = LONGER_BYTES_MAX - self._longer_bytes
        for entry in unsettled:
            session, delivery = entry
            if session.dead:
                continue
            ack_time = session.ack_time
            if ack_time is None:
                ack_time = session.ack_time = AckTime()
            linger_ms = ack_time.linger_ms
            if delivery.waiting_bytes:  # sent when there is room, or not yet
                linger_ms = float(LINGER_MAX_MS) if linger_ms else 0.0
            else:
                ack_time.watch(delivery, tick.sent_ms)
            size = len(delivery.record) + DELIVERY_BYTES
            if linger_ms > age_ms and tick.longer_bytes + size <= room:
                tick.longer_bytes += size
                longer.append(entry)
            else:
                overdue.append(entry)
        return longer
