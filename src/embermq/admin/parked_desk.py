"""Parked messages as an operator sees them and what may be done to them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence

import msgspec

from embermq.admin.durable import Durable, StoreAnswer, TickDriver
from embermq.admin.errors import NotFound
from embermq.admin.values import ParkedClientView, ParkedCount, ParkedDetail, ParkedView
from embermq.delivery.application.parking import Parking
from embermq.formats.log_record import decode_record, is_sound
from embermq.intake.broker import Broker
from embermq.model.moments import iso_s
from embermq.model.parked_message import ParkedMessage, ParkedStage
from embermq.model.session_writes import QueueState
from embermq.sessions.session import Session

STATES = {ParkedStage.PARKED: "parked", ParkedStage.DUE: "due", ParkedStage.UNDER_WAY: "under way"}
Numbers = Sequence[int] | None


class ParkedDesk:
    """Called on the event loop. `numbers` None is all of a client's messages; those that are not there, or are being
    sent again, are passed over. Raises NotFound for a client id without a session, and StoreError."""

    def __init__(self, broker: Broker, ticks: TickDriver, parking: Parking) -> None:
        self._broker = broker
        self._ticks = ticks
        self._durable = Durable(broker.state.tick, ticks)
        self._parking = parking

    def clients(self) -> Sequence[ParkedClientView]:
        """Who has something here, by client id."""
        return [
            ParkedClientView(client_id=client_id, messages=messages, parked=parked)
            for client_id, messages, parked in self._parking.clients()
        ]

    async def page(self, client_id: str, after: int, limit: int) -> Sequence[ParkedView]:
        """Up to `limit` of a client's messages with greater numbers."""
        found: StoreAnswer[Mapping[int, ParkedMessage | None]] = StoreAnswer()
        self._parking.page(self._find(client_id), after, limit, found)
        return [_view(one) for one in (await found).values() if one is not None]

    async def message(self, client_id: str, number: int) -> ParkedDetail:
        session = self._broker.state.sessions.get(client_id)
        found: ParkedMessage | None = None
        if session is not None:
            told: StoreAnswer[Mapping[int, ParkedMessage | None]] = StoreAnswer()
            self._parking.read(session, number, told)
            found = (await told)[number]
        if found is None:
            raise NotFound(f"the client {client_id!r} has no parked message {number}")
        return _detail(found)

    async def redrive(self, client_id: str, numbers: Numbers) -> ParkedCount:
        """Have messages sent again; returns when that is durable."""
        return await self._do(self._parking.redrive, client_id, numbers)

    async def delete(self, client_id: str, numbers: Numbers) -> ParkedCount:
        """Delete messages for good; returns when that is durable."""
        return await self._do(self._parking.delete, client_id, numbers)

    async def _do(
        self, what: Callable[[Session, Numbers], int], client_id: str, numbers: Numbers
    ) -> ParkedCount:
        session = self._find(client_id)
        self._ticks.look_at_clock()
        count = what(session, numbers)
        await self._durable()
        return ParkedCount(count)

    def _find(self, client_id: str) -> Session:
        found = self._broker.state.sessions.get(client_id)
        if found is None:
            elsewhere = self._broker.state.share.elsewhere(client_id)
            raise NotFound(f"there is no session of the client id {client_id!r}{elsewhere}")
        return found


def _view(found: ParkedMessage) -> ParkedView:
    return ParkedView(
        number=found.at.number,
        topic=found.topic,
        qos=found.at.qos,
        retain=found.retain,
        payload_bytes=found.payload_bytes,
        parked=iso_s(found.parked_ms),
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
        accepted=iso_s(message.accepted_ms) if message.accepted_ms else None,
        expires=iso_s(message.expires_ms) if message.expires_ms else None,
        properties={name: value for name, value in properties.items() if value not in (None, (), [])},
        **shown,
    )
