"""Files of rules: TOML with one table `[[rule]]` each, or the ACL file of Mosquitto.

Rules in TOML: one table `[[rule]]` each.

[[rule]]
allow = ["publish", "receive"]     # or deny = ...; "read" is subscribe and receive, "all" is everything on topics
                                   # or use_server, moved_to = "host:port": another server for who connects
user = "meter-*"                   # or user_regex, client_id, client_id_regex, certificate, anonymous = true
                                   # in client_id %u stands for the client's user name
topics = ["meters/%u/#"]           # or topic_regex; absent = every topic

The ACL file of Mosquitto.

    topic [read|write|readwrite|deny] <topic>       for the user above, for anonymous clients above the first user
    user <name>
    pattern [read|write|readwrite|deny] <topic>     for everybody, with %u and %c

As Mosquitto does it: topics of a user are asked before the patterns, denials before the rest, and what nothing matches
is denied. A client whose name or id has `+` or `#` in it gets nothing by patterns. Anybody may subscribe to anything
there; what is delivered is checked.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import NoReturn, TypeVar

from msgspec.structs import replace

from embermq.access.authorization.patterns import Names, check_filter, read_names, read_regex
from embermq.access.authorization.rules import (
    EVENTS_PREFIX,
    ON_CLIENT_IDS,
    ON_TOPICS,
    Action,
    Elsewhere,
    Rule,
    RulePosition,
)
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SHARE_PREFIX, shown


class RulesError(ValueError):
    """What is wrong with a file of rules, and where."""

    def __init__(self, place: RulePosition, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.place = place


SERVER_MAX = 1_000
"""Characters of the name of another server."""
RULES_BYTES_MAX = 1024 * 1024
"""Bytes of a file of rules in TOML."""
READ = frozenset({Action.SUBSCRIBE, Action.RECEIVE})
ACTIONS: Mapping[str, frozenset[Action]] = {
    **{str(action): frozenset({action}) for action in Action},
    "read": READ,
    "all": ON_TOPICS,
}
_WHO = ("user", "client_id", "certificate")
_VERBS = ("allow", "deny", "use_server", "moved_to")
NO_VERB = "a rule has either allow or deny, with what it is about, or use_server or moved_to"
_KEYS = (*_VERBS, "anonymous", *_WHO, *(f"{who}_regex" for who in _WHO), "topics", "topic_regex")
Value = TypeVar("Value")
_HEADER = re.compile(r"\s*\[\[\s*rule\s*\]\]\s*(#.*)?$")
_LINE_OF_ERROR = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def read_rules(text: str, file: str) -> list[Rule]:
    """The rules of a file in their order; `file` is its name for errors and explanations. Raises RulesError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE_OF_ERROR.search(str(error))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        said = _LINE_OF_ERROR.sub("", str(error))
        raise RulesError(RulePosition(file, line), f"is not valid TOML: {said}") from error
    except RecursionError:
        raise RulesError(
            RulePosition(file, 0), "has lists in lists in lists, more than anybody can read"
        ) from None
    lines = text.splitlines()
    for name in document:
        if name != "rule":
            raise RulesError(
                RulePosition(file, _line_of(lines, name)),
                f"{name!r} is not known here; rules are tables [[rule]]",
            )
    tables = document.get("rule", [])
    headers = [number for number, line in enumerate(lines, 1) if _HEADER.match(line)]
    if not isinstance(tables, list) or len(headers) != len(tables):
        raise RulesError(
            RulePosition(file, 0), "rules are tables [[rule]], each with that header on a line of its own"
        )
    ends = [*headers[1:], len(lines) + 1][: len(headers)]
    return [
        _Table(table, file, start, lines[start : end - 1]).rule()
        for table, start, end in zip(tables, headers, ends, strict=True)
    ]


def _line_of(lines: list[str], key: str) -> int:
    pattern = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}\b")
    return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), 0)


