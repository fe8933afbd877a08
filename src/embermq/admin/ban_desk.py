"""Bans: who may not come in for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from embermq.access.bans import Ban, BanKind, Bans, address_banned
from embermq.admin.durable import TickDriver
from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.values import BanPut, BanRequest, BanView, ListBansRequest, PutBanRequest
from embermq.model.moments import iso_s
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.queues.durations import parse_duration
from embermq.sessions.link import Link
from embermq.sessions.state import BrokerState

BANS_MAX = 10_000


class BanStore(Protocol):
    """Keeps bans durably. Tells the desk, on the event loop, what bans there are: of a change that it was asked for
    before the call returns. Calls may come from any thread, and raise StoreError."""

    def put(self, ban: Ban) -> None:
        """Keep it durably, in place of one of the same kind and value; `since_ms` is now. Raises OperationRefused when
        there is no room."""
        ...

    def lift(self, ban: Ban) -> None:
        """Remove a ban, durably."""
        ...


class BanDesk:
    """Called on the event loop. A ban is in force once it is stored."""

    def __init__(self, state: BrokerState, ticks: TickDriver, store: BanStore) -> None:
        self._state = state
        self._ticks = ticks
        self._store = store
        self._turn = asyncio.Lock()
        self._put: Ban | None = None
        self._sent_away = 0
        """By what is put."""

    def told(self, bans: Bans) -> None:
        """There are these now: those who are here and may not be are sent away; their sessions stay."""
        new = bans.not_in(self._state.bans)
        self._state.bans = bans
        if self._put in new:
            self._sent_away = self._send_away([self._put])
        self._send_away(new)

    def page(self, asked: ListBansRequest) -> Sequence[BanView]:
        """Up to `limit` in force, by kind and value."""
        behind = (asked.after_kind, asked.after)
        found = (one for one in self._in_force() if (one.kind.value, one.value) > behind)
        return [_view(one) for one, _ in zip(found, range(asked.limit), strict=False)]

    async def put(self, asked: PutBanRequest) -> BanPut:
        """Ban, and send those away who are here. Returns when it is stored."""
        lasts_ms = _lasts_ms(asked.lasts)
        async with self._turn:
            self._ticks.look_at_clock()
            now_ms = self._state.tick.date_ms
            until_ms = now_ms + lasts_ms if lasts_ms else 0
            ban = Ban(BanKind(asked.kind), _value(asked), now_ms, until_ms, asked.reason)
            others = [one for one in self._in_force() if (one.kind, one.value) != (ban.kind, ban.value)]
            own = f"{asked.caller}:0"
            if not asked.even_own and Bans([ban]).find("", "", own, now_ms) is not None:
                raise OperationRefused(
                    f"{ban.value} has the address that asks, {asked.caller}: say even_own if it is meant"
                )
            if len(others) >= BANS_MAX:
                raise OperationRefused(f"there may be {BANS_MAX} bans; lift others first")
            self._put, self._sent_away = ban, 0
            await asyncio.to_thread(self._store.put, ban)
            return BanPut(ban=_view(ban), disconnected=self._sent_away)

    async def lift(self, asked: BanRequest) -> None:
        """Returns when that is stored. Raises NotFound."""
        async with self._turn:
            wanted = (asked.kind, _value(asked))
            found = next((one for one in self._in_force() if (one.kind, one.value) == wanted), None)
            if found is None:
                raise NotFound(f"there is no ban of the {asked.kind} {asked.value[:80]!r}")
            await asyncio.to_thread(self._store.lift, found)

    def _in_force(self) -> list[Ban]:
        return self._state.bans.all(self._state.tick.date_ms)

    def _send_away(self, new: Sequence[Ban]) -> int:
        bans, date_ms = Bans(new), self._state.tick.date_ms
        unwelcome = [
            link
            for session in (self._state.sessions.loaded if new else ())
            for link in (session.link, session.claimant)
            if link is not None
            and not link.closing
            and bans.find(session.client_id, _user(link), link.peer, date_ms)
        ]
        if unwelcome:
            self._ticks.look_at_clock()
            for link in unwelcome:
                link.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, "it is banned")
            self._ticks.wake()
        return len(unwelcome)


def _user(link: Link) -> str:
    return link.identity.username if link.identity is not None else ""


def _lasts_ms(text: str) -> int:
    if not text:
        return 0
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise RequestRefused(f"lasts: {error}") from None
    if not found:
        raise RequestRefused(f"lasts: {text} is over at once")
    return found


def _value(asked: BanRequest) -> str:
    if asked.kind != BanKind.ADDRESS.value:
        return asked.value
    try:
        return address_banned(asked.value)
    except ValueError as error:
        raise RequestRefused(f"value: {error}") from None


def _view(ban: Ban) -> BanView:
    return BanView(
        kind=ban.kind.value,
        value=ban.value,
        since=iso_s(ban.since_ms),
        until=iso_s(ban.until_ms) if ban.until_ms else None,
        reason=ban.reason,
    )
