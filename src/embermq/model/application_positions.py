"""How far an application log in Kafka has been consumed: what is stored, and its form as text.

The text stands in the metadata of a consumer group's committed offset, for shared subscriptions: the base and the
floors, `1;17;0:4,1:9` (format, base, source partition:floor).
"""

from msgspec import Struct

FORMAT = "1"


class StoredPositions(Struct, frozen=True):
    """Of one partition of an application log. Everything below `committed_offset` is settled; from `base_offset` on,
    at or below it, stand the source positions at and above the floors. `floors` are (source partition, offset), in
    order: what has a lesser source offset is a repeat."""

    base_offset: int = 0
    committed_offset: int = 0
    floors: tuple[tuple[int, int], ...] = ()


def encode_metadata(positions: StoredPositions) -> str:
    """All but the committed offset."""
    floors = ",".join(f"{partition}:{floor}" for partition, floor in positions.floors)
    return f"{FORMAT};{positions.base_offset};{floors}"


def decode_metadata(committed_offset: int, metadata: str | None) -> StoredPositions:
    """What stands beside a committed offset. Without it, as when an administrator has moved the offset, nothing is
    known of repeats. Raises ValueError when it cannot be understood."""
    if not metadata:
        return StoredPositions(committed_offset, committed_offset)
    try:
        known, base, floors = metadata.split(";")
        if known == FORMAT:
            pairs = [pair.split(":") for pair in floors.split(",") if pair]
            found = tuple((int(partition), int(floor)) for partition, floor in pairs)
            return StoredPositions(min(int(base), committed_offset), committed_offset, found)
    except ValueError:
        pass
    raise ValueError(f"positions {metadata[:80]!r} are none that format {FORMAT} has")
