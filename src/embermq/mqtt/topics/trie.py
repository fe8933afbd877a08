"""The subscription trie: from a topic to the values of every filter that matches it.

Filters without wildcards live in one dict and cost one look-up; only filters with wildcards are nodes of the
trie. Levels that no other filter branches off are one node (a radix tree), so there are at most two nodes a filter,
however many levels it has. A match follows the nodes that are still possible, so its cost is bounded by the wildcard
nodes that it meets, not by the number of subscriptions.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LOOKED_AT: Final = 8
"""Levels of a long tail that are taken apart first, then twice as many: a topic that has others is mostly found out by
the first few."""


class _FilterNode(Generic[K, V]):
    """One or several levels of the filters with wildcards; what is absent is None, most nodes have one thing only.

    The first level of a node is what its parent finds it by, `second` the one behind it, `tail` are all others with
    their slashes: as one text, because a list of them would take ten times the memory. `second` stands apart because
    most nodes have no more than that, and most topics that do not match are found out by it.
    """

    __slots__ = ("children", "here", "second", "single", "subtree", "tail")

    def __init__(self, levels: list[str]) -> None:
        """`levels` are those behind the first."""
        self.children: dict[str, _FilterNode[K, V]] | None = None
        self.single: _FilterNode[K, V] | None = None  # the level "+"
        self.here: dict[K, V] | None = None  # filters that end at this node
        self.subtree: dict[K, V] | None = None  # filters that end with "#" below this node
        self.set_levels(levels)

    def levels(self) -> list[str]:
        """The levels behind the first."""
        if self.second is None:
            return []
        return [self.second] if self.tail is None else [self.second, *self.tail.split("/")]

    def set_levels(self, levels: list[str]) -> None:
        """Replace them."""
        self.second: str | None = levels[0] if levels else None
        self.tail: str | None = "/".join(levels[1:]) if len(levels) > 1 else None

    @property
    def holds_values(self) -> bool:
        """Whether some filter ends here."""
        return self.here is not None or self.subtree is not None

    def child(self, level: str) -> _FilterNode[K, V] | None:
        """The node whose first level is this one, spelled as in a filter."""
        if level == "+":
            return self.single
        return None if self.children is None else self.children.get(level)

    def link(self, level: str, child: _FilterNode[K, V]) -> None:
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

    def only_child(self) -> tuple[str, _FilterNode[K, V]] | None:
        """The one node below, with its first level; None when there are several, or none."""
        if self.children is None:
            return None if self.single is None else ("+", self.single)
        if self.single is not None or len(self.children) > 1:
            return None
        return next(iter(self.children.items()))

    def split(self, levels: list[str], kept: int) -> None:
        """Keep only the first `kept` of its `levels`; the others become a node below."""
        below: _FilterNode[K, V] = _FilterNode(levels[kept + 1 :])
        below.children, below.single, below.here, below.subtree = (
            self.children,
            self.single,
            self.here,
            self.subtree,
        )
        self.set_levels(levels[:kept])
        self.children = self.single = self.here = self.subtree = None
        self.link(levels[kept], below)

    def absorb(self, level: str, child: _FilterNode[K, V]) -> None:
        """Become one node with the only one below."""
        self.set_levels([*self.levels(), level, *child.levels()])
        self.children, self.single, self.here, self.subtree = (
            child.children,
            child.single,
            child.here,
            child.subtree,
        )


class SubscriptionTrie(Generic[K, V]):
    """Filters, each with values by key (a client, a session, a group).

    Filters must be valid and unshared (`embermq.mqtt.topics.names`); validity is not checked again here.
    """

    __slots__ = ("_exact", "_root", "_size", "_wildcards")

    def __init__(self) -> None:
        self._exact: dict[str, dict[K, V]] = {}
        self._root: _FilterNode[K, V] = _FilterNode([])
        self._wildcards = 0
        self._size = 0

    def __len__(self) -> int:
        """How many (filter, key) pairs there are."""
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

    def put(self, topic_filter: str, key: K, value: V) -> bool:
        """Set the value of (filter, key). True when the pair is new, False when its value was replaced."""
        if "+" in topic_filter or "#" in topic_filter:
            values = self._wildcard_values(topic_filter)
            new = key not in values
            self._wildcards += new
        else:
            exact = self._exact.get(topic_filter)
            if exact is None:
                exact = self._exact[topic_filter] = {}
            values = exact
            new = key not in values
        values[key] = value
        self._size += new
        return new

    def get(self, topic_filter: str, key: K) -> V | None:
        """The value of exactly this filter and key, None when there is none. No matching."""
        if not ("+" in topic_filter or "#" in topic_filter):
            exact = self._exact.get(topic_filter)
            return None if exact is None else exact.get(key)
        levels = topic_filter.split("/")
        subtree = levels[-1] == "#"
        if subtree:
            levels.pop()
        path = self._path(levels)
        if path is None:
            return None
        values = path[-1][1].subtree if subtree else path[-1][1].here
        return None if values is None else values.get(key)

    def discard(self, topic_filter: str, key: K) -> bool:
        """Remove (filter, key). False when it was not there. Empty nodes go with it."""
        if "+" in topic_filter or "#" in topic_filter:
            removed = self._discard_wildcard(topic_filter, key)
            self._wildcards -= removed
        else:
            exact = self._exact.get(topic_filter)
            removed = exact is not None and key in exact
            if removed and exact is not None:
                del exact[key]
                if not exact:
                    del self._exact[topic_filter]
        self._size -= removed
        return removed

    def match(self, topic: str) -> list[V]:
        """Values of all filters that match a topic name, in no promised order.

        A key that has several matching filters is there several times, once for each.
        """
        exact = self._exact.get(topic)
        found: list[V] = [] if exact is None else list(exact.values())
        if self._wildcards:
            self._match_wildcards(topic, found)
        return found

    def _match_wildcards(self, topic: str, found: list[V]) -> None:
        root = self._root
        levels = topic.split("/")
        depth = len(levels)
        possible: list[tuple[_FilterNode[K, V], int]] = []
        if topic[:1] != "$":  # [MQTT-4.7.2-1]
            if root.subtree is not None:
                found.extend(root.subtree.values())
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
                    found.extend(node.subtree.values())
                if index == depth:
                    if node.here is not None:
                        found.extend(node.here.values())
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

    def _wildcard_values(self, topic_filter: str) -> dict[K, V]:
        """The dict that holds the values of a filter with wildcards; made when it is not there."""
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
        values = node.subtree if subtree else node.here
        if values is None:
            values = {}
            if subtree:
                node.subtree = values
            else:
                node.here = values
        return values

    def _path(self, levels: list[str]) -> list[tuple[str, _FilterNode[K, V]]] | None:
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

    def _discard_wildcard(self, topic_filter: str, key: K) -> bool:
        levels = topic_filter.split("/")
        subtree = levels[-1] == "#"
        if subtree:
            levels.pop()
        path = self._path(levels)
        if path is None:
            return False
        last = path[-1][1]
        values = last.subtree if subtree else last.here
        if values is None or key not in values:
            return False
        del values[key]
        if not values:
            if subtree:
                last.subtree = None
            else:
                last.here = None
            self._shrink(path)
        return True

    def _shrink(self, path: list[tuple[str, _FilterNode[K, V]]]) -> None:
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
