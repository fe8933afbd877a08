"""From CONNECT to its answer: who the client is, by what it brings at once or by an exchange of AUTH packets."""

import asyncio
import logging
import traceback
from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from embermq.access.authentication.gate import Exchange, Gate, Visitor
from embermq.access.authentication.identity import Identity, MethodStep, Question, Refusal
from embermq.edge.tick_loop import TickLoop
from embermq.intake.broker import Broker
from embermq.mqtt.wire.packets import Connect, Packet
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.sessions.client_events import EventKind, words
from embermq.sessions.connecting import UNKNOWN_METHOD

if TYPE_CHECKING:
    from embermq.edge.connection import Connection

LOG = logging.getLogger("embermq.server")
Answer = TypeVar("Answer")


class ConnectCheck:
    """Asks the gate for the connections of one listener; what takes long goes on beside everything else."""

    def __init__(self, broker: Broker, ticks: TickLoop, gate: Gate, limit_ms: int) -> None:
        self._broker = broker
        self._ticks = ticks
        self._gate = gate
        self._limit_ms = limit_ms
        self._checks: set[asyncio.Task[None]] = set()

    def enter(self, guest: "Connection", packet: Connect, rest: list[Packet], visitor: Visitor) -> None:
        """Decide about a CONNECT; `rest` is what the client sent behind it."""
        if self._broker.connecting.is_banned(guest):  # before it costs a check of its password
            return
        properties = packet.properties
        if properties is not None and properties.authentication_method is not None:
            guest.exchange = self._gate.exchange(properties.authentication_method, packet.client_id, visitor)
            self._begin_exchange(guest, packet, rest)
            return
        guest.inbox = rest
        answer = self._gate.admit(packet, visitor)
        if answer is None:
            guest.left = asyncio.get_running_loop().create_future()
            self._run(self._check(guest, packet, replace(visitor, left=guest.left)))
        else:
            self._answer(guest, packet, answer)

    async def _check(self, guest: "Connection", packet: Connect, visitor: Visitor) -> None:
        answer = await _unharmed(self._gate.check(packet, visitor))
        if guest.closing:
            self._tell_of_the_gone(guest, answer)
        else:
            self._ticks.wake()
            self._answer(guest, packet, answer)

    def _tell_of_the_gone(self, guest: "Connection", answer: object) -> None:
        """Who leaves before a refusal has guessed nevertheless."""
        if isinstance(answer, Refusal):
            why = answer.why or words(answer.code)
            self._broker.state.tell(guest.event(EventKind.LOGIN_FAILED, why, answer.code))

    def _answer(self, guest: "Connection", packet: Connect, answer: Identity | Refusal) -> None:
        connecting = self._broker.connecting
        if isinstance(answer, Identity):
            connecting.connect(guest, packet, answer)
        else:
            why = answer.why or words(answer.code)
            connecting.refuse(guest, answer.code, kind=EventKind.LOGIN_FAILED, why=why)

    def _begin_exchange(self, guest: "Connection", packet: Connect, rest: list[Packet]) -> None:
        if guest.exchange is None:
            self._broker.connecting.refuse(
                guest, ReasonCode.BAD_AUTHENTICATION_METHOD, UNKNOWN_METHOD, kind=EventKind.LOGIN_FAILED
            )
            return
        self._broker.authenticating.begin(guest, packet, limit_ms=self._limit_ms)
        if rest:
            self._broker.handle(guest, rest)

    def go_on(self, guest: "Connection", data: bytes | None, visitor: Visitor | None) -> None:
        """The next step of the exchange, or with a `visitor` the first one of another for a client that has entered."""
        authentication, session = guest.authentication, guest.session
        if visitor is not None and session is not None and authentication is not None:
            guest.exchange = self._gate.exchange(authentication.method, session.client_id, visitor)
        self._run(self._take_step(guest, guest.exchange, data))

    async def _take_step(self, guest: "Connection", exchange: Exchange | None, data: bytes | None) -> None:
        step: MethodStep = Refusal(ReasonCode.NOT_AUTHORIZED, UNKNOWN_METHOD)
        if exchange is not None:
            step = await _unharmed(exchange.step(data))
        if not isinstance(step, Question):
            guest.exchange = None
        if guest.closing:
            self._tell_of_the_gone(guest, step)
        else:
            self._ticks.wake()
            self._broker.authenticating.answered(guest, step)

    def _run(self, check: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(check)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def stop(self) -> None:
        """Drop what is still being found out."""
        for check in list(self._checks):
            check.cancel()


async def _unharmed(check: Coroutine[None, None, Answer]) -> Answer | Refusal:
    """The answer of a check; a defect in it must not leave the client without one. What was raised may hold what the
    client showed, so only its kind and place are told. A MemoryError goes to the event loop: it ends the process."""
    try:
        return await check
    except MemoryError:
        raise MemoryError from None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        LOG.error(
            "a client could not be authenticated: %s in %s:%s",
            type(error).__name__,
            place.filename,
            place.lineno,
        )
        return Refusal(ReasonCode.SERVER_UNAVAILABLE, "the check failed")
