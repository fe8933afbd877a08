"""Whose place is counted although its end has come: the loop may not have read it yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listening_sockets import Listening
from embermq.edge.settings import ClientSettings
from embermq.model.counters import Counters

ADDRESS = "192.0.2.1"


def test_who_comes_to_a_full_address_waits_until_ends_that_have_come_are_read() -> None:
    counts = Admission(ClientSettings(connections_per_address_max=1), Counters())
    listening = cast(Any, SimpleNamespace(_admission=counts, _waiting_for_room=0))

    def arrived() -> tuple[ConnectionSlot, bool]:
        place = counts.arrive()
        assert place is not None
        counts.locate(place, ADDRESS)
        return place, place.refusal is None

    async def scenario() -> None:
        first, is_in = arrived()
        assert is_in
        coming = asyncio.create_task(Listening._room_for(listening, ADDRESS))
        other = asyncio.create_task(Listening._room_for(listening, "192.0.2.2"))
        await asyncio.sleep(0)
        assert (coming.done(), other.done()) == (False, True)
        counts.leave(first)  # its end is read now
        await asyncio.wait_for(coming, 60)
        assert arrived()[1]
        await asyncio.wait_for(Listening._room_for(listening, ADDRESS), 60)
        assert not arrived()[1], "nobody has left: it is looked for long enough, and no longer"
        assert listening._waiting_for_room == 0

    asyncio.run(scenario())
