"""Messages that come in once more: those of a replay, and what rules make of messages, each number once."""

from __future__ import annotations

import asyncio
from functools import partial

from embermq.admin.durable import Durable, TickDriver
from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.values import ReplayRequest, ReplayTaken, RuleFeedRequest, RuleFeedTaken
from embermq.formats.log_record import FIELD_RULES, LogRecord, RecordError, decode_record
from embermq.intake.broker import Broker
from embermq.intake.replaying import Replaying
from embermq.model.message import Message
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.sessions.session import Session
from embermq.sessions.tick import PublishRefusal, RecordFields

NOT_STORED = PublishRefusal(ReasonCode.QUOTA_EXCEEDED, "the messages could not be stored", passes=True)


class ReplayDesk:
    """Called on the event loop."""

    def __init__(self, broker: Broker, ticks: TickDriver) -> None:
        self._broker = broker
        self._ticks = ticks
        self._durable = Durable(broker.state.tick, ticks)
        self._replaying = Replaying(broker.state, broker.publishing)
        self._turn = asyncio.Lock()

    async def take(self, asked: ReplayRequest) -> ReplayTaken:
        """Take what is missing of a piece; returns when that is durable. Raises RequestRefused, NotFound, and
        OperationRefused for an application that is none and for a piece behind one that is missing."""
        try:
            records = [None if one is None else decode_record(one) for one in asked.messages]
        except RecordError as error:
            raise RequestRefused(f"messages: {error}") from error
        messages = [None if one is None else one.message for one in records]
        marks = {number: _marks(one) for number, one in enumerate(records, asked.first) if one is not None}
        async with self._turn:  # one piece after the other: the next one counts on this one
            self._ticks.look_at_clock()
            replay = asked.replay
            if asked.first > self._replaying.next_of(replay):
                raise OperationRefused(
                    f"the replay {replay} goes on with message {self._replaying.next_of(replay)}, not {asked.first}"
                )
            session = self._application(asked.client) if asked.client else None
            before = self._replaying.next_of(replay)
            refusal = self._replaying.take(replay, asked.first, messages, session, marks)
            taken = self._replaying.next_of(replay)
            await self._durable()
            stored = self._replaying.next_of(replay)
            new = messages[before - asked.first : stored - asked.first]
            self._broker.state.counters.messages_replayed += sum(one is not None for one in new)
        if stored < taken:  # their tick was refused, and this one was not
            refusal = NOT_STORED
        if refusal is None:
            return ReplayTaken(next=stored)
        return ReplayTaken(next=stored, refused=refusal.text, passes=refusal.passes)

    def _application(self, client_id: str) -> Session:
        found = self._broker.state.sessions.get(client_id)
        if found is None:
            raise NotFound(f"there is no session of the client id {client_id!r}")
        if not found.is_application:
            raise OperationRefused(
                f"the client {client_id!r} has no application log: it is no APPLICATION client with a kept session;"
                " --topic reaches whoever has subscribed"
            )
        return found


def _marks(record: LogRecord) -> RecordFields:
    """Which rules it comes of: they do not see it again."""
    return tuple(field for field in record.unknown_fields if field[0] == FIELD_RULES)


_Taken = list[tuple[int, RecordFields, Message]]


class RuleFeedDesk:
    """Called on the event loop."""

    def __init__(self, broker: Broker, ticks: TickDriver) -> None:
        self._broker = broker
        self._ticks = ticks
        self._durable = Durable(broker.state.tick, ticks)
        self._replaying = Replaying(broker.state, broker.publishing)
        self._turn = asyncio.Lock()

    async def take(self, asked: RuleFeedRequest) -> RuleFeedTaken:
        """Take what is missing; returns when that is durable. Raises RequestRefused for what is no message of this
        rule, and OperationRefused for a rule that has not begun."""
        rule, partition, messages = asked.rule, asked.partition, _decoded(asked)
        places = partial(self._replaying.places_of_rule, rule)
        async with self._turn:
            self._ticks.look_at_clock()
            if asked.begin.keys() - places().keys():
                self._replaying.begin_rule(rule, asked.begin)
                await self._durable()
            if not messages and not asked.end:
                return RuleFeedTaken(next=places())
            known = places().get(partition)
            if known is None:
                raise OperationRefused(
                    f"the rule {rule} has not begun in partition {partition}: `begin` says where"
                )
            refusal = self._replaying.take_of_rule(rule, partition, messages, asked.end)
            taken = places()[partition]
            await self._durable()
            stored = places()
            self._broker.state.counters.messages_of_rules += sum(
                known <= number < stored[partition] for number, _, _ in messages
            )
        if stored[partition] < taken:  # their tick was refused, and this one was not
            refusal = NOT_STORED
        if refusal is None:
            return RuleFeedTaken(next=stored)
        return RuleFeedTaken(
            next=stored, refused=refusal.text, passes=refusal.passes, is_of_queue=refusal.is_of_queue
        )


def _decoded(asked: RuleFeedRequest) -> _Taken:
    found: _Taken = []
    last = -1
    for one in asked.messages:
        if one.number <= last:
            raise RequestRefused(f"messages: number {one.number} is not behind {last}")
        last = one.number
        try:
            record = decode_record(one.record)
        except RecordError as error:
            raise RequestRefused(f"messages: {error}") from error
        fields = tuple(field for field in record.unknown_fields if field[0] == FIELD_RULES)
        if len(fields) != 1 or asked.rule not in fields[0][1].decode(errors="replace").split(","):
            raise RequestRefused(f"messages: number {one.number} does not say that it comes of {asked.rule}")
        found.append((one.number, fields, record.message))
    return found
