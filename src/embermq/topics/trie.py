"""The subscription trie: from a topic to the values of every filter that matches it.

Filters without wildcards live in one dict and cost one look-up; only filters with wildcards are nodes of the
trie. A match walks the trie level by level with a list of the nodes that are still possible, so its cost is
bounded by the wildcard nodes that it meets, not by the number of subscriptions.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Node(Generic[K, V]):
    """One level of the filters with wildcards; what is absent is None, most nodes have one thing only."""

    __slots__ = ("children", "here", "single", "subtree")

    def __init__(self) -> None:
        self.children: dict[str, _Node[K, V]] | None = None
        self.single: _Node[K, V] | None = None  # the level "+"
        self.here: dict[K, V] | None = None  # filters that end at this node
        self.subtree: dict[K, V] | None = None  # filters that end with "#" below this node

    def is_empty(self) -> bool:
        return not (self.children or self.single or self.here or self.subtree)


class SubscriptionTrie(Generic[K, V]):
    """Filters, each with values by key (a client, a session, a group).

    Filters must be valid and unshared (`embermq.topics.names`); validity is not checked again here.
    """

    __slots__ = ("_exact", "_root", "_size", "_wildcards")

    def __init__(self) -> None:
        self._exact: dict[str, dict[K, V]] = {}
        self._root: _Node[K, V] = _Node()
        self._wildcards = 0
        self._size = 0

    def __len__(self) -> int:
        """How many (filter, key) pairs there are."""
        return self._size

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
        node: _Node[K, V] | None = self._root
        for level in levels:
            if node is None:
                return None
            node = node.single if level == "+" else (node.children or {}).get(level)
        if node is None:
            return None
        values = node.subtree if subtree else node.here
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
        nodes: list[_Node[K, V]] = []
        child = None if root.children is None else root.children.get(levels[0])
        if child is not None:
            nodes.append(child)
        if topic[:1] != "$":  # [MQTT-4.7.2-1]
            if root.subtree is not None:
                found.extend(root.subtree.values())
            if root.single is not None:
                nodes.append(root.single)
        for level in levels[1:]:
            if not nodes:
                return
            following: list[_Node[K, V]] = []
            for node in nodes:
                if node.subtree is not None:
                    found.extend(node.subtree.values())
                if node.children is not None:
                    child = node.children.get(level)
                    if child is not None:
                        following.append(child)
                if node.single is not None:
                    following.append(node.single)
            nodes = following
        for node in nodes:
            if node.here is not None:
                found.extend(node.here.values())
            if node.subtree is not None:  # "a/#" matches "a" [MQTT-4.7.1-1]
                found.extend(node.subtree.values())

    def _wildcard_values(self, topic_filter: str) -> dict[K, V]:
        """The dict that holds the values of a filter with wildcards; made when it is not there."""
        levels = topic_filter.split("/")
        subtree = levels[-1] == "#"
        if subtree:
            levels.pop()
        node = self._root
        for level in levels:
            child: _Node[K, V] | None
            if level == "+":
                child = node.single
                if child is None:
                    child = node.single = _Node()
            else:
                if node.children is None:
                    node.children = {}
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
            node = child
        values = node.subtree if subtree else node.here
        if values is None:
            values = {}
            if subtree:
                node.subtree = values
            else:
                node.here = values
        return values

    def _discard_wildcard(self, topic_filter: str, key: K) -> bool:
        levels = topic_filter.split("/")
        subtree = levels[-1] == "#"
        if subtree:
            levels.pop()
        path: list[_Node[K, V]] = [self._root]
        for level in levels:
            node = path[-1]
            child = node.single if level == "+" else (node.children or {}).get(level)
            if child is None:
                return False
            path.append(child)
        last = path[-1]
        values = last.subtree if subtree else last.here
        if values is None or key not in values:
            return False
        del values[key]
        if not values:
            if subtree:
                last.subtree = None
            else:
                last.here = None
            self._prune(path, levels)
        return True

    @staticmethod
    def _prune(path: list[_Node[K, V]], levels: list[str]) -> None:
        """Unlink empty nodes from the end of the path upwards; ``levels[i]`` leads from path[i] on."""
        for index in range(len(levels) - 1, -1, -1):
            if not path[index + 1].is_empty():
                return
            parent = path[index]
            if levels[index] == "+":
                parent.single = None
            elif parent.children is not None:
                del parent.children[levels[index]]
                if not parent.children:
                    parent.children = None
