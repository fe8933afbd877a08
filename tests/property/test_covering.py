"""Whether a filter covers another one, and whether two overlap, against all topics there are in a small world."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules import Action, Principal, Rule, RulePosition
from embermq.mqtt.topics.names import covers, matches, overlap

NAMES = ("a", "b", "", "$", "other")
LEVELS = 3
TOPICS = [
    "/".join(levels)
    for depth in range(1, LEVELS + 2)
    for levels in product(NAMES, repeat=depth)
    if "/".join(levels)
]
"""One level deeper than any filter below, and with a name that stands in none: what "#" and "+" alone reach."""
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(st.sampled_from(["a", "b", "", "$", "+"]), max_size=LEVELS - 1),
    st.sampled_from([[], ["#"], ["+"], ["a"]]),
).filter(bool)


@given(filters, filters)
def test_covering_is_matching_all_topics(wide: str, narrow: str) -> None:
    reached = [topic for topic in TOPICS if matches(narrow, topic)]
    assert covers(wide, narrow) is all(matches(wide, topic) for topic in reached)


@given(filters, filters)
def test_overlapping_is_matching_a_topic_together(one: str, other: str) -> None:
    both = [topic for topic in (*TOPICS, "") if matches(one, topic) and matches(other, topic)]
    assert overlap(one, other) is bool(both)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    topics = draw(st.none() | st.lists(filters, min_size=1, max_size=2).map(tuple))
    return Rule(draw(st.booleans()), frozenset(Action), RulePosition("rules", 1), filters=topics)


@given(st.lists(rules(), max_size=4), filters, st.booleans())
def test_first_rule_that_is_about_it_decides(given_rules: list[Rule], asked: str, otherwise: bool) -> None:
    """The rule set against the sentence that explains it."""
    permissions = RuleSet(given_rules, no_match_allows=otherwise)
    client = Principal("u", "c")

    def about(rule: Rule, topics: list[str]) -> bool:
        return rule.filters is None or any(
            all(matches(text, topic) for topic in topics) for text in rule.filters
        )

    def expected(topics: list[str]) -> bool:
        return next((rule.allow for rule in given_rules if about(rule, topics)), otherwise)

    reached = [topic for topic in TOPICS if matches(asked, topic)]
    assert permissions.decide(client, Action.SUBSCRIBE, asked).allowed is expected(reached)
    for topic in TOPICS[:: max(1, len(TOPICS) // 40)]:
        assert permissions.decide(client, Action.PUBLISH, topic).allowed is expected([topic])


hostile = st.text(st.sampled_from("ab$/+#%uc*"), max_size=6)


@given(st.sampled_from(["t/%u/x", "%u/#", "t/%c", "a%u/b%c/#", "%c%u", "%u"]), hostile, hostile)
def test_what_a_client_brings_never_widens_an_allow(text: str, user: str, client_id: str) -> None:
    """A topic that is allowed has the client's name where the rule has the placeholder, and as many levels."""
    rule = Rule(True, frozenset(Action), RulePosition("rules", 1), filters=(text,))
    rule_set = RuleSet([rule], no_match_allows=False)
    who = Principal(user, client_id)
    literal = text.replace("%u", "\1").replace("%c", client_id).replace("\1", user)
    for topic in (*TOPICS, literal.removesuffix("/#"), literal.replace("#", "x").replace("+", "x")):
        if not topic or not rule_set.decide(who, Action.PUBLISH, topic).allowed:
            continue
        levels, own = topic.split("/"), text.split("/")
        for level, wanted in zip(levels, own, strict=False):
            filled = wanted.replace("%u", "\1").replace("%c", client_id).replace("\1", user)
            assert wanted == "#" or level == filled
        assert len(levels) >= len(own) - own.count("#")
        assert topic.startswith("$") is text.startswith("$")


@given(st.sampled_from(["t/%u/x", "%u/#", "t/%c", "a%u/b%c/#"]), hostile.filter(bool), hostile.filter(bool))
def test_a_deny_hits_whatever_the_client_is_called(text: str, user: str, client_id: str) -> None:
    rule = Rule(False, frozenset(Action), RulePosition("rules", 1), filters=(text,))
    rule_set = RuleSet([rule], no_match_allows=True)
    literal = text.replace("%u", "\1").replace("%c", client_id).replace("\1", user).replace("#", "x")
    if "+" not in literal and "#" not in literal:
        assert not rule_set.decide(Principal(user, client_id), Action.PUBLISH, literal).allowed
