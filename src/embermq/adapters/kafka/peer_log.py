"""The message log of another slot, read on a thread of its own."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.cimpl import NewTopic

from embermq.adapters.kafka.address import KafkaAddress
from embermq.adapters.kafka.client import LOG, WatchedAdmin, client_options, error_of, let_go, told
from embermq.adapters.kafka.failures import Failures
from embermq.adapters.kafka.log_topic import message_topic
from embermq.adapters.kafka.reading import PartitionReader, is_end
from embermq.adapters.kafka.settings import KafkaSettings
from embermq.formats.kafka_record import decode_frame
from embermq.formats.log_record import RecordError
from embermq.formats.pipeline_progress import TOPIC_SETTINGS, progress_key, progress_topic
from embermq.model.position import OFFSET_END, offset_of, partition_of, position_of
from embermq.ports.errors import StoreError
from embermq.ports.peer_logs import PeerLog, PeerRecords, Take

PIECE_RECORDS = 500
LOOK_S = 1.0
"""Between two looks for a log that is not there yet, or that may go on in another partition."""
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
        self._failing = ""
        self._said = _Progress(address, settings, self._admin)

    def start(self, at: int, take: Take) -> None:
        self._thread = Thread(target=self._run, args=(at, take), name=f"kafka {self._topic}", daemon=True)
        self._thread.start()

    def told(self, position: int) -> None:
        self._said.tell(self._name, position)

    @property
    def failing(self) -> str:
        return self._failing

    def close(self) -> None:
        self._closing.set()
        if self._reader is not None:
            self._reader.close()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        let_go(self._said.close)

    # On the thread

    def _run(self, at: int, take: Take) -> None:
        while not self._closing.is_set():
            try:
                partitions = self._partitions()
                if partitions > partition_of(at):
                    at = self._follow(at, partitions, take)
                    continue
            except StoreError as error:
                self._note(str(error))
            except Exception as error:  # whatever it was, its messages would come to nobody here
                self._failing = self._failures.note(f"{self._address}: reading topic {self._topic}", error)
                self._reader = None
            self._closing.wait(LOOK_S)

    def _note(self, trouble: str) -> None:
        if not self._failing and not self._closing.is_set():
            LOG.warning("%s", trouble)
        self._failing = trouble

    def _partitions(self) -> int:
        """0 while the topic is not there."""
        topics = self._admin.topics(self._settings.request_timeout_s)
        found = topics.get(self._topic)
        return 0 if found is None or found.error is not None else len(found.partitions)

    def _follow(self, at: int, partitions: int, take: Take) -> int:
        """Read one partition until it gets nothing more; returns where to go on."""
        partition = partition_of(at)
        if self._reader is None:
            self._reader = PartitionReader(self._address, self._settings, self._topic, reads_ahead=True)
        reader = self._reader
        reader.at({partition: offset_of(at)})
        while not self._closing.is_set():
            try:
                found = list(reader.consume(PIECE_RECORDS))
            except StoreError:
                found = []  # nothing is new for long, or it does not answer, which this question tells
                partitions = self._partitions()
            self._failing = ""
            records: list[tuple[int, bytes]] = []
            before = at
            for message in found:
                here = position_of(partition, message.offset() or 0)
                if message.partition() == partition and here >= at and not is_end(message):
                    at = here + 1  # never behind the end of a transaction, where its writer sees no record
                    frame = self._frame(message)
                    if frame is not None:
                        records.append((here, frame))
            if at > before:
                take(PeerRecords(records, at))
            elif partitions > partition + 1 and self._is_over(reader, at):
                return position_of(partition + 1, 0)
        return at

    def _is_over(self, reader: PartitionReader, at: int) -> bool:
        """Whether the writer has gone on in the next partition, and this one has been read. The last offset may be the
        end of a transaction."""
        partition = partition_of(at)
        _, ends = reader.offsets(partition + 2)
        return ends[partition + 1] > 0 and offset_of(at) >= ends[partition] - 1

    def _frame(self, message: Message) -> bytes | None:
        try:
            return decode_frame(message.key(), message.value(), message.headers()).frame  # type: ignore[arg-type]
        except RecordError as error:
            LOG.error(
                "topic %s, partition %s, offset %s is no record of a broker and is passed over: %s",
                self._topic,
                message.partition(),
                message.offset(),
                error,
            )
            return None


class _Progress:
    """What this reader says in the place where readers of the other log say how far they are."""

    def __init__(self, address: KafkaAddress, settings: KafkaSettings, admin: WatchedAdmin) -> None:
        self._address = address
        self._admin = admin
        self._settings = settings
        self._topic = progress_topic(settings.prefix)
        self._is_there = False
        self._producer = Producer(
            client_options(address, settings)
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
