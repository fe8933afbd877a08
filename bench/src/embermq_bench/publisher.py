"""The sending side: a window that is kept full (saturated), or messages offered by a pacer (open loop)."""

from __future__ import annotations

import struct
from collections import deque
from time import monotonic_ns

from embermq.mqtt.wire.encoder import pubrel
from embermq.mqtt.wire.packets import Packet, Puback, Pubcomp, Pubrec
from embermq_bench.client import REFUSED_FROM, BenchClient
from embermq_bench.frames import OutgoingLayout
from embermq_bench.measurement import Measurement
from embermq_bench.settings import PACKET_IDS, Limits, Target

PUBACK_WORD = 0x4002
PUBREC_WORD = 0x5002
PUBCOMP_WORD = 0x7002

_WORDS = struct.Struct(">HH")
_ENDLESS = 1 << 62


class Publisher(BenchClient):
    """Sends numbered messages and notes which of them the broker has taken over.

    Acknowledged means PUBACK at QoS 1 and PUBREC at QoS 2: from there on the message is the broker's duty.
    The slot of the window is free after PUBACK or PUBCOMP. At QoS 0 sending pauses while the socket is full.
    """

    def __init__(
        self,
        client_id: str,
        target: Target,
        limits: Limits,
        layout: OutgoingLayout,
        *,
        qos: int,
        measurement: Measurement,
    ) -> None:
        super().__init__(client_id, target, limits)
        self._layout = layout
        self._qos = qos
        self._measurement = measurement
        self._saturated = False
        self._window = 1
        self._outstanding: dict[int, int] = {}
        self._backlog: deque[int] = deque()
        self._blocked = False
        self._stop_at = 0
        self.sent = 0
        self.acknowledged = 0
        self.refused = 0
        self.taken = bytearray()
        """One byte a sequence number: 1 when acknowledged."""

    def saturate(self, window: int) -> None:
        """From now on keep `window` messages unacknowledged."""
        self._saturated = True
        self._window = min(window, self.receive_maximum, PACKET_IDS)
        self._stop_at = _ENDLESS

    def follow(self) -> None:
        """From now on send what `offer` brings."""
        self._saturated = False
        self._window = min(self.limits.paced_inflight_max, self.receive_maximum, PACKET_IDS)
        self._stop_at = _ENDLESS

    def stop_after(self, messages: int) -> None:
        """Stop once this many more are acknowledged, those under way included."""
        self._stop_at = self.sent + max(0, messages - self.outstanding)

    @property
    def outstanding(self) -> int:
        """Messages sent whose exchange with the broker is not complete."""
        return len(self._outstanding)

    @property
    def backlog(self) -> int:
        """Messages offered and not sent yet."""
        return len(self._backlog)

    @property
    def has_sent_all(self) -> bool:
        """Whether nothing is left to send before the stop."""
        return self.sent >= self._stop_at

    def offer(self, intended_ns: int) -> None:
        """Add a message that is meant to leave at `intended_ns`; `pump` sends it."""
        self._backlog.append(intended_ns)

    def pump(self) -> None:
        """Send what may be sent now, in one write."""
        self._fill(monotonic_ns())
        self.flush()

    def pause_writing(self) -> None:
        """The socket is full."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._blocked = False
        self.pump()

    def take_known(self, data: bytes, position: int) -> int:
        """Acknowledgements of 4 bytes; then fill the window again."""
        usable = (len(data) - position) & ~3
        if not usable:
            return position
        now = monotonic_ns()
        since = self._measurement.since_ns
        outstanding = self._outstanding
        taken = self.taken
        last = self.sent - 1
        delays: list[int] = []
        for word, packet_id in _WORDS.iter_unpack(memoryview(data)[position : position + usable]):
            if word == PUBCOMP_WORD:
                outstanding.pop(packet_id, None)
                position += 4
                continue
            if word == PUBACK_WORD:
                intended_ns = outstanding.pop(packet_id, None)
            elif word == PUBREC_WORD:
                intended_ns = outstanding.get(packet_id)
                self.out.append(pubrel(packet_id))
            else:
                break
            position += 4
            if intended_ns is None:
                continue
            # Identifiers follow the sequence numbers, so the newest number with this identifier is meant.
            sequence = last - (last + 1 - packet_id) % PACKET_IDS
            if taken[sequence]:
                continue
            taken[sequence] = 1
            self.acknowledged += 1
            if intended_ns >= since:
                delays.append(now - intended_ns)
        if delays:
            self._measurement.acknowledgement.record_all(delays)
        self._fill(now)
        return position

    def take_packet(self, packet: Packet) -> None:
        """Acknowledgements with a reason code, which the fixed layout does not cover."""
        if isinstance(packet, Pubcomp):
            self._outstanding.pop(packet.packet_id, None)
        elif isinstance(packet, Puback | Pubrec):
            refused = packet.reason_code >= REFUSED_FROM
            if isinstance(packet, Pubrec) and not refused:
                self.out.append(pubrel(packet.packet_id))
                intended_ns = self._outstanding.get(packet.packet_id)
            else:
                intended_ns = self._outstanding.pop(packet.packet_id, None)
            if intended_ns is None:
                return
            if refused:
                self.refused += 1
            else:
                self._note_taken(packet.packet_id, intended_ns)
        self._fill(monotonic_ns())

    def _note_taken(self, packet_id: int, intended_ns: int) -> None:
        last = self.sent - 1
        self.taken[last - (last + 1 - packet_id) % PACKET_IDS] = 1
        self.acknowledged += 1
        if intended_ns >= self._measurement.since_ns:
            self._measurement.acknowledgement.record_all((monotonic_ns() - intended_ns,))

    def _fill(self, now: int) -> None:
        """Put into `out` what the window, the stop and (paced) the backlog allow."""
        room = min(self._window - len(self._outstanding), self._stop_at - self.sent)
        if not self._saturated:
            room = min(room, len(self._backlog))
        if room <= 0 or self._blocked:
            return
        if self._saturated:
            self._put([now] * room)
            return
        times = [self._backlog.popleft() for _ in range(room)]
        since = self._measurement.since_ns
        self._measurement.send_delay.record_all([now - time for time in times if time >= since])
        self._put(times)

    def _put(self, times: list[int]) -> None:
        pack, head, middle = self._layout.pack, self._layout.head, self._layout.middle
        out = self.out
        sequence = self.sent
        if self._qos:
            outstanding = self._outstanding
            for intended_ns in times:
                packet_id = sequence % PACKET_IDS + 1
                if packet_id in outstanding:  # the broker owes us this one for 65,535 messages
                    if not self._saturated:
                        self._backlog.extendleft(reversed(times[sequence - self.sent :]))
                    break
                outstanding[packet_id] = intended_ns
                out.append(pack(head, packet_id, middle, sequence, intended_ns))
                sequence += 1
        else:
            for intended_ns in times:
                out.append(pack(head, b"", middle, sequence, intended_ns))
                sequence += 1
        self.taken.extend(bytes(sequence - self.sent))
        self.sent = sequence
