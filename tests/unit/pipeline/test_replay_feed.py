"""The loop that hands a replay to the broker: pieces, rate, refusals, and a broker that goes away or knows less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embermq.formats.log_record import decode_record
from embermq.mqtt.topics.errors import TopicError
from embermq.pipeline.errors import BrokerAway
from embermq.pipeline.jobs.replay_feed import (
    LAKE_PART,
    LOG_PART,
    PIECE,
    ChosenMessages,
    RefusedMessage,
    ReplayFeed,
    Taken,
    encoded,
)

TAKES_S = 0.01


def row(number: int, **fields: Any) -> dict[str, Any]:
    usual = {
        "partition": 0,
        "offset": 100 + number,
        "topic": f"t/{number}",
        "qos": 1,
        "publisher": "p",
        "payload": b"%d" % number,
        "accepted_ms": 5_000 + number,
        "expires_ms": None,
        "payload_format_indicator": None,
        "message_expiry_interval": None,
        "content_type": None,
        "response_topic": None,
        "correlation_data": None,
        "user_properties": [],
    }
    return usual | fields


class Rows(ChosenMessages):
    """Made up."""

    def __init__(self, count: int, payload: bytes = b"") -> None:
        self._count = count
        self._payload = payload

    def __len__(self) -> int:
        return self._count

    def rows(self, start: int) -> Iterator[dict[str, Any]]:
        return (
            row(number, **({"payload": self._payload} if self._payload else {}))
            for number in range(start, len(self))
        )


class Kept(dict[int, RefusedMessage]):
    """RefusedMessage messages."""

    def add(self, refused: RefusedMessage) -> None:
        assert refused.number not in self
        self[refused.number] = refused


class PlayedBroker:
    """A broker, and the clock it lives by. Request number `away_at` is lost, after it was done when it `does`."""

    def __init__(self, *, away_at: int = -1, does: bool = False, away_s: float = 1.0) -> None:
        self.now_s = 50.0
        self.taken: list[tuple[str, float]] = []
        self.pieces: list[int] = []
        self.next = 0
        self.refuses: dict[str, Taken] = {}
        self.loses_at = -1
        self._away_at, self._does, self._away_s = away_at, does, away_s
        self._back_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float, /) -> None:
        assert seconds >= 0
        self.now_s += seconds

    def take(self, first: int, messages: Sequence[bytes | None]) -> Taken:
        self.now_s += TAKES_S
        if self.now_s < self._back_s:
            raise BrokerAway("nobody answers")
        number = len(self.pieces)
        self.pieces.append(len(messages))
        if number == self._away_at:
            self._back_s = self.now_s + self._away_s
            if self._does:
                self._take(first, messages)
            raise BrokerAway("nobody answers")
        if number == self.loses_at:  # another broker, with an older state
            self.next -= 3
            del self.taken[-3:]
            return Taken(next=self.next)
        return self._take(first, messages)

    def _take(self, first: int, messages: Sequence[bytes | None]) -> Taken:
        assert first <= self.next
        for frame in messages[self.next - first :]:
            if frame is not None:
                topic = decode_record(frame).message.topic
                if (refusal := self.refuses.get(topic)) is not None:
                    if refusal.passes:
                        del self.refuses[topic]
                    return Taken(next=self.next, refused=refusal.refused, passes=refusal.passes)
                self.taken.append((topic, self.now_s))
            self.next += 1
        return Taken(next=self.next)


def fed(broker: PlayedBroker, chosen: Rows, *, rate: float = 1e6) -> tuple[Kept, list[str], list[int]]:
    refused, notices, counts = Kept(), list[str](), list[int]()
    feed = ReplayFeed(
        broker,
        chosen,
        refused,
        "{topic}",
        rate=rate,
        patience_s=10.0,
        progress=lambda done, _: counts.append(done),
        notice=notices.append,
        clock=broker,
    )
    feed.run()
    assert feed.done == len(chosen)
    return refused, notices, counts


@pytest.mark.parametrize("does", [False, True])
@pytest.mark.parametrize("away_at", [0, 1, 3])
def test_a_lost_answer_neither_skips_nor_repeats(away_at: int, does: bool) -> None:
    broker = PlayedBroker(away_at=away_at, does=does)
    _, notices, counts = fed(broker, Rows(3 * PIECE + 7))
    assert [topic for topic, _ in broker.taken] == [f"t/{number}" for number in range(3 * PIECE + 7)]
    assert notices == ["nobody answers; it is asked again for 10 s"]
    assert counts == sorted(counts) and max(broker.pieces) == PIECE


def test_it_gives_up_a_broker_that_stays_away() -> None:
    with pytest.raises(BrokerAway):
        fed(PlayedBroker(away_at=1, away_s=1_000.0), Rows(10))


def test_a_broker_that_knows_less_gets_it_again() -> None:
    broker = PlayedBroker()
    broker.loses_at = 3
    fed(broker, Rows(50), rate=100)
    assert [topic for topic, _ in broker.taken] == [f"t/{number}" for number in range(50)]


def test_no_faster_than_the_rate() -> None:
    broker = PlayedBroker()
    fed(broker, Rows(100), rate=50)
    assert max(broker.pieces) == 5
    times = [at_s for _, at_s in broker.taken]
    assert 1.8 < times[-1] - times[0] < 2.2


def test_refused_ones_are_passed_over_and_full_queues_waited_for() -> None:
    broker = PlayedBroker()
    broker.refuses = {
        "t/3": Taken(next=0, refused="no such topic"),
        "t/5": Taken(next=0, refused="the queue is full", passes=True),
        "t/9": Taken(next=0, refused="too large"),
    }
    refused, notices, _ = fed(broker, Rows(10))
    assert [topic for topic, _ in broker.taken] == [f"t/{number}" for number in (0, 1, 2, 4, 5, 6, 7, 8)]
    assert [(one.number, one.offset, one.reason) for one in refused.values()] == [
        (3, 103, "no such topic"),
        (9, 109, "too large"),
    ]
    assert notices == ["the broker takes no more for now: the queue is full"]


def test_large_messages_go_alone() -> None:
    broker = PlayedBroker()
    fed(broker, Rows(3, b"x" * 400_000))
    assert broker.pieces == [0, 1, 1, 1]


def test_what_was_chosen_is_read_from_any_number(tmp_path: Path) -> None:
    numbers = iter(range(1_000))
    for part, sizes in ((LOG_PART, (25, 5)), (LAKE_PART, (10, 1))):
        (tmp_path / part).mkdir()
        for index, size in enumerate(sizes):
            table = pa.table({"number": [next(numbers) for _ in range(size)]})
            pq.write_table(table, tmp_path / part / f"part-{index:05}.parquet", row_group_size=7)
    chosen = ChosenMessages(tmp_path)
    ordered = [*range(30, 41), *range(30)]
    assert len(chosen) == 41
    for start in (*range(41), 41):
        assert [one["number"] for one in chosen.rows(start)] == ordered[start:]


def test_what_a_replayed_message_says() -> None:
    said = [
        {"name": name, "value": "1"} for name in ("a", "dedup-id", "partition-key", "replayed-from", "delay")
    ]
    given = row(
        7,
        qos=0,
        topic="$queue/q",
        user_properties=said,
        expires_ms=9,
        message_expiry_interval=4,
        content_type="c",
    )
    message = decode_record(encoded(given, "copy/{topic}")).message
    assert (message.topic, message.qos, message.retain, message.publisher) == ("copy/$queue/q", 1, False, "p")
    assert message.properties is not None and message.expires_ms == 9
    assert (message.properties.content_type, message.properties.message_expiry_interval) == ("c", 4)
    assert message.properties.user_properties == (
        ("a", "1"),
        ("dedup-id", "1"),
        ("partition-key", "1"),
        ("delay", "1"),
        ("replayed-from", "0:107"),
        ("replayed-accepted-at", "5007"),
        ("replayed-topic", "$queue/q"),
    )
    message = decode_record(encoded(given, "$queue/q")).message
    assert message.properties is not None
    assert [name for name, _ in message.properties.user_properties] == [
        "a",
        "partition-key",
        "replayed-from",
        "replayed-accepted-at",
    ]
    with pytest.raises(TopicError):
        encoded(row(1, topic="x" * 4_090), "longer/{topic}")
