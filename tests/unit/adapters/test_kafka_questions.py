"""What is asked of Kafka again, and what is not: a server may not have heard of a topic that another one has named."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_topic import LogTopic
from embermq.adapters.kafka.reading import PartitionReader
from embermq.model.position import EXACT_PARTITIONS, OFFSET_END, position_of
from embermq.ports.errors import StoreUnavailable

ADDRESS = parse_address("kafka://127.0.0.1:1")
SETTINGS = KafkaSettings()
UNKNOWN = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))


class Asked:
    """Answers by servers, one after the other."""

    def __init__(self, *answers: int | KafkaException) -> None:
        self._answers: Iterator[int | KafkaException] = iter(answers)

    def once(self) -> int:
        answer = next(self._answers)
        if isinstance(answer, KafkaException):
            raise answer
        return answer

    def __call__(self) -> dict[str, Future[int]]:
        future: Future[int] = Future()
        try:
            future.set_result(self.once())
        except KafkaException as error:
            future.set_exception(error)
        return {"t": future}


def test_a_server_that_does_not_know_a_topic_yet_is_asked_again_if_it_is_there() -> None:
    admin = WatchedAdmin(ADDRESS, SETTINGS)
    assert admin.ask("looking", Asked(UNKNOWN, UNKNOWN, 7), is_there=True) == {"t": 7}
    with pytest.raises(StoreUnavailable, match="looking"):
        admin.ask("looking", Asked(UNKNOWN, 7))


def test_what_a_try_before_has_done_is_not_refused() -> None:
    admin = WatchedAdmin(ADDRESS, SETTINGS)
    leaderless = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    done = KafkaException(KafkaError(KafkaError.INVALID_PARTITIONS))
    asked = Asked(leaderless, done)
    assert admin.ask("adding", asked, done_before=KafkaError.INVALID_PARTITIONS) == {}
    with pytest.raises(StoreUnavailable, match="adding"):
        admin.ask("adding", Asked(done))


def test_more_partitions_than_redis_has_exact_scores_for_are_refused_before_kafka_is_asked() -> None:
    topic = LogTopic(WatchedAdmin(ADDRESS, SETTINGS), packet_bytes_max=1_000)
    with pytest.raises(
        StoreUnavailable, match=r"topic embermq\.msg\.all: 129 partitions are more than the 128"
    ):
        topic.add_partitions(129)
    last = position_of(EXACT_PARTITIONS - 1, OFFSET_END - 1)
    assert int(float(last)) == last and int(float(last - 2)) == last - 2
    beyond = position_of(EXACT_PARTITIONS, 1)
    assert int(float(beyond)) != beyond


def test_so_are_its_offsets() -> None:
    reader = PartitionReader(ADDRESS, SETTINGS, "t", reads_ahead=False)
    try:
        assert reader._ask(Asked(UNKNOWN, 7).once) == 7
        refused = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(StoreUnavailable, match="offsets of t"):
            reader._ask(Asked(refused, 7).once)
    finally:
        reader.close()
