"""The ACL file of Mosquitto.

    topic [read|write|readwrite|deny] <topic>       for the user above, for anonymous clients above the first user
    user <name>
    pattern [read|write|readwrite|deny] <topic>     for everybody, with %u and %c

As Mosquitto does it: topics of a user are asked before the patterns, denials before the rest, and what nothing matches
is denied. A client whose name or id has `+` or `#` in it gets nothing by patterns. Anybody may subscribe to anything
there; what is delivered is checked.
"""

from msgspec.structs import replace

from embermq.access.authorization.errors import RulesError
from embermq.access.authorization.patterns import Names, check_filter, read_names
from embermq.access.authorization.rules import EVENTS_PREFIX, Action, Rule, RulePosition
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import shown

ACL_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of an ACL file."""
READ, WRITE = frozenset({Action.RECEIVE}), frozenset({Action.PUBLISH})
ACCESS = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": READ | WRITE}
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
    deny = Rule(False, READ | WRITE, patterns[0].place)
    return [replace(deny, users=names), replace(deny, client_ids=names)]


def _denials_first(rules: list[Rule]) -> list[Rule]:
    return sorted(rules, key=lambda rule: rule.allow)