class _Table:
    """One `[[rule]]`; `start` is the line of its header, `lines` are those below it."""

    def __init__(self, table: Mapping[str, object], file: str, start: int, lines: list[str]) -> None:
        self._table = table
        self._file = file
        self._start = start
        self._lines = lines

    def rule(self) -> Rule:
        table = self._table
        for key in table:
            if key not in _KEYS:
                near = get_close_matches(key, _KEYS, n=1, cutoff=0.5)
                hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(_KEYS)}"
                self._refuse(key, f"unknown key {key!r}; {hint}")
        given = [key for key in _VERBS if key in table]
        if len(given) != 1:
            self._refuse(given[-1] if given else "", NO_VERB)
        elsewhere = self._read(given[0], self._elsewhere) if given[0] in ("use_server", "moved_to") else None
        filters = self._read("topics", self._filters)
        topic_regex = self._read("topic_regex", lambda key: read_regex(self._text(key)))
        if filters is not None and topic_regex is not None:
            self._refuse("topic_regex", "a rule has topics or topic_regex, not both")
        users = self._names("user")
        anonymous = self._read("anonymous", self._flag)
        if anonymous and users is not None:
            self._refuse("anonymous", "anonymous clients have no user: a rule is about one or the other")
        return Rule(
            allow=given[0] == "allow",
            actions=frozenset({Action.CONNECT}) if elsewhere is not None else self._actions(given[0]),
            place=RulePosition(self._file, self._start),
            users=users,
            anonymous=anonymous,
            client_ids=self._names("client_id"),
            certificates=self._names("certificate"),
            filters=filters,
            topic_regex=topic_regex,
            elsewhere=elsewhere,
        )

    def _elsewhere(self, key: str) -> Elsewhere:
        server = self._text(key)
        if not server.strip() or not server.isprintable() or len(server) > SERVER_MAX:
            raise ValueError(
                f"{server[:80]!r} names no server; it has 1 to {SERVER_MAX} characters, host:port"
            )
        self._refuse_topics(f"{key} is about who connects")
        return Elsewhere(server, moved=key == "moved_to")

    def _refuse_topics(self, text: str) -> None:
        for key in ("topics", "topic_regex"):
            if key in self._table:
                self._refuse(key, f"{key}: {text}; give it a rule of its own")

    def _actions(self, key: str) -> frozenset[Action]:
        actions: frozenset[Action] = frozenset()
        for word in self._texts(key):
            if word not in ACTIONS:
                near = get_close_matches(word, ACTIONS, n=1, cutoff=0.5)
                hint = f"; the nearest is {near[0]}" if near else ""
                self._refuse(key, f"{key}: {word!r} is not one of {', '.join(ACTIONS)}{hint}")
            actions |= ACTIONS[word]
        on_ids = sorted(actions & ON_CLIENT_IDS)
        if on_ids:
            self._refuse_topics(f"{on_ids[0]} is about client ids")
        return actions

    def _names(self, who: str) -> Names | None:
        regex_key = f"{who}_regex"
        if who in self._table and regex_key in self._table:
            self._refuse(regex_key, f"a rule has {who} or {regex_key}, not both")
        if regex_key in self._table:
            return self._read(regex_key, lambda key: Names(regex=read_regex(self._text(key))))
        texts = self._read(who, self._texts)
        if texts is None:
            return None
        if "" in texts:
            hint = "; clients without a user are said with anonymous = true" if who == "user" else ""
            self._refuse(who, f"{who}: is empty{hint}")
        return read_names(texts, fills_in=who == "client_id")

    def _filters(self, key: str) -> tuple[str, ...]:
        texts = self._texts(key)
        for text in texts:
            check_filter(text)
            if text.startswith(SHARE_PREFIX):
                raise ValueError(
                    f"{text!r}: a shared subscription is asked for by its filter, without $share/group/"
                )
        return tuple(texts)

    def _read(self, key: str, read: Callable[[str], Value]) -> Value | None:
        if key not in self._table:
            return None
        try:
            return read(key)
        except RulesError:
            raise
        except TopicError as error:
            self._refuse(key, f"{key}: {error.message}")
        except ValueError as error:
            self._refuse(key, f"{key}: {error}")

    def _text(self, key: str) -> str:
        value = self._table[key]
        if not isinstance(value, str):
            self._refuse(key, f"{key}: {value!r} is not a text")
        return value

    def _texts(self, key: str) -> list[str]:
        value = self._table[key]
        if value == []:
            self._refuse(key, f"{key}: is an empty list")
        texts: list[str] = []
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                self._refuse(key, f"{key}: {text!r} is not a text")
            texts.append(text)
        return texts

    def _flag(self, key: str) -> bool:
        value = self._table[key]
        if not isinstance(value, bool):
            self._refuse(key, f"{key}: {value!r} is not true or false")
        return value

    def _refuse(self, key: str, text: str) -> NoReturn:
        below = _line_of(self._lines, key) if key else 0
        raise RulesError(RulePosition(self._file, self._start + below), text)


