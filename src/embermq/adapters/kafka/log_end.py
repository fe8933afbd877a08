"""Where the message log ends at a start, and where it goes on when it has lost its end.

Kafka gives the offsets behind the new end again, and readers go by offsets: what stands at one that they have had would
be a repeat to them, or be passed over. So new records go into another partition, the next one, which is made; the one
before is read to its end and gets nothing more.
"""

from __future__ import annotations

from embermq.adapters.kafka.client import LOG, WatchedAdmin
from embermq.adapters.kafka.log_topic import LogTopic
from embermq.adapters.kafka.positions import LogPositions
from embermq.adapters.kafka.reading import PartitionReader, is_end
from embermq.formats.pipeline_progress import progress_topic, read_progress
from embermq.model.position import offset_of, partition_of, position_of
from embermq.ports.errors import StoreUnavailable
from embermq.ports.known_log import KnownLog

CONSUMED_AT_ONCE = 1_000


def find_ends(admin: WatchedAdmin, topic: LogTopic, *, in_transactions: bool = False) -> LogPositions:
    """Where the log ends. One that is written `in_transactions` may have the end of the last one behind its last
    record, which no reader ever comes to. Raises StoreUnavailable."""
    newest = topic.partitions - 1
    skipped = 0
    reader = PartitionReader(admin.address, admin.settings, topic.name, reads_ahead=False)
    try:
        lows, ends = reader.offsets(topic.partitions)
        end = ends.pop(newest)
        if in_transactions and end > lows[newest]:
            reader.at({newest: end - 1})
            skipped = int(is_end(next(reader.consume(1))))
    finally:
        reader.close()
    return LogPositions(position_of(newest, end - skipped), ends, skipped=skipped)


def known_end(admin: WatchedAdmin, log_id: str, known: KnownLog, positions: LogPositions) -> int:
    """The position behind the last record that anybody may know of: the broker's stores, or the pipeline. After a run
    that ended in order the pipeline is not asked."""
    if known.ended_in_order and known.end == positions.end:
        return known.end
    try:
        told = _told_offsets(admin, log_id)
    except StoreUnavailable as error:
        LOG.warning("how far the pipeline is cannot be asked: %s", error)
        return known.end
    return max(known.end, *(position_of(one, offset) for one, offset in told.items()), 0)


def continue_behind(admin: WatchedAdmin, topic: LogTopic, positions: LogPositions, known: int) -> None:
    """Give no position below `known`. A log that ends before it has lost its end: it goes on in another partition.
    Raises StoreUnavailable."""
    if known <= positions.end + positions.skipped:
        return
    partition = max(positions.partition, partition_of(known - 1)) + 1
    LOG.error(
        "%s: topic %s has lost its end: partition %d ends at offset %d, partition %d was known up to %d; the messages "
        "in between are lost. New ones go to partition %d",
        admin.address,
        topic.name,
        positions.partition,
        offset_of(positions.end),
        partition_of(known),
        offset_of(known),
        partition,
    )
    topic.add_partitions(partition + 1)
    positions.close_partition(partition)


def _told_offsets(admin: WatchedAdmin, log_id: str) -> dict[int, int]:
    """The largest offset that any query of the pipeline has told of each partition of this log. Raises
    StoreUnavailable."""
    topic = progress_topic(admin.settings.prefix)
    there = admin.topics(admin.settings.request_timeout_s).get(topic)
    if there is None or there.error is not None:
        return {}
    found: dict[int, int] = {}
    reader = PartitionReader(admin.address, admin.settings, topic, reads_ahead=True)
    try:
        lows, ends = reader.offsets(len(there.partitions))
        left = {one for one, end in ends.items() if lows[one] < end}
        if left:
            reader.at({one: lows[one] for one in left})
        while left:
            for message in reader.consume(CONSUMED_AT_ONCE):
                partition = message.partition() or 0
                if not is_end(message):
                    told = read_progress(message.key(), message.value(), message.headers(), log_id)  # type: ignore[arg-type]
                    if told is not None:
                        found[told.partition] = max(found.get(told.partition, 0), told.next_offset)
                if (message.offset() or 0) + (not is_end(message)) >= ends[partition]:
                    left.discard(partition)
    finally:
        reader.close()
    return found
