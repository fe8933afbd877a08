"""Reading rules: what is refused, and where it says that that is."""

from __future__ import annotations

import re

import pytest

from embermq.access.authorization.patterns import read_names, read_regex
from embermq.access.authorization.rules_file import RulesError, read_rules

RULE = '# rules\n\n[[rule]]  # a comment\nallow = "all"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[rule]]\nallow = all", "r:2: is not valid TOML: Invalid value"),
        ("[[rule]]\nallow = 'all'\nallow = 'all'", "r:3: is not valid TOML: Cannot overwrite a value"),
        ("x = 1", "r:1: 'x' is not known here; rules are tables [[rule]]"),
        (RULE + "[other]", "r:5: 'other' is not known here; rules are tables [[rule]]"),
        ("[rule]\nallow = 'all'", "r: rules are tables [[rule]], each with that header on a line of its own"),
        (
            "rule = [{allow = 'all'}]",
            "r: rules are tables [[rule]], each with that header on a line of its own",
        ),
        (RULE + "topic = 'x'", "r:5: unknown key 'topic'; the nearest is topics"),
        ("[[rule]]\nuser = 'x'", "r:1: a rule has either allow or deny, with what it is about"),
        (RULE + "deny = 'all'", "r:5: a rule has either allow or deny, with what it is about"),
        (
            "[[rule]]\nallow = 'write'",
            "r:2: allow: 'write' is not one of publish, subscribe, receive, create, connect, takeover, read, all",
        ),
        (
            "[[rule]]\ndeny = ['read', 'publich']",
            "r:2: deny: 'publich' is not one of publish, subscribe, receive, create, connect, takeover, read, all; the",
        ),
        ("[[rule]]\nallow = 1", "r:2: allow: 1 is not a text"),
        ("[[rule]]\nallow = []", "r:2: allow: is an empty list"),
        (RULE + "topics = []", "r:5: topics: is an empty list"),
        (RULE + "topics = ['a', 1]", "r:5: topics: 1 is not a text"),
        (RULE + "\n\ntopics = 'a/#/b'", "r:7: topics: topic filter 'a/#/b': '#' is not the last level"),
        (RULE + "topics = 'a+/b'", "r:5: topics: topic filter 'a+/b': '+' shares its level"),
        (RULE + "topics = ''", "r:5: topics: topic filter is empty, at least one character is needed"),
        (
            RULE + "topics = '$share/g/a'",
            "r:5: topics: '$share/g/a': a shared subscription is asked for by its filter, without $share/group/",
        ),
        (RULE + "topics = 'a'\ntopic_regex = 'b'", "r:6: a rule has topics or topic_regex, not both"),
        (RULE + "user = 'a'\nuser_regex = 'b'", "r:6: a rule has user or user_regex, not both"),
        (RULE + "user = ''", "r:5: user: is empty; clients without a user are said with anonymous = true"),
        (RULE + "client_id = ''", "r:5: client_id: is empty"),
        (
            RULE + "user = 'a'\nanonymous = true",
            "r:6: anonymous clients have no user: a rule is about one or the other",
        ),
        (RULE + "anonymous = 1", "r:5: anonymous: 1 is not true or false"),
        (RULE + "user_regex = '('", "r:5: user_regex: '(' is not a regular expression: missing ), "),
        (RULE + "topic_regex = 1", "r:5: topic_regex: 1 is not a text"),
        (
            RULE + "topic_regex = 't/%u'",
            "r:5: topic_regex: 't/%u': %u and %c stand in topics, not in a regular expression",
        ),
        (RULE + "topic_regex = '(a+)+'", "r:5: topic_regex: '(a+)+': a repeated group that repeats or"),
        (
            "[[rule]]\nallow = ['publish', 'connect']\ntopics = 'a'",
            "r:3: topics: connect is about client ids; give it a rule of its own",
        ),
        (
            RULE + "use_server = 'b:1883'",
            "r:5: a rule has either allow or deny, with what it is about, or use_server",
        ),
        (
            "[[rule]]\nmoved_to = ' '",
            "r:2: moved_to: ' ' names no server; it has 1 to 1000 characters, host:port",
        ),
        (
            "[[rule]]\nuse_server = 'b:1883'\ntopics = 'a'",
            "r:3: topics: use_server is about who connects; give it a rule of its own",
        ),
        (RULE + RULE + "deni = 1", "r:9: unknown key 'deni'; the nearest is deny"),
        ("x = " + "[" * 5000, "r: "),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(RulesError) as caught:
        read_rules(text, "r")
    assert str(caught.value).startswith(expected)


