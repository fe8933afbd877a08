"""The receiving side of a queue: settles, counts by sequence number, watches the order of each key, measures."""

from __future__ import annotations

from time import monotonic_ns

from embermq.mqtt.wire.encoder import puback, pubcomp, pubrec
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.client import REFUSED_FROM, BenchClient
from embermq_bench.frames import frame_end
from embermq_bench.measurement import Measurement
from embermq_bench.queue_frames import STAMP, QueueFrames, is_repeat, message_id_in, packet_id_of
from embermq_bench.settings import PACKET_IDS, Ack, Limits, QueueLoad, Target
from embermq_bench.tally import Tally

_PUBACK = 0x40
_PUBLISH = 0x30
_PUBREL = 0x62


class Arrivals:
    """What all consumers of a run have received, since any of them may get any message."""

    def __init__(self, publishers: int, keys: int, *, ordered: bool) -> None:
        self.tallies = [Tally() for _ in range(publishers)]
        self.disordered = 0
        """First arrivals behind a later message of their key."""
        self.repeats = 0
        """Deliveries that the broker itself calls repeats."""
        self.foreign = 0
        self._turns = [max(1, -(-(keys - number) // publishers)) for number in range(publishers)]
        self._latest: dict[tuple[int, int], int] | None = {} if ordered else None

    @property
    def distinct(self) -> int:
        """Different messages that have arrived."""
        return sum(tally.arrived for tally in self.tallies)

    @property
    def doubled(self) -> int:
        """Arrivals of what had arrived."""
        return sum(tally.duplicated for tally in self.tallies)

    def take(self, publisher: int, sequence: int) -> bool:
        """Count one arrival; False when no publisher of ours has sent it."""
        if publisher >= len(self.tallies):
            return False
        tally = self.tallies[publisher]
        before = tally.duplicated
        tally.accept(sequence)
        if self._latest is not None and tally.duplicated == before:
            key = (publisher, sequence % self._turns[publisher])
            if sequence < self._latest.get(key, 0):
                self.disordered += 1
            else:
                self._latest[key] = sequence
        return True


class QueueConsumer(BenchClient):
    """One consumer of the group. What came in one read is settled by one `$ack` for each `ack_batch` messages."""

    def __init__(
        self,
        client_id: str,
        target: Target,
        limits: Limits,
        frames: QueueFrames,
        *,
        load: QueueLoad,
        arrivals: Arrivals,
        measurement: Measurement,
    ) -> None:
        super().__init__(client_id, target, limits)
        self._frames = frames
        self._load = load
        self._arrivals = arrivals
        self._measurement = measurement
        self._ids: list[bytes] = []
        self._times: list[int] = []
        self._unconfirmed: dict[int, list[int]] = {}
        self._last_id = 0
        self.delivered = 0
        self.settled = 0
        """Messages whose `$ack` the broker has confirmed; with PUBACKs those that were answered."""
        self.settles_refused = 0
        """Messages in `$ack`s that the broker has answered with an error."""

    async def consume(self, group: str) -> None:
        """Join the group. Raises ConnectionLostError or RefusedError."""
        asked = [("consumer-group", group), ("prefetch", str(self._load.prefetch))]
        if self._load.ack is Ack.PUBACK:
            asked.append(("ack-mode", "puback"))
        properties = Properties(user_properties=tuple(asked))
        topic = self._frames.topic
        if self.target.version is ProtocolVersion.V5:
            await self.subscribe(topic, 1, properties)
        else:
            await self.subscribe(f"$share/{group}/{topic}", 1)

    @property
    def unconfirmed(self) -> int:
        """Messages whose `$ack` has no answer yet."""
        return sum(len(times) for times in self._unconfirmed.values()) + len(self._times)

    def take_known(self, data: bytes, position: int) -> int:
        """PUBLISH, PUBREL, and PUBACK of our `$ack`s."""
        now = monotonic_ns()
        delays: list[int] = []
        while position < len(data):
            end = frame_end(data, position)
            if not end:
                break
            kind = data[position]
            if kind & 0xF0 == _PUBLISH and kind & 0x06:
                self._take_message(data, position, end, now, delays)
            elif kind == _PUBACK:
                self._take_answer(data, position, end, now)
            elif kind == _PUBREL:
                self.out.append(pubcomp(data[position + 2] << 8 | data[position + 3]))
            else:
                break
            position = end
        if delays:
            self._measurement.delivery.record_all(delays)
        self._settle()
        return position

    def _take_message(self, data: bytes, start: int, end: int, now: int, delays: list[int]) -> None:
        packet_id, behind = packet_id_of(data, start)
        body = end - self._frames.payload_bytes
        self.out.append(puback(packet_id) if data[start] & 0x06 == 0x02 else pubrec(packet_id))
        self.delivered += 1
        is_ours = False
        intended_ns = 0
        if body >= behind:
            sequence, intended_ns, publisher, run = STAMP.unpack_from(data, body)
            is_ours = run == self._frames.run and self._arrivals.take(publisher, sequence)
        if not is_ours:
            self._arrivals.foreign += 1
        elif intended_ns >= self._measurement.since_ns:
            delays.append(now - intended_ns)
        if self._load.ack is Ack.PUBACK:
            self.settled += 1
            return
        message_id = message_id_in(data, behind, max(behind, body))
        if not message_id:
            raise ValueError("a delivery without message-id: is this queue's broker an EmberMQ?")
        self._arrivals.repeats += is_repeat(data, behind, body)
        self._ids.append(message_id)
        self._times.append(intended_ns)

    def _take_answer(self, data: bytes, start: int, end: int, now: int) -> None:
        times = self._unconfirmed.pop(data[start + 2] << 8 | data[start + 3], [])
        if end > start + 4 and data[start + 4] >= REFUSED_FROM:
            self.settles_refused += len(times)
            return
        self.settled += len(times)
        since = self._measurement.since_ns
        self._measurement.settling.record_all([now - time for time in times if time >= since])

    def _settle(self) -> None:
        size = self._load.ack_batch
        for first in range(0, len(self._ids), size):
            self._last_id = self._last_id % PACKET_IDS + 1
            self._unconfirmed[self._last_id] = self._times[first : first + size]
            self.out.append(self._frames.ack(self._last_id, self._ids[first : first + size]))
        self._ids = []
        self._times = []
