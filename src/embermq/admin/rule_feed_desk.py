"""Rules: what they make of messages comes in, each number once."""

from __future__ import annotations

import asyncio
from functools import partial

from embermq.admin.durable import Durable, TickDriver
from embermq.admin.errors import OperationRefused, RequestRefused
from embermq.admin.replay_desk import NOT_STORED
from embermq.admin.rule_feed_values import RuleFeedRequest, RuleFeedTaken
from embermq.formats.log_record import FIELD_RULES, RecordError, decode_record
from embermq.intake.broker import Broker
from embermq.intake.replaying import Replaying
from embermq.model.message import Message
from embermq.sessions.tick import RecordFields

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
