"""Whether a log in Kafka and what is kept on a Redis belong together, and whether both fit."""

from __future__ import annotations

from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_topic import LogTopic, find_ends
from embermq.adapters.kafka.message_log import KafkaMessageLog
from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.kafka_log import check_is_ours
from embermq.app.pipeline_side import look_at_log
from embermq.app.store_addresses import kafka_address
from embermq.model.position import offset_of, partition_of
from embermq.pipeline.errors import PipelineError
from embermq.ports.known_log import KnownLog
from embermq.tools.stores_check import Finding, LogExtent, behind


def check_log(settings: Settings, known: KnownLog) -> tuple[LogExtent, list[Finding]]:
    """What the log holds, and what was found. Raises StoreError or UserError for a log that is not this one."""
    admin = WatchedAdmin(kafka_address(settings.stores.log), settings.kafka)
    topic = LogTopic(admin, packet_bytes_max=settings.mqtt.packet_bytes_max)
    place = f"{admin.address}, topic {topic.name}"
    if topic.durability() is None:
        raise UserError(f"stores.log: {place} is not there")
    positions = find_ends(admin, topic)
    if not settings.kafka.adopt_log:
        check_is_ours(known, positions, topic.identity(), place)
    log = KafkaMessageLog(admin, topic.name, positions)
    start = log.statistics().start_offset
    log.close()
    try:
        look = look_at_log(settings)
    except PipelineError as error:
        raise UserError(f"stores.log: {error}") from error
    assert look is not None, "the log is in Kafka"
    offsets = {number: (bounds.first, bounds.end) for number, bounds in look.bounds.items()}
    extent = LogExtent(start, positions.end, offsets)
    if known.end > positions.end:
        ends = [
            f"partition {partition_of(one)}, offset {offset_of(one)}" for one in (positions.end, known.end)
        ]
        text = f"{place} lacks its last records: it ends at {ends[0]}, the Redis knows of {ends[1]}"
        found = [Finding("message log", "lost", text)]
    else:
        found = [Finding("message log", "fits", f"{place} has all that is known of it")]
    for query, done in sorted(look.done.items()):
        for number, offset in sorted(done.items()):
            one = behind(
                "message log", f"the query {query}, partition {number},", offset, LogExtent(*offsets[number])
            )
            if one.state == "lost":
                found.append(one)
    return extent, found
