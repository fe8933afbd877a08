"""Bans of addresses that failed too often to prove who they are."""

from __future__ import annotations

import asyncio
import logging

from embermq.access.bans import BanKind
from embermq.admin.access_operations import PUT_BAN
from embermq.admin.ban_desk import BanDesk
from embermq.admin.ban_values import PutBanRequest
from embermq.admin.errors import OperationRefused
from embermq.admin.trail import Trail, recorded
from embermq.ports.errors import StoreError

LOG = logging.getLogger("embermq.server")
BY = "the broker"


class FailureBans:
    """Bans as an operator would, with the same trace."""

    def __init__(self, desk: BanDesk, trail: Trail, *, failures: int, lasts_s: int) -> None:
        self._desk = desk
        self._trail = trail
        self._failures = failures
        self._lasts_s = lasts_s
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def ban(self, address: str) -> None:
        """Begin to; called on the event loop."""
        if address not in self._under_way:
            task = self._under_way[address] = asyncio.get_running_loop().create_task(self._ban(address))
            task.add_done_callback(lambda _: self._under_way.pop(address))

    async def _ban(self, address: str) -> None:
        reason = f"{self._failures} wrong credentials"
        asked = PutBanRequest(
            kind=BanKind.ADDRESS.value, value=address, lasts=f"{self._lasts_s}s", reason=reason
        )
        try:
            async with recorded(self._trail, PUT_BAN, asked, by=BY, peer="", over="failures"):
                put = await self._desk.put(asked)
        except (OperationRefused, StoreError) as error:
            LOG.error("an address could not be banned: %s", error, extra={"address": address})
            return
        found = {
            "address": address,
            "until": put.ban.until,
            "reason": reason,
            "disconnected": put.disconnected,
        }
        LOG.warning("address banned", extra=found)
