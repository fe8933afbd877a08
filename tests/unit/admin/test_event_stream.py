"""Live events: bounded for each who follows, and for how many do."""

from __future__ import annotations

import asyncio

import pytest

from embermq.admin.errors import OperationRefused
from embermq.admin.event_stream import CLIENT, FIGURES, SUBSCRIBERS_MAX, WAITING_MAX, EventStream


def test_who_is_slow_hears_how_much_was_left_out_and_holds_up_nobody() -> None:
    async def scenario() -> None:
        stream = EventStream()
        slow = stream.subscribe(figures=False, clients=True)
        assert (await anext(slow)).startswith(b":")
        assert stream.wants(CLIENT) and not stream.wants(FIGURES)
        for number in range(WAITING_MAX + 5):
            stream.publish(CLIENT, number)
        stream.publish(FIGURES, 0)
        pieces = (await anext(slow)).decode().split("\n\n")[:-1]
        assert pieces[0] == "event: client\ndata: 0" and len(pieces) == WAITING_MAX + 1
        assert pieces[-1] == 'event: left_out\ndata: {"events":5}'
        stream.publish(CLIENT, "last")
        assert await anext(slow) == b'event: client\ndata: "last"\n\n'
        stream.close()
        assert [piece async for piece in slow] == []

    asyncio.run(scenario())


def test_a_place_is_free_again_when_its_iterator_is_gone() -> None:
    async def scenario() -> None:
        stream = EventStream()
        held = [stream.subscribe(figures=True, clients=True) for _ in range(SUBSCRIBERS_MAX)]
        with pytest.raises(OperationRefused, match="as many as there may be"):
            stream.subscribe(figures=True, clients=True)
        held.pop()  # nobody has begun to read it
        held.append(stream.subscribe(figures=True, clients=True))
        await anext(held[-1])
        await held.pop().aclose()  # type: ignore[attr-defined]
        stream.subscribe(figures=True, clients=True)

    asyncio.run(scenario())
