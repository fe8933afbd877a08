"""What topics matched, remembered until a subscription changes that matches them.

A change of a filter without wildcards drops its one topic. A change of one with wildcards is noted under the levels in
front of its first wildcard, and whoever asks for a topic next looks at what has changed since under the beginnings of
that topic. So neither a SUBSCRIBE nor a topic costs more for what has nothing to do with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from msgspec import Struct

from embermq.mqtt.topics.names import has_wildcard, matches

V = TypeVar("V")

TOPIC_CHARACTERS_MAX = 256
"""Longer topics are not remembered: they are seldom sent twice, and would push out the others."""
FILTER_CHARACTERS_MAX = 2 * TOPIC_CHARACTERS_MAX + 3
"""Longer filters match longer topics only: between any two slashes of one may be a +, and at its end /#."""
PREFIXES_MAX = 2_000
"""Beginnings of filters under which changes are noted; what was asked for before the oldest is found anew."""
NOTED_MAX = 8
"""Changes noted under each; what was asked for before the oldest is found anew."""


class _Remembered(Struct, Generic[V]):
    """`version` is that of the last change that was looked at."""

    value: V
    version: int
    size: int


class _FilterChanges(Struct):
    """Of filters with the same beginning, oldest first, each with its version; `forgotten` is that of the last one that
    is not in the list any more."""

    noted: list[tuple[int, str]]
    forgotten: int = 0


class MatchCache(Generic[V]):
    """Remembers the matches of topics. The oldest go one at a time when there is no room. Not thread-safe."""

    __slots__ = ("_bytes", "_bytes_max", "_changes", "_held", "_since", "_version")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._held: OrderedDict[str, _Remembered[V]] = OrderedDict()
        self._changes: OrderedDict[str, _FilterChanges] = OrderedDict()
        self._version = 0
        self._since = 0
        """All changes after this version are noted, but for those that a `_FilterChanges` has forgotten."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, topic: str) -> V | None:
        """What was put for the topic, unless a change since has to do with it."""
        found = self._held.get(topic)
        if found is None:
            return None
        if found.version != self._version:
            if not self._holds(topic, found.version):
                self._drop(topic)
                return None
            found.version = self._version
        return found.value

    def put(self, topic: str, value: V, size: int) -> None:
        """Remember it; `size` are the bytes that this takes."""
        if len(topic) > TOPIC_CHARACTERS_MAX:
            return
        self._drop(topic)
        self._held[topic] = _Remembered(value, self._version, size)
        self._bytes += size
        while self._bytes > self._bytes_max:
            self._bytes -= self._held.popitem(last=False)[1].size

    def changed(self, topic_filter: str) -> None:
        """Subscriptions to this filter have."""
        if not has_wildcard(topic_filter):
            self._drop(topic_filter)
            return
        if not self._held or len(topic_filter) > FILTER_CHARACTERS_MAX:
            return
        self._version += 1
        prefix = _before_wildcard(topic_filter)
        changes = self._changes.pop(prefix, None) or _FilterChanges([])
        self._changes[prefix] = changes
        changes.noted.append((self._version, topic_filter))
        if len(changes.noted) > NOTED_MAX:
            changes.forgotten = changes.noted.pop(0)[0]
        if len(self._changes) > PREFIXES_MAX:
            _, oldest = self._changes.popitem(last=False)
            self._since = oldest.noted[-1][0]

    def clear(self) -> None:
        self._held.clear()
        self._changes.clear()
        self._bytes = 0

    def _drop(self, topic: str) -> None:
        found = self._held.pop(topic, None)
        if found is not None:
            self._bytes -= found.size

    def _holds(self, topic: str, version: int) -> bool:
        """Whether no change after this version matches the topic."""
        if version < self._since:
            return False
        for prefix in _beginnings(topic):
            changes = self._changes.get(prefix)
            if changes is None or changes.noted[-1][0] <= version:
                continue
            if changes.forgotten > version:
                return False
            for changed_at, topic_filter in reversed(changes.noted):
                if changed_at <= version:
                    break
                if matches(topic_filter, topic):
                    return False
        return True


def _before_wildcard(topic_filter: str) -> str:
    """The levels in front of the first wildcard, "" for none; with their last slash, so that the empty level is told
    from none."""
    plus, subtree = topic_filter.find("+"), topic_filter.find("#")
    return topic_filter[: min(at for at in (plus, subtree) if at >= 0)]


def _beginnings(topic: str) -> Iterator[str]:
    """All that `_before_wildcard` may be of a filter that matches the topic: "a/#" matches "a" as well."""
    yield ""
    at = topic.find("/")
    while at >= 0:
        yield topic[: at + 1]
        at = topic.find("/", at + 1)
    yield topic + "/"
