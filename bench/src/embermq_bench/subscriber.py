"""The receiving side: acknowledges, counts by sequence number, measures."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns

from embermq.mqtt.wire.encoder import puback, pubcomp, pubrec
from embermq.mqtt.wire.packets import Packet, Publish, Pubrel
from embermq_bench.client import BenchClient
from embermq_bench.errors import SessionLostError
from embermq_bench.frames import FrameFamily, read_stamp
from embermq_bench.measurement import NEVER_NS, Measurement
from embermq_bench.settings import Limits, Target
from embermq_bench.tally import Tally

_PUBREL_START = b"\x62\x02"


def acknowledgements(qos: int) -> list[bytes]:
    """The first answer to a PUBLISH of this QoS, indexed by packet id; empty for QoS 0."""
    if not qos:
        return [b""]
    make = puback if qos == 1 else pubrec
    return [b"", *(make(packet_id) for packet_id in range(1, 65_536))]


class Subscriber(BenchClient):
    """Counts what it receives from each publisher, in `tallies` by the last level of its topic. Members of a group
    count in the same ones.

    At QoS 2 a PUBLISH that repeats a packet id before its PUBREL is the same delivery [MQTT-4.3.3-10] and is
    answered, not counted.

    Between `leave` and the first message that was meant to leave after `come_back` it is behind: until then its
    latencies are those of a returning subscriber.
    """

    def __init__(
        self,
        client_id: str,
        target: Target,
        limits: Limits,
        family: FrameFamily,
        *,
        tallies: dict[bytes, Tally],
        answers: list[bytes],
        measurement: Measurement,
    ) -> None:
        super().__init__(client_id, target, limits)
        self._prefix = family.topic_prefix
        self._layout = family.incoming()
        self._answers = answers
        self._exactly_once = len(answers) > 1 and answers[1] == pubrec(1)
        self._held: set[int] = set()
        self._measurement = measurement
        self._returned_ns = 0
        self._level_ns = 0
        self.tallies = tallies
        self.delivered = 0
        self.foreign = 0

    async def leave(self, *, cut_off: bool = False) -> None:
        """Go away; the session stays with the broker."""
        await super().leave(cut_off=cut_off)
        self._returned_ns = NEVER_NS

    async def come_back(self, *, expiry_s: int) -> None:
        """Resume the session. Raises ConnectionLostError, RefusedError, and SessionLostError when there is none."""
        self._returned_ns = monotonic_ns()
        answer = await self.connect(clean_start=False, expiry_s=expiry_s)
        if not answer.session_present:
            raise SessionLostError(f"{self.client_id}: came back, and the broker had no session for it")

    def take_known(self, data: bytes, position: int) -> int:
        """PUBLISH packets of this run's layout (at QoS 2 also PUBREL)."""
        if self._exactly_once:
            return self._take_exactly_once(data, position)
        row = self._layout.row
        usable = (len(data) - position) // row.size * row.size
        if not usable:
            return position
        start, middle = self._layout.start, self._layout.middle
        tallies, answers, out = self.tallies, self._answers, self.out
        since = self._since_ns()
        now = monotonic_ns()
        delays: list[int] = []
        taken = 0
        rows = row.iter_unpack(memoryview(data)[position : position + usable])
        for head, index, packet_id, between, sequence, intended_ns in rows:
            if head != start or between != middle or index not in tallies:
                break
            tally = tallies[index]
            seen = tally.seen
            if sequence == len(seen):
                seen.append(1)
            else:
                tally.out_of_order(sequence)
            taken += 1
            if packet_id:
                out.append(answers[packet_id])
            if intended_ns >= since:
                delays.append(now - intended_ns)
        if delays:
            self._record(now, delays)
        self.delivered += taken
        return position + taken * row.size

    def _take_exactly_once(self, data: bytes, position: int) -> int:
        """QoS 2: PUBLISH and PUBREL come mixed."""
        row = self._layout.row
        start, middle = self._layout.start, self._layout.middle
        now = monotonic_ns()
        end = len(data)
        while position + 4 <= end:
            if data.startswith(_PUBREL_START, position):
                self._release(data[position + 2] << 8 | data[position + 3])
                position += 4
                continue
            if position + row.size > end:
                break
            head, index, packet_id, between, sequence, intended_ns = row.unpack_from(data, position)
            if head != start or between != middle or index not in self.tallies:
                break
            position += row.size
            self.out.append(self._answers[packet_id])
            if packet_id not in self._held:
                self._held.add(packet_id)
                self._count(index, sequence, now, intended_ns)
        return position

    def take_packet(self, packet: Packet) -> None:
        """Everything that the fixed layout does not cover: repeats, other lengths, topics of other runs."""
        if isinstance(packet, Pubrel):
            self._release(packet.packet_id)
        if not isinstance(packet, Publish):
            return
        if packet.qos:
            self.out.append((puback if packet.qos == 1 else pubrec)(packet.packet_id))
        if packet.qos == 2:
            if packet.packet_id in self._held:
                return
            self._held.add(packet.packet_id)
        stamp = read_stamp(packet.payload)
        index = packet.topic[len(self._prefix) :].encode()
        if stamp is None or not packet.topic.startswith(self._prefix) or index not in self.tallies:
            self.foreign += 1
            return
        sequence, intended_ns = stamp
        self._count(index, sequence, monotonic_ns(), intended_ns)

    def _release(self, packet_id: int) -> None:
        self._held.discard(packet_id)
        self.out.append(pubcomp(packet_id))

    def _count(self, index: bytes, sequence: int, now: int, intended_ns: int) -> None:
        self.tallies[index].accept(sequence)
        self.delivered += 1
        if intended_ns >= self._since_ns():
            self._record(now, (now - intended_ns,))

    def _since_ns(self) -> int:
        """The intended send time from which on delays are looked at: while it is behind, all are."""
        return 0 if self._returned_ns else max(self._measurement.since_ns, self._level_ns)

    def _record(self, now: int, delays: Sequence[int]) -> None:
        """The delays of messages that have arrived now."""
        if not self._returned_ns:
            self._measurement.delivery.record_all(delays)
            return
        here_ns = now - self._returned_ns
        if self._returned_ns >= self._measurement.since_ns:
            self._measurement.returning.record_all([min(delay, here_ns) for delay in delays])
        if min(delays) <= here_ns:  # what was sent up to now has waited behind what was missed
            self._returned_ns = 0
            self._level_ns = now
