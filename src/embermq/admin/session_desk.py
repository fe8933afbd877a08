"""Sessions as an operator sees them and what may be done to them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import partial
from heapq import nsmallest
from itertools import chain
from typing import TypeVar

from embermq.admin.durable import TickDriver, Waiter
from embermq.admin.errors import LogsRefused, NotFound, OperationRefused
from embermq.admin.session_values import (
    SUBSCRIPTIONS_MAX,
    ApplicationLogView,
    ConnectionView,
    ListClientsRequest,
    PinView,
    RestoredLog,
    SessionDetail,
    SessionView,
    SubscriptionView,
    UnacknowledgedView,
)
from embermq.delivery.application.log_lifecycle import LogLifecycle
from embermq.durability.retention import RetentionState
from embermq.intake.broker import Broker
from embermq.model.moments import iso_s
from embermq.model.position import offset_of, partition_of
from embermq.mqtt.value import replace
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.routing.router import Subscriber
from embermq.sessions.link import Link
from embermq.sessions.listener_terms import VERSION_NAMES
from embermq.sessions.member_ids import client_of, is_member_id
from embermq.sessions.session import Session
from embermq.sessions.session_table import SessionTable
from embermq.sessions.tick import Tick

Answer = TypeVar("Answer")

TOPICS_MAX = 100
"""Topics that are named of one session."""
LOOKED_AT_ONCE = 5_000
"""Sessions that are looked at before the event loop gets its turn."""


class SessionDesk:
    """`retained` gives the last round of retention, None before the first. `log_life` is None without application logs
    of their own."""

    def __init__(
        self,
        broker: Broker,
        ticks: TickDriver,
        retained: Callable[[], RetentionState | None],
        log_life: LogLifecycle | None = None,
    ) -> None:
        self._broker = broker
        self._ticks = ticks
        self._retained = retained
        self._life = log_life

    async def sessions(self, asked: ListClientsRequest) -> Sequence[SessionView]:
        """Up to `limit` sessions that the filters fit and whose client id sorts behind `after`, in that order."""
        sessions = self._broker.state.sessions
        fits = _Filter(asked, sessions)
        ids, best = list(sessions), list[str]()
        for start in range(0, len(ids), LOOKED_AT_ONCE):
            found = filter(fits, ids[start : start + LOOKED_AT_ONCE])
            best = nsmallest(asked.limit, chain(best, found))
            if start + LOOKED_AT_ONCE < len(ids):
                await asyncio.sleep(0)
        behind = self._behind()
        there = (sessions.get(client_id) for client_id in best)
        return [self._view(session, behind) for session in there if session is not None]

    def session(self, client_id: str) -> SessionDetail:
        """One of them. Raises NotFound."""
        found = self._find(client_id)
        return SessionDetail(
            session=self._view(found, self._behind()),
            connection=_connection(found.link, self._broker.state.tick) if found.link is not None else None,
            subscriptions=self.subscriptions(client_id, "", SUBSCRIPTIONS_MAX),
            queues=nsmallest(SUBSCRIPTIONS_MAX, found.queue_filters),
            unacknowledged=_unacknowledged(found),
        )

    def subscriptions(self, client_id: str, after: str, limit: int) -> Sequence[SubscriptionView]:
        """Up to `limit` of a client whose filter sorts behind `after`, in that order. Raises NotFound."""
        held = self._find(client_id).subscriptions
        names = nsmallest(limit, (name for name in held if name > after))
        return [_subscription(name, held[name]) for name in names]

    def pins(self) -> Sequence[PinView]:
        """Who reads the message log, furthest behind first."""
        retained = self._retained()
        if retained is None:
            return []
        return [
            PinView(
                reader=pin.name,
                partition=partition_of(pin.next_offset),
                next_offset=offset_of(pin.next_offset),
                behind=pin.behind,
            )
            for pin in retained.pins
        ]

    def disconnect(self, client_id: str) -> None:
        """End the client's connection with 0x98; a kept session stays. Raises NotFound, and Refused without one."""
        session = self._find(client_id)
        link = session.link or session.claimant
        if link is None or link.closing:
            raise OperationRefused(f"the client {client_id!r} is not connected")
        self._ticks.look_at_clock()
        link.disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
        self._ticks.wake()

    async def delete(self, client_id: str) -> None:
        """End session and connection, queue and subscriptions included; returns when that is durable. Raises
        NotFound, and Refused for a part of another session: its client would not hear that it is a member no more."""
        session = self._find(client_id)
        if is_member_id(client_id):
            raise OperationRefused(
                f"{client_id!r} is the part of a client's session that is at this slot, and ends with it: end that of "
                f"{client_of(client_id)!r}"
            )
        self._ticks.look_at_clock()
        durable = Waiter()
        self._broker.connecting.remove(session, durable)
        self._ticks.wake()
        await durable

    async def give(self, client_id: str, username: str) -> None:
        """From now on the session belongs to this user; returns when that is durable. Raises NotFound, and Refused
        when it is not kept."""
        session = self._find(client_id)
        self._ticks.look_at_clock()
        durable = Waiter()
        if not self._broker.connecting.give(session, username, durable):
            raise OperationRefused(f"the session of {client_id!r} is not kept: it ends with its connection")
        self._ticks.wake()
        await durable

    async def application_logs(self) -> Sequence[ApplicationLogView]:
        """Every application log that is kept in a store of its own, by name. Raises LogsRefused."""
        found = await self._ask(self._log_life().overview)
        return [
            ApplicationLogView(
                name=one.name,
                client_id=one.client_id,
                groups=one.groups,
                records=one.records,
                lag=one.lag,
                problem=one.problem,
            )
            for one in found
        ]

    async def clean_application_logs(self, names: Sequence[str]) -> Sequence[str]:
        """Delete those that nobody reads; returns which they were. Raises LogsRefused."""
        return await self._ask(partial(self._log_life().clean, names))

    async def restore_application_log(self, name: str) -> RestoredLog:
        """The pipeline has a record for a log that is not there: make it again and return None; or, when nobody wants
        it, the newest session generation there has been. Raises LogsRefused."""
        return RestoredLog(await self._ask(partial(self._log_life().restore, name)))

    def _find(self, client_id: str) -> Session:
        found = self._broker.state.sessions.get(client_id)
        if found is None:
            elsewhere = self._broker.state.share.elsewhere(client_id)
            raise NotFound(f"there is no session of the client id {client_id!r}{elsewhere}")
        return found

    def _view(self, session: Session, behind: dict[int, int]) -> SessionView:
        view = _view(session, behind, self._broker.state.tick)
        if self._life is None or not session.is_application:
            return view
        return replace(view, log=self._life.name(session), behind=None)

    def _log_life(self) -> LogLifecycle:
        if self._life is None:
            raise LogsRefused("application logs are a part of the message log: there is none beside it")
        return self._life

    async def _ask(self, question: Callable[[Callable[[Answer | StoreError], None]], None]) -> Answer:
        answered: asyncio.Future[Answer | StoreError] = asyncio.get_running_loop().create_future()

        def then(answer: Answer | StoreError) -> None:
            if not answered.done():  # who asked may have left
                answered.set_result(answer)

        question(then)
        answer = await answered
        if isinstance(answer, StoreError):
            raise LogsRefused(str(answer))
        return answer

    def _behind(self) -> dict[int, int]:
        """Generation of an APPLICATION session -> records that it has not confirmed."""
        retained = self._retained()
        if retained is None:
            return {}
        return {pin.generation: pin.behind for pin in retained.pins if pin.generation}


