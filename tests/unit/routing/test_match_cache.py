"""What topics matched is remembered until a subscription changes that matches them, and no longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embermq.mqtt.topics.names import matches
from embermq.routing.match_cache import NOTED_MAX, PREFIXES_MAX, TOPIC_CHARACTERS_MAX, MatchCache

names = st.sampled_from(["a", "b", "", "$a"])
topics = st.lists(names, min_size=1, max_size=3).map("/".join).filter(bool)
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(st.one_of(names, st.just("+")), max_size=3),
    st.sampled_from([[], ["#"], ["+"], ["a"]]),
).filter(bool)


def remembering(*topics: str) -> MatchCache[str]:
    cache: MatchCache[str] = MatchCache(1_000_000)
    for topic in topics:
        cache.put(topic, topic, 100)
    return cache


@given(st.lists(topics, unique=True), st.lists(st.tuples(filters, topics), max_size=6))
def test_a_change_takes_what_it_matches_and_nothing_else(
    known: list[str], changes: list[tuple[str, str]]
) -> None:
    cache = remembering(*known)
    held = set(known)
    for topic_filter, asked in changes:
        cache.changed(topic_filter)
        held = {topic for topic in held if not matches(topic_filter, topic)}
        assert cache.get(asked) == (asked if asked in held else None)
    assert [cache.get(topic) for topic in known] == [topic if topic in held else None for topic in known]


def test_changes_elsewhere_take_nothing_however_many() -> None:
    cache = remembering("plant/1/state", "devices/7/state")
    for number in range(3 * PREFIXES_MAX):
        cache.changed(f"devices/{number + 10}/#")
        cache.changed(f"devices/{number + 10}/exact")
        if number % 1_000 == 0:
            assert cache.get("plant/1/state") == "plant/1/state"
    assert cache.get("plant/1/state") == "plant/1/state"
    assert (
        cache.get("devices/7/state") is None
    )  # nobody knows any more what has changed since it was asked for


def test_of_very_many_changes_with_one_beginning_only_the_last_are_known() -> None:
    cache = remembering("a/b/c")
    for number in range(NOTED_MAX):
        cache.changed(f"a/+/{number}")
    assert cache.get("a/b/c") == "a/b/c"
    for number in range(NOTED_MAX + 1):
        cache.changed(f"a/+/{number}")
    assert cache.get("a/b/c") is None


def test_without_room_the_oldest_go_one_at_a_time() -> None:
    cache: MatchCache[str] = MatchCache(1_000)
    for number in range(15):
        cache.put(str(number), "x", 100)
    assert [number for number in range(15) if cache.get(str(number))] == list(range(5, 15))
    cache.put("14", "y", 200)
    assert len(cache) == 9
    cache.put("x" * (TOPIC_CHARACTERS_MAX + 1), "long", 1)
    assert len(cache) == 9


def test_a_filter_with_as_many_wildcards_as_can_be_takes_a_long_topic() -> None:
    topic = "/" * TOPIC_CHARACTERS_MAX
    for end in ("", "/#"):
        cache = remembering(topic)
        cache.changed("/".join(["+"] * (TOPIC_CHARACTERS_MAX + 1)) + end)
        assert cache.get(topic) is None
