"""The ACL file of Mosquitto: what it means, and what is refused with its line."""

from __future__ import annotations

import pytest

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules import Action, Principal
from embermq.access.authorization.rules_file import RulesError, read_mosquitto_acl

ACL = """\
# for those without a name
topic read public/#

user alice
topic deny alice/secret
topic alice/#
topic readwrite a topic with blanks
topic write %u/literal
pattern read status/%c
pattern readwrite home/%u/#
pattern deny home/+/locked
user bob
topic read alice/#
"""


@pytest.mark.parametrize(
    ("user", "topic", "publish", "receive"),
    [
        ("", "public/x", False, True),
        ("alice", "public/x", False, False),
        ("alice", "alice/x", True, True),
        ("alice", "alice/secret", False, False),
        ("alice", "a topic with blanks", True, True),
        ("alice", "%u/literal", True, False),
        ("alice", "alice/literal", True, True),
        ("bob", "alice/secret", False, True),
        ("bob", "alice/x", False, True),
        ("alice", "status/c1", False, True),
        ("", "status/c1", False, True),
        ("", "status/c2", False, False),
        ("bob", "home/bob/x", True, True),
        ("bob", "home/bob/locked", False, False),
        ("", "home/bob/x", False, False),
        ("", "home//x", False, False),
        ("bob", "elsewhere", False, False),
    ],
)
def test_who_may_what(user: str, topic: str, publish: bool, receive: bool) -> None:
    rule_set = RuleSet(read_mosquitto_acl(ACL, "acl"), no_match_allows=False)
    who = Principal(user, "c1")
    assert rule_set.decide(who, Action.PUBLISH, topic).allowed is publish
    assert rule_set.decide(who, Action.RECEIVE, topic).allowed is receive
    assert rule_set.decide(who, Action.SUBSCRIBE, "#").allowed


@pytest.mark.parametrize("user", ["+", "#", "a/b", "*", "alic?"])
def test_a_user_of_a_hostile_name_is_nobody_else(user: str) -> None:
    rule_set = RuleSet(read_mosquitto_acl(ACL, "acl"), no_match_allows=False)
    for topic in ("alice/x", "home/bob/x", "home/a/b/x", "public/x"):
        assert not rule_set.decide(Principal(user, "c"), Action.PUBLISH, topic).allowed
        assert not rule_set.decide(Principal(user, "c"), Action.RECEIVE, topic).allowed


def test_patterns_without_names_are_not_for_hostile_names_either() -> None:
    """As in Mosquitto; what its own section allows stays."""
    text = "topic read own\npattern read open\nuser a+b\ntopic read own\n"
    rule_set = RuleSet(read_mosquitto_acl(text, "acl"), no_match_allows=False)
    for who in (Principal("", "c+"), Principal("a+b", "c"), Principal("a+b", "#")):
        assert rule_set.decide(who, Action.RECEIVE, "own").allowed
        assert not rule_set.decide(who, Action.RECEIVE, "open").allowed
    assert rule_set.decide(Principal("", "c"), Action.RECEIVE, "open").allowed


def test_a_user_section_takes_the_name_as_it_is() -> None:
    rule_set = RuleSet(read_mosquitto_acl("user a*\ntopic t\n", "acl"), no_match_allows=False)
    assert rule_set.decide(Principal("a*", "c"), Action.PUBLISH, "t").allowed
    assert not rule_set.decide(Principal("ab", "c"), Action.PUBLISH, "t").allowed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topic", "acl:1: topic: there is no topic"),
        ("\n\npattern read a/#/b", "acl:3: pattern: topic filter 'a/#/b': '#' is not the last level"),
        ("topic reed a", "acl:1: topic: 'reed' is not one of read, write, readwrite, deny"),
        ("user", "acl:1: user: there is no name"),
        ("user  \t", "acl:1: user: there is no name"),
        ("users x", "acl:1: 'users' is not topic, user or pattern"),
        ("topic read $share//a", "acl:1: topic: shared filter '$share//a' has an empty share name"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(RulesError) as caught:
        read_mosquitto_acl(text, "acl")
    assert str(caught.value) == expected
