"""What an operator is told of a session's end, and when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.support.hand_driven import HandDrivenBroker

from embermq.admin.session_desk import SessionDesk

TURN_S = 0.05


def test_delete_returns_when_it_is_durable() -> None:
    hand = HandDrivenBroker()
    hand.connects("c", expiry_s=60)
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = SessionDesk(hand.broker, ticks, lambda: None)

    async def scenario() -> None:
        hand.held = True
        deleting = asyncio.create_task(desk.delete("c"))
        await asyncio.wait({deleting}, timeout=TURN_S)
        hand.run()
        await asyncio.wait({deleting}, timeout=TURN_S)
        assert not deleting.done()
        hand.finish_commit()
        await asyncio.wait_for(deleting, 30)

    asyncio.run(scenario())
    assert "c" not in hand.restarted().state.sessions
