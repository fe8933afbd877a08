"""Parked messages as an operator sees them and what may be done to them; see `admin.parked_service`."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec

from embermq.admin.parked_service import ParkedClientView, ParkedDetail, ParkedView
from embermq.delivery.application.parking import Parking
from embermq.edge.tick_loop import TickLoop
from embermq.formats.log_record import decode_record, is_sound
from embermq.intake.broker import Broker
from embermq.model.parked_message import ParkedMessage, ParkedStage
from embermq.model.session_writes import QueueState
from embermq.sessions.session import Session

STATES = {ParkedStage.PARKED: "parked", ParkedStage.DUE: "due", ParkedStage.UNDER_WAY: "under way"}
Numbers = Sequence[int] | None


class ParkedDesk:
    """See the façade."""

    def __init__(self, broker: Broker, ticks: TickLoop, parking: Parking) -> None:
        self._broker = broker
        self._ticks = ticks
        self._parking = parking

    def clients(self) -> Sequence[ParkedClientView]:
        return [
            ParkedClientView(client_id=client_id, messages=messages, parked=parked)
            for client_id, messages, parked in self._parking.clients()
        ]

    def page(self, client_id: str, after: int, limit: int) -> Sequence[ParkedView] | None:
        session = self._session(client_id)
        if session is None:
            return None
        return [_view(found) for found in self._parking.page(session, after, limit)]

    def message(self, client_id: str, number: int) -> ParkedDetail | None:
        session = self._session(client_id)
        found = None if session is None else self._parking.read(session, number)
        return None if found is None else _detail(found)

    async def redrive(self, client_id: str, numbers: Numbers) -> int | None:
        return await self._do(self._parking.redrive, client_id, numbers)

    async def delete(self, client_id: str, numbers: Numbers) -> int | None:
        return await self._do(self._parking.delete, client_id, numbers)

    async def _do(
        self, what: Callable[[Session, Numbers], int], client_id: str, numbers: Numbers
    ) -> int | None:
        session = self._session(client_id)
        if session is None:
            return None
        self._ticks.look_at_clock()
        count = what(session, numbers)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broker.state.tick.batch.after_commit.append(partial(_tell, durable))
        self._ticks.wake()
        await durable
        return count

    def _session(self, client_id: str) -> Session | None:
        return self._broker.state.sessions.get(client_id)


def _tell(durable: asyncio.Future[None]) -> None:
    if not durable.done():  # who asked may have left
        durable.set_result(None)


def _view(found: ParkedMessage) -> ParkedView:
    return ParkedView(
        number=found.at.number,
        topic=found.topic,
        qos=found.at.qos,
        retain=found.retain,
        payload_bytes=found.payload_bytes,
        parked=_time(found.parked_ms),
        attempts=found.attempts,
        state=STATES[ParkedStage(found.at.stage)],
        received=found.at.state == QueueState.RELEASED,
    )


def _detail(found: ParkedMessage) -> ParkedDetail:
    if not found.record or not is_sound(found.record):
        return ParkedDetail(about=_view(found), publisher="", accepted=None, expires=None, properties={})
    message = decode_record(found.record).message
    properties = msgspec.to_builtins(message.properties) if message.properties is not None else {}
    shown: dict[str, str] = {}
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = b64encode(message.payload).decode()
    return ParkedDetail(
        about=_view(found),
        publisher=message.publisher,
        accepted=_time(message.accepted_ms) if message.accepted_ms else None,
        expires=_time(message.expires_ms) if message.expires_ms else None,
        properties={name: value for name, value in properties.items() if value not in (None, (), [])},
        **shown,
    )


def _time(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="seconds")
