"""The message log of another slot, read on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.cimpl import NewTopic

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.client import LOG, Failures, WatchedAdmin, client_options, error_of, let_go, told
from embermq.adapters.kafka.log_topic import message_topic
from embermq.adapters.kafka.reading import PartitionReader, is_end, read_frame
from embermq.formats.pipeline_progress import TOPIC_SETTINGS, progress_key, progress_topic
from embermq.model.position import OFFSET_END, offset_of, partition_of, position_of
from embermq.ports.errors import StoreError
from embermq.ports.peer_logs import PeerLog, PeerRecords, Take

PIECE_RECORDS = 500
PIECE_BYTES = 4 * 1024 * 1024
"""A piece ends behind the record with which it has as much."""
SKIPPED = 1
"""Offsets in a row without a record are usual: the end of a transaction."""
REST_S = 0.005
"""After a piece that was not full: what comes meanwhile is one more, and costs its node one tick instead of several."""
RETRY_S = 0.1
LOOK_S = 1.0
"""Between two looks for a log that is not there yet, or that may go on in another partition."""
TAKEN_S = 0.5
"""Between two looks for the end of this reader while a piece is being taken."""
CLOSE_S = 2.0


class KafkaPeerLog(PeerLog):
    """`settings` are those of the other slot, `name` is by which its writer knows this reader."""

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, name: str, failures: Failures | None = None
    ) -> None:
        self._address = address
        self._settings = settings
        self._name = name
        self._failures = failures or Failures()
        self._topic = message_topic(settings.prefix)
        self._admin = WatchedAdmin(address, settings)
        self._closing = Event()
        self._thread: Thread | None = None
        self._reader: PartitionReader | None = None
        self._at = 0
        """Where the next record is to be: what is below has been taken, whatever becomes of the reading."""
        self._failing = ""
        self._said = _Progress(address, settings, self._admin)
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._asking: Thread | None = None
        self._lock = Lock()
        self._read_to = 0
        """All below it has been taken; also behind the end of a transaction."""
        self._catching_up: list[tuple[int, Callable[[], None]]] = []
        """Who waits for that to be so high."""

    def start(self, at: int, take: Take) -> None:
        self._at = at
        self._thread = Thread(target=self._run, args=(take,), name=f"kafka {self._topic}", daemon=True)
        self._thread.start()
        self._asking = Thread(target=self._answer, name=f"kafka end of {self._topic}", daemon=True)
        self._asking.start()

    def catch_up(self, then: Callable[[], None]) -> None:
        self._asked.put(then)

    def told(self, position: int) -> None:
        self._said.tell(self._name, position)

    @property
    def failing(self) -> str:
        return self._failing

    def close(self) -> None:
        self._closing.set()
        self._asked.put(None)
        if self._reader is not None:
            self._reader.close()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        let_go(self._said.close)

    # On the thread

    def _run(self, take: Take) -> None:
        while not self._closing.is_set():
            try:
                partitions = self._partitions()
                if partitions > partition_of(self._at):
                    self._follow(partitions, take)
                    continue
            except StoreError as error:
                self._note(str(error))
            except Exception as error:  # whatever it was, its messages would come to nobody here
                self._failing = self._failures.note(f"{self._address}: reading topic {self._topic}", error)
                self._reader = None
            self._closing.wait(LOOK_S)

    def _answer(self) -> None:
        """On a thread of its own: where does the log end, and has all of that been taken?"""
        asker: PartitionReader | None = None
        while (then := self._asked.get()) is not None and not self._closing.is_set():
            waiting = [then]
            while not self._asked.empty():
                if (another := self._asked.get()) is not None:
                    waiting.append(another)
            while not self._closing.is_set():
                try:
                    count = self._partitions()
                    if count and asker is None:
                        asker = PartitionReader(self._address, self._settings, self._topic, reads_ahead=False)
                    end = _end_of(asker.offsets(count)[1]) if asker and count else 0
                except StoreError:
                    self._closing.wait(RETRY_S)
                except Exception as error:  # whatever it was, nobody could subscribe any more
                    self._failures.note(f"{self._address}: asking for the end of topic {self._topic}", error)
                    asker = None
                    self._closing.wait(LOOK_S)
                else:
                    self._wait_for(end, waiting)
                    break
        if asker is not None:
            asker.close()

    def _wait_for(self, end: int, waiting: list[Callable[[], None]]) -> None:
        with self._lock:
            if self._read_to < end:
                self._catching_up += [(end, then) for then in waiting]
                return
        for then in waiting:
            then()

    def _is_read(self, to: int) -> None:
        with self._lock:
            to = self._read_to = max(self._read_to, to)  # an end is told once
            there = [then for end, then in self._catching_up if end <= to]
            self._catching_up = [entry for entry in self._catching_up if entry[0] > to]
        for then in there:
            then()

    def _note(self, trouble: str) -> None:
        if not self._failing and not self._closing.is_set():
            LOG.warning("%s", trouble)
        self._failing = trouble

    def _partitions(self) -> int:
        """0 while the topic is not there."""
        topics = self._admin.topics(self._settings.request_timeout_s)
        found = topics.get(self._topic)
        return 0 if found is None or found.error is not None else len(found.partitions)

    def _follow(self, partitions: int, take: Take) -> None:
        """Read one partition until the log goes on in the next one."""
        partition = partition_of(self._at)
        if self._reader is None:
            self._reader = PartitionReader(self._address, self._settings, self._topic, reads_ahead=True)
        reader = self._reader
        reader.at({partition: offset_of(self._at)})
        while not self._closing.is_set():
            try:
                found = list(reader.consume(PIECE_RECORDS))
            except StoreError:
                found = []  # nothing is new for long, or it does not answer, which this question tells
                partitions = self._partitions()
            self._failing = ""
            before = self._at
            read_to = self._take_all(found, reader, take)
            self._is_read(max(self._at, read_to))
            if self._at == before and partitions > partition + 1 and self._is_over(reader):
                self._at = position_of(partition + 1, 0)
                return
            if len(found) < PIECE_RECORDS:
                self._closing.wait(REST_S)

    def _take_all(self, found: list[Message], reader: PartitionReader, take: Take) -> int:
        """Returns how far the log was read: that may be behind the end of a transaction, where its writer sees no
        record."""
        partition = partition_of(self._at)
        at = read_to = self._at
        records: list[tuple[int, bytes]] = []
        size = 0
        for message in found:
            here = position_of(partition, message.offset() or 0)
            if message.partition() != partition or here < at:
                continue
            if is_end(message):
                read_to = here
                continue
            if here > at + SKIPPED:
                self._look_for_loss(reader, at)
            at = here + 1
            frame = read_frame(message, self._topic)
            if frame is not None:
                records.append((here, frame))
                size += len(frame)
            if size >= PIECE_BYTES:
                self._hand_over(records, at, take)
                records, size = [], 0
        self._hand_over(records, at, take)
        return read_to

    def _hand_over(self, records: list[tuple[int, bytes]], end: int, take: Take) -> None:
        if end > self._at:
            done = Event()
            take(PeerRecords(records, end), done.set)
            while not done.wait(TAKEN_S):
                if self._closing.is_set():
                    return
            self._at = end

    def _look_for_loss(self, reader: PartitionReader, at: int) -> None:
        """Say so when the log does not have any more what was to be read next. Raises StoreError."""
        partition, offset = partition_of(at), offset_of(at)
        lows, _ = reader.offsets(partition + 1)
        if lows[partition] > offset:
            LOG.error(
                "topic %s, partition %s: offsets %s to %s were deleted before this node has read them: messages to its "
                "sessions may be lost",
                self._topic,
                partition,
                offset,
                lows[partition] - 1,
            )

    def _is_over(self, reader: PartitionReader) -> bool:
        """Whether the writer has gone on in the next partition, and this one has been read: to its end, which may be
        behind ends of transactions, or of what it has still."""
        partition = partition_of(self._at)
        _, ends = reader.offsets(partition + 2)
        read_to = max(self._at, self._read_to)
        return ends[partition + 1] > 0 and offset_of(read_to) >= ends[partition] - 1


def _end_of(ends: Mapping[int, int]) -> int:
    """Of a log with these partitions: the last one may have been begun and not have a record yet."""
    written = [partition for partition, end in ends.items() if end]
    return position_of(written[-1], ends[written[-1]]) if written else 0


class _Progress:
    """What this reader says in the place where readers of the other log say how far they are."""

    def __init__(self, address: KafkaAddress, settings: KafkaSettings, admin: WatchedAdmin) -> None:
        self._address = address
        self._admin = admin
        self._settings = settings
        self._topic = progress_topic(settings.prefix)
        self._is_there = False
        self._producer = Producer(
            client_options(address)
            | {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 30_000}
        )

    def tell(self, name: str, position: int) -> None:
        """What is not told now is told with the next one."""
        if not self._is_there:
            self._make()
        with suppress(KafkaException, BufferError):
            newest = partition_of(position)
            for partition in range(newest + 1):
                offset = offset_of(position) if partition == newest else OFFSET_END - 1
                self._producer.produce(self._topic, str(offset).encode(), progress_key(name, partition))
            self._producer.poll(0)

    def _make(self) -> None:
        """Asked for and not waited for: the topic may be there."""
        topic = NewTopic(
            self._topic,
            num_partitions=1,
            replication_factor=self._settings.replication_factor or -1,
            config=TOPIC_SETTINGS,
        )
        asked = self._admin.client.create_topics([topic])
        asked[self._topic].add_done_callback(self._made)

    def _made(self, answer: object) -> None:
        try:
            answer.result()  # type: ignore[attr-defined]
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                LOG.warning("%s: cannot make topic %s: %s", self._address, self._topic, told(error_of(error)))
                return
        self._is_there = True

    def close(self) -> None:
        self._producer.flush(CLOSE_S)
