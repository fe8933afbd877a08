"""One connection's bytes, on a transport that a test looks into."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.hand_driven import HandDrivenBroker
from tests.support.no_ticks import NoTicks

from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.identity import Refusal
from embermq.edge.connect_check import ConnectCheck
from embermq.edge.connection import EARLY_BYTES_MAX, UNREAD_BYTES_MAX, Connection
from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.settings import ClientSettings
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.link import LARGE_PACKET_BYTES


class Transport(asyncio.Transport):
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.parts: list[bytes] = []
        self.aborted = False

    def pause_reading(self) -> None:
        """There is nothing to read."""

    def resume_reading(self) -> None:
        """There is nothing to read."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing to limit."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.aborted:
            raise RuntimeError("the handler is closed")  # as uvloop's does after a reset
        self.written += len(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            assert isinstance(data, bytes)
            self.parts.append(data)
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return 0 if self.aborted else 900_000

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def connection() -> tuple[Connection, Transport]:
    hand = HandDrivenBroker()
    found: Any = Connection(
        cast(ListenerContext, SimpleNamespace(broker=hand.broker, ticks=NoTicks())),
        ConnectionSlot(),
    )
    transport = Transport()
    found._transport = transport
    return found, transport


def test_answers_go_on_while_the_client_reads_nothing_but_not_without_end(
    connection: tuple[Connection, Transport],
) -> None:
    link, transport = connection
    link.pause_writing()
    for _ in range(16):
        for _ in range(UNREAD_BYTES_MAX // 32):
            link.send(b"\xd0\x00")
        link.flush()
    assert (transport.written, transport.aborted) == (UNREAD_BYTES_MAX, False)
    link.send(b"\xd0\x00")
    link.flush()
    assert transport.aborted
    assert link.out == []


def test_a_client_that_reads_now_and_then_is_kept(connection: tuple[Connection, Transport]) -> None:
    link, transport = connection
    for _ in range(5):
        link.pause_writing()
        link.out += [b"\xd0\x00"] * (UNREAD_BYTES_MAX // 2)
        link.flush()
        link.resume_writing()
    assert not transport.aborted


def test_large_payloads_are_written_in_their_place_without_being_joined(
    connection: tuple[Connection, Transport],
) -> None:
    link, transport = connection
    payload = bytes(LARGE_PACKET_BYTES)
    for part in (b"\xd0\x00", b"head", b"id", b"", payload, b"more", payload, b"\xd0", b"\x00"):
        link.send(part)
    link.has_large = True
    link.flush()
    assert transport.parts == [b"\xd0\x00headid", payload, b"more", payload, b"\xd0\x00"]
    assert transport.parts[1] is payload
    assert (link.out, link.has_large, link._state.parts_sent) == ([], False, 9)


def test_the_bounds_leave_room_for_ordinary_clients() -> None:
    assert EARLY_BYTES_MAX >= 16 * 1024
    assert UNREAD_BYTES_MAX >= 4 * 65_535, "a client may publish that many before it reads"


def test_what_is_decided_between_a_reset_and_its_notice_goes_nowhere(
    connection: tuple[Connection, Transport],
) -> None:
    found, transport = connection
    transport.abort()
    found.send(b"x")
    found.flush()
    assert (found.out, transport.written) == ([], 0)


def test_what_a_reset_connection_still_had_to_write_is_not_taken_for_written(
    connection: tuple[Connection, Transport],
) -> None:
    """A message of a queue that never reached its consumer is free of charge."""
    found, transport = connection
    assert found.unsent_bytes() == 900_000
    transport.abort()
    assert found.unsent_bytes() is None


def test_a_client_that_reads_again_is_not_timed_any_more(connection: tuple[Connection, Transport]) -> None:
    link, _ = connection
    timers = link._door.broker.state.timers
    link.pause_writing()
    assert len(timers) == 1
    link.resume_writing()
    assert len(timers) == 0


def test_who_publishes_too_fast_is_not_read_again_by_the_store(
    connection: tuple[Connection, Transport],
) -> None:
    link, _ = connection
    link._hold()
    link.throttle_ms = 1_000
    link._read_later()
    link.read_on()
    assert (link._held, link.throttled) == (True, True)
    link._read_again()
    assert (link._held, link.throttled) == (False, False)


def test_a_connection_that_is_over_leaves_no_timer(connection: tuple[Connection, Transport]) -> None:
    link, _ = connection
    door: Any = link._door
    door.connections, door.empty = {link}, asyncio.Event()
    door.admission = Admission(ClientSettings(), Counters())
    link.pause_writing()
    link.throttle_ms = 1_000
    link._read_later()
    link.connection_lost(None)
    assert len(door.broker.state.timers) == 0


def test_a_check_hears_that_the_client_has_left(connection: tuple[Connection, Transport]) -> None:
    link, _ = connection
    door: Any = link._door
    door.connections, door.empty = {link}, asyncio.Event()
    door.admission = Admission(ClientSettings(), Counters())

    async def check(_packet: Connect, visitor: Visitor) -> Refusal:
        assert visitor.left is not None
        await visitor.left
        return Refusal(ReasonCode.NOT_AUTHORIZED, "it has left")

    async def scenario() -> None:
        gate: Any = SimpleNamespace(admit=lambda _packet, _visitor: None, check=check)
        entrance = ConnectCheck(door.broker, door.ticks, gate, 1_000)
        packet = Connect("c", ProtocolVersion.V5, True, 0, "ann", b"x", None, None)
        entrance.enter(link, packet, [], Visitor(True, None, ClientType.DEVICE, None))
        link.connection_lost(None)
        await asyncio.gather(*entrance._checks)

    asyncio.run(asyncio.wait_for(scenario(), 60))
