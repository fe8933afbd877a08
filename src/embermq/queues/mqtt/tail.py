"""After a start with a log in a store of its own: messages whose record it has, and whose entry was never stored.

Nobody was told that they are enqueued. But who sent one with QoS 2 repeats it, and its packet id is known from the
record, so that the repeat is not taken for another message.
"""

from collections.abc import Callable, Iterator

from embermq.formats.log_record import RecordError, decode_record, is_addressed, split_batch
from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.ports.message_log import MessageLog
from embermq.queues.errors import NameRefused, QueueRefusal
from embermq.queues.names import QUEUE_PREFIX, parse_topic
from embermq.queues.publication import read_publication
from embermq.queues.queues import Queues
from embermq.sessions.tick import Tick

READ_RECORDS = 1_000
READ_BYTES = 4 * 1024 * 1024


def enqueue_tail(
    core: Queues,
    tick: Tick,
    log: MessageLog,
    first: int,
    complete_to: Callable[[str], int] = lambda _: 0,
) -> int:
    """Enqueue what the log has from number `first` on, to be stored with the first tick; returns how many. Of each
    queue the store knows what is below `complete_to`, be it settled since. Raises StoreError."""
    count = 0
    for offset, frame in _frames(log, first):
        try:
            record = decode_record(frame)
        except RecordError:
            continue  # recovery counts it
        message = record.message
        if is_addressed(record) or not message.topic.startswith(QUEUE_PREFIX):
            continue
        try:
            topic = parse_topic(message.topic)
        except NameRefused:
            continue
        if topic.verb is not None or offset < complete_to(topic.name) or not core.owns(topic.name):
            continue
        if _enqueue(core, topic.name, tick, message, offset=offset, record_bytes=len(frame)):
            tick.writes.queues.bodies_at[offset] = frame
            count += 1
    return count


def _enqueue(
    core: Queues, name: str, tick: Tick, message: Message, *, offset: int, record_bytes: int
) -> bool:
    """False for what a queue refuses, or knows by its dedup id."""
    properties = message.properties
    said = properties.user_properties if properties is not None else ()
    writes = tick.writes.queues
    now_ms = tick.from_date(message.accepted_ms) if message.accepted_ms else tick.now_ms
    try:
        publication = read_publication(said, now_ms, offset_ms=tick.offset_ms or 0)
        acceptance = core.accept(
            name,
            publication,
            len(message.payload),
            -1,
            now_ms,
            expires_ms=message.expires_ms,
            record_bytes=record_bytes,
        )
    except QueueRefusal:
        return False
    if acceptance.ticket < 0:
        return False
    key = (core.queue(name).generation, acceptance.ticket)
    if key in writes.entries:
        writes.entries[key] = replace(writes.entries[key], offset=offset)
    else:
        writes.delayed[key] = replace(writes.delayed[key], offset=offset)
    core.commit(name, [(acceptance.ticket, offset)])
    return True


def _frames(log: MessageLog, first: int) -> Iterator[tuple[int, bytes]]:
    offset = first
    while batches := log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES):
        for batch in batches:
            for index, frame in enumerate(split_batch(batch.body, batch.record_count)):
                if batch.base_offset + index >= first:
                    yield batch.base_offset + index, frame
        offset = batches[-1].base_offset + batches[-1].record_count
