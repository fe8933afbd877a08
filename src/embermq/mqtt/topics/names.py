"""Topic names and topic filters: what is valid, what matches, what is shared [MQTT 5.0, 4.7 and 4.8]."""

from __future__ import annotations

from typing import Final

import msgspec

from embermq.mqtt.topics.errors import TopicError

TOPIC_BYTES_MAX: Final = 65_535
"""Longest topic name or filter in UTF-8 bytes [MQTT-4.7.3-3]."""

TOPIC_LEVELS_MAX: Final = 65_536
"""What a topic of the greatest length can have at most: separators only, so one level more than bytes."""

SERVED_BYTES_MAX: Final = 4_096
"""Longest that the broker serves: what is longer costs its tables more than any topic in use is worth."""

SERVED_LEVELS_MAX: Final = 128
"""Most levels that the broker serves; a walk through a table of filters takes some steps for each."""

SHARE_PREFIX: Final = "$share/"

SYSTEM_PREFIX: Final = "$SYS/"
"""Topics below it are the broker's own."""

_SHOWN_CHARACTERS_MAX: Final = 80


class SharedFilter(msgspec.Struct, frozen=True):
    """A shared subscription ``$share/<group>/<topic_filter>`` in its two parts."""

    group: str
    topic_filter: str


def validate_topic(name: str, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = TOPIC_LEVELS_MAX) -> None:
    """Raise `TopicError` unless ``name`` may stand in a PUBLISH [MQTT-4.7.1-1] [MQTT-4.7.3-1]."""
    _validate_text(name, "topic name", bytes_max, levels_max)
    if "+" in name or "#" in name:
        raise TopicError(f"topic name {shown(name)} contains a wildcard", "MQTT-3.3.2-2")


def validate_filter(
    topic_filter: str, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = TOPIC_LEVELS_MAX
) -> None:
    """Raise `TopicError` unless ``topic_filter`` may stand in a SUBSCRIBE, ``$share/`` filters included.

    The limits hold for the whole text as the client sent it.
    """
    _validate_text(topic_filter, "topic filter", bytes_max, levels_max)
    if topic_filter.startswith(SHARE_PREFIX):
        parse_shared(topic_filter)
    else:
        _validate_wildcards(topic_filter)


def parse_shared(topic_filter: str) -> SharedFilter | None:
    """Take ``$share/group/filter`` apart; None when the filter is not a shared one.

    Raises `TopicError` when it starts like a shared one but the group is empty or holds a wildcard, or the
    filter behind it is missing or invalid [MQTT-4.8.2-1] [MQTT-4.8.2-2].
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    group, separator, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not group:
        raise TopicError(f"shared filter {shown(topic_filter)} has an empty share name", "MQTT-4.8.2-1")
    if "+" in group or "#" in group:
        raise TopicError(f"share name {shown(group)} contains a wildcard", "MQTT-4.8.2-2")
    if not separator or not inner:
        raise TopicError(f"shared filter {shown(topic_filter)} has no filter after its name", "MQTT-4.8.2-2")
    _validate_wildcards(inner)
    return SharedFilter(group, inner)


def is_system_topic(topic: str) -> bool:
    """Whether a topic is one of those that only the broker publishes."""
    return topic.startswith(SYSTEM_PREFIX) or topic == SYSTEM_PREFIX[:-1]


def first_level(topic: str) -> str:
    """The part before the first ``/``, the whole topic when there is none."""
    return topic.partition("/")[0]


def has_wildcard(topic_filter: str) -> bool:
    """Whether a valid filter can match more than the one topic that is spelled like it."""
    return "+" in topic_filter or "#" in topic_filter


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a valid, unshared filter matches a valid topic name.

    For many filters use `embermq.mqtt.topics.trie.SubscriptionTrie`; this is for a single pair, such as a rule.
    """
    if topic_filter == topic:
        return True
    if not has_wildcard(topic_filter):
        return False
    if topic[:1] == "$" and topic_filter[:1] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    filter_levels = topic_filter.split("/")
    topic_levels = topic.split("/")
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True  # the parent level too: "a/#" matches "a"
        if index == len(topic_levels):
            return False
        if level not in ("+", topic_levels[index]):
            return False
    return len(filter_levels) == len(topic_levels)


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic name that the valid, unshared filter ``narrow`` matches is matched by ``wide`` too."""
    if wide == narrow:
        return True
    if wide[:1] in ("+", "#") and narrow[:1] == "$":
        return False  # [MQTT-4.7.2-1]
    wide_levels, narrow_levels = wide.split("/"), narrow.split("/")
    if narrow_levels == ["#"]:
        return wide_levels in (["#"], ["+", "#"])  # every topic has a first level
    for index, level in enumerate(wide_levels):
        if level == "#":
            return True
        if index == len(narrow_levels):
            return False
        asked = narrow_levels[index]
        if asked == "#" or (level != "+" and level != asked):
            return False
    return len(wide_levels) == len(narrow_levels)


def overlap(one: str, other: str) -> bool:
    """Whether some topic name is matched by both of two valid, unshared filters."""
    if (one[:1] == "$") != (other[:1] == "$"):
        return False
    levels, others = one.split("/"), other.split("/")
    for level, against in zip(levels, others, strict=False):
        if "#" in (level, against):
            return True
        if level != against and "+" not in (level, against):
            return False
    longer = max(levels, others, key=len)
    return len(levels) == len(others) or longer[min(len(levels), len(others)) :] == ["#"]


def shown(text: str) -> str:
    """A text from the wire in the form that fits into an error message: quoted, escaped, at most 80 long."""
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return repr(text)
    return f"{text[:_SHOWN_CHARACTERS_MAX]!r}… ({len(text)} characters)"


def _validate_text(text: str, what: str, bytes_max: int, levels_max: int) -> None:
    if not text:
        raise TopicError(f"{what} is empty, at least one character is needed", "MQTT-4.7.3-1")
    if "\0" in text:
        raise TopicError(f"{what} {shown(text)} contains U+0000", "MQTT-4.7.3-2")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise TopicError(f"{what} {shown(text)} contains a surrogate", "MQTT-1.5.4-1") from error
    if size > bytes_max:
        raise TopicError(f"{what} {shown(text)} has {size} bytes, the limit is {bytes_max}", "MQTT-4.7.3-3")
    levels = text.count("/") + 1
    if levels > levels_max:
        raise TopicError(
            f"{what} {shown(text)} has {levels} levels, the limit is {levels_max}", "MQTT 5.0, 4.7.1.1"
        )


def _validate_wildcards(topic_filter: str) -> None:
    position = topic_filter.find("#")
    if position >= 0:
        if position != len(topic_filter) - 1:
            raise TopicError(f"topic filter {shown(topic_filter)}: '#' is not the last level", "MQTT-4.7.1-1")
        if position > 0 and topic_filter[position - 1] != "/":
            raise TopicError(f"topic filter {shown(topic_filter)}: '#' shares its level", "MQTT-4.7.1-1")
    if "+" in topic_filter:
        for level in topic_filter.split("/"):
            if "+" in level and level != "+":
                raise TopicError(f"topic filter {shown(topic_filter)}: '+' shares its level", "MQTT-4.7.1-2")
