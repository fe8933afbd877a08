"""What the operation on rules takes and answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MESSAGES_MAX = 1_000

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
Partition = Annotated[int, Meta(ge=0, lt=1 << 16)]


class RuleMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a rule, as a record of the log."""

    number: Number
    record: bytes


class RuleFeedAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages that come of a partition of the log, in the order of their numbers, and below which number all is done.
    `begin` is where partitions start of which nothing is known, by partition. Without any of it nothing is changed."""

    begin: dict[Partition, Number] = {}
    partition: Partition = 0
    end: Number = 0
    messages: Annotated[tuple[RuleMessage, ...], Meta(max_length=MESSAGES_MAX)] = ()


class RuleFeedRequest(RuleFeedAsked, frozen=True, kw_only=True):
    """The same of one rule."""

    rule: Annotated[str, Meta(min_length=1, max_length=32)]


class RuleFeedTaken(Struct, frozen=True, kw_only=True):
    """Messages below `next` are in the log, by the partition that they come of; none for a rule that has not begun.
    `refused` says why the next one is not, "" when all were taken; where it `passes` the same one may be taken later.
    `is_of_queue`: the queue that it is for takes none at all."""

    next: dict[int, int]
    refused: str = ""
    passes: bool = False
    is_of_queue: bool = False
