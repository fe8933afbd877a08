"""The subscription trie: from a topic to the subscriptions of every filter that matches it.

Filters without wildcards live in one dict and cost one look-up; only filters with wildcards are nodes of the
trie. Levels that no other filter branches off are one node (a radix tree), so there are at most two nodes a filter,
however many levels it has. A match follows the nodes that are still possible, so its cost is bounded by the wildcard
nodes that it meets, not by the number of subscriptions.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Final, Generic, TypeAlias, TypeVar

V = TypeVar("V", bound=Hashable)
Leaf: TypeAlias = V | dict[V, None] | None
"""What ends at one place: one value as it is, since most filters have one, several as the keys of a dict. So a value is
no dict and not None."""
SHARED_CHARACTERS_MAX: Final = 32
SHARED_TEXTS: Final = 4_096
"""Texts of levels up to this length, so many of them, are one text wherever they stand."""

LOOKED_AT: Final = 8
"""Levels of a long tail that are taken apart first, then twice as many: a topic that has others is mostly found out by
the first few."""


class _FilterNode(Generic[V]):
    """One or several levels of the filters with wildcards; what is absent is None, most nodes have one thing only.

    The first level of a node is what its parent finds it by, `second` the one behind it, `tail` are all others with
    their slashes: as one text, because a list of them would take ten times the memory. `second` stands apart because
    most nodes have no more than that, and most topics that do not match are found out by it.
    """

    __slots__ = ("children", "here", "second", "single", "subtree", "tail")

    def __init__(self, levels: list[str]) -> None:
        """`levels` are those behind the first."""
        self.children: dict[str, _FilterNode[V]] | None = None
        self.single: _FilterNode[V] | None = None  # the level "+"
        self.here: Leaf[V] = None  # filters that end at this node
        self.subtree: Leaf[V] = None  # filters that end with "#" below this node
        self.set_levels(levels)

    def levels(self) -> list[str]:
        """The levels behind the first."""
        if self.second is None:
            return []
        return [self.second] if self.tail is None else [self.second, *self.tail.split("/")]

    def set_levels(self, levels: list[str]) -> None:
        self.second: str | None = _one_text(levels[0]) if levels else None
        self.tail: str | None = _one_text("/".join(levels[1:])) if len(levels) > 1 else None

    @property
    def holds_values(self) -> bool:
        """Whether some filter ends here."""
        return self.here is not None or self.subtree is not None

    def child(self, level: str) -> _FilterNode[V] | None:
        """The node whose first level is this one, spelled as in a filter."""
        if level == "+":
            return self.single
        return None if self.children is None else self.children.get(level)

    def link(self, level: str, child: _FilterNode[V]) -> None:
        """Put a node below this one."""
        if level == "+":
            self.single = child
        elif self.children is None:
            self.children = {level: child}
        else:
            self.children[level] = child

    def unlink(self, level: str) -> None:
        """Take away the node with this first level."""
        if level == "+":
            self.single = None
        elif self.children is not None:
            del self.children[level]
            if not self.children:
                self.children = None

    def only_child(self) -> tuple[str, _FilterNode[V]] | None:
        """The one node below, with its first level; None when there are several, or none."""
        if self.children is None:
            return None if self.single is None else ("+", self.single)
        if self.single is not None or len(self.children) > 1:
            return None
        return next(iter(self.children.items()))

    def split(self, levels: list[str], kept: int) -> None:
        """Keep only the first `kept` of its `levels`; the others become a node below."""
        below: _FilterNode[V] = _FilterNode(levels[kept + 1 :])
        below.children, below.single, below.here, below.subtree = (
            self.children,
            self.single,
            self.here,
            self.subtree,
        )
        self.set_levels(levels[:kept])
        self.children = self.single = self.here = self.subtree = None
        self.link(levels[kept], below)

    def absorb(self, level: str, child: _FilterNode[V]) -> None:
        """Become one node with the only one below."""
        self.set_levels([*self.levels(), level, *child.levels()])
        self.children, self.single, self.here, self.subtree = (
            child.children,
            child.single,
            child.here,
            child.subtree,
        )


class SubscriptionTrie(Generic[V]):
    """Filters, each with values (subscriptions), which are told apart by their hash and equality.

    Filters must be valid and unshared (`embermq.mqtt.topics.names`); validity is not checked again here.
    """

    __slots__ = ("_exact", "_root", "_size", "_wildcards")

    def __init__(self) -> None:
        self._exact: dict[str, V | dict[V, None]] = {}
        self._root: _FilterNode[V] = _FilterNode([])
        self._wildcards = 0
        self._size = 0

    def __len__(self) -> int:
        """How many (filter, value) pairs there are."""
        return self._size

    @property
    def nodes(self) -> int:
        """How many nodes there are besides the root; counted by looking at all."""
        count, unseen = -1, [self._root]
        while unseen:
            node = unseen.pop()
            count += 1
            unseen.extend(() if node.children is None else node.children.values())
            if node.single is not None:
                unseen.append(node.single)
        return count

    def add(self, topic_filter: str, value: V) -> None:
        """Add a value to a filter that does not have it."""
        if "+" in topic_filter or "#" in topic_filter:
            node, subtree = self._node(topic_filter)
            if subtree:
                node.subtree = _with(node.subtree, value)
            else:
                node.here = _with(node.here, value)
            self._wildcards += 1
        else:
            self._exact[topic_filter] = _with(self._exact.get(topic_filter), value)
        self._size += 1

    def discard(self, topic_filter: str, value: V) -> bool:
        """Remove a value of a filter. False when it was not there. Empty nodes go with it."""
        if "+" in topic_filter or "#" in topic_filter:
            removed = self._discard_wildcard(topic_filter, value)
            self._wildcards -= removed
        else:
            exact = self._exact.get(topic_filter)
            removed = _has(exact, value)
            if removed:
                left = _without(exact, value)
                if left is None:
                    del self._exact[topic_filter]
                else:
                    self._exact[topic_filter] = left
        self._size -= removed
        return removed

    def match(self, topic: str) -> list[V]:
        """Values of all filters that match a topic name, in no promised order.

        A value that has several matching filters is there several times, once for each.
        """
        found: list[V] = []
        exact = self._exact.get(topic)
        if exact is not None:
            _extend(found, exact)
        if self._wildcards:
            self._match_wildcards(topic, found)
        return found

    def _match_wildcards(self, topic: str, found: list[V]) -> None:
        root = self._root
        levels = topic.split("/")
        depth = len(levels)
        possible: list[tuple[_FilterNode[V], int]] = []
        if topic[:1] != "$":  # [MQTT-4.7.2-1]
            if root.subtree is not None:
                _extend(found, root.subtree)
            if root.single is not None:
                possible.append((root.single, 1))
        following = None if root.children is None else root.children.get(levels[0])
        if following is not None:
            possible.append((following, 1))
        while possible:
            node, index = (
                possible.pop()
            )  # `index`: how many levels lead to the first one of the node, itself included
            while True:
                second = node.second
                if second is not None:
                    if index == depth or (second != levels[index] and second != "+"):
                        break
                    index += 1
                    if node.tail is not None:
                        index = _behind(node.tail, levels, index)
                        if index < 0:
                            break
                if node.subtree is not None:  # "a/#" matches "a" [MQTT-4.7.1-1]
                    _extend(found, node.subtree)
                if index == depth:
                    if node.here is not None:
                        _extend(found, node.here)
                    break
                following = None if node.children is None else node.children.get(levels[index])
                index += 1
                if node.single is not None:
                    if following is None:
                        following = node.single
                    else:
                        possible.append((node.single, index))
                if following is None:
                    break
                node = following

    def _node(self, topic_filter: str) -> tuple[_FilterNode[V], bool]:
        """The node at which a filter with wildcards ends, made when it is not there, and whether it ends with "#"."""
        levels = topic_filter.split("/")
        subtree = levels[-1] == "#"
        if subtree:
            levels.pop()
        node = self._root
        index = 0
        while index < len(levels):
            child = node.child(levels[index])
            if child is None:
                child = _FilterNode(levels[index + 1 :])
                node.link(levels[index], child)
                index = len(levels)
            else:
                index += 1
                behind = child.levels()
                common = _common(behind, levels, index)
                if common < len(behind):
                    child.split(behind, common)
                index += common
            node = child
        return node, subtree

    def _path(self, levels: list[str]) -> list[tuple[str, _FilterNode[V]]] | None:
        """The nodes from the root to the one where these levels end, each with its first level; None when there is no
        such node."""
        node = self._root
        path = [("", node)]
        index = 0
        while index < len(levels):
            child = node.child(levels[index])
            if child is None:
                return None
            path.append((levels[index], child))
            index += 1
            behind = child.levels()
            if behind != levels[index : index + len(behind)]:
                return None
            index += len(behind)
            node = child
        return path

    def _discard_wildcard(self, topic_filter: str, value: V) -> bool:
        levels = topic_filter.split("/")
        subtree = levels[-1] == "#"
        if subtree:
            levels.pop()
        path = self._path(levels)
        if path is None:
            return False
        last = path[-1][1]
        leaf = last.subtree if subtree else last.here
        if not _has(leaf, value):
            return False
        left = _without(leaf, value)
        if subtree:
            last.subtree = left
        else:
            last.here = left
        if left is None:
            self._shrink(path)
        return True

    def _shrink(self, path: list[tuple[str, _FilterNode[V]]]) -> None:
        """Remove the last node of a path when nothing is left at it, and join what does not branch any more."""
        level, node = path.pop()
        if node is not self._root and not node.holds_values and node.children is None and node.single is None:
            path[-1][1].unlink(level)
            level, node = path.pop()
        if node is self._root or node.holds_values:
            return
        only = node.only_child()
        if only is not None:
            node.absorb(*only)


@lru_cache(SHARED_TEXTS)
def _known(text: str) -> str:
    return text


def _one_text(text: str) -> str:
    """The same text wherever it stands: `commands` of a million filters is kept once. Not `sys.intern`, which keeps
    texts for ever in Python 3.12."""
    return _known(text) if len(text) <= SHARED_CHARACTERS_MAX else text


def _with(leaf: Leaf[V], value: V) -> V | dict[V, None]:
    """What ends at a place, with one value more."""
    if leaf is None:
        return value
    if not isinstance(leaf, dict):
        return {leaf: None, value: None}
    leaf[value] = None
    return leaf


def _has(leaf: Leaf[V], value: V) -> bool:
    return value in leaf if isinstance(leaf, dict) else leaf is not None and leaf == value


def _without(leaf: Leaf[V], value: V) -> Leaf[V]:
    """The same without a value that is there; None when nothing is left."""
    if not isinstance(leaf, dict):
        return None
    del leaf[value]
    return leaf if len(leaf) > 1 else next(iter(leaf))


def _extend(found: list[V], leaf: V | dict[V, None]) -> None:
    if isinstance(leaf, dict):
        found.extend(leaf)
    else:
        found.append(leaf)


def _common(behind: list[str], levels: list[str], index: int) -> int:
    """How many of a node's levels behind its first a filter has too, from its level `index` on."""
    count = 0
    for wanted, given in zip(behind, levels[index:], strict=False):
        if wanted != given:
            break
        count += 1
    return count


def _behind(tail: str, levels: list[str], index: int) -> int:
    """Where a topic goes on behind a tail that it has from its level `index` on; -1 when it has another one."""
    rest: str | None = tail
    count = LOOKED_AT
    while rest is not None:
        wanted = rest.split("/", count)
        rest = wanted.pop() if len(wanted) > count else None
        count *= 2
        given = levels[index : index + len(wanted)]
        if wanted != given:
            if len(wanted) != len(given):
                return -1
            for level, found in zip(wanted, given, strict=True):
                if level != found and level != "+":
                    return -1
        index += len(wanted)
    return index
