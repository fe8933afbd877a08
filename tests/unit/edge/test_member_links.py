"""Nodes tell one another which sessions of members are over."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import cast

from tests.support.hand_driven import HandDrivenBroker
from tests.support.waiting import wait_for
from tests.unit.cluster.test_members import HERE, SLOTS, THERE, Node, enters

from embermq.access.authentication.gate import Gate
from embermq.cluster.members import sessions_of
from embermq.cluster.slots import slot_of
from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listener_settings import Listener
from embermq.edge.member_links import MemberLinks
from embermq.edge.node_door import NodeDoor, NodeListenerContext
from embermq.edge.node_link import Homes
from embermq.edge.settings import Address, OwnSettings
from embermq.edge.tick_loop import TickLoop
from embermq.sessions.member_ids import member_id


class TwoNodes:
    """This one and one more, which listens at `there`."""

    there = Address("127.0.0.1", 0)
    tls = None

    def address_of(self, slot: int) -> Address:
        return self.there if slot == THERE else Address("127.0.0.1", 1)

    def has_slot(self, node: str, slot: int) -> bool:
        return node == str(self.address_of(slot))

    def secret(self) -> bytes:
        return b"s"


class FarNode:
    """The real door of a broker that is driven by hand; `listed` counts how often it has looked through all of its
    sessions."""

    def __init__(self, homes: TwoNodes) -> None:
        self.hand = HandDrivenBroker()
        self.listed = 0
        self._homes = homes
        self._door = NodeListenerContext(
            self.hand.broker,
            cast(TickLoop, None),
            cast(Gate, None),
            Listener("node", homes.there, OwnSettings(), None, None, "cluster", frozenset()),
            cast(Admission, SimpleNamespace(leave=lambda _: None)),
            connect_timeout_s=60,
        )

    async def opens(self) -> asyncio.Server:
        server = await asyncio.get_running_loop().create_server(self._makes, self._homes.there.host)
        self._homes.there = Address(*server.sockets[0].getsockname()[:2])
        return server

    def _makes(self) -> NodeDoor:
        homes, place = cast(Homes, self._homes), cast(ConnectionSlot, None)
        return NodeDoor(
            homes,
            THERE,
            self._door,
            place,
            take=lambda _: None,
            members_of=self._members_of,
            do=print,
            figures=dict,
        )

    def _members_of(self, slot: int) -> list[str]:
        self.listed += 1
        return sessions_of(self.hand.state, slot, SLOTS)


def test_what_is_over_ends_there_and_all_sessions_are_looked_through_once() -> None:
    home, homes = Node(), TwoNodes()
    far = FarNode(homes)
    ids = (f"c{number}" for number in range(100))
    names = [member_id(each, 7) for each in ids if slot_of(each, SLOTS) == HERE][:3]
    others = [member_id(each, 7) for each in ("d", "e", "f", "g") if slot_of(each, SLOTS) == THERE]
    assert others
    for each in (*names, *others):
        enters(far.hand, each)

    def has_left(*over: str) -> bool:
        far.hand.settle()
        told = home.members.over_at[THERE]
        return not any(each in told or each in far.hand.state.sessions for each in over)

    async def scenario() -> None:
        server = await far.opens()
        links = MemberLinks(cast(Homes, homes), HERE, (THERE,), lambda then: then())
        home.members.over_at[THERE][names[0]] = None  # it is told of before it has asked
        links.start(home.members)
        try:
            await wait_for(partial(has_left, *names), what="who has no session at home has none there")
            enters(far.hand, names[0])
            home.members.over_at[THERE][names[0]] = None
            await wait_for(partial(has_left, names[0]), what="nor who ends later")
            home.members.over_at[THERE][names[1]] = None
            await wait_for(partial(has_left, names[1]), what="nor who has ended before")
        finally:
            links.close()
            server.close()

    asyncio.run(scenario())
    assert all(each in far.hand.state.sessions for each in others), "they are of another slot's clients"
    assert far.listed == 1
