"""The tree of topics that hold a value (retained messages): from a filter to every topic that it matches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class _TopicNode(Generic[V]):
    """One level; ``topic`` and ``value`` are None while no value is held here."""

    __slots__ = ("children", "topic", "value")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode[V]] | None = None
        self.topic: str | None = None
        self.value: V | None = None


class TopicTree(Generic[V]):
    """One value a topic. Topics and filters must be valid and unshared (`embermq.mqtt.topics.names`)."""

    __slots__ = ("_held", "_hidden", "_root")

    def __init__(self) -> None:
        self._held: dict[str, _TopicNode[V]] = {}
        self._root: _TopicNode[V] = _TopicNode()
        self._hidden: _TopicNode[V] = _TopicNode()
        """Where topics that begin with $ start: no wildcard comes here first [MQTT-4.7.2-1]."""

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
        node = self._root if topic[:1] != "$" else self._hidden
        for level in topic.split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _TopicNode()
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
        return (found for found in self.walk(topic_filter) if found is not None)

    def walk(self, topic_filter: str) -> Iterator[tuple[str, V] | None]:
        """The same in steps of bounded work: None for each place on the way where the filter matches nothing, so that
        who looks through very many topics for few can pause between them."""
        if "+" not in topic_filter and "#" not in topic_filter:
            held = self._held.get(topic_filter)
            if held is not None:
                yield topic_filter, held.value  # type: ignore[misc]  # held, so it is a V
            return
        levels = topic_filter.split("/")
        depth = len(levels)
        root = self._root if topic_filter[:1] != "$" else self._hidden
        stack: list[tuple[Iterator[_TopicNode[V]], int]] = [(iter((root,)), 0)]
        while stack:
            nodes, index = stack[-1]
            node = next(nodes, None)
            if node is None:
                stack.pop()
                continue
            children = node.children
            if index == depth:
                yield None if node.topic is None else (node.topic, node.value)  # type: ignore[misc]
                continue
            level = levels[index]
            if level == "#":
                # The parent level counts: "a/#" matches "a" [MQTT-4.7.1-1]. Below "#" every node does: the index stays.
                yield None if node.topic is None else (node.topic, node.value)  # type: ignore[misc]
                if children is not None:
                    stack.append((iter(list(children.values())), index))
                continue
            yield None
            if children is None:
                continue
            if level == "+":
                stack.append((iter(list(children.values())), index + 1))
            elif (named := children.get(level)) is not None:
                stack.append((iter((named,)), index + 1))

    def _prune(self, levels: list[str]) -> None:
        """Unlink the nodes at the end of a path that hold nothing and lead nowhere."""
        path = [self._root if levels[0][:1] != "$" else self._hidden]
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
