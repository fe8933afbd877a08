"""One connection of an MQTT client, over TCP, TLS, a Unix socket or what looks like one."""

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, cast

from embermq.access.authentication.gate import Exchange
from embermq.edge.connection_limits import ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.settings import Address
from embermq.mqtt.topics.names import shown
from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.errors import ProtocolError
from embermq.mqtt.wire.packets import Connect, Packet
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.tick_store import EVERYBODY
from embermq.sessions.client_events import EventKind, words
from embermq.sessions.link import Link
from embermq.sessions.timers import Timer

if TYPE_CHECKING:
    from embermq.edge.node_link import MemberOf

LOG = logging.getLogger("embermq.server")
TURN_BYTES_MAX = 16 * 1024
"""Bytes of one client's small packets that are decided before the others get their turn: they may be thousands."""
FULL_READ_BYTES = 256_000
"""After a read of so many there is more, as a rule: others have their turn before it is read."""
ALIVE_BYTES_MIN = 1_000
"""What a read must bring of a packet that is not whole yet to count as a sign of life: a large packet may take longer
than the keep-alive, but who sends a byte now and then only holds on to its place."""
EARLY_BYTES_MAX = 64 * 1024
"""Bytes taken from a client that does not wait for its CONNACK; past it the socket is not read until then."""
WRITE_BUFFER_BYTES_MAX = 1024 * 1024
"""Waiting for one socket; above it only acknowledgements are handed to it, and QoS 0 is dropped."""
UNREAD_BYTES_MAX = 1024 * 1024
"""Bytes of answers that may wait, past a full buffer, for a client that sends and does not read; it is cut off then."""
REST_BYTES_MAX = 256 * 1024
"""Bytes that are read ahead, for turns to come, where no more can be left to the system: over TLS what is not read when
the client closes is lost, a DISCONNECT too."""
LARGE_PART_BYTES = 8 * 1024
"""Of what is sent; a large payload is one."""
LEFT = "the client closed the connection without DISCONNECT"
CLOSE_MS = 5_000
"""How long a connection that is over may take to hand its last bytes to the client."""
DRAINED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that are taken meanwhile, and thrown away: an unread rest would make the system drop what we said last."""


class Connection(Link):
    """Bytes of one client to packets, and the link's packets to bytes: a protocol of asyncio, by its methods.

    `exchange` is what the method of enhanced authentication is at, `left` is done when the connection is over.
    """

    __slots__ = (
        "_at_eof",
        "_decoder",
        "_door",
        "_drained_bytes",
        "_early_bytes",
        "_entered",
        "_held",
        "_place",
        "_rest",
        "_rest_at",
        "_slow",
        "_source",
        "_state",
        "_throttle",
        "_transport",
        "_unread_bytes",
        "exchange",
        "left",
    )

    def __init__(self, door: ListenerContext, place: ConnectionSlot, source: Address | None = None) -> None:
        super().__init__(door.broker.state.tick.dirty, "", door.broker.state.tick.now_ms)
        self._door = door
        self._decoder = Decoder(Role.SERVER, packet_bytes_max=door.broker.state.settings.packet_bytes_max)
        self._place = place
        self._source = source
        self._state = door.broker.state
        self._entered = False
        self._rest = b""
        """What was read and is to be decided, from `_rest_at` on, in later turns; nothing more is read meanwhile."""
        self._rest_at = 0
        self._held = False
        """Whether that waits as well, until `read_on`."""
        self._early_bytes = 0
        self._drained_bytes = 0
        self._unread_bytes = 0
        self._at_eof = False
        self._slow: Timer | None = None
        """Runs while the client does not take what it is sent."""
        self._throttle: Timer | None = None
        """Runs while a client that publishes too fast is not read."""
        self._transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.left: asyncio.Future[None] | None = None

    def note_left(self) -> None:
        """The connection is over: who still looks into who the client is need not."""
        if self.left is not None and not self.left.done():
            self.left.set_result(None)

    @property
    def member(self) -> "MemberOf | None":
        """Of which slot's node this is a client that is a member of groups here; None for all others."""
        return self._door.member

    @property
    def front(self) -> str:
        """The node that has handed the client on; "" when it came here."""
        return self._door.front

    def leave_node(self, elsewhere: str) -> None:
        """The node that the client came to ends; `elsewhere` it may go, "" when that is not known."""
        reason = ReasonCode.USE_ANOTHER_SERVER if elsewhere else ReasonCode.SERVER_SHUTTING_DOWN
        self.disconnect(reason, elsewhere=elsewhere or None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door = self._door
        door.ticks.wake()
        self.listener = door.listener_name
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self.peer = self._name_peer(self._transport)
        began_ms = self.last_ms  # a TLS handshake has taken some of the time that there is
        self.last_ms = door.broker.state.tick.now_ms
        if door.tls is None:
            began_ms = self.last_ms
        door.connections.add(self)
        self._state.counters.sockets_opened += 1
        door.empty.clear()
        self.timer = door.broker.state.timers.at(began_ms + door.connect_timeout_ms, self._check_entered)

    def _name_peer(self, transport: asyncio.Transport) -> str:
        if self._source is not None:
            return str(self._source)
        peer = transport.get_extra_info("peername")
        return str(Address(peer[0], peer[1])) if isinstance(peer, tuple) else str(self._door.listener.address)

    def _check_entered(self) -> None:
        if self.closing:
            return
        if not self._entered:
            self.close()  # no CONNECT within a reasonable time [MQTT-3.1.0-1]
            self._door.refused(self.peer, "no CONNECT in time")
        else:
            self._door.broker.authenticating.overdue(self)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            self._drain(data)
        elif not self._rest and (
            len(data) <= TURN_BYTES_MAX or (len(data) <= self._decoder.missing_bytes and not self._held)
        ):
            self._take(data)
        else:
            self._divide(data)

    def _divide(self, data: bytes) -> None:
        """One turn's share now, the rest in turns to come."""
        waits, transport = bool(self._rest), self._transport
        can_wait = transport is not None and transport.can_write_eof()
        is_full = can_wait and len(data) >= FULL_READ_BYTES
        self._rest = self._rest[self._rest_at :] + data if waits else data
        self._rest_at = 0
        if not waits:
            if can_wait:
                self._decide()  # else next turn: who cannot be paused is read again in this one, until there is enough
            if (self._rest or is_full) and self._may_decide():
                asyncio.get_running_loop().call_soon(self._go_on)
        if transport is None or self.closing:
            return
        if is_full or (self._rest and (can_wait or len(self._rest) > REST_BYTES_MAX)):
            transport.pause_reading()

    def _go_on(self) -> None:
        self._decide()
        self._read_more()

    def _decide(self) -> None:
        """A turn's share: large packets, as many as were read, and so many bytes of small ones."""
        has_small = False
        while self._rest and self._may_decide() and (self._decoder.missing_bytes or not has_small):
            has_small = self._take_part() or has_small

    def _may_decide(self) -> bool:
        return not (self._held or self.closing or self._transport is None)

    def _take_part(self) -> bool:
        """What is missing of a packet, or one that is large, which is not copied to be cut out; else small packets, the
        last one perhaps in part: returns True then."""
        rest, at, decoder = self._rest, self._rest_at, self._decoder
        wanted = decoder.missing_bytes
        is_small = False
        if not wanted:
            wanted = decoder.packet_bytes(memoryview(rest)[at:])
            is_small = wanted <= TURN_BYTES_MAX
        end = at + (TURN_BYTES_MAX if is_small else wanted)
        if end < len(rest):
            self._rest_at = end
        else:
            self._rest, self._rest_at = b"", 0
        self._take(rest[at:end] if is_small else memoryview(rest)[at:end])
        return is_small

    def _read_more(self) -> None:
        if self._held or self.closing or self._transport is None:
            return
        if self._rest:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._transport.resume_reading()

    def _hold(self) -> None:
        """Read and decide nothing until `read_on`."""
        self._held = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _take(self, data: bytes | memoryview) -> None:
        ticks = self._door.ticks
        ticks.before_read()
        packets = self._decoder.feed(data)
        if packets or len(data) >= ALIVE_BYTES_MIN:
            self.last_ms = self._state.tick.now_ms
        counters = self._state.counters
        counters.bytes_received += len(data)
        if packets:
            counters.packets_received += len(packets)
            if self._entered:
                self._door.broker.handle(self, packets)
            else:
                self._enter(packets)
        if self._decoder.error is not None:
            self._refuse_bytes(self._decoder.error)
            ticks.wake()
            return
        if self.inbox is not None and self.authentication is None:
            self._early_bytes += len(data)
            if self._early_bytes > EARLY_BYTES_MAX:
                self._hold()
        ticks.after_read()
        if self.throttle_ms:
            self._read_later()
        if ticks.hold_back(self, len(data)):
            self._hold()

    def read_on(self) -> None:
        """The store has caught up."""
        if self._transport is not None and not self.closing and self._throttle is None:
            self.last_ms = self._door.broker.state.tick.now_ms
            was_held, self._held = self._held, False
            if not self._rest:
                self._transport.resume_reading()
            elif was_held:
                asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def throttled(self) -> bool:
        """Whether the client is not read because it publishes too fast."""
        return self._throttle is not None

    def _read_later(self) -> None:
        """Meanwhile the client cannot show that it is alive, so the time counts as if it did."""
        wait_ms, self.throttle_ms = self.throttle_ms, 0
        if self._transport is None or self.closing:
            return
        state = self._door.broker.state
        if self._throttle is None:
            state.counters.publishers_throttled += 1
            self._hold()
        state.timers.cancel(self._throttle)
        self.last_ms = state.tick.now_ms + wait_ms
        self._throttle = state.timers.at(self.last_ms, self._read_again)
        self._door.ticks.wake()

    def _read_again(self) -> None:
        self._throttle = None
        self.read_on()

    def note_refusal(self, text: str) -> None:
        client = f"client {shown(self.session.client_id)} at " if self.session is not None else ""
        LOG.debug("refused %s%s: %s", client, self.peer, text)

    def opened(self) -> None:
        if self._early_bytes > EARLY_BYTES_MAX:
            self.read_on()

    def _enter(self, packets: list[Packet]) -> None:
        """The first packet is CONNECT, the decoder sees to that."""
        self._entered = True
        packet = packets[0]
        assert isinstance(packet, Connect)
        door = self._door
        connecting = door.broker.connecting
        self.terms = door.terms
        connecting.introduce(self, packet)
        wrong_version = self._state.terms_of(self).objection_to_version(packet.version)
        if wrong_version:
            connecting.refuse(self, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, wrong_version)
        elif self._place.refusal is not None:
            connecting.refuse(self, self._place.refusal, self._place.refusal_text)
        else:
            door.entrance.enter(self, packet, packets[1:], door.visitor(self._source, self._transport))

    def authenticate(self, data: bytes | None, *, anew: bool) -> None:
        door = self._door
        visitor = door.visitor(self._source, self._transport) if anew else None
        door.entrance.go_on(self, data, visitor)

    def _refuse_bytes(self, error: ProtocolError) -> None:
        """The client broke the protocol: what came before counts, nothing after it [MQTT-4.8.0-1]."""
        if self.closing:
            return
        self._door.broker.state.counters.protocol_errors += 1
        why = f"{words(error.reason_code)}: {error.message}"
        version = self._decoder.version
        if not self._entered or self.session is None:
            if version is None:
                self._door.refused(self.peer, why)
                self.close()
            elif (
                version is ProtocolVersion.V5 or error.reason_code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
            ):
                self.version = version
                self._door.broker.connecting.refuse(self, error.reason_code, error.message)
            else:
                self._state.tell(self.event(EventKind.REFUSED, why))
                self.close()
            return
        self.disconnect(error.reason_code, error.message)

    def set_water_marks(self, high_bytes: int, low_bytes: int) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high_bytes, low=low_bytes)

    def unsent_bytes(self) -> int | None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return None  # its buffer is empty, and nobody has taken what was in it
        return transport.get_write_buffer_size()

    def flush(self) -> None:
        """Write what the tick decided; close when that was asked."""
        transport, out = self._transport, self.out
        if transport is None or transport.is_closing():  # the client may have reset it since the last write
            out.clear()
            return
        if out:
            has_large, self.has_large = self.has_large, False
            parts = _parts_of(out) if has_large else [b"".join(out)]
            size = sum([len(part) for part in parts])
            state = self._state
            state.parts_sent += len(out)
            state.counters.bytes_sent += size
            out.clear()
            bulk_bytes, self.bulk_bytes = self.bulk_bytes, 0
            if (
                self.paused
            ):  # acknowledgements go on, but not without end; stored messages have limits of their own
                self._unread_bytes += max(0, size - bulk_bytes)
                if self._unread_bytes > UNREAD_BYTES_MAX:
                    self._door.broker.state.counters.slow_readers_closed += 1
                    self.note_end("the client does not read what it was sent")
                    self.abort()
                    return
            if has_large:
                transport.writelines(parts)
            else:
                transport.write(parts[0])
            if self.flushed is not None:
                self.flushed(size)
        if self.closing and not transport.is_closing():
            self._leave(transport)

    def _leave(self, transport: asyncio.Transport) -> None:
        """Say that nothing more comes and wait for the client to do the same: closing at once would, with bytes of the
        client still unread, take back what it has not read yet."""
        if transport.can_write_eof() and not self._at_eof:
            transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()
        door = self._door
        door.broker.connecting.link_lost(self)  # its will does not wait for what the client does now
        door.ticks.wake()
        timers = door.broker.state.timers
        timers.cancel(self.timer)
        self.timer = timers.at(door.broker.state.tick.now_ms + CLOSE_MS, self.abort)

    def _drain(self, data: bytes) -> None:
        self._drained_bytes += len(data)
        if self._drained_bytes > DRAINED_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()

    def _take_rest(self) -> None:
        """Nothing comes any more: what was read before counts, a DISCONNECT at its end above all."""
        rest, self._rest = self._rest[self._rest_at :], b""
        self._rest_at = 0
        if rest and not self.closing:
            self._take(rest)

    def eof_received(self) -> bool:
        """The client sends nothing more: what it is to hear of what it sent is still written."""
        transport = self._transport
        self._take_rest()
        self._at_eof = True
        self.note_end(LEFT)
        waits = transport is not None and transport.can_write_eof() and (not self.closing or bool(self.out))
        if self.unanswered and waits:
            self._close_when_answered()
        else:
            self.close()
        self._door.ticks.wake()
        return waits

    def _close_when_answered(self) -> None:
        """What the client published last is being stored: its answers are queued before the tick after this commit."""
        state = self._door.broker.state
        generation = self.session.generation if self.session is not None else EVERYBODY
        state.tick.batch.when_stored(generation, partial(self._close_after_ms, 0))
        self._close_after_ms(CLOSE_MS)

    def _close_after_ms(self, delay_ms: int) -> None:
        if self.closing:
            return
        state = self._door.broker.state
        state.timers.cancel(self.timer)
        self.timer = state.timers.at(state.tick.now_ms + delay_ms, self.close)

    def pause_writing(self) -> None:
        self.paused = True
        state = self._door.broker.state
        wait_ms = int(state.settings.slow_reader_s * 1000)
        if wait_ms:
            state.timers.cancel(self._slow)
            self._slow = state.timers.at(state.tick.now_ms + wait_ms, self._end_slow_reader)

    def _end_slow_reader(self) -> None:
        """It will hardly read the DISCONNECT; `_leave` sees to it that nobody waits for that."""
        if not self.closing:
            self._door.broker.state.counters.slow_readers_closed += 1
            self.disconnect(ReasonCode.QUOTA_EXCEEDED, "the client does not read what it was sent")

    def resume_writing(self) -> None:
        self.paused = False
        self._unread_bytes = 0
        self._door.broker.state.timers.cancel(self._slow)
        session = self.session
        if session is not None and session.link is self:
            self._door.ticks.wake()
            self._state.path(session).writable(session)
            if session.queue_filters and self._state.queues is not None:
                self._state.queues.writable(session)
            if self._state.share.members is not None:
                self._state.share.members.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.note_left()
        self._take_rest()
        self.note_end(LEFT if exc is None else f"the connection broke: {exc}")
        timers = self._door.broker.state.timers
        timers.cancel(self._throttle)
        timers.cancel(self._slow)
        self._door.connections.discard(self)
        self._door.admission.leave(self._place)
        if not self._door.connections:
            self._door.empty.set()
        self._door.ticks.wake()
        self._door.broker.connecting.link_lost(self)

    def abort(self) -> None:
        """Drop the connection without waiting for its buffer."""
        if self._transport is not None:
            self._transport.abort()


def _parts_of(out: list[bytes]) -> list[bytes]:
    """The same bytes with what is small joined: large payloads are not copied, and nobody gets thousands of parts."""
    parts: list[bytes] = []
    small: list[bytes] = []
    for part in out:
        if len(part) < LARGE_PART_BYTES:
            small.append(part)
            continue
        parts += (b"".join(small), part)
        small.clear()
    if small:
        parts.append(b"".join(small))
    return parts
