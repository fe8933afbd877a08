"""Which rule decides, for whom, and what is said about it."""

from __future__ import annotations

import pytest

from embermq.access.authorization.rule_set import Permissions, RuleSet
from embermq.access.authorization.rules import Action, Principal, Rule
from embermq.access.authorization.rules_file import read_rules

PUBLISH, SUBSCRIBE, RECEIVE, CREATE = Action.PUBLISH, Action.SUBSCRIBE, Action.RECEIVE, Action.CREATE
CONNECT, TAKEOVER = Action.CONNECT, Action.TAKEOVER


def rules(text: str, *, no_match_allows: bool = False) -> RuleSet:
    return RuleSet(read_rules(text, "r.toml"), no_match_allows=no_match_allows)


def allowed(rule_set: RuleSet, who: Principal, action: Action, topic: str) -> bool:
    return rule_set.decide(who, action, topic).allowed


ALICE = Principal("alice", "phone-1", "CN=alice,O=Works")
NOBODY = Principal("", "phone-2")


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ('user = "alice"', (True, False)),
        ('user = "ali*"', (True, False)),
        ('user = ["bob", "a?ice"]', (True, False)),
        ('user = "*"', (True, False)),  # somebody: an anonymous client is nobody
        ('user_regex = ".*"', (True, False)),
        ('user_regex = "lic"', (False, False)),  # the whole name
        ('user = "Alice"', (False, False)),
        ('client_id = "phone-*"', (True, True)),
        ('client_id_regex = "phone-[0-9]+"', (True, True)),
        ('client_id = "phone-2"', (False, True)),
        ('certificate = "*,O=Works"', (True, False)),
        ('certificate = "*"', (True, False)),
        ('certificate_regex = "CN=[^,]*,O=Works"', (True, False)),
        ("anonymous = true", (False, True)),
        ("anonymous = false", (True, False)),
        ('user = "alice"\nclient_id = "phone-1"\ncertificate = "CN=alice,O=Works"', (True, False)),
        ('user = "alice"\nclient_id = "phone-2"', (False, False)),
        ("", (True, True)),
    ],
)
def test_whom_a_rule_is_about(who: str, expected: tuple[bool, bool]) -> None:
    rule_set = rules(f'[[rule]]\nallow = "all"\n{who}')
    assert (allowed(rule_set, ALICE, PUBLISH, "t"), allowed(rule_set, NOBODY, PUBLISH, "t")) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ('"publish"', {PUBLISH}),
        ('"subscribe"', {SUBSCRIBE}),
        ('"receive"', {RECEIVE}),
        ('"read"', {SUBSCRIBE, RECEIVE}),
        ('["publish", "read"]', {PUBLISH, SUBSCRIBE, RECEIVE}),
        ('"create"', {CREATE}),
        ('"all"', {PUBLISH, SUBSCRIBE, RECEIVE, CREATE}),
        ('"connect"', {CONNECT}),
        ('["all", "connect", "takeover"]', set(Action)),
    ],
)
def test_actions(words: str, expected: set[Action]) -> None:
    rule_set = rules(f'[[rule]]\nallow = {words}\n[[rule]]\ndeny = "connect"')
    assert {action for action in Action if allowed(rule_set, ALICE, action, "t")} == expected


@pytest.mark.parametrize("no_match", [True, False])
def test_client_ids_are_free_until_a_rule_is_about_them_and_sessions_never(no_match: bool) -> None:
    free = RuleSet(read_rules('[[rule]]\nallow = "all"', "r"), no_match_allows=no_match)
    assert allowed(free, ALICE, CONNECT, "") and not allowed(free, ALICE, TAKEOVER, "")
    text = '[[rule]]\nallow = "connect"\nuser = "somebody else"'
    guarded = RuleSet(read_rules(text, "r"), no_match_allows=no_match)
    assert allowed(guarded, ALICE, CONNECT, "") is no_match
    assert not allowed(guarded, ALICE, TAKEOVER, "")


