"""Dead letters end by no time of their own, and take no more room than they have [queues-34]."""

from __future__ import annotations

import pytest
from msgspec import json
from tests.support.queue_bench import START_MS, Bench

from embermq.app.news import LetterNews
from embermq.queues.dead_letter_quota import LETTER_BYTES, DeadLetterQuota
from embermq.queues.errors import QueueRefusal
from embermq.queues.explaining import explain
from embermq.queues.inspection import message_at, oldest_ms_of, stats_of
from embermq.queues.names import Verb
from embermq.queues.settings import format_settings, parse_settings
from embermq.queues.settling import Outcome

SIZE = LETTER_BYTES + 10
"""What a dead letter of the bench takes."""


def letters(bench: Bench) -> int:
    dead = bench.queues.find("dlq/q")
    return 0 if dead is None else len(dead.entries)


def codes(bench: Bench) -> set[str]:
    return {reason.code for reason in explain(bench.queues.queue("q"), bench.now_ms)}


@pytest.mark.promise("queues-34")
def test_dead_letters_have_no_time_to_live_unless_one_is_set() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    bench.settle(bench.one(), Verb.REJECT)
    dead = bench.queues.queue("dlq/q")
    assert dead.next_due_ms() is None
    bench.wait("3650d")
    assert letters(bench) == 1
    assert message_at(dead, 1).expires is None and oldest_ms_of(dead, bench.now_ms) == START_MS
    bench.queues.configure(parse_settings("dlq/q", json.encode({"limits": {"message_ttl": "1h"}})))
    bench.publish()
    bench.settle(bench.one(), Verb.REJECT)
    bench.restart()
    bench.wait("2h")
    assert list(bench.queues.queue("dlq/q").entries) == [1], "another time holds for what comes then"
    assert b'"message_ttl":"0ms"' in format_settings(parse_settings("dlq/q", b"{}"))
    assert parse_settings("q", b"{}").limits.message_ttl == 168 * 3_600_000


@pytest.mark.promise("queues-31")
def test_a_queue_without_a_time_to_live_keeps_the_publishers_expiry() -> None:
    bench = Bench(limits={"message_ttl": "0s"})
    bench.publish(expires_ms=bench.now_ms + 5_000)
    bench.publish()
    assert stats_of(bench.queues.queue("q"), bench.now_ms).messages == 2
    bench.wait("3000d")
    assert list(bench.queues.queue("q").entries) == [2]
    bench.configure(limits={"message_ttl": "1h"})
    bench.publish()
    bench.wait("2h")
    assert list(bench.queues.queue("q").entries) == [2]


@pytest.mark.promise("queues-34")
def test_past_their_room_the_queue_keeps_what_it_would_bury_until_some_go() -> None:
    bench = Bench(letter_bytes_max=2 * SIZE + 1)
    bench.join("c")
    bench.publish(count=4)
    for delivery in bench.take():
        assert bench.settle(delivery, Verb.REJECT) is Outcome.DONE
    assert letters(bench) == 2 and len(bench.queues.queue("q").entries) == 2
    room = bench.queues.room
    assert room.is_full and room.used_bytes == 2 * SIZE
    assert "letters_full" in codes(bench)
    bench.wait("1h")
    assert not bench.sent, "nobody gets them again"
    bench.restart()
    assert bench.queues.room.used_bytes == 2 * SIZE
    bench.join("c", epoch=2)
    bench.wait("1h")
    assert not bench.sent
    assert bench.queues.purge("dlq/q", bench.queues.queue("dlq/q").end(), 1) == 1
    bench.wait("2m")
    assert letters(bench) == 2 and len(bench.queues.queue("q").entries) == 1
    dead = list(bench.queues.queue("dlq/q").entries)
    assert bench.queues.retry_dead_letters("dlq/q", dead, bench.now_ms).put_back == 2
    bench.wait("2m")
    assert letters(bench) == 1 and not bench.queues.room.is_full and "letters_full" not in codes(bench)
    assert bench.dead() == [("g", "rejected")]
    for delivery in bench.take():
        bench.settle(delivery, Verb.ACK)
    bench.queues.purge("dlq/q", bench.queues.queue("dlq/q").end(), 9)
    assert bench.queues.room.used_bytes == 0


