"""A record that goes through a query before all others, so that a query is not said to run before it does.

It is read, decoded, transformed and given to the sink like any other, by the same processes. Its offset is below every
position that a sink can have, so that the sink skips it as it skips repeats. In the offsets of a source `probe` is 0
before it and 1 behind it.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import RecordBatch

from embermq.formats.log_record import Stamp, encode_record, encode_stamps
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.sources.record_rows import rows_for

PROBE_OFFSET = -1
_NAME = "probe"
_ACCEPTED_MS = 1_750_000_000_000
_QOS = 1
_MQTT_5 = 5
_FRAME = encode_record(
    Message(
        _NAME,
        b'{"probe": true}',
        _QOS,
        False,
        _NAME,
        _MQTT_5,
        _ACCEPTED_MS,
        0,
        Properties(user_properties=((_NAME, _NAME),)),
    ),
    encode_stamps((Stamp(_NAME, 0, _QOS),)),
)

Offsets = dict[str, int]


def first_offsets(start: Offsets, *, probes: bool) -> Offsets:
    """Where a query begins; `probes`: with the probe."""
    return {**start, _NAME: 0} if probes else start


def is_due(start: Offsets) -> bool:
    """Whether the next batch is the probe alone."""
    return start.get(_NAME) == 0


def behind_probe(start: Offsets) -> Offsets:
    """The end of the batch that is the probe alone."""
    return {**start, _NAME: 1}


def carried(start: Offsets) -> Offsets:
    """What the end of a later batch has of the probe."""
    return {_NAME: start[_NAME]} if _NAME in start else {}


def probe_rows(schema: pa.Schema) -> "Iterator[RecordBatch]":
    """The probe as the sources give records."""
    rows = rows_for(schema)
    rows.add((PROBE_OFFSET, _FRAME))
    yield rows.take()
