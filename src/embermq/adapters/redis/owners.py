"""Which client a generation belongs to, and how Redis is told that its session is ours.

The epoch that Redis has of a session rises once in a run of the broker, with the first takeover that has nothing on its
way before it: from then on what an earlier run left on its way is refused. Later takeovers leave it, since what a run
asks for is done in its order; were it raised, an operation that Redis refuses for a while would be another owner's when
it is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from embermq.formats.redis_applications import GroupKeys, group_fence, group_keys
from embermq.formats.redis_layout import ClientKeys, client_keys, session_fence
from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow
from embermq.model.shared_logs import SharedGroupRow

NOTHING_STORED = 2**63
CACHED_KEYS = 16_384
_keys = lru_cache(CACHED_KEYS)(client_keys)


class Owner(Struct, eq=False):
    """One session that this broker has. `oldest_position` and `newest_position` bound the log positions that
    `{client}_positions` may hold."""

    client_id: str
    generation: int
    epoch: int
    fence: str
    is_raised: bool
    """Whether the epoch is this run's own."""
    is_application: bool = False
    open: int = 0
    """Its operations without an answer."""
    is_stored: bool = False
    """Whether Redis has it, or is about to."""
    oldest_position: int = NOTHING_STORED
    newest_position: int = -1
    prefix: str = ""
    """Of all keys."""

    @property
    def keys(self) -> ClientKeys:
        """Made when they are needed: of very many sessions few have anything to say at a time."""
        return _keys(self.client_id, self.prefix)


class Owners:
    """Sessions by generation, of a slot whose keys begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._by_generation: dict[int, Owner] = {}
        self._generations: dict[str, int] = {}
        self.wills: dict[int, str] = {}
        """Client ids of the wills that are stored, by generation."""
        self.leaving: dict[int, Owner] = {}
        """Sessions that still hand on what they have, while a newer one of their client waits to replace them."""
        self.with_positions: dict[int, Owner] = {}
        """Those that may have positions to forget, longest without a message first."""

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._by_generation.values())

    def get(self, generation: int) -> Owner | None:
        """The owner, unless its session has ended or a newer one of the same client has begun."""
        return self._by_generation.get(generation)

    def of_client(self, client_id: str) -> Owner | None:
        """The owner of a client's session."""
        return self._by_generation.get(self._generations.get(client_id, 0))

    def found(self, row: SessionRow) -> Owner:
        """The session was stored by an earlier run, and is ours now."""
        owner = self.take(row)
        owner.epoch, owner.fence = row.epoch, session_fence(row.epoch, row.generation)
        owner.is_raised, owner.is_stored = False, True
        return owner

    def take(self, row: SessionRow) -> Owner:
        """The session is about to be stored with this row, as its owner's epoch."""
        owner = self._by_generation.get(row.generation)
        if owner is not None:
            if row.epoch > owner.epoch and not (owner.is_raised or owner.open):
                owner.epoch, owner.fence = row.epoch, session_fence(row.epoch, row.generation)
                owner.is_raised = True
            return owner
        before = self._generations.get(row.client_id)
        if before is not None:
            self.release(before)
        fence = session_fence(row.epoch, row.generation)
        is_application = row.client_type is ClientType.APPLICATION
        owner = Owner(
            row.client_id,
            row.generation,
            row.epoch,
            fence,
            is_raised=True,
            is_application=is_application,
            prefix=self._prefix,
        )
        self._by_generation[row.generation] = owner
        self._generations[row.client_id] = row.generation
        return owner

    def release(self, generation: int) -> Owner | None:
        """Forget an ended session. Returns what was known of it; None when nothing was."""
        owner = self._by_generation.pop(generation, None)
        if owner is not None:
            self.with_positions.pop(generation, None)
            if self._generations.get(owner.client_id) == generation:
                del self._generations[owner.client_id]
        return owner

    def note_positions(self, owner: Owner, oldest: int, newest: int, *, trimmed: bool) -> None:
        """Positions were stored; `trimmed`: and those below the floor removed in the same step."""
        if trimmed or owner.generation not in self.with_positions:
            owner.oldest_position = oldest
        else:
            owner.oldest_position = min(owner.oldest_position, oldest)
        owner.newest_position = max(owner.newest_position, newest)
        self.with_positions.pop(owner.generation, None)
        self.with_positions[owner.generation] = owner


class StoredGroup(Struct, frozen=True):
    """One group that this broker has."""

    generation: int
    keys: GroupKeys
    fence: str


class GroupOwners:
    """Groups by generation, of a slot whose keys begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._by_generation: dict[int, StoredGroup] = {}
        self._generations: dict[str, int] = {}

    def get(self, generation: int) -> StoredGroup | None:
        """The owner, unless its group has ended or a newer one of the same name has begun."""
        return self._by_generation.get(generation)

    def take(self, row: SharedGroupRow) -> StoredGroup:
        """The group is stored with this row, or about to be."""
        owner = self._by_generation.get(row.generation)
        if owner is None:
            keys = group_keys(row.share, row.topic_filter, self._prefix)
            owner = StoredGroup(row.generation, keys, group_fence(row.generation))
            self._by_generation.pop(self._generations.get(keys.group, 0), None)
            self._by_generation[row.generation] = owner
            self._generations[keys.group] = row.generation
        return owner

    def release(self, generation: int) -> StoredGroup | None:
        """Forget an ended group. Returns what was known of it; None when nothing was."""
        owner = self._by_generation.pop(generation, None)
        if owner is not None:
            del self._generations[owner.keys.group]
        return owner