@pytest.mark.promise("queues-34", "queues-25")
def test_what_has_failed_too_often_is_kept_as_well_and_an_ack_that_is_late_ends_it() -> None:
    bench = Bench(letter_bytes_max=0, retry_policy={"max_retries": 0})
    bench.join("c")
    bench.publish("k", count=2)
    first = bench.one()
    bench.settle(first, Verb.NACK)
    bench.wait("1h")
    assert not bench.sent, "its key is blocked, as by any failing message"
    assert bench.settle(first, Verb.ACK) is Outcome.DONE
    assert bench.one().offset == 1


@pytest.mark.promise("queues-31", "queues-34")
def test_a_full_queue_refuses_when_its_oldest_has_no_room_as_a_dead_letter() -> None:
    bench = Bench(letter_bytes_max=SIZE, limits={"max_queue_depth": 2, "overflow": "drop-head"})
    bench.publish(count=3)
    assert bench.dead() == [("", "overflow")]
    with pytest.raises(QueueRefusal, match="dead letters have no room"):
        bench.publish()
    assert list(bench.queues.queue("q").entries) == [2, 3]


@pytest.mark.promise("queues-31", "queues-34")
def test_a_message_whose_time_is_over_stays_until_it_has_room() -> None:
    bench = Bench(letter_bytes_max=SIZE, limits={"message_ttl": "1h", "ttl_action": "dlq"})
    bench.publish(count=2)
    bench.wait("2h")
    assert bench.dead() == [("", "expired")] and list(bench.queues.queue("q").entries) == [2]
    bench.queues.purge("dlq/q", bench.queues.queue("dlq/q").end(), 9)
    bench.wait("2m")
    assert bench.dead() == [("", "expired")] and not bench.queues.queue("q").entries


@pytest.mark.promise("queues-31", "queues-34")
def test_what_is_kept_for_want_of_room_does_not_expire_as_a_message_does() -> None:
    bench = Bench(letter_bytes_max=0, limits={"message_ttl": "1h"})
    bench.join("c")
    bench.publish(count=2)
    first, second = bench.take()
    bench.settle(first, Verb.REJECT)
    bench.settle(second, Verb.NACK, delay_ms=7_200_000)
    bench.wait("3h")
    assert list(bench.queues.queue("q").entries) == [1] and bench.queues.queue("q").dropped == {"expired": 1}
    bench.queues.room.limit_bytes = SIZE
    bench.wait("2m")
    assert bench.dead() == [("g", "rejected")] and not bench.queues.queue("q").entries


@pytest.mark.promise("queues-34")
def test_a_reject_of_a_dead_letter_drops_it_and_counts_it() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    bench.settle(bench.one(), Verb.REJECT)
    bench.name = "dlq/q"
    bench.join("c")
    bench.settle(bench.one(), Verb.REJECT)
    dead = bench.queues.queue("dlq/q")
    assert dead.dropped == {"rejected": 1} and not dead.entries and bench.queues.room.used_bytes == 0


@pytest.mark.promise("queues-34")
def test_operators_are_warned_at_80_percent_and_again_when_it_is_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = DeadLetterQuota(10 * SIZE)
    news = LetterNews()

    def said() -> list[str]:
        caplog.clear()
        with caplog.at_level("INFO"):
            news.look(room)
        return [record.levelname for record in caplog.records]

    for _ in range(7):
        assert room.reserve(10)
    assert said() == []
    assert room.reserve(10)
    assert said() == ["WARNING"] and said() == []
    while room.reserve(10):
        pass
    assert said() == ["WARNING"] and "keep what would become one" in caplog.text
    for _ in range(5):
        room.free(10)
    assert said() == ["INFO"]