def test_an_empty_file_has_no_rules() -> None:
    assert read_rules("# nothing\n", "r") == []


def test_the_place_of_a_rule_is_its_header() -> None:
    assert [str(rule.place) for rule in read_rules(RULE + "\n" + RULE, "r")] == ["r:3", "r:8"]


def test_the_text_of_a_rule_says_all_of_it() -> None:
    (rule,) = read_rules(
        "[[rule]]\ndeny = 'read'\nanonymous = false\nclient_id = ['b', 'a', 'x*']\n"
        "certificate_regex = 'CN=.*'\ntopics = ['a/#', '$SYS/#']",
        "r",
    )
    assert str(rule) == (
        "deny subscribe, receive for clients with a user name for client id 'a' or 'b' or 'x*'"
        " for certificate matching 'CN=.*' on a/#, $SYS/#"
    )


class TestRegex:
    @pytest.mark.parametrize(
        "text",
        [
            "(a+)+",
            "(a*)*b",
            "(a|aa)*",
            "(?:a|b)+c",
            "(a?){30}",
            "((a)+b){2,}",
            "(?P<x>a+){,5}",
            "((?i:a|b)c)+",
            "(a+)?+x(b+)*",
            r"(\(a+)*",
            r"([)]a+)*",
            r"([]()]a*)+",
            "x(?#)(a+)(?#a comment)+",
            r"(a)\1",
            "(?P<x>a)(?P=x)",
            "(a)?(?(1)b|c)",
            "(?x) (a+)+",
            "(?x:a)",
            ".*a.*b.*c.*",
            ".+.{2,}.*.*x",
            "a?" * 100 + "a" * 100,
            "(a|a)" * 80,
            "[^/]*[^/]*[^/]*[^/]*x",
            "a{0,9}a{0,9}a{0,9}a{0,9}b",
            "(?i)[^A]*a[^A]*a[^A]*a[^A]*",
            "(a*)(a*)(a*)(a*)b",
            "[^/]*(/x)?[^/]*(/x)?[^/]*(/x)?[^/]*",
            "[^/]*/?[^/]*/?[^/]*/?[^/]*",
            "[^/]*a*/[^/]*[^/]*[^/]*[^/]*",
            "a" * 513,
            "[",
            "a{1,99999999999999999999}",
        ],
    )
    def test_what_could_take_for_ever_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"regular expression|for ever|not allowed|largest allowed"):
            read_regex(text)

    @pytest.mark.parametrize(
        "text",
        [
            "[^/]+/[^/]+/[^/]+/[^/]+",
            "(?:ab)*",
            "dev-(1|2)/t",
            "(a+)?b",
            r"(\+|\*)x+",
            "([*+?|])*",
            "a{2,3}b{}",
            "(?i)abc",
            ".*x.*y.*",
            r"\.*\.*\.*",
            "([a-z][0-9])+",
            "sites/[^/]+/(temp|hum|power|energy)/[0-9]+",
            "([0-9]+-)?dev-[0-9a-f]{8}/.*",
            r"CN=[^,]*,OU=[^,]*,O=[^,]*,C=(DE|AT|CH)",
            r"[a-z]+\.[a-z]+\.[a-z]+\.[a-z]+@[a-z]+",
            "[^/]+?/[^/]+?/[^/]+?/[^/]+?/x",
        ],
    )
    def test_what_is_harmless_is_taken(self, text: str) -> None:
        assert read_regex(text).text == text


def test_names_with_wildcards_are_made_ready_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of them held the loop for a quarter of a second at the first message of a client."""
    names = read_names(["made-ready-[0-9]*", "or-not-?"])

    def late(*_: object) -> None:
        pytest.fail("compiled while a client waits")

    with monkeypatch.context() as patched:
        patched.setattr(re, "compile", late)
        found = [names.match(name, deny=False) for name in ("made-ready-1x", "or-not-", "or-not-1\n")]
    assert found == [True, False, False]
