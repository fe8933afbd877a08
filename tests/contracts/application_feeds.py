"""Places of application logs, with their readers, as the contract suite of feeds takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tests.support.application_log_writer import ApplicationLogWriter, HandLoop, HandReader, make_log
from tests.support.hand_kafka import ENTRY_BYTES, HandKafka
from tests.support.kafka_server import KafkaServer

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_feeds import KafkaApplicationFeeds
from embermq.adapters.kafka.application_topics import ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.log_record import LogRecord, Stamp
from embermq.model.message import Message
from embermq.ports.application_feed import ApplicationFeeds


class PlaceOfLogs(ABC):
    """Logs of one partition. `unread_bytes_max` is what a feed brings at most without a release, and one batch more."""

    feeds: ApplicationFeeds
    unread_bytes_max: int
    payload_bytes: int
    """Of a record, so that some thousand are more than that."""

    @abstractmethod
    def make(self, name: str) -> str:
        """A new log, empty."""

    @abstractmethod
    def write(self, log: str, payloads: Sequence[bytes]) -> None:
        """Records, whose sources ascend over all calls and logs from 0 on."""

    @abstractmethod
    def write_broken(self, log: str) -> None:
        """One that cannot be understood."""

    @abstractmethod
    def trim(self, log: str, below: int) -> None: ...

    @abstractmethod
    def delete(self, log: str) -> None: ...

    @abstractmethod
    def run_until(self, condition: Callable[[], object]) -> None:
        """Let answers come."""

    def close(self) -> None:
        return

    def reads(self, log: str, start: int = 0, *, stalled: bool = False) -> HandReader:
        """A client that is connected."""
        reader = HandReader()
        reader.stalled = stalled
        reader.feed = self.feeds.open(log, {0: start}, reader)
        return reader


class InKafka(PlaceOfLogs):
    """A prefix of its own on a real server."""

    unread_bytes_max = 256 * 1024
    payload_bytes = 1_000

    def __init__(self, kafka: KafkaServer) -> None:
        settings = KafkaSettings(prefix=kafka.prefix())
        address = parse_address(f"kafka://{kafka.bootstrap}")
        self._names = ApplicationLogNames(settings.prefix)
        properties = LogProperties(packet_bytes_max=1024 * 1024)
        self._topics = ApplicationTopics(WatchedAdmin(address, settings), self._names, properties)
        self._writer = ApplicationLogWriter(kafka.bootstrap)
        self._loop = HandLoop()
        self.feeds = self._feeds = KafkaApplicationFeeds(
            address, settings, self._loop.post, unread_bytes_max=self.unread_bytes_max
        )

    def make(self, name: str) -> str:
        log = self._names.client_log(name)
        make_log(self._topics, log)
        return log

    def write(self, log: str, payloads: Sequence[bytes]) -> None:
        self._writer.write(log, payloads)

    def write_broken(self, log: str) -> None:
        self._writer.put_broken(log)

    def trim(self, log: str, below: int) -> None:
        self._topics.trim({(log, 0): below})

    def delete(self, log: str) -> None:
        self._topics.delete([log])

    def run_until(self, condition: Callable[[], object]) -> None:
        self._loop.run_until(condition, 60.0)

    def close(self) -> None:
        self._feeds.close()


class ByHand(PlaceOfLogs):
    """What the unit and property tests of readers stand on."""

    unread_bytes_max = 10 * ENTRY_BYTES
    payload_bytes = 1

    def __init__(self) -> None:
        self._kafka = HandKafka()
        self._kafka.feeds.unread_bytes_max = self.unread_bytes_max
        self.feeds = self._kafka.feeds
        self._written = 0

    def make(self, name: str) -> str:
        log = self._kafka.logs.name(name)
        self._kafka.find(log)
        return log

    def write(self, log: str, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            message = Message("t", payload, 1, False, "publisher", 5, 1)
            self._kafka.topics[log].add(self._written, LogRecord(message, (Stamp(log, 1, 1),), None))
            self._written += 1

    def write_broken(self, log: str) -> None:
        self._kafka.topics[log].add(None, None, "has no header v, its format")

    def trim(self, log: str, below: int) -> None:
        self._kafka.logs.trim({(log, 0): below})

    def delete(self, log: str) -> None:
        del self._kafka.topics[log]

    def run_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self._kafka.run(), "nothing comes any more"
