"""The subscription trie and the tree of topics, by example; models of both are in tests/property."""

from __future__ import annotations

import pytest

from embermq.mqtt.topics.topic_tree import TopicTree
from embermq.mqtt.topics.trie import SubscriptionTrie

DEEP = 65_535


def test_add_and_discard() -> None:
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    for topic_filter in ("a/b", "a/+", "a/#", "+", "#"):
        for value in (1, 2, 3):
            trie.add(topic_filter, value)
    assert len(trie) == 15
    assert sorted(trie.match("a/b")) == [1] * 4 + [2] * 4 + [3] * 4
    assert sorted(trie.match("a")) == [1] * 3 + [2] * 3 + [3] * 3
    for topic_filter in ("a/b", "a/+", "a/#", "+", "#"):
        before = len(trie.match("a/b"))
        for gone, value in enumerate((2, 1, 3), 1):
            assert trie.discard(topic_filter, value)
            assert not trie.discard(topic_filter, value)
            assert len(trie.match("a/b")) == before - gone * (topic_filter != "+")
    assert len(trie) == 0
    assert trie.match("a/b") == []
    assert trie.nodes == 0


def test_discard_of_what_was_never_there() -> None:
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    trie.add("a/+/c", 1)
    trie.add("x/y", 1)
    for topic_filter in ("a/+", "a/+/#", "b/+", "+/+/c", "a/+/c/+", "x", "a/+/c/#"):
        assert not trie.discard(topic_filter, 1)
    assert not trie.discard("a/+/c", 2)
    assert not trie.discard("x/y", 2)
    assert len(trie) == 2


def test_empty_nodes_go() -> None:
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    trie.add("a/+/c/d/#", 1)
    trie.add("a/+", 1)
    trie.discard("a/+/c/d/#", 1)
    assert trie.match("a/x") == [1]
    trie.discard("a/+", 1)
    assert trie.nodes == 0


def test_levels_that_do_not_branch_take_one_node() -> None:
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    long = "/".join(["level", "+"] * 60)
    trie.add(f"{long}/#", 1)
    assert trie.nodes == 1
    trie.add(f"{long}/x/#", 2)
    trie.add("level/+/other", 3)
    assert trie.nodes == 4
    topic = "/".join(["level", "y"] * 60)
    assert sorted(trie.match(f"{topic}/x/z")) == [1, 2]
    assert trie.match("level/y/other") == [3]
    assert trie.match(topic.replace("y", "level")) == [1]
    assert trie.match(topic[:-2]) == trie.match("level") == trie.match("level/y") == []
    assert trie.discard("level/+/other", 3)
    trie.discard(f"{long}/#", 1)
    assert trie.nodes == 1
    assert trie.match(f"{topic}/x") == [2]


def test_wildcards_in_front_do_not_match_dollar_topics() -> None:
    trie: SubscriptionTrie[str] = SubscriptionTrie()
    for topic_filter in ("#", "+/a", "+/#", "$SYS/#", "$SYS/+", "$SYS/a"):
        trie.add(topic_filter, topic_filter)
    assert sorted(trie.match("$SYS/a")) == ["$SYS/#", "$SYS/+", "$SYS/a"]
    assert trie.match("$queue/a") == []


@pytest.mark.parametrize("topic_filter", ["#", "a/#", "a/" * (DEEP // 2) + "#", "+/" * (DEEP // 2) + "#"])
def test_trie_of_very_many_levels(topic_filter: str) -> None:
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    trie.add(topic_filter, 1)
    topic = "a/" * (DEEP // 2) + "a"
    assert trie.match(topic) == [1]
    assert trie.match("/" * DEEP) == ([1] if topic_filter[0] in "#+" else [])
    assert trie.discard(topic_filter, 1)
    assert trie.match(topic) == []


def test_a_deep_trie_can_be_dropped_whole() -> None:
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    trie.add("+/" * (DEEP // 2) + "a", 1)
    del trie
    tree: TopicTree[int] = TopicTree()
    tree.put("/" * DEEP, 1)
    del tree


def test_tree_put_replace_discard() -> None:
    tree: TopicTree[int] = TopicTree()
    assert tree.put("a/b", 1)
    assert not tree.put("a/b", 2)
    assert tree.put("a", 3)
    assert tree.get("a/b") == 2
    assert tree.get("a/c") is None
    assert sorted(tree) == ["a", "a/b"]
    assert dict(tree.match("a/#")) == {"a": 3, "a/b": 2}
    assert dict(tree.match("a/+")) == {"a/b": 2}
    assert dict(tree.match("a")) == {"a": 3}
    assert dict(tree.match("b")) == {}
    assert tree.discard("a")
    assert not tree.discard("a")
    assert dict(tree.match("#")) == {"a/b": 2}
    assert tree.discard("a/b")
    assert len(tree) == 0
    assert tree._root.children is None


def test_tree_holds_none_as_a_value() -> None:
    tree: TopicTree[None] = TopicTree()
    tree.put("a", None)
    assert list(tree.match("#")) == [("a", None)]
    assert len(tree) == 1


def test_tree_hides_dollar_topics_from_wildcards_in_front() -> None:
    tree: TopicTree[int] = TopicTree()
    tree.put("$SYS/a", 1)
    tree.put("b/$a", 2)
    assert dict(tree.match("#")) == {"b/$a": 2}
    assert dict(tree.match("+/+")) == {"b/$a": 2}
    assert dict(tree.match("$SYS/#")) == {"$SYS/a": 1}


def test_tree_may_change_while_it_is_matched() -> None:
    tree: TopicTree[int] = TopicTree()
    for index in range(10):
        tree.put(f"a/{index}/x", index)
    seen = []
    for topic, _ in tree.match("a/#"):
        seen.append(topic)
        for index in range(10):
            tree.discard(f"a/{index}/x")
        tree.put("a/new/y", 1)
    assert len(seen) == 1
    assert dict(tree.match("a/#")) == {"a/new/y": 1}


def test_tree_of_very_many_levels() -> None:
    tree: TopicTree[int] = TopicTree()
    topic = "/" * DEEP
    tree.put(topic, 1)
    assert dict(tree.match("#")) == {topic: 1}
    assert dict(tree.match("+/" * (DEEP // 2) + "#")) == {topic: 1}
    assert tree.discard(topic)
    assert tree._root.children is None
