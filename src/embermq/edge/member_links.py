"""Connections to the nodes of other slots for clients that are members of their groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import msgspec

from embermq.cluster.far_member import FarMember
from embermq.cluster.members import Members
from embermq.edge.node_link import (
    Homes,
    IntroductionError,
    MemberOf,
    MembersAsked,
    NonceReader,
    ask_node,
    call_node,
    encode_introduction,
)
from embermq.edge.settings import Address
from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connack, Packet
from embermq.mqtt.wire.version import ProtocolVersion

RETRY_S = 0.5
ANSWER_S = 10.0
"""How long a node may take to end sessions and tell which there are."""
OVER_BYTES_MAX = 32 * 1024
"""Of ids that are told in one question."""
ID_BYTES = 4
"""What one takes beside its characters."""

Confirmed = Callable[[Callable[[], None]], None]
"""Calls back when the stores have taken a write of this node: it has its slot still."""


class MemberLinks:
    """Of the node that has `slot`."""

    def __init__(self, homes: Homes, slot: int, others: Sequence[int], confirm: Confirmed) -> None:
        self._homes = homes
        self._slot = slot
        self._others = others
        self._confirm = confirm
        self._open: set[_MemberLink] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, members: Members) -> None:
        """Ask other nodes, on the running loop, and tell them."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_told(slot, members)) for slot in self._others]

    def call(self, members: Members, member: FarMember) -> None:
        """Make a link, which tells `members` what becomes of it."""
        task = asyncio.get_running_loop().create_task(self._call(members, member))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def leave_node(self, slot: int, address: Address) -> None:
        """This node has the slot no more: it may stand still, and say nothing for ever."""
        for link in list(self._open):
            if (link.slot, link.address) == (slot, address):
                link.abort()

    def close(self) -> None:
        """Make no more links, and close those that are open."""
        for task in (*self._tasks, *self._calls):
            task.cancel()
        for link in list(self._open):
            link.close()

    async def _call(self, members: Members, member: FarMember) -> None:
        address = self._homes.address_of(member.slot)
        if address is None:
            members.over(member, f"slot {member.slot} of the cluster has no node now")
            return
        link = _MemberLink(members, member, address, self._open)
        try:
            far, nonce = await call_node(address, self._homes.tls, link.awaits)
        except (OSError, EOFError) as error:
            members.over(member, f"the node of slot {member.slot}, {address}, does not answer: {error}")
            return
        if not members.wants(member):
            far.abort()
            return
        session, user, certificate = members.introduced(member)
        introduction = MemberOf(
            slot=member.slot,
            of=self._slot,
            node=self._own_address(),
            session=session,
            user=user,
            certificate=certificate,
            host=member.client.link.peer,
            version=member.client.link.version,
        )
        try:
            told = encode_introduction(introduction, nonce, self._homes.secret())
        except IntroductionError as error:
            far.abort()
            members.over(member, str(error))
            return
        link.begins = True
        far.write(told)
        far.write(encode(members.connect(member), ProtocolVersion.V5))

    def _own_address(self) -> str:
        return str(self._homes.address_of(self._slot))

    async def _keep_told(self, slot: int, members: Members) -> None:
        """Ask once which sessions a slot has, and tell it from then on which are over."""
        is_listed = False
        while True:
            over = _first_of(members.over_at[slot]) if is_listed else ()
            if over or not is_listed:
                try:
                    found = await self._ask(slot, over)
                except (OSError, EOFError, ValueError):
                    pass  # it has no node now, or that knows of another one in this slot
                else:
                    for each in over:
                        members.over_at[slot].pop(each, None)
                    if not is_listed:
                        left = members.listed(slot, found)
                        is_listed = True
                        if left:
                            self._confirm(partial(members.over_at[slot].update, dict.fromkeys(left)))
                    continue
            await asyncio.sleep(RETRY_S)

    async def _ask(self, slot: int, over: tuple[str, ...]) -> list[str]:
        """Raises OSError, EOFError, ValueError."""
        address = self._homes.address_of(slot)
        if address is None:
            raise OSError("nobody has the slot")
        asked = MembersAsked(slot=slot, of=self._slot, node=self._own_address(), over=over)
        found = await ask_node(address, self._homes.tls, asked, self._homes.secret(), ANSWER_S)
        try:
            return msgspec.json.decode(found, type=list[str])
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error


def _first_of(ids: dict[str, None]) -> tuple[str, ...]:
    """As many as fit into one question, one at least."""
    found: list[str] = []
    size = 0
    for each in ids:
        size += len(msgspec.json.encode(each)) + ID_BYTES
        if found and size > OVER_BYTES_MAX:
            break
        found.append(each)
    return tuple(found)


class _MemberLink(NonceReader):
    """Bytes to packets, and back."""

    def __init__(
        self, members: Members, member: FarMember, address: Address, open_links: set[_MemberLink]
    ) -> None:
        self.begins = False
        """Whether the client has been introduced: from then on this link tells of its end."""
        self._members = members
        self._member = member
        self._open = open_links
        self._decoder = Decoder(Role.CLIENT, version=ProtocolVersion.V5)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self.slot = member.slot
        self.address = address

    def awaits(self, nonce: asyncio.Future[bytes]) -> _MemberLink:
        """What the node begins with."""
        super().__init__(nonce)
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    def take(self, data: bytes) -> None:
        members, member = self._members, self._member
        for packet in self._decoder.feed(data):
            if not isinstance(packet, Connack):
                members.took(member, packet)
            elif packet.reason_code:
                text = packet.properties.reason_string if packet.properties is not None else None
                self._end(f"slot {self.slot} refuses the client: {packet.reason_code:#04x} {text or ''}")
                self.close()
            else:
                members.opened(member, self, packet)
        if self._decoder.error is not None:
            self._end(f"slot {self.slot}: {self._decoder.error}")
            self.close()

    def _end(self, why: str) -> None:
        if self.begins:
            self.begins = False
            self._members.over(self._member, why)

    def send(self, packet: Packet) -> None:
        """See `cluster.members.FarSide`."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        data = encode(packet, ProtocolVersion.V5)
        self._out_bytes += len(data)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    @property
    def unsent_bytes(self) -> int:
        """See `cluster.members.FarSide`."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + self._out_bytes

    def pause(self) -> None:
        """See `cluster.members.FarSide`."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """See `cluster.members.FarSide`."""
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """See `cluster.members.FarSide`."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open.discard(self)
        self._transport = None
        why = "it closed the connection" if exc is None else str(exc)
        self._end(f"the node of slot {self.slot}, {self.address}: {why}")
