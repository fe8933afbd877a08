"""Bodies of messages: the newest from memory, the others from the store."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from embermq.formats.damaged_records import DamagedRecords
from embermq.model.message import Message, said_bytes
from embermq.model.queue_rows import Move
from embermq.ports.errors import StoreError
from embermq.ports.queue_store import QueueStore

CACHE_BYTES = 32 * 1024 * 1024
"""Message bodies that are kept for consumers near the end of their queue: some thousand of 1 KiB, so that who keeps up
reads none from the disk; who is behind reads pages of it anyway."""
MESSAGE_BYTES = 600
"""What a message in memory takes besides what its publisher has said."""

BodiesRead = Callable[[Mapping[int, Message | None] | StoreError], None]
"""Told messages by offset; None for one that nobody has."""


class BodyCache:
    """Remembers messages up to `cache_bytes`; the oldest go first, since who reads at the end of a queue wants the
    newest."""

    def __init__(
        self,
        store: QueueStore,
        cache_bytes: int,
        damaged: DamagedRecords,
        unstored: Callable[[], Iterable[Move]] = tuple,
    ) -> None:
        """`unstored` tells what moves the store has not been given yet, oldest first."""
        self._store = store
        self._unstored = unstored
        self._damaged = damaged
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[int, tuple[Message, int]] = OrderedDict()
        self._kept_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """What is remembered takes so much."""
        return self._kept_bytes

    def keep(self, offset: int, message: Message) -> None:
        """A message that was enqueued, in the order of offsets."""
        size = MESSAGE_BYTES + said_bytes(message)
        if size > self._cache_bytes or offset in self._kept:
            return
        self._kept[offset] = (message, size)
        self._kept_bytes += size
        while self._kept_bytes > self._cache_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1][1]

    def message(self, offset: int) -> Message | None:
        """None when it is not remembered."""
        found = self._kept.get(offset)
        return None if found is None else found[0]

    def ask(self, queue: int, messages: Sequence[tuple[int, int]], then: BodiesRead) -> None:
        """Read from the store, see `QueueStore.bodies`, `then` too."""
        moves = {(move.target, move.target_sequence): move for move in self._unstored()}
        wanted: dict[int, dict[int, int]] = {}
        for offset, number in messages:
            place = (queue, number)
            while (move := moves.get(place)) is not None:
                place = (move.source, move.sequence)  # it is there until the store is told
            wanted.setdefault(place[0], {})[offset] = place[1]

        def told(found: Mapping[int, bytes | None] | StoreError) -> None:
            then(found if isinstance(found, StoreError) else self._messages(found))

        for one, numbers in wanted.items():
            self._store.bodies(one, tuple(numbers.items()), told)

    def _messages(self, found: Mapping[int, bytes | None]) -> dict[int, Message | None]:
        """None for what is lost, or damaged: nobody can have it any more."""
        messages: dict[int, Message | None] = {}
        for offset, body in found.items():
            place = f"offset {offset} of the message log"
            record = self._damaged.decode(body, place) if body is not None else None
            messages[offset] = record.message if record is not None else None
        return messages