ACL_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of an ACL file."""
MAY_READ, MAY_WRITE = frozenset({Action.RECEIVE}), frozenset({Action.PUBLISH})
ACCESS = {
    "read": MAY_READ,
    "write": MAY_WRITE,
    "readwrite": MAY_READ | MAY_WRITE,
    "deny": MAY_READ | MAY_WRITE,
}
_BLANKS = " \t\n\v\f\r"


def read_mosquitto_acl(text: str, file: str) -> list[Rule]:
    """Rules that, asked in order, answer as Mosquitto does; `file` is for errors. Raises RulesError."""
    user = ""
    topics: list[Rule] = []
    patterns: list[Rule] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.rstrip(_BLANKS)
        if not words.strip(" ") or words.startswith("#"):
            continue
        place = RulePosition(file, number)
        kind, _, rest = words.lstrip(" ").partition(" ")
        if kind == "user":
            user = rest.strip(_BLANKS)
            if not user:
                raise RulesError(place, "user: there is no name")
        elif kind == "topic":
            rule = replace(_rule(kind, rest, place), fills_in=False)
            topics.append(
                replace(rule, users=Names(frozenset({user}))) if user else replace(rule, anonymous=True)
            )
        elif kind == "pattern":
            patterns.append(_rule(kind, rest, place))
        else:
            raise RulesError(place, f"{shown(kind)} is not topic, user or pattern")
    subscribe = Rule(True, frozenset({Action.SUBSCRIBE}), RulePosition(file, 0))
    events = replace(subscribe, filters=(f"{EVENTS_PREFIX}#",))
    return [*_denials_first(topics), *_no_wildcards(patterns), *_denials_first(patterns), subscribe, events]


def _rule(kind: str, rest: str, place: RulePosition) -> Rule:
    """`[access] topic`; a topic that holds a blank needs the access before it, as in Mosquitto."""
    access, _, topic = rest.lstrip(" ").partition(" ")
    topic = topic.strip(_BLANKS)
    if not topic:
        access, topic = "readwrite", access
    if not topic:
        raise RulesError(place, f"{kind}: there is no topic")
    if access not in ACCESS:
        raise RulesError(place, f"{kind}: {shown(access)} is not one of {', '.join(ACCESS)}")
    try:
        check_filter(topic)
    except TopicError as error:
        raise RulesError(place, f"{kind}: {error.message}") from error
    return Rule(access != "deny", ACCESS[access], place, filters=(topic,))


def _no_wildcards(patterns: list[Rule]) -> list[Rule]:
    """Who has a wildcard in its name or id gets nothing by patterns, be they about names or not."""
    if not patterns:
        return []
    names = read_names(["*+*", "*#*"])
    deny = Rule(False, MAY_READ | MAY_WRITE, patterns[0].place)
    return [replace(deny, users=names), replace(deny, client_ids=names)]


def _denials_first(rules: list[Rule]) -> list[Rule]:
    return sorted(rules, key=lambda rule: rule.allow)
