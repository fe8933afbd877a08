"""What is asked of Kafka again, and what is not: a server may not have heard of a topic that another one has named."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from embermq.adapters.kafka.address import parse_address
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.reading import PartitionReader
from embermq.adapters.kafka.settings import KafkaSettings
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


def test_so_are_its_offsets() -> None:
    reader = PartitionReader(ADDRESS, SETTINGS, "t", reads_ahead=False)
    try:
        assert reader._ask(Asked(UNKNOWN, 7).once) == 7
        refused = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(StoreUnavailable, match="offsets of t"):
            reader._ask(Asked(refused, 7).once)
    finally:
        reader.close()
