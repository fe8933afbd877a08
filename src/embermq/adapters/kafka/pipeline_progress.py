"""How far the pipeline's queries are: its compacted topic, followed on a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event, Thread

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.client import (
    Failures,
    client_options,
    error_of,
    is_of_unused_group,
    let_go,
    may_work_later,
    told,
)
from embermq.formats.pipeline_progress import REPORT_KEY, progress_topic, read_progress
from embermq.model.position import OFFSET_END
from embermq.ports.errors import StoreUnavailable
from embermq.ports.pipeline_progress import PipelineProgress

LOOK_S = 1.0
"""Between two looks for a topic that is not there, and after an error."""
WAIT_S = 0.25
CONSUMED_AT_ONCE = 1_000
_GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class KafkaPipelineProgress(PipelineProgress):
    """`log_id` is the id of the topic that is the message log, `closed` has the end of each partition that gets nothing
    more, and may grow. A topic that is missing is waited for; one that was made anew is read from its beginning, and
    what it says less than what was heard before does not count."""

    def __init__(
        self,
        address: KafkaAddress,
        settings: KafkaSettings,
        log_id: str,
        failures: Failures | None = None,
        *,
        closed: Mapping[int, int] | None = None,
    ) -> None:
        self._address = address
        self._failures = failures or Failures()
        self._topic = progress_topic(settings.prefix)
        self._log_id = log_id
        self._closed = {} if closed is None else closed
        self._heard: dict[str, dict[int, int]] = {}
        """Of each query a dictionary that is never changed: another one takes its place."""
        self.report: tuple[bytes, int] | None = None
        """What a driver elsewhere has said last, and Kafka's time of it in Unix milliseconds."""
        self._failing = ""
        self._gone = False
        self._closing = Event()
        options = client_options(address) | {
            "group.id": f"{settings.prefix}-pipeline-progress",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 500,
            "fetch.error.backoff.ms": 50,
            "topic.metadata.refresh.interval.ms": 5_000,
            "topic.metadata.propagation.max.ms": 2_000,
            "error_cb": self._on_error,
        }
        try:
            self._consumer = Consumer(options)
        except (KafkaException, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{address}: cannot make a consumer: {error}") from None
        self._thread = Thread(target=self._run, name="kafka pipeline progress", daemon=True)
        self._thread.start()

    def positions(self, query: str) -> Mapping[int, int]:
        return self._heard.get(query, {})

    def complete(self, query: str) -> Mapping[int, int]:
        heard = self.positions(query)
        if not heard:
            return heard
        passed = {one: OFFSET_END for one, end in self._closed.items() if heard.get(one, 0) >= end}
        return {**heard, **passed}

    @property
    def failing(self) -> str:
        if not self._thread.is_alive() and not self._closing.is_set():
            return f"{self._address}: the thread that reads {self._topic} has ended"
        return self._failing

    def close(self) -> None:
        """Listen no more; a Kafka that hangs is not waited for."""
        self._closing.set()
        let_go(self._end)

    def _end(self) -> None:
        self._thread.join()
        self._consumer.close()

    # On the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if self._is_there():
                    self._follow()
            except KafkaException as error:
                self._failing = f"{self._address}: topic {self._topic}: {told(error_of(error))}"
            except Exception as error:  # whatever it was, the log would never be trimmed again
                self._failing = self._failures.note(f"{self._address}: reading topic {self._topic}", error)
            self._closing.wait(LOOK_S)

    def _is_there(self) -> bool:
        """Looks, and goes to the topic's beginning when it is. The pipeline makes it with its first word."""
        topic = self._consumer.list_topics(self._topic, LOOK_S).topics[self._topic]
        if topic.error is not None:
            if topic.error.code() not in _GONE and not may_work_later(topic.error):
                self._failing = f"{self._address}: topic {self._topic}: {told(topic.error)}"
                return False
            self._failing = ""
            return False
        self._failing = ""
        self._consumer.assign(
            [TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in topic.partitions]
        )
        return True

    def _follow(self) -> None:
        """Until it is gone, or told to end."""
        self._gone = False
        while not self._closing.is_set() and not self._gone:
            messages = self._consumer.consume(CONSUMED_AT_ONCE, WAIT_S)
            good = [message for message in messages if self._is_record(message)]
            if good:
                self._failing = ""
                self._hear(good)
            elif self._failing and not messages:
                # Nothing comes: because nothing is new, or because Kafka is away?
                self._consumer.list_topics(self._topic, LOOK_S)
                self._failing = ""
        self._consumer.unassign()

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if not is_of_unused_group(error):
            self._on_error(error)
        return False

    def _hear(self, messages: list[Message]) -> None:
        fresh: dict[str, dict[int, int]] = {}
        for message in messages:
            if message.key() == REPORT_KEY:
                self.report = message.value() or b"", message.timestamp()[1]
                continue
            found = read_progress(message.key(), message.value(), message.headers(), self._log_id)  # type: ignore[arg-type]
            if found is None:
                continue
            mine = fresh.setdefault(found.query, dict(self._heard.get(found.query, {})))
            mine[found.partition] = max(found.next_offset, mine.get(found.partition, 0))
        self._heard.update(fresh)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in _GONE:
            self._gone = True
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self._failing:
            self._failing = f"{self._address}: topic {self._topic}: {told(error)}"
