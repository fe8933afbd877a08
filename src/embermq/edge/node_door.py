"""The listener for other nodes of a cluster, which hand over connections of clients that belong here, and messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from hashlib import sha256
from typing import cast

import msgspec

from embermq.access.authentication.gate import Exchange, Visitor
from embermq.access.authentication.identity import Identity, Refusal
from embermq.edge.connect_check import ConnectCheck
from embermq.edge.connection import Connection
from embermq.edge.connection_limits import ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.node_link import (
    NOT_UNDERSTOOD,
    OPERATION_BYTES_MAX,
    RECORD_BYTES_MAX,
    SIZE_BYTES,
    Homes,
    Introduced,
    IntroductionError,
    MemberOf,
    MembersAsked,
    Messages,
    NotUnderstoodError,
    OperationAsked,
    Stops,
    greeting,
    read_introduction,
    too_long,
)
from embermq.edge.settings import Address
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.tick_store import EVERYBODY
from embermq.sessions.listener_terms import Terms
from embermq.sessions.member_ids import is_member_id

OTHER_KINDS = 0x80
"""A record begins with its size, which is below 2 GiB: so none begins with this byte or a higher one."""
Operate = Callable[[bytes, Callable[[bytes], None]], None]
"""Begins what an operator at another node has asked for, and calls back with the answer."""


class _Proven:
    """The gate for a client whose own node has proved who it is."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def admit(self, _packet: Connect, _visitor: Visitor) -> Identity | Refusal:
        """See `Gate`."""
        return self._identity

    async def check(self, _packet: Connect, _visitor: Visitor) -> Identity | Refusal:
        """See `Gate`."""
        return self._identity

    def exchange(self, _method: str, _client_id: str, _visitor: Visitor) -> Exchange | None:
        """See `Gate`."""
        return None


class NodeListenerContext(ListenerContext):
    """`introduced` is what another node says of a client; None before that has been read."""

    introduced: Introduced | None = None

    def introduce_member(self, member: MemberOf) -> NodeListenerContext:
        """The same for one that the node of its own slot has let in."""
        found = copy(self)
        found.member = member
        found.terms = Terms(2, ("5.0",), False)  # its client is bound by its own listener's
        identity = Identity(
            member.user,
            ClientType.DEVICE,
            "",
            certificate=member.certificate,
            client_id=member.session,
            is_member=True,
        )
        found.entrance = ConnectCheck(self.broker, self.ticks, _Proven(identity), self.connect_timeout_ms)
        return found

    def introduce(self, introduced: Introduced) -> NodeListenerContext:
        """The same for one client, which counts among the others."""
        found = copy(self)
        found.introduced, found.front = introduced, introduced.node
        found.terms = Terms(
            introduced.max_qos,
            introduced.protocol_versions,  # type: ignore[arg-type]
            introduced.allow_empty_client_id,
        )
        return found

    def visitor(self, source: Address | None, transport: asyncio.Transport | None) -> Visitor:
        """What its listener knew."""
        if self.member is not None:  # who it is has been proved
            return Visitor(False, None, ClientType.DEVICE, None, self.member.host)
        told = self.introduced
        assert told is not None, "only who is introduced comes so far"
        return Visitor(
            told.loopback,
            told.allow_anonymous,
            ClientType[told.client_type],
            told.certificate_name,
            told.host,
            told.certificate,
        )