class _Filter:
    """Whether a client is asked for. Sessions that are put away stay so: they are of DEVICE clients that are away."""

    def __init__(self, asked: ListClientsRequest, sessions: SessionTable) -> None:
        self._asked = asked
        self._sessions = sessions
        self._match = re.compile(translate(asked.match)).match if asked.match != "*" else None

    def __call__(self, client_id: str) -> bool:
        asked = self._asked
        if client_id <= asked.after or (self._match is not None and not self._match(client_id)):
            return False
        if not asked.user and asked.connected is None and asked.type is None:
            return True
        session = self._sessions.get_loaded(client_id)
        if session is None:
            if asked.connected or asked.type == "application":
                return False
            absent = self._sessions.get_absent(client_id)
            return absent is not None and asked.user in ("", absent.account.user)
        return (
            (asked.connected is None or asked.connected == (session.link is not None))
            and asked.type in (None, session.client_type.name.lower())
            and asked.user in ("", session.username, _connected_as(session))
        )


def _connected_as(session: Session) -> str:
    link = session.link
    return link.identity.username if link is not None and link.identity is not None else ""


def _connection(link: Link, tick: Tick) -> ConnectionView:
    return ConnectionView(
        peer=link.peer,
        listener=link.listener,
        version=VERSION_NAMES[ProtocolVersion(link.version)],
        username=link.identity.username if link.identity is not None else "",
        connected=iso_s(tick.to_date(link.opened_ms)),
        silent_s=max(0, tick.now_ms - link.last_ms) / 1000,
        keep_alive_s=link.keep_alive_ms / 1000,
        window_max=link.session.client_window_max if link.session is not None else 0,
        packet_bytes_max=link.packet_bytes_max,
        unanswered=link.unanswered,
        unsent_bytes=link.unsent_bytes() or 0,
    )


def _view(session: Session, behind: dict[int, int], tick: Tick) -> SessionView:
    link = session.link
    return SessionView(
        client_id=session.client_id,
        type=session.client_type.name.lower(),
        username=session.username,
        connected_as=_connected_as(session),
        version=VERSION_NAMES[ProtocolVersion(session.version)],
        connected=link is not None,
        peer=link.peer if link is not None else "",
        kept=session.persistent,
        expiry_interval_s=session.expiry_interval_s,
        expires=iso_s(tick.to_date(session.expires_ms)) if session.expires_ms else None,
        created=iso_s(session.created_ms),
        subscriptions=len(session.subscriptions),
        queued=session.queued,
        waiting=len(session.waiting or ()) + len(session.resend or ()),
        in_flight=len(session.window),
        receiving=len(session.receiving or ()),
        behind=behind.get(session.generation, 0) if session.is_application else None,
    )


def _subscription(topic_filter: str, subscriber: Subscriber) -> SubscriptionView:
    return SubscriptionView(
        topic_filter=topic_filter,
        qos=subscriber.qos,
        no_local=subscriber.no_local,
        retain_as_published=subscriber.retain_as_published,
        retain_handling=subscriber.retain_handling,
        identifier=subscriber.identifier,
    )


def _unacknowledged(session: Session) -> list[UnacknowledgedView]:
    """Retained messages and those of durable queues and application logs have no position of their own here."""
    positions: dict[str, list[int]] = {}
    if not session.is_application:
        for delivery in chain(session.window.values(), session.resend or (), session.waiting or ()):
            if delivery.offset >= 0 and not (delivery.from_queue or delivery.released):
                positions.setdefault(delivery.message.topic, []).append(delivery.offset)
    oldest = nsmallest(TOPICS_MAX, ((min(found), topic) for topic, found in positions.items()))
    return [
        UnacknowledgedView(
            topic=topic,
            partition=partition_of(position),
            offset=offset_of(position),
            messages=len(positions[topic]),
        )
        for position, topic in oldest
    ]
