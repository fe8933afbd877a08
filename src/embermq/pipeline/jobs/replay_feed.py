"""replay, second part: what was chosen goes to the broker that runs, piece by piece, so many a second.

The broker alone writes: a piece is one transaction with the number of the message that comes next, and what it has had
it leaves out. So the broker knows how far a replay is, nobody else; a piece whose answer was lost is asked for again,
and a run that was killed goes on where the broker is. No Spark in here.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
from msgspec import Struct

from embermq.formats.log_record import FIELD_RULES, encode_record
from embermq.model.message import Message
from embermq.model.position import told_place
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SERVED_BYTES_MAX, SERVED_LEVELS_MAX, validate_topic
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.pipeline.jobs.putting_back import AGAIN_S, PIECES_PER_S, Clock, Notice, Patient, Progress
from embermq.queues.names import QUEUE_PREFIX
from embermq.queues.publication import DEDUP_ID, DELAY, DELIVER_AT

LAKE_PART, LOG_PART = "0-lake", "1-log"
"""Folders of what was chosen of a log, in their order; those of each log are in a folder of its own."""
PIECE = 500
"""Messages of one request: one transaction, some ten milliseconds of the broker's."""
PIECE_BYTES = 512 * 1024
READ_BYTES = 16 * 1024 * 1024
"""Of messages that are read from a file at a time."""

FROM, ACCEPTED_AT, TOPIC = "replayed-from", "replayed-accepted-at", "replayed-topic"
"""User properties of a replayed message: its place, Unix milliseconds, and its topic where that is another."""
MARKS = frozenset({FROM, ACCEPTED_AT, TOPIC})
_QUEUE_WORDS = frozenset({DEDUP_ID, DELAY, DELIVER_AT})
PLACE = "{topic}"
"""In the topic of a replay: that of each message."""


class Taken(Struct, frozen=True, kw_only=True):
    """What the broker said: see `ReplayTaken` of its API."""

    next: int
    refused: str = ""
    passes: bool = False


class RefusedMessage(Struct, frozen=True, kw_only=True):
    """A message that the broker will not take. `number` counts from 0 in the replay."""

    number: int
    partition: int
    offset: int
    topic: str
    reason: str
    slot: int | None = None
    """Of a cluster with several, in whose log it is."""


class ReplayDoor(Protocol):
    """Takes the messages of a replay: the broker that runs."""

    def take(self, first: int, messages: Sequence[bytes | None]) -> Taken:
        """One transaction, durable when it returns. Raises BrokerAway when it may or may not be done."""
        ...


class RefusedMessages(Protocol):
    """Those that are passed over, by number; kept where a run that is killed finds them again."""

    def __contains__(self, number: object, /) -> bool: ...

    def add(self, refused: RefusedMessage, /) -> None:
        """Keep one; durable when it returns."""
        ...


