"""What comes to a queue, waits in it and leaves it."""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto

from msgspec import Struct, field

from embermq.model.queue_rows import DeadLetter, DelayedRow, EntryRow
from embermq.queues.message_status import Handed
from embermq.queues.names import Verb
from embermq.queues.publication import Stamps


class Fate(Enum):
    """What becomes of a publish that is not refused."""

    ENQUEUED = auto()
    DELAYED = auto()
    REPEATED = auto()
    """Known by its dedup id: acknowledged, not enqueued."""
    DROPPED = auto()
    """The queue is full and drops what is new: acknowledged, counted."""


class Acceptance(Struct, frozen=True, gc=False):
    """`ticket` is for `commit` or `withdraw`; -1 when nothing waits for the record."""

    fate: Fate
    ticket: int = -1


class ConsumerDelivery(Struct, frozen=True, gc=False):
    """A message for a consumer; its body is the record at `offset`. `handed` is no other delivery's."""

    queue: str
    client_id: str
    epoch: int
    offset: int
    expires_ms: int
    stamps: Stamps
    handed: Handed


class Burial(Struct, frozen=True):
    """A dead letter on its way to queue `target`; it was number `sequence` of the one that it comes from."""

    target: str
    sequence: int
    offset: int
    key: str | None
    letter: DeadLetter
    record_bytes: int


class Returned(Struct):
    """What became of dead letters that were to go back. Those stay that are `held` by a consumer of the dead-letter
    queue; `orphaned` ones, by the name of the queue that they come from, which is not there any more; and `crowded`
    ones, by the name of a queue where their group was removed and there are as many others as may be. What was no dead
    letter is none of these."""

    put_back: int = 0
    held: int = 0
    orphaned: Counter[str] = field(default_factory=Counter)
    crowded: Counter[str] = field(default_factory=Counter)

    def add(self, more: Returned) -> None:
        """Add the counts of a further step."""
        self.put_back += more.put_back
        self.held += more.held
        self.orphaned += more.orphaned
        self.crowded += more.crowded


class Pending(Struct, frozen=True, gc=False):
    """A message whose record is not durable yet."""

    row: EntryRow | DelayedRow
    dedup_id: str | None


class QueueCounts(Struct):
    """What has happened in a queue since the broker began, one for each group. `enqueued` are publishes that are
    durable, `delivered` messages that were handed to a consumer, again or for the first time."""

    enqueued: int = 0
    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    purged: int = 0
    retried: int = 0
    """Dead letters that came back to it."""

    def settled(self, verb: Verb) -> None:
        """A consumer has settled a message."""
        if verb is Verb.ACK:
            self.acked += 1
        elif verb is Verb.NACK:
            self.nacked += 1
        elif verb is Verb.REJECT:
            self.rejected += 1
