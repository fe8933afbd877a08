"""Which shared group a generation belongs to, and how Redis is told that it is ours."""

from __future__ import annotations

from msgspec import Struct

from embermq.formats.redis_applications import GroupKeys, group_fence, group_keys
from embermq.model.shared_logs import SharedGroupRow


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