class ChosenMessages:
    """What Spark has written, by number."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.rglob("*.parquet"))

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(pq.read_metadata(file).num_rows for file in self._files))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def rows(self, start: int) -> Iterator[dict[str, Any]]:
        """Read the chosen messages from number `start` on, in their order."""
        at = bisect_right(self._ends, start)
        skip = start - (self._ends[at - 1] if at else 0)
        for path in self._files[at:]:
            with pq.ParquetFile(path) as file:
                yield from self._rows(file, skip)
            skip = 0

    def _rows(self, file: pq.ParquetFile, skip: int) -> Iterator[dict[str, Any]]:
        found = file.metadata
        for index in range(found.num_row_groups):
            group = found.row_group(index)
            if skip >= group.num_rows:
                skip -= group.num_rows
                continue
            rows = max(1, min(10 * PIECE, READ_BYTES * group.num_rows // max(1, group.total_byte_size)))
            for batch in file.iter_batches(batch_size=rows, row_groups=[index]):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                yield from batch.slice(skip).to_pylist()
                skip = 0


class ReplayFeed(Patient):
    """One run of a replay; `done` says how far it is, however it ends."""

    def __init__(
        self,
        door: ReplayDoor,
        chosen: ChosenMessages,
        refused: RefusedMessages,
        topic: str,
        *,
        rate: float,
        patience_s: float,
        progress: Progress,
        notice: Notice,
        clock: Clock = time,
    ) -> None:
        """To `topic`, in which PLACE is the topic of the message. `rate` messages a second at most; while the broker
        does not answer it is asked for `patience_s` seconds."""
        super().__init__(patience_s=patience_s, notice=notice, clock=clock)
        self._door = door
        self._chosen = chosen
        self._refused = refused
        self._topic = topic
        self._rate = rate
        self._progress = progress
        self._said = ""
        self.done = 0
        self.total = len(chosen)

    def run(self) -> None:
        """Until all has been replayed. Raises BrokerAway."""
        self.done = self._ask(partial(self._door.take, 0, ())).next
        self._progress(self.done, self.total)
        due_s = self._clock.monotonic()
        while self.done < self.total:
            for rows in self._pieces(self.done):
                due_s = self._wait(due_s)
                taken = self._replay(rows)
                due_s += max(0, taken.next - self.done) / self._rate
                is_straight = taken.next == self.done + len(rows)
                self.done = taken.next
                self._progress(self.done, self.total)
                if not is_straight:
                    break  # something is refused, or the broker is one that knows less: it says where it is

    def _replay(self, rows: list[dict[str, Any]]) -> Taken:
        first = self.done
        messages: list[bytes | None] = []
        for number, row in enumerate(rows, first):
            if number not in self._refused:
                try:
                    messages.append(encoded(row, self._topic))
                    continue
                except TopicError as error:
                    self._refuse(number, row, str(error))
            messages.append(None)
        taken = self._ask(partial(self._door.take, first, messages))
        if not taken.refused:
            self._said = ""
        elif taken.passes:
            if taken.refused != self._said:
                self._said = taken.refused
                self._notice(f"the broker takes no more for now: {taken.refused}")
            self._clock.sleep(AGAIN_S)
        elif 0 <= taken.next - first < len(rows):
            self._refuse(taken.next, rows[taken.next - first], taken.refused)
        return taken

    def _refuse(self, number: int, row: Mapping[str, Any], reason: str) -> None:
        self._refused.add(
            RefusedMessage(
                number=number,
                partition=row["partition"],
                offset=row["offset"],
                topic=row["topic"],
                reason=reason,
                slot=row.get("slot"),
            )
        )

    def _pieces(self, start: int) -> Iterator[list[dict[str, Any]]]:
        many = max(1, min(PIECE, int(self._rate / PIECES_PER_S)))
        piece: list[dict[str, Any]] = []
        size = 0
        for row in self._chosen.rows(start):
            row_bytes = len(row["payload"] or b"")
            if piece and (len(piece) == many or size + row_bytes > PIECE_BYTES):
                yield piece
                piece, size = [], 0
            piece.append(row)
            size += row_bytes
        if piece:
            yield piece


def encoded(row: Mapping[str, Any], topic: str) -> bytes:
    """The record that the broker is given: at least QoS 1, never retained, marked; with the rules that it comes of,
    which would take it again. Raises TopicError."""
    original: str = row["topic"]
    target = topic.replace(PLACE, original)
    validate_topic(target, SERVED_BYTES_MAX, SERVED_LEVELS_MAX)
    # Words to a queue have had their effect: a dedup-id that it remembers would have the message dropped.
    dropped = MARKS | _QUEUE_WORDS if target.startswith(QUEUE_PREFIX) else MARKS
    said = [(one["name"], one["value"]) for one in row["user_properties"] or ()]
    place = told_place(row["partition"], row["offset"], row.get("slot"))
    marks = [(FROM, place), (ACCEPTED_AT, str(row["accepted_ms"]))]
    if target != original:
        marks.append((TOPIC, original))
    properties = Properties(
        payload_format_indicator=row["payload_format_indicator"],
        message_expiry_interval=row["message_expiry_interval"],
        content_type=row["content_type"],
        response_topic=row["response_topic"],
        correlation_data=row["correlation_data"],
        user_properties=(*(pair for pair in said if pair[0] not in dropped), *marks),
    )
    return encode_record(
        Message(
            target,
            row["payload"] or b"",
            max(1, row["qos"]),
            False,
            row["publisher"],
            ProtocolVersion.V5,
            0,
            row["expires_ms"] or 0,
            properties,
        ),
        unknown_fields=((FIELD_RULES, row["rules"].encode()),) if row.get("rules") else (),
    )
