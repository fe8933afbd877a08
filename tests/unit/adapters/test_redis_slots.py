"""Hash slots, the map of a cluster, and what its errors mean."""

from __future__ import annotations

import pytest

from embermq.adapters.redis.answers import Sort, sort_error
from embermq.adapters.redis.slots import named_in, read_slots, slot_of
from embermq.ports.store_node import Node

ASKED = Node("here", 7000)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),  # the check value of this CRC
        ("foo", 12182),
        ("{foo}bar", 12182),
        ("s:ol:{foo}", 12182),
        ("", 0),
    ],
)
def test_slots_of_keys(key: str, slot: int) -> None:
    assert slot_of(key) == slot


def test_only_the_first_braces_count_and_only_with_something_in_them() -> None:
    assert slot_of("{a}{b}") == slot_of("a")
    assert slot_of("{}{a}") != slot_of("a")
    assert slot_of("{a") != slot_of("a")
    assert slot_of("x{ü}") == slot_of("ü")


def test_a_map_of_slots() -> None:
    answer = [
        [0, 1, [b"10.0.0.1", 7001, b"id", []], [b"10.0.0.9", 7009, b"id", []]],
        [2, 2, [b"", 7002, b"id"]],
        [3, 3, [None, 7003, b"id"]],
        [4, 4, [b"?", 7004, b"id"]],
    ]
    assert read_slots(answer, ASKED) == {
        0: Node("10.0.0.1", 7001),
        1: Node("10.0.0.1", 7001),
        2: Node("here", 7002),
        3: Node("here", 7003),
    }


@pytest.mark.parametrize(
    "answer", [None, b"", [1], [[0, 1]], [[0, 16384, [b"a", 1]]], [[2, 1, [b"a", 1]]], [[0, 1, [b"a"]]]]
)
def test_what_is_no_map_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="CLUSTER SLOTS"):
        read_slots(answer, ASKED)


def test_the_node_that_an_error_names() -> None:
    assert named_in("MOVED 866 127.0.0.1:7001", ASKED) == Node("127.0.0.1", 7001)
    assert named_in("ASK 866 :7001", ASKED) == Node("here", 7001)
    assert named_in("ASK 866 ::1:7001", ASKED) == Node("::1", 7001)
    assert named_in("ASK 866 nonsense", ASKED) is None


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("MOVED 866 127.0.0.1:7001", Sort.MOVED),
        ("ASK 866 127.0.0.1:7001", Sort.ASK),
        ("NOSCRIPT No matching script. Please use EVAL.", Sort.SCRIPT),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Sort.LATER),
        ("CLUSTERDOWN The cluster is down", Sort.LATER),
        ("BUSY Redis is busy running a script.", Sort.LATER),
        ("ERR Script attempted to access a non local key in a cluster node script: 1, on @user_script:1.", Sort.LATER),
        ("LOADING Redis is loading the dataset in memory", Sort.AWAY),
        ("READONLY You can't write against a read only replica.", Sort.AWAY),
        ("OOM command not allowed when used memory > 'maxmemory'.", Sort.TELL),
        ("MISCONF Redis is configured to save RDB snapshots", Sort.TELL),
        ("NOPERM this user has no permissions", Sort.TELL),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Sort.BROKEN),
        ("ERR user_script:1: Script attempted to access nonexistent global variable 'x'", Sort.BROKEN),
        ("CROSSSLOT Keys in request don't hash to the same slot", Sort.BROKEN),
    ],
)  # fmt: skip
def test_what_errors_mean(text: str, sort: Sort) -> None:
    assert sort_error(text) is sort
