"""How far an application log in Kafka has been consumed: what is stored, and its form as text.

The text stands in the metadata of a consumer group's committed offset, for shared subscriptions: the base and the
floors, `1;17;0:4,1:9` (format, base, source partition:floor).
"""

from collections.abc import Mapping

from msgspec import Struct, field

FORMAT = "1"
UNCOUNTED = -1
"""Of `ReaderPosition.settled`: not known any more, or never was."""


class StoredPositions(Struct, frozen=True):
    """The stored positions of one partition of an application log. Everything below `committed_offset` is settled;
    from `base_offset` on, at or below it, stand the source positions at and above the floors. `floors` are (source
    partition, offset), in order: what has a lesser source offset is a repeat."""

    base_offset: int = 0
    committed_offset: int = 0
    floors: tuple[tuple[int, int], ...] = ()


class EarlyMark(Struct, frozen=True, gc=False):
    """A delivery that is not settled and has no place in the client's log yet. `is_released`: PUBREC has come."""

    packet_id: int
    qos: int
    is_released: bool = False


class ReaderPosition(Struct, frozen=True):
    """Where the reader of a session stands in its log, which has one partition. `log_id` says to which application log
    the offsets belong; `packet_id` is the last that the session gave.

    `served` are ranges of positions in the message log, (first, end): all within them was sent without the client's
    log, which has no such record for the client any more. Of these `early` are not settled, by position.

    `settled` counts what was sent and stands below the committed offset, or was served and is not early any more: with
    what was passed over it is all that the session was owed there."""

    log_id: str
    packet_id: int
    positions: StoredPositions
    served: tuple[tuple[int, int], ...] = ()
    early: Mapping[int, EarlyMark] = field(default_factory=dict)
    settled: int = 0


def encode_floors(floors: tuple[tuple[int, int], ...]) -> str:
    """Floors as text, `partition:floor` each with commas between them, such as `0:17,1:4`."""
    return ",".join(f"{partition}:{floor}" for partition, floor in floors)


def decode_floors(text: str) -> tuple[tuple[int, int], ...]:
    """The reverse. Raises ValueError."""
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    return tuple((int(partition), int(floor)) for partition, floor in pairs)


def encode_metadata(positions: StoredPositions) -> str:
    """All but the committed offset."""
    return f"{FORMAT};{positions.base_offset};{encode_floors(positions.floors)}"


def decode_metadata(committed_offset: int, metadata: str | None) -> StoredPositions:
    """What stands beside a committed offset. Without it, as when an administrator has moved the offset, nothing is
    known of repeats. Raises ValueError when it cannot be understood."""
    if not metadata:
        return StoredPositions(committed_offset, committed_offset)
    try:
        known, base, floors = metadata.split(";")
        if known == FORMAT:
            return StoredPositions(min(int(base), committed_offset), committed_offset, decode_floors(floors))
    except ValueError:
        pass
    raise ValueError(f"positions {metadata[:80]!r} are none that format {FORMAT} has")
