"""What a replay reads and writes, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embermq.formats.log_record import decode_record, split_batch
from embermq.pipeline.jobs.replay_feed import LOG_PART
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import LogFile

NOTHING = {
    "expires_ms": None,
    "payload_format_indicator": None,
    "message_expiry_interval": None,
    "content_type": None,
    "response_topic": None,
    "correlation_data": None,
}


def chosen_without_spark(
    _settings: object, places: Places, wanted: Sequence[ReplayRange], *, into: Path | None, tasks: int
) -> Chosen:
    """What Spark would choose; that is not what is killed here."""
    assert into is not None and not tasks
    return choose_messages(messages_in(places), wanted[0], into)


def choose_messages(messages: list[tuple[int, Any]], wanted: ReplayRange, into: Path) -> Chosen:
    """Write those of the range into the folder."""
    rows: list[dict[str, Any]] = []
    for offset, message in messages:
        if offset < wanted.end:
            about = {
                "partition": 0,
                "offset": offset,
                "accepted_ms": message.accepted_ms,
                "user_properties": [],
            }
            fields = {name: getattr(message, name) for name in ("topic", "qos", "publisher", "payload")}
            rows.append(NOTHING | about | fields)
    (into / LOG_PART).mkdir()
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        pq.write_table(
            pa.Table.from_pylist(part), into / LOG_PART / f"part-{number}.parquet", row_group_size=700
        )
    return Chosen(records=len(rows), chosen=len(rows))


def messages_in(places: Places) -> list[tuple[int, Any]]:
    log = LogFile(places.log)
    try:
        return [
            (offset, decode_record(frame).message)
            for batch in log.batches(0, log.end() or 0)
            for offset, frame in enumerate(split_batch(batch.body, batch.count), batch.base)
        ]
    finally:
        log.close()
