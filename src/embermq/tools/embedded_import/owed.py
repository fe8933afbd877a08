"""What applications have not settled, as records for the new log: addressed to them alone, in the order of before.

The order is that of the embedded log, and decided by what it has: record i is the same whenever they are made. So a
second run goes on behind those that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter

from msgspec import Struct, field
from msgspec.structs import replace

from embermq.durability.bodies import Bodies
from embermq.formats.log_record import (
    FIELD_ADDRESSED,
    LogRecord,
    Stamp,
    decode_record,
    encode_record,
    encode_stamps,
)
from embermq.model.application_positions import UNCOUNTED, EarlyMark, ReaderPosition, StoredPositions
from embermq.model.session_writes import QueueRow, QueueState
from embermq.tools.embedded_import.source import Application, EmbeddedSource

GRANTED_QOS = 2
"""Of a message whose record does not say what the application was granted."""


class OwedRecord(Struct, frozen=True):
    """A record of the new log, and the sessions that it is for, by generation with the QoS that each is sent."""

    record: bytes
    receivers: Mapping[int, int]
    offset: int
    """Where it stood in the embedded log."""


class Owed(Struct):
    """What was found on the way."""

    applications: Sequence[Application]
    lost: int = 0
    """Messages that nobody has any more, as their application would have been told."""

    def records(self, source: EmbeddedSource) -> Iterator[OwedRecord]:
        """All, once through."""
        self.lost = 0
        names = {one.row.generation: one.row.client_id for one in self.applications}
        bodies = {generation: source.bodies(generation) for generation in names}
        lines = [_line(one) for one in self.applications]
        given = {one.row.generation: one.given for one in self.applications}
        received = {
            (one.row.generation, mark.offset)
            for one in self.applications
            for mark in one.reader.marks
            if mark.state == QueueState.RELEASED
        }
        for offset, found in groupby(merge(*lines), itemgetter(0)):
            generations = [generation for _, generation in found]
            of_log = _Found()
            for generation in generations:
                of_log.take(generation, bodies[generation], offset, given[generation].get(offset))
            gone = set(generations).difference(of_log.generations)
            self.lost += sum((one, offset) not in received for one in gone)
            if of_log.record is not None:
                yield of_log.addressed(names, offset)


class _Found(Struct):
    """One message: who has kept it aside has the same one."""

    record: LogRecord | None = None
    generations: list[int] = field(default_factory=list)
    given: dict[int, QueueRow] = field(default_factory=dict)

    def take(self, generation: int, bodies: Bodies, offset: int, given: QueueRow | None) -> None:
        if given is not None:
            self.given[generation] = given
            self.record = self.record or decode_record(given.record)
        if self.record is None:
            found = bodies.get(offset)
            self.record = None if found is None else found[0]
        if self.record is not None:
            self.generations.append(generation)

    def addressed(self, names: Mapping[int, str], offset: int) -> OwedRecord:
        record = self.record
        assert record is not None
        stamped = {stamp.generation: stamp for stamp in record.stamps}
        stamps = tuple(
            replace(self._given_stamp(one) or stamped.get(one) or Stamp("", one, GRANTED_QOS), log=names[one])
            for one in self.generations
        )
        fields = (
            *(one for one in record.unknown_fields if one[0] != FIELD_ADDRESSED),
            (FIELD_ADDRESSED, b""),
        )
        frame = encode_record(record.message, encode_stamps(stamps), None, fields)
        qos = record.message.qos
        return OwedRecord(frame, {stamp.generation: min(stamp.qos, qos) for stamp in stamps}, offset)

    def _given_stamp(self, generation: int) -> Stamp | None:
        row = self.given.get(generation)
        return (
            None
            if row is None
            else Stamp("", generation, row.flags & 3, bool(row.flags & 4), row.identifiers)
        )


def _line(application: Application) -> Iterator[tuple[int, int]]:
    """What is done out of its turn is settled."""
    generation = application.row.generation
    done = {mark.offset for mark in application.reader.marks if mark.state == QueueState.DONE}
    return ((offset, generation) for offset in application.owed if offset not in done)


class ReaderPlaces:
    """Where readers stand in logs that begin with what they are owed. What is under way goes on with its packet id
    when it comes by the new log, and is told by its position there. After PUBREC nothing but PUBREL is owed: that goes
    on without a record as well, told by its position in the old log."""

    def __init__(self, applications: Sequence[Application]) -> None:
        self._applications = applications
        self._early: dict[int, dict[int, EarlyMark]] = {one.row.generation: {} for one in applications}
        self._marks = {
            (one.row.generation, mark.offset): mark
            for one in applications
            for mark in one.reader.marks
            if mark.state != QueueState.DONE
        }

    def note(self, owed: OwedRecord, position: int) -> None:
        """A record has this position in the new log."""
        for generation, qos in owed.receivers.items():
            mark = self._marks.pop((generation, owed.offset), None)
            if mark is not None:
                early = EarlyMark(mark.packet_id, max(1, qos), mark.state == QueueState.RELEASED)
                self._early[generation][position] = early

    def positions(self, identities: Mapping[int, str]) -> dict[int, ReaderPosition]:
        """By generation; `identities` are those of their logs, which have nothing in them yet. A copy of what is under
        way that comes when it is done is a repeat."""
        found: dict[int, ReaderPosition] = {}
        for one in self._applications:
            generation, place = one.row.generation, one.reader.position
            if place is not None:
                early = self._early[generation]
                bodiless = self._bodiless(generation)
                found[generation] = ReaderPosition(
                    identities[generation],
                    place.packet_id,
                    StoredPositions(),
                    served=_ranges(sorted(early)),
                    early=early | bodiless,
                    settled=UNCOUNTED if bodiless else 0,
                )
        return found

    def _bodiless(self, generation: int) -> dict[int, EarlyMark]:
        """What was received and was not noted: nobody has its body any more, and no copy will come."""
        return {
            offset: EarlyMark(mark.packet_id, 2, is_released=True)
            for (of, offset), mark in self._marks.items()
            if of == generation and mark.state == QueueState.RELEASED
        }


def _ranges(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return tuple(ranges)
