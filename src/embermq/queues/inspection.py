"""What operators see of queues: figures, groups, consumers, single messages, dead letters.

Reading only. What is asked once in a while may look at all consumers and groups; only what pages through messages looks
at messages, up to a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from embermq.model.queue_rows import Attempts, DeadLetter, DeadLetterReason, DelayedRow, MessageState
from embermq.queues.deadlines import NEVER_MS
from embermq.queues.names import kind_of
from embermq.queues.settling import message_id_of

if TYPE_CHECKING:  # commands read the values, and need not wait for all of queues
    from embermq.queues.consumer import Consumer
    from embermq.queues.group import Group
    from embermq.queues.queue import Queue

REASONS = tuple(value for name, value in vars(DeadLetterReason).items() if name.isupper())
"""Why messages become dead letters."""
QUANTILES = (0.5, 0.95, 0.99)
LOOKED_AT_MAX = 2_000
"""Messages that one search for dead letters looks at before clients have their turn: some milliseconds."""


class QueueStats(Struct, frozen=True, kw_only=True):
    """One queue as it is now. `depth` are messages that the slowest group has not settled, the delayed ones with them.
    `idle_groups` have no consumers, and `idle_lag` is what the slowest of these has not settled. Counters are since the
    broker began; quantiles are of the last minute, in seconds, by quantile."""

    name: str
    kind: str
    paused: bool
    ordering: str
    partitions: int
    depth: int
    messages: int
    delayed: int
    in_flight: int
    in_backoff: int
    blocked_keys: int
    groups: int
    idle_groups: int
    idle_lag: int
    consumers: int
    oldest: datetime | None
    oldest_age_s: float
    dead_letter_queue: str
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    rejected: int
    purged: int
    retried: int
    dead_lettered: Mapping[str, int]
    dropped: Mapping[str, int]
    delivery_latency_s: Mapping[str, float]


class QueueFigures(Struct, frozen=True, kw_only=True):
    """All queues, for those who measure: how many there are, and of those that hold most their figures and groups, how
    many delivery latencies were measured, and their sum in seconds; and what dead letters take of which limit."""

    queues: int
    shown: tuple[QueueStats, ...]
    groups: Mapping[str, tuple[GroupView, ...]]
    latency: Mapping[str, tuple[int, float]]
    dead_letter_bytes: int
    dead_letter_bytes_max: int


class GroupView(Struct, frozen=True, kw_only=True):
    """One group. `lag` are messages that it has not settled; `removed_at` is when it goes unless a consumer comes."""

    name: str
    lag: int
    in_flight: int
    in_backoff: int
    next_retry: datetime | None
    blocked_keys: int
    consumers: int
    idle_since: datetime | None
    removed_at: datetime | None
    first_sequence: int
    paused: bool


class ConsumerView(Struct, frozen=True, kw_only=True):
    """One consumer in one group. `away_until`: its connection is gone, and it may come back until then. `partitions` is
    None where they are not pinned."""

    group: str
    client_id: str
    joined: datetime
    away_until: datetime | None
    in_flight: int
    prefetch: int
    concurrency: int
    partitions: tuple[int, ...] | None


class StandingView(Struct, frozen=True, kw_only=True):
    """A message as one group sees it [queues-20]. `holder` has it now, or had it last. `blocked_by` is the id of the
    message of the same key that has to be settled before."""

    group: str
    state: str
    holder: str
    lease_until: datetime | None
    next_retry: datetime | None
    deliveries: int
    failures: int
    last_error: str
    first_delivered: datetime | None
    blocked_by: str
    suspect: bool
    """Its consumer was lost while it had this: it goes to one that has nothing else."""


class DeadLetterView(Struct, frozen=True, kw_only=True):
    """A dead letter: `id` is its own in the dead-letter queue, `message_id` the one it had in `queue`. `group` is ""
    when no group had failed it."""

    id: str
    message_id: str
    queue: str
    group: str
    reason: str
    deliveries: int
    failures: int
    last_error: str
    first_delivered: datetime | None
    moved: datetime


class MessageView(Struct, frozen=True, kw_only=True):
    """A message of a queue, without its body. `sequence` of a delayed one is that of its coming: when it becomes
    visible it gets another one, and a partition, and keeps its id."""

    id: str
    sequence: int
    partition: int | None
    key: str | None
    arrived: datetime | None
    expires: datetime | None
    visible: datetime | None
    """When a delayed message may be delivered; None for one that may be now."""
    states: tuple[StandingView, ...]
    dead_letter: DeadLetterView | None


class LetterFilter(Struct, frozen=True, kw_only=True):
    """Which dead letters; "" and None are for any. `error` may have shell wildcards; names are exact, since they may
    hold `*`, `?` and `[` themselves."""

    queue: str = ""
    group: str = ""
    reason: str = ""
    error: str = ""
    message_id: str = ""
    """That of the letter, or the one that the message had."""
    moved_after_ms: int | None = None
    moved_before_ms: int | None = None

    def matches(self, letter_id: str, letter: DeadLetter) -> bool:
        """Whether this one is meant."""
        return (
            self.queue in ("", letter.queue)
            and self.group in ("", letter.group)
            and self.reason in ("", letter.reason)
            and (not self.error or fnmatchcase(letter.attempts.last_error, self.error))
            and self.message_id in ("", letter_id, letter.message_id)
            and (self.moved_after_ms is None or letter.moved_ms > self.moved_after_ms)
            and (self.moved_before_ms is None or letter.moved_ms < self.moved_before_ms)
        )


def stats_of(queue: Queue, now_ms: int) -> QueueStats:
    """Figures of a queue and its groups, as the API and metrics show them."""
    settings, groups = queue.settings, list(queue.groups.values())
    oldest_ms = oldest_ms_of(queue, now_ms)
    return QueueStats(
        name=settings.name,
        kind=kind_of(settings.name).value,
        paused=queue.is_paused,
        ordering=settings.ordering,
        partitions=settings.partitions,
        depth=queue.depth(),
        messages=len(queue.entries),
        delayed=len(queue.delayed),
        in_flight=sum(group.in_flight() for group in groups),
        in_backoff=sum(group.in_backoff()[0] for group in groups),
        blocked_keys=sum(group.lanes.blocked_keys() for group in groups),
        groups=len(groups),
        idle_groups=sum(group.idle_since_ms > 0 for group in groups),
        idle_lag=max((group.owed for group in groups if group.idle_since_ms), default=0),
        consumers=sum(len(group.members) for group in groups),
        oldest=_time(oldest_ms),
        oldest_age_s=max(0, now_ms - oldest_ms) / 1_000 if oldest_ms else 0.0,
        dead_letter_queue=settings.dead_letter_queue,
        dead_lettered=dict(queue.dead_letters),
        dropped=dict(queue.dropped),
        delivery_latency_s={
            str(quantile): value for quantile, value in queue.latency.quantiles(QUANTILES, now_ms).items()
        },
        **asdict(queue.counts),
    )


def oldest_ms_of(queue: Queue, now_ms: int) -> int:
    """About when the oldest message came, 0 when there is none: of those that came before the broker began a dead
    letter says it, and of others it is told by when they end."""
    sequence = next(iter(queue.entries), 0)
    if not sequence:
        return 0
    arrived_ms, expires_ms = _arrived_ms(queue, sequence), queue.entries[sequence].expires_ms
    if arrived_ms or expires_ms >= NEVER_MS:
        return arrived_ms
    return min(now_ms, expires_ms - queue.settings.limits.message_ttl)


def _arrived_ms(queue: Queue, sequence: int) -> int:
    """0 when nobody knows it any more."""
    arrived_ms, letter = queue.arrivals.time_of(sequence), queue.dead_letter(sequence)
    if arrived_ms is None and letter is not None:
        arrived_ms = letter.moved_ms
    return arrived_ms or 0


def groups_of(queue: Queue, after: str, limit: int) -> list[GroupView]:
    """Up to `limit` groups behind the one called `after`, by name."""
    names = nsmallest(limit, (name for name in queue.groups if name > after))
    return [_group(queue.groups[name]) for name in names]


def slowest_of(queue: Queue, limit: int) -> list[GroupView]:
    """Up to `limit` groups that have settled least."""
    return [_group(group) for group in nlargest(limit, queue.groups.values(), key=lambda each: each.owed)]


def consumers_of(queue: Queue, after: tuple[str, str], limit: int) -> list[ConsumerView]:
    """Up to `limit` consumers behind a group and client id, by group, then client id."""
    found: list[ConsumerView] = []
    for name in sorted(name for name in queue.groups if name >= after[0]):
        if len(found) >= limit:
            break
        members = queue.groups[name].members
        behind = after[1] if name == after[0] else ""
        chosen = nsmallest(limit - len(found), (each for each in members if each > behind))
        found += _consumers(queue.groups[name], [members[client_id] for client_id in chosen])
    return found


def _consumers(group: Group, members: Sequence[Consumer]) -> list[ConsumerView]:
    owned: dict[str, list[int]] = {}
    for number, owner in enumerate(group.lanes.owners()):
        owned.setdefault(owner, []).append(number)
    is_pinned = group.lanes.is_pinned
    return [
        ConsumerView(
            group=group.name,
            client_id=member.client_id,
            joined=_moment(member.joined_ms),
            away_until=_time(group.away_until_ms(member)),
            in_flight=len(member.held),
            prefetch=member.prefetch,
            concurrency=member.concurrency,
            partitions=tuple(owned.get(member.client_id, ())) if is_pinned else None,
        )
        for member in members
    ]


def message_of(queue: Queue, message_id: str) -> MessageView | None:
    """A message by the id that consumers see; None when the queue has none, or has it no more. A group says of it what
    it knows of the one that came back for it alone, if there is one."""
    for name in ("", *queue.groups):
        sequence = queue.sequence_of(name, message_id)
        if sequence in queue.entries:
            own = {each: queue.sequence_of(each, message_id) for each in sorted(queue.groups)}
            states = (
                _standing(queue, queue.groups[each], number if number in queue.entries else sequence)
                for each, number in own.items()
            )
            return replace(message_at(queue, sequence), states=tuple(states))
    row = queue.delayed_row(message_id)
    return None if row is None else delayed_at(queue, row)


def delayed_at(queue: Queue, row: DelayedRow) -> MessageView:
    """A delayed message: it has no partition yet, and no group has it."""
    return MessageView(
        id=message_id_of(queue.generation, row.ticket),
        sequence=row.ticket,
        partition=None,
        key=row.key,
        arrived=None,
        expires=_time(row.expires_ms),
        visible=_moment(row.visible_ms),
        states=(),
        dead_letter=None,
    )


def message_at(queue: Queue, sequence: int) -> MessageView:
    """Describe a message that is there."""
    entry = queue.entries[sequence]
    letter = queue.dead_letter(sequence)
    return MessageView(
        id=queue.message_id(sequence),
        sequence=sequence,
        partition=entry.partition,
        key=entry.key,
        arrived=_time(_arrived_ms(queue, sequence)),
        expires=_time(entry.expires_ms) if entry.expires_ms < NEVER_MS else None,
        visible=None,
        states=tuple(_standing(queue, queue.groups[name], sequence) for name in sorted(queue.groups)),
        dead_letter=None if letter is None else _letter(queue, sequence, letter),
    )


def messages_after(queue: Queue, after: int, limit: int) -> list[int]:
    """Sequences of up to `limit` messages behind the sequence `after`."""
    return list(islice(queue.entries.after(after), limit))


def letters_after(queue: Queue, wanted: LetterFilter, after: int, limit: int) -> tuple[list[int], int]:
    """Sequences of up to `limit` dead letters that are wanted, the oldest first, among the next LOOKED_AT_MAX messages
    behind the sequence `after`; and where to go on, 0 when there are no more messages."""
    found: list[int] = []
    for looked_at, sequence in enumerate(queue.entries.after(after), 1):
        letter = queue.dead_letter(sequence)
        if letter is not None and wanted.matches(queue.message_id(sequence), letter):
            found.append(sequence)
        if len(found) >= limit or looked_at >= LOOKED_AT_MAX:
            return found, sequence
    return found, 0


def letter_at(queue: Queue, sequence: int) -> DeadLetterView | None:
    """The dead letter there; None when there is none."""
    letter = queue.dead_letter(sequence)
    return None if letter is None else _letter(queue, sequence, letter)


def _group(group: Group) -> GroupView:
    in_backoff, next_ms = group.in_backoff()
    return GroupView(
        name=group.name,
        lag=group.owed,
        in_flight=group.in_flight(),
        in_backoff=in_backoff,
        next_retry=_time(next_ms),
        blocked_keys=group.lanes.blocked_keys(),
        consumers=len(group.members),
        idle_since=_time(group.idle_since_ms),
        removed_at=_time(group.removed_at_ms()),
        first_sequence=group.first_sequence,
        paused=group.is_paused,
    )


def _standing(queue: Queue, group: Group, sequence: int) -> StandingView:
    status = group.status(sequence)
    attempts = Attempts() if status is None else status.attempts
    is_owed = group.owes(sequence)
    state = group.state_of(sequence) if is_owed else MessageState.ACKED
    blocker = group.lanes.blocker(sequence) if is_owed else 0
    return StandingView(
        group=group.name,
        state=state.name,
        holder="" if status is None else status.holder,
        lease_until=_time(group.lease_until_ms(sequence)),
        next_retry=_time(status.due_ms if status is not None and state is MessageState.RETRY else 0),
        deliveries=attempts.deliveries,
        failures=attempts.failures,
        last_error=attempts.last_error,
        first_delivered=_time(attempts.first_delivered_ms),
        blocked_by=queue.message_id(blocker) if blocker else "",
        suspect=attempts.is_suspect,
    )


def _letter(queue: Queue, sequence: int, letter: DeadLetter) -> DeadLetterView:
    return DeadLetterView(
        id=queue.message_id(sequence),
        message_id=letter.message_id,
        queue=letter.queue,
        group=letter.group,
        reason=letter.reason,
        deliveries=letter.attempts.deliveries,
        failures=letter.attempts.failures,
        last_error=letter.attempts.last_error,
        first_delivered=_time(letter.attempts.first_delivered_ms),
        moved=_moment(letter.moved_ms),
    )


def _time(moment_ms: int) -> datetime | None:
    return _moment(moment_ms) if moment_ms else None


def _moment(moment_ms: int) -> datetime:
    return datetime.fromtimestamp(moment_ms / 1_000, UTC)
