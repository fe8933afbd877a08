"""The trie and the tree of topics against a naive matcher, under any sequence of changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from embermq.mqtt.topics.names import matches, validate_filter, validate_topic
from embermq.mqtt.topics.topic_tree import TopicTree
from embermq.mqtt.topics.trie import SubscriptionTrie

names = st.sampled_from(["a", "b", "", "$", "$a"])
stems = st.sampled_from([[], [], [], ["a"], ["a", "b"] * 10, ["a", "b"] * 10 + [""]])
"""What filters and topics begin with: mostly nothing, sometimes more levels than one node is compared in one step."""
wild_stems = st.one_of(stems, st.sampled_from([["+"], ["a", "+"] * 10]))
topics = st.builds(
    lambda stem, parts: "/".join([*stem, *parts]), stems, st.lists(names, min_size=1, max_size=4)
).filter(bool)
filters = st.builds(
    lambda stem, parts, end: "/".join([*stem, *parts, *end]),
    wild_stems,
    st.lists(st.one_of(names, st.just("+")), max_size=4),
    st.sampled_from([[], ["#"], ["+"], ["a"]]),
).filter(bool)
keys = st.sampled_from(["k1", "k2", "k3"])


def naive_match(topic_filter: str, topic: str) -> bool:
    """The rules of the specification, level by level, by recursion."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return naive_levels(topic_filter.split("/"), topic.split("/"))


def naive_levels(wanted: list[str], given_levels: list[str]) -> bool:
    if wanted == ["#"]:
        return True
    if not wanted or not given_levels:
        return wanted == given_levels
    return wanted[0] in ("+", given_levels[0]) and naive_levels(wanted[1:], given_levels[1:])


@settings(max_examples=4 * settings().max_examples)
@given(filters, topics)
def test_single_pair(topic_filter: str, topic: str) -> None:
    validate_filter(topic_filter)
    validate_topic(topic)
    expected = naive_match(topic_filter, topic)
    assert matches(topic_filter, topic) is expected
    trie: SubscriptionTrie[str] = SubscriptionTrie()
    trie.add(topic_filter, "v")
    assert trie.match(topic) == (["v"] if expected else [])
    tree: TopicTree[int] = TopicTree()
    tree.put(topic, 1)
    assert list(tree.match(topic_filter)) == ([(topic, 1)] if expected else [])


class TrieModel(RuleBasedStateMachine):
    """The trie holds what a set of (filter, value) holds and matches what the naive matcher matches."""

    @initialize()
    def start(self) -> None:
        self.trie: SubscriptionTrie[str] = SubscriptionTrie()
        self.model: set[tuple[str, str]] = set()

    @rule(topic_filter=filters, value=keys)
    def add(self, topic_filter: str, value: str) -> None:
        if (topic_filter, value) not in self.model:
            self.trie.add(topic_filter, value)
            self.model.add((topic_filter, value))

    @rule(topic_filter=filters, value=keys)
    def discard(self, topic_filter: str, value: str) -> None:
        assert self.trie.discard(topic_filter, value) is ((topic_filter, value) in self.model)
        self.model.discard((topic_filter, value))

    @rule(data=st.data())
    def discard_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            topic_filter, value = data.draw(st.sampled_from(sorted(self.model)))
            assert self.trie.discard(topic_filter, value)
            self.model.remove((topic_filter, value))

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        expected = [value for topic_filter, value in self.model if naive_match(topic_filter, topic)]
        assert sorted(self.trie.match(topic)) == sorted(expected)

    @invariant()
    def size(self) -> None:
        assert len(self.trie) == len(self.model)
        wild = {topic_filter for topic_filter, _ in self.model if set("+#") & set(topic_filter)}
        assert self.trie.nodes <= 2 * len(wild)
        if not self.model:
            assert not self.trie._exact


class TreeModel(RuleBasedStateMachine):
    """The tree holds what a dict of topics holds and matches what the naive matcher matches."""

    @initialize()
    def start(self) -> None:
        self.tree: TopicTree[int] = TopicTree()
        self.model: dict[str, int] = {}
        self.count = 0

    @rule(topic=topics)
    def put(self, topic: str) -> None:
        self.count += 1
        assert self.tree.put(topic, self.count) is (topic not in self.model)
        self.model[topic] = self.count

    @rule(topic=topics)
    def discard(self, topic: str) -> None:
        assert self.tree.discard(topic) is (topic in self.model)
        self.model.pop(topic, None)

    @rule(topic_filter=filters)
    def match(self, topic_filter: str) -> None:
        found = list(self.tree.match(topic_filter))
        assert len(found) == len(dict(found))
        expected = {topic: value for topic, value in self.model.items() if naive_match(topic_filter, topic)}
        assert dict(found) == expected

    @rule(topic=topics)
    def get(self, topic: str) -> None:
        assert self.tree.get(topic) == self.model.get(topic)

    @invariant()
    def size(self) -> None:
        assert len(self.tree) == len(self.model)
        if not self.model:
            assert self.tree._root.children is None


stateful = settings(max_examples=max(1, settings().max_examples * 6 // 10), stateful_step_count=40)
TestTrieModel = TrieModel.TestCase
TestTrieModel.settings = stateful
TestTreeModel = TreeModel.TestCase
TestTreeModel.settings = stateful