def test_a_user_name_in_a_client_id_is_no_wildcard_and_not_too_long() -> None:
    text = (
        '[[rule]]\ndeny = "connect"\nclient_id = "x-%u"\n[[rule]]\nallow = "connect"\nclient_id = "%u-[0-9]"'
    )
    rule_set = RuleSet(read_rules(text, "r"), no_match_allows=False)

    def may(user: str, client_id: str) -> bool:
        return allowed(rule_set, Principal(user, client_id), CONNECT, "")

    assert may("ann", "ann-7") and not may("ann", "ann-x")
    assert may("[a]*?", "[a]*?-1") and not may("[a]*?", "abc-1")
    assert may("%u", "%u-1") and not may("%u", "%u-1-1")
    assert not may("", "-1"), "%u is nobody's without a user"
    long = "u" * 257
    assert not may(long, f"{long}-1"), "a deny hits what is too long to be tried"


def test_the_first_that_matches_decides() -> None:
    rule_set = rules("""
        [[rule]]
        allow = "all"
        topics = "a/b"
        [[rule]]
        deny = "all"
        topics = "a/#"
        [[rule]]
        allow = "all"
        """)
    assert [allowed(rule_set, ALICE, PUBLISH, topic) for topic in ("a/b", "a/c", "b")] == [True, False, True]
    assert (
        rule_set.decide(ALICE, PUBLISH, "a/c").why
        == "r.toml:5: deny publish, subscribe, receive, create on a/#"
    )


def test_rules_of_named_users_keep_their_place_among_the_others() -> None:
    rule_set = rules("""
        [[rule]]
        deny = "all"
        client_id = "phone-1"
        topics = "x"
        [[rule]]
        allow = "all"
        user = "alice"
        [[rule]]
        deny = "all"
        """)
    assert [rule.place.line for rule in rule_set.about(ALICE)] == [2, 6, 9]
    assert not allowed(rule_set, ALICE, PUBLISH, "x")
    assert allowed(rule_set, ALICE, PUBLISH, "y")


@pytest.mark.parametrize("otherwise", [True, False])
def test_what_no_rule_matches(otherwise: bool) -> None:
    rule_set = rules('[[rule]]\ndeny = "all"\ntopics = "x"', no_match_allows=otherwise)
    assert allowed(rule_set, ALICE, PUBLISH, "y") is otherwise
    word = "allowed" if otherwise else "denied"
    assert rule_set.decide(ALICE, PUBLISH, "y").why == f"no rule matches, and what no rule matches is {word}"


def test_an_allow_covers_the_whole_of_a_subscription() -> None:
    rule_set = rules('[[rule]]\nallow = "read"\ntopics = ["a/+", "b/#"]')
    asked = ("a/+", "a/x", "b", "b/#", "b/+/c", "a/#", "#", "+/x")
    assert [allowed(rule_set, ALICE, SUBSCRIBE, text) for text in asked] == [True] * 5 + [False] * 3
    why = rule_set.decide(ALICE, SUBSCRIBE, "#").why
    assert why == "no rule covers the whole of # (r.toml:1: a part of it), and that is denied"


def test_a_deny_that_covers_a_part_leaves_the_subscription_and_takes_the_messages() -> None:
    rule_set = rules('[[rule]]\ndeny = "read"\ntopics = "secret/#"\n[[rule]]\nallow = "read"')
    assert allowed(rule_set, ALICE, SUBSCRIBE, "#")
    assert not allowed(rule_set, ALICE, SUBSCRIBE, "secret/+")
    assert not allowed(rule_set, ALICE, RECEIVE, "secret/x")


