"""A client of a cluster until its CONNECT is there; then it is served here, or by the node that it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from embermq.edge.connection import CLOSE_MS
from embermq.edge.connection_limits import ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.node_link import Homes, Introduced, NonceReader, call_node, encode_introduction
from embermq.edge.settings import Address
from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connack, Connect, Packet
from embermq.mqtt.wire.reason_codes import ReasonCode, to_connect_return_code
from embermq.mqtt.wire.version import ProtocolVersion

BUFFER_BYTES = 64 * 1024
"""What may wait in either direction before the other side is not read."""

Served = Callable[[ConnectionSlot, Address | None], asyncio.Protocol]
"""Makes the protocol of a client that is served here."""


class ClientDoor(asyncio.Protocol):
    """Of one connection. Past the CONNECT, bytes are handed on as they are."""

    paused = False
    """It writes nothing of its own but a refusal."""

    def __init__(
        self,
        homes: Homes,
        door: ListenerContext,
        served: Served,
        place: ConnectionSlot,
        source: Address | None = None,
    ) -> None:
        self._homes = homes
        self._door = door
        self._served = served
        self._place = place
        self._source = source
        self._decoder = Decoder(Role.SERVER, packet_bytes_max=door.broker.state.settings.packet_bytes_max)
        self._held = bytearray()
        self._transport: asyncio.Transport | None = None
        self._far: asyncio.Transport | None = None
        self._calling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.home: tuple[int, Address] | None = None
        """The slot and the node that it was handed to."""
        self.closing = False
        """Nothing more is said to the client; it reads what it was sent and ends its own side."""
        self.peer = ""
        self._gone: asyncio.Future[None] | None = None

    @property
    def is_handed_on(self) -> bool:
        """Whether its bytes go to another node now."""
        return self._far is not None

    def gone(self) -> asyncio.Future[None]:
        """Done when the connection is over."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        return self._gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = self._transport.get_extra_info("peername")
        told = self._source or (Address(peer[0], peer[1]) if isinstance(peer, tuple) else None)
        self.peer = str(told or self._door.listener.address)
        self._door.doors.add(self)
        timeout_s = self._door.connect_timeout_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._door.refused(self.peer, "no CONNECT in time")
        self.abort()

    def data_received(self, data: bytes) -> None:
        if self._far is not None:
            self._far.write(data)
            return
        if self.closing:
            return
        self._held += data
        if self._calling is not None:
            return
        packets = self._decoder.feed(data)
        if packets or self._decoder.error is not None:
            self._decide(packets)

    def _decide(self, packets: list[Packet]) -> None:
        assert self._transport is not None
        self._stop_timer()
        first = packets[0] if packets else None
        home = self._homes.home_of(first) if isinstance(first, Connect) else None
        if home is None or self._place.refusal is not None:
            self._serve()
            return
        assert isinstance(first, Connect)
        slot, address = home
        if address is None:
            self._refuse(first, f"slot {slot} of the cluster has no node now")
            return
        self._transport.pause_reading()
        self.home = slot, address
        self._calling = asyncio.get_running_loop().create_task(self._call(first, slot, address))

    def _serve(self) -> None:
        transport, served = self._transport, self._served(self._place, self._source)
        assert transport is not None
        self._transport = None
        self._door.doors.discard(self)
        transport.set_protocol(served)
        served.connection_made(transport)
        served.data_received(bytes(self._held))

    def _refuse(self, connect: Connect, why: str) -> None:
        """Its node is away: it may come again in some seconds."""
        code = ReasonCode.SERVER_UNAVAILABLE
        is_v5 = connect.version is ProtocolVersion.V5
        packet = Connack(False, code if is_v5 else to_connect_return_code(code))
        self._door.broker.state.counters.connections_refused += 1
        self._door.refused(self.peer, why)
        if self._transport is not None:
            self._transport.write(encode(packet, connect.version))
            self._end(self._transport)

    async def _call(self, connect: Connect, slot: int, address: Address) -> None:
        try:
            far, nonce = await call_node(address, self._homes.tls, partial(_FarSide, self))
        except (OSError, EOFError) as error:
            self._refuse(connect, f"the node of slot {slot}, {address}, does not answer: {error}")
            return
        transport = self._transport
        if transport is None:
            far.abort()
            return
        if far.is_closing():  # since it has sent the nonce
            self._refuse(connect, f"the node of slot {slot}, {address}, closed the connection")
            return
        self._far = far
        for each in (far, transport):
            each.set_write_buffer_limits(high=BUFFER_BYTES)
        transport.resume_reading()  # before anything is written, which may be too much for the node
        far.write(encode_introduction(self._introduce(slot, transport), nonce, self._homes.secret()))
        far.write(bytes(self._held))
        self._held.clear()

    def _introduce(self, slot: int, transport: asyncio.Transport) -> Introduced:
        visitor = self._door.visitor(self._source, transport)
        peer = transport.get_extra_info("peername")
        port = self._source.port if self._source else peer[1] if isinstance(peer, tuple) else 0
        terms = self._door.terms or self._door.broker.state.common_terms
        return Introduced(
            slot=slot,
            node=self._homes.here,
            host=visitor.address,
            port=port,
            loopback=visitor.loopback,
            allow_anonymous=visitor.allow_anonymous,
            client_type=visitor.client_type.name,
            certificate_name=visitor.certificate_name,
            certificate=visitor.certificate,
            max_qos=terms.max_qos,
            protocol_versions=terms.protocol_versions,
            allow_empty_client_id=terms.allow_empty_client_id,
        )

    # What the other side does

    def from_far(self, data: bytes) -> None:
        """Send on what the client's node has answered; dropped when the client has gone."""
        if self._transport is not None:
            self._transport.write(data)

    def far_ended(self) -> None:
        """Its node sends nothing more; what is on its way to the client is still sent."""
        if self._far is None:  # it is being called, and the client is told so when that has failed
            return
        self._far = None
        if self._transport is not None and not self._transport.is_closing():
            self._end(self._transport)

    def _end(self, transport: asyncio.Transport) -> None:
        """Leave it to the client to end the connection, for a while."""
        self.closing = True
        self._timer = asyncio.get_running_loop().call_later(CLOSE_MS / 1000, self.abort)
        if transport.can_write_eof():
            # To close at once would take back what the client has not read, if anything of its own is unread.
            transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()

    def hold(self, held: bool) -> None:
        """Whether the node takes no more now."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if held else self._transport.resume_reading)()

    # What the client does

    def pause_writing(self) -> None:
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        if self._far is not None and not self._far.is_closing():
            self._far.resume_reading()

    def eof_received(self) -> bool:
        """The client sends nothing more, and may still be answered."""
        if self._far is None or not self._far.can_write_eof():
            return False
        self._far.write_eof()
        return self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        self._door.doors.discard(self)
        self._door.admission.leave(self._place)
        if self._calling is not None:
            self._calling.cancel()
        if self._far is not None:
            # As it went from the client: without a FIN of its own there is no orderly end.
            (self._far.close if exc is None else self._far.abort)()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def abort(self) -> None:
        """End the connection at once; what waits to be written is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _FarSide(NonceReader):
    """The connection to the client's node."""

    def __init__(self, near: ClientDoor, nonce: asyncio.Future[bytes]) -> None:
        super().__init__(nonce)
        self._near = near

    def take(self, data: bytes) -> None:
        self._near.from_far(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._near.far_ended()

    def pause_writing(self) -> None:
        self._near.hold(True)

    def resume_writing(self) -> None:
        self._near.hold(False)