class NodeDoor(asyncio.Protocol):
    """Of one connection, until the introduction is there."""

    closing = paused = False

    def __init__(
        self,
        homes: Homes,
        slot: int,
        door: NodeListenerContext,
        place: ConnectionSlot,
        _source: Address | None = None,
        *,
        take: Callable[[bytes], None],
        members_of: Callable[[int], list[str]],
        do: Operate,
        figures: Callable[[], Mapping[str, int]],
    ) -> None:
        self._figures = figures
        self._members_of = members_of
        self._do = do
        self._homes = homes
        self._slot = slot
        self._door = door
        self._take = take
        self._place = place
        self._nonce = greeting()
        self._held = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = str(self._transport.get_extra_info("peername"))
        self._door.doors.add(self)
        timeout_s = self._door.connect_timeout_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(
            timeout_s, self._refuse, "no introduction in time"
        )
        self._transport.write(self._nonce)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._held += data
        try:
            found = read_introduction(self._held, self._nonce, self._homes.secret)
        except NotUnderstoodError as error:
            self._tell_not_understood(error)
            return
        except IntroductionError as error:
            self._refuse(str(error))
            return
        if found is None:
            return
        introduced, rest = found
        if introduced.slot != self._slot:
            self._refuse(f"it looks for slot {introduced.slot}, and this node has {self._slot}")
            return
        if isinstance(introduced, Messages):
            self._stop_timer()
            following = NodeMessages(
                self._take, self._tell_figures, self._count_not_understood, self._refuse, self._end_messages
            )
            transport.set_protocol(following)
            following.data_received(rest)
            return
        if isinstance(introduced, OperationAsked):
            self._operate(introduced, rest)
            return
        if isinstance(introduced, Stops):
            self._stop_timer()
            self._end_handed_on(introduced)
            return
        if isinstance(introduced, MembersAsked):
            self._stop_timer()
            self._tell_members(introduced)
            return
        if isinstance(introduced, MemberOf):
            if not self._is_from_home(introduced):
                return
            door, client = self._door.introduce_member(introduced), Address(introduced.host, 0)
        else:
            door, client = self._door.introduce(introduced), Address(introduced.host, introduced.port)
        self._stop()
        connection = Connection(door, self._place, client)
        if isinstance(introduced, MemberOf):
            connection.member_version = ProtocolVersion(introduced.version)
        transport.set_protocol(cast(asyncio.Protocol, connection))
        connection.connection_made(transport)
        if rest:
            connection.data_received(rest)

    def _is_from_home(self, told: MemberOf | MembersAsked) -> bool:
        """Whether the node that has the clients' slot says so; else, one that stood still has lost it."""
        if self._homes.has_slot(told.node, told.of):
            return True
        self._refuse(f"node {told.node} has not slot {told.of}")
        return False

    def _tell_members(self, asked: MembersAsked) -> None:
        """End sessions whose client has its own no more; who tells of none is told which there are. The answer comes
        when that is stored."""
        if not self._is_from_home(asked):
            return
        broker = self._door.broker
        state = broker.state
        state.tick.wake()
        found = [
            session for each in asked.over if is_member_id(each) and (session := state.sessions.get(each))
        ]
        left = {session.client_id for session in found}

        def ended(session_id: str) -> None:
            left.discard(session_id)
            if not left:
                self._answer(msgspec.json.encode([] if asked.over else self._members_of(asked.of)))

        for session in found:
            broker.connecting.remove(session, partial(ended, session.client_id))
        if not asked.over:
            ended("")
        elif not found:  # they have ended before, which need not be stored yet
            state.tick.batch.when_stored(EVERYBODY, partial(ended, ""))

    def _end_handed_on(self, told: Stops) -> None:
        self._door.ticks.wake()
        for connection in list(self._door.connections):
            if connection.front and connection.front == told.node:
                connection.leave_node(told.elsewhere)
        self._answer(b"")

    def _operate(self, asked: OperationAsked, told: bytes) -> None:
        """Once all of it is there; until then the introduction is read again."""
        if asked.size > OPERATION_BYTES_MAX:
            self._refuse(too_long("an operation", asked.size, OPERATION_BYTES_MAX))
        elif len(told) >= asked.size:
            self._stop_timer()
            if sha256(told).hexdigest() == asked.digest:
                self._do(told, self._answer)
            else:
                self._refuse("an operation that is not the one which was announced")

    def _answer(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(len(data).to_bytes(SIZE_BYTES) + data)
            self._transport.close()

    def _refuse(self, why: str) -> None:
        self._door.broker.state.counters.nodes_refused += 1
        self._door.refused(self.peer, why)
        self.abort()

    def _tell_not_understood(self, error: NotUnderstoodError) -> None:
        self._door.refused(self.peer, str(error))
        self._stop_timer()
        self._count_not_understood()
        if self._transport is not None:
            self._transport.write(NOT_UNDERSTOOD)
            self._transport.close()

    def _count_not_understood(self) -> None:
        self._door.broker.state.counters.nodes_not_understood += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._door.admission.leave(self._place)

    def _tell_figures(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            told = msgspec.json.encode(self._figures())
            self._transport.write(len(told).to_bytes(SIZE_BYTES) + told)

    def _end_messages(self) -> None:
        self.connection_lost(None)

    def abort(self) -> None:
        """End the connection at once; what waits to be written is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def _stop(self) -> None:
        self._transport = None
        self._door.doors.discard(self)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class NodeMessages(asyncio.Protocol):
    """Records of messages that another node sends, each behind its length; one that is empty is `asked`. What begins
    with a byte of `OTHER_KINDS` or more is of another kind, and this version knows none: it is passed over. What is
    announced and cannot be is refused, and nothing behind it read."""

    def __init__(
        self,
        take: Callable[[bytes], None],
        asked: Callable[[], None],
        not_understood: Callable[[], None],
        refuse: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        self._take = take
        self._asked = asked
        self._not_understood = not_understood
        self._refuse = refuse
        self._ended = ended
        self._held = bytearray()
        self._needed = 0
        """So many bytes are there before the first record of what is held is whole."""

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        at, self._needed = 0, SIZE_BYTES
        while len(data) - at >= SIZE_BYTES:
            size = int.from_bytes(data[at : at + SIZE_BYTES])
            if size > RECORD_BYTES_MAX:
                self._needed = sys.maxsize  # what may come before the connection has ended is left
                self._refuse(too_long("a message", size, RECORD_BYTES_MAX))
                break
            end = at + SIZE_BYTES + size
            if end > len(data):
                self._needed = end - at
                break
            if not size:
                self._asked()
            elif data[at + SIZE_BYTES] >= OTHER_KINDS:
                self._not_understood()
            else:
                self._take(data[at + SIZE_BYTES : end])
            at = end
        self._held += data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