def test_topics_of_the_broker_are_read_by_a_rule_that_names_them() -> None:
    rule_set = rules('[[rule]]\nallow = "read"\ntopics = "#"')
    assert not allowed(rule_set, ALICE, RECEIVE, "$SYS/broker/uptime")
    assert not allowed(rule_set, ALICE, SUBSCRIBE, "$SYS/#")
    for named in ('topics = "$SYS/#"', ""):
        rule_set = rules(f'[[rule]]\nallow = "read"\n{named}')
        assert allowed(rule_set, ALICE, RECEIVE, "$SYS/broker/uptime")
        assert allowed(rule_set, ALICE, SUBSCRIBE, "$SYS/#")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", False),  # about every topic, but not about these
        ('topics = "#"', False),
        ('topics = "+/queue/#"', False),
        ('topic_regex = ".*"', False),
        ('topic_regex = "[$]admin/queue/jobs/config"', False),
        ('user = "alice"', False),
        ('topics = "$admin/#"', True),
        ('topics = ["t", "$admin/queue/+/config"]', True),
    ],
)
@pytest.mark.parametrize("otherwise", [True, False])
def test_settings_of_queues_are_allowed_by_topics_that_name_them(
    rule: str, expected: bool, otherwise: bool
) -> None:
    rule_set = rules(f'[[rule]]\nallow = "all"\n{rule}', no_match_allows=otherwise)
    topic = "$admin/queue/jobs/config"
    assert allowed(rule_set, ALICE, PUBLISH, topic) is expected
    assert Permissions(rule_set, ALICE, 10).may_publish(topic) is expected
    assert Permissions(rule_set, ALICE, 10).may_subscribe(topic) is expected
    if not expected:
        assert "`topics` that name $admin/queue/" in rule_set.decide(ALICE, PUBLISH, topic).why


def test_settings_of_queues_are_denied_by_any_rule() -> None:
    for deny in ("", 'topic_regex = ".*"', 'topics = "$admin/#"'):
        rule_set = rules(f'[[rule]]\ndeny = "all"\n{deny}\n[[rule]]\nallow = "all"\ntopics = "$admin/#"')
        assert not allowed(rule_set, ALICE, PUBLISH, "$admin/queue/jobs/config")


def test_a_rule_about_every_topic_is_passed_over_for_the_next_one_that_names_settings() -> None:
    rule_set = rules('[[rule]]\nallow = "all"\n[[rule]]\nallow = "publish"\ntopics = "$admin/queue/#"')
    decision = rule_set.decide(ALICE, PUBLISH, "$admin/queue/jobs/config")
    assert decision.allowed and decision.rule is not None and decision.rule.place.line == 3
    assert allowed(rule_set, ALICE, PUBLISH, "$admin/other")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", False),
        ('topics = "#"', False),
        ('topics = "$SYS/#"', False),
        ('topics = "$SYS/+/connected"', False),
        ('topics = "$SYS/%u/#"', False),  # whatever its user is called
        ('topic_regex = "[$]SYS/events/.*"', False),
        ('user = "events"', False),
        ('topics = "$SYS/events/connected"', True),
        ('topics = ["$SYS/#", "$SYS/events/+"]', True),
        ('topics = ["$SYS/#", "$SYS/events/denied"]', False),  # the second one is about others
    ],
)
@pytest.mark.parametrize("otherwise", [True, False])
def test_client_events_are_allowed_by_topics_that_name_them(
    rule: str, expected: bool, otherwise: bool
) -> None:
    rule_set = rules(f'[[rule]]\nallow = "read"\n{rule}', no_match_allows=otherwise)
    who, topic = Principal("events", "c"), "$SYS/events/connected"
    assert allowed(rule_set, who, RECEIVE, topic) is expected
    assert Permissions(rule_set, who, 10).may_receive(topic) is expected
    assert Permissions(rule_set, who, 10).may_subscribe(topic) is expected
    if not expected:
        assert "`topics` that name $SYS/events/" in rule_set.decide(who, RECEIVE, topic).why


def test_client_events_are_denied_by_any_rule() -> None:
    for deny in ("", 'topic_regex = ".*"', 'topics = "$SYS/#"', 'topics = "$SYS/%u/#"'):
        rule_set = rules(f'[[rule]]\ndeny = "all"\n{deny}\n[[rule]]\nallow = "all"\ntopics = "$SYS/events/#"')
        assert not allowed(rule_set, Principal("events", "c"), RECEIVE, "$SYS/events/denied")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a+", "/", "$SYS"])
def test_a_name_is_never_a_wildcard(name: str) -> None:
    """A deny that cannot be filled in is about all that it could be; an allow about nothing."""
    topics = 'topics = ["%u/t", "x/%c/#"]'
    allow, deny = (
        rules(f'[[rule]]\nallow = "all"\n{topics}'),
        rules(f'[[rule]]\ndeny = "all"\n{topics}', no_match_allows=True),
    )
    hostile = Principal(name, name)
    reached = ["a/t", "x/a/b", "a/b/t", "$SYS/t", "x/a"]
    if name == "$SYS":  # a name like others below the first level
        assert not allowed(allow, hostile, PUBLISH, "$SYS/t")
        assert allowed(allow, hostile, PUBLISH, "x/$SYS/b")
    else:
        assert not any(allowed(allow, hostile, PUBLISH, topic) for topic in reached)
        assert not allowed(allow, hostile, SUBSCRIBE, "#")
    assert not any(allowed(deny, hostile, PUBLISH, topic) for topic in reached)


