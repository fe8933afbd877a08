"""What is stored about shared subscriptions that are read from a log of their own.

A *group* is one shared subscription, share name and filter, from its first member on until its last one has left; a
later one under the same names is another, with a generation of its own. All groups of a filter read one log.
"""

from msgspec import Struct, field

from embermq.model.application_positions import StoredPositions
from embermq.model.writes import Writes


class SharedGroupRow(Struct, frozen=True):
    """`topic_filter` is without `$share/<share>/`. Records with a number below `since` are older than the group.

    `log_generation` is what the stamps of the log carry; `identity` that of the log in whose offsets `starts`,
    (partition, offset) where the group begins to read, and its positions are; of a partition that is not there nothing
    is known but what the store of the logs says.
    """

    share: str
    topic_filter: str
    generation: int
    log_generation: int
    since: int
    identity: str
    starts: tuple[tuple[int, int], ...]


class SharedMark(Struct, frozen=True, gc=False):
    """An entry of a shared log that a group shall not read again, although it is not below its committed offset.

    `state` is that of `QueueState` without QUEUED: SENT and RELEASED belong to the session of that generation and are
    of QoS 2; SENT has the `record`, since the session may have to send it again when the log is another's. DONE is
    nobody's: its `session` is the one that had it, or keeps it otherwise, which is stored before the group passes it; 0
    when no session is concerned.
    """

    group: int
    partition: int
    offset: int
    session: int
    packet_id: int
    state: int
    record: bytes = b""
    identifiers: tuple[int, ...] = ()
    retain: bool = False


class SharedWrites(Writes):
    """The part of a tick. Take the groups in this order: `groups`, `marks`, `positions`, then what has ended."""

    groups: list[SharedGroupRow] = field(default_factory=list)
    """New or changed ones."""
    marks: list[SharedMark] = field(default_factory=list)
    positions: dict[tuple[int, int], StoredPositions] = field(default_factory=dict)
    """(group's generation, partition) -> how far it has come; marks DONE below it go."""
    ended_groups: list[int] = field(default_factory=list)
    """What is in flight to a session stays with it."""
