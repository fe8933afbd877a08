"""The tree of topics that hold a value (retained messages): from a filter to every topic that it matches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class _Node(Generic[V]):
    """One level; ``topic`` and ``value`` are None while no value is held here."""

    __slots__ = ("children", "topic", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] | None = None
        self.topic: str | None = None
        self.value: V | None = None


class TopicTree(Generic[V]):
    """One value a topic. Topics and filters must be valid and unshared (`embermq.topics.names`)."""

    __slots__ = ("_held", "_root")

    def __init__(self) -> None:
        self._held: dict[str, _Node[V]] = {}
        self._root: _Node[V] = _Node()

    def __len__(self) -> int:
        """How many topics hold a value."""
        return len(self._held)

    def __iter__(self) -> Iterator[str]:
        """The topics that hold a value; the tree must not change meanwhile."""
        return iter(self._held)

    def put(self, topic: str, value: V) -> bool:
        """Set the value of a topic. True when the topic is new, False when its value was replaced."""
        node = self._held.get(topic)
        if node is not None:
            node.value = value
            return False
        node = self._root
        for level in topic.split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.topic = topic
        node.value = value
        self._held[topic] = node
        return True

    def get(self, topic: str) -> V | None:
        """The value of a topic, None when it holds none."""
        node = self._held.get(topic)
        return None if node is None else node.value

    def discard(self, topic: str) -> bool:
        """Remove the value of a topic. False when it held none. Empty levels go with it."""
        node = self._held.pop(topic, None)
        if node is None:
            return False
        node.topic = None
        node.value = None
        if node.children is None:
            self._prune(topic.split("/"))
        return True

    def match(self, topic_filter: str) -> Iterator[tuple[str, V]]:
        """All (topic, value) that a filter matches, lazily and in no promised order.

        The tree may change between two steps: a topic that goes is not shown any more, one that comes may or
        may not be shown.
        """
        if "+" not in topic_filter and "#" not in topic_filter:
            node = self._held.get(topic_filter)
            if node is not None:
                yield topic_filter, node.value  # type: ignore[misc]  # held, so it is a V
            return
        levels = topic_filter.split("/")
        depth = len(levels)
        stack: list[tuple[_Node[V], int]] = [(self._root, 0)]
        while stack:
            node, index = stack.pop()
            if index == depth:
                if node.topic is not None:
                    yield node.topic, node.value  # type: ignore[misc]
                continue
            level = levels[index]
            if level == "#":
                if node.topic is not None:  # the parent level: "a/#" matches "a" [MQTT-4.7.1-1]
                    yield node.topic, node.value  # type: ignore[misc]
                # Below "#" every node matches: the index stays.
                stack.extend((child, index) for child in self._below(node))
            elif level == "+":
                stack.extend((child, index + 1) for child in self._below(node))
            elif node.children is not None:
                named = node.children.get(level)
                if named is not None:
                    stack.append((named, index + 1))

    def _below(self, node: _Node[V]) -> list[_Node[V]]:
        """The children that a wildcard may enter: at the root not those that start with $ [MQTT-4.7.2-1]."""
        if node.children is None:
            return []
        if node is self._root:
            return [child for level, child in node.children.items() if level[:1] != "$"]
        return list(node.children.values())

    def _prune(self, levels: list[str]) -> None:
        """Unlink the nodes at the end of a path that hold nothing and lead nowhere."""
        path = [self._root]
        for level in levels:
            children = path[-1].children
            if children is None:
                return
            path.append(children[level])
        for index in range(len(levels) - 1, -1, -1):
            node = path[index + 1]
            if node.topic is not None or node.children is not None:
                return
            parent = path[index]
            if parent.children is not None:
                del parent.children[levels[index]]
                if not parent.children:
                    parent.children = None