def test_placeholders() -> None:
    rule_set = rules('[[rule]]\nallow = "all"\ntopics = ["u/%u/+", "c-%c/%u"]')
    assert allowed(rule_set, ALICE, PUBLISH, "u/alice/x")
    assert allowed(rule_set, ALICE, PUBLISH, "c-phone-1/alice")
    assert not allowed(rule_set, ALICE, PUBLISH, "u/bob/x")
    assert not allowed(rule_set, NOBODY, PUBLISH, "u//x")  # who has no name has none of its topics


def test_a_name_that_looks_like_a_placeholder_is_not_filled_in_again() -> None:
    rule_set = rules('[[rule]]\nallow = "all"\ntopics = "t/%u/%c"')
    assert allowed(rule_set, Principal("%c", "x"), PUBLISH, "t/%c/x")
    assert not allowed(rule_set, Principal("%c", "x"), PUBLISH, "t/x/x")


def test_a_regular_expression_for_topics() -> None:
    allow = rules('[[rule]]\nallow = "all"\ntopic_regex = "dev-[0-9]+/(temp|hum)"')
    deny = rules('[[rule]]\ndeny = "all"\ntopic_regex = "dev.*"', no_match_allows=True)
    topics = ("dev-7/temp", "dev-7/temp/x", "x/dev-7/temp")
    assert [allowed(allow, ALICE, PUBLISH, topic) for topic in topics] == [True, False, False]
    assert [allowed(deny, ALICE, PUBLISH, topic) for topic in topics] == [False, False, True]
    # A subscription: what an expression covers is known of single topics only.
    assert allowed(allow, ALICE, SUBSCRIBE, "dev-7/temp")
    assert not allowed(allow, ALICE, SUBSCRIBE, "dev-7/+")
    assert allowed(deny, ALICE, SUBSCRIBE, "dev-7/+")


def test_what_is_too_long_for_an_expression_is_not_allowed_and_is_denied() -> None:
    long = "a" * 257
    for key, who, topic in (
        ("topic_regex", ALICE, long),
        ("client_id_regex", Principal("u", long), "t"),
        ("user_regex", Principal(long, "c"), "t"),
    ):
        assert not allowed(rules(f'[[rule]]\nallow = "all"\n{key} = "a*"'), who, PUBLISH, topic)
        deny = rules(f'[[rule]]\ndeny = "all"\n{key} = "b*"', no_match_allows=True)
        assert not allowed(deny, who, PUBLISH, topic)


class TestPermissions:
    def test_decisions_are_remembered_up_to_a_number(self) -> None:
        rule_set = rules('[[rule]]\nallow = "all"\ntopics = "t/#"')
        permissions = Permissions(rule_set, ALICE, 2)
        answers = [permissions.may_publish(topic) for topic in ("t/1", "x", "t/2", "x", "t/1")]
        assert answers == [True, False, True, False, True]
        assert permissions.may_receive("t/1")
        assert permissions._publish is not None
        assert len(permissions._publish) <= 2

    def test_what_is_remembered_is_not_worked_out_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        permissions = Permissions(rules('[[rule]]\nallow = "publish"'), ALICE, 10)
        real = Permissions._rule

        def noting(self: Permissions, action: Action, topic: str) -> Rule | None:
            asked.append(topic)
            return real(self, action, topic)

        monkeypatch.setattr(Permissions, "_rule", noting)
        assert [permissions.may_publish("t") for _ in range(3)] == [True] * 3
        assert [permissions.may_receive("t") for _ in range(3)] == [False] * 3
        assert asked == ["t", "t"]

    def test_long_topics_are_not_remembered(self) -> None:
        permissions = Permissions(rules('[[rule]]\nallow = "publish"'), ALICE, 10)
        assert permissions.may_publish("t" * 257)
        assert not permissions._publish
