"""Records as they stand in Kafka, written down by hand: headers, and rows as Spark's Kafka source gives them."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from embermq.formats.log_record import LogRecord, Stamp
from embermq.mqtt.wire.properties import encode_properties

PREFIX = "test"
LOG_PREFIX = f"{PREFIX}.msg.app."
REJECTED = f"{PREFIX}.msg.rejected"
SCHEMA = (
    "partition int, offset long, key binary, value binary, headers array<struct<key: string, value: binary>>"
)

Headers = list[tuple[str, bytes]]
KafkaRow = tuple[int, int, bytes | None, bytes | None, Headers | None]


def stamp_text(stamp: Stamp) -> bytes:
    """A stamp as a header `a` has it."""
    flags = stamp.qos | (4 if stamp.retain_as_published else 0)
    identifiers = ",".join(map(str, stamp.subscription_identifiers))
    return f"{stamp.log};{stamp.generation};{flags};{identifiers}".encode()


def headers_of(record: LogRecord) -> Headers:
    """The headers of a record."""
    message = record.message
    flags = message.qos | (4 if message.retain else 0) | (message.version << 3)
    headers = [
        ("v", b"1.0"),
        ("f", b"%d" % flags),
        ("t", b"%d" % message.accepted_ms),
        ("c", message.publisher.encode()),
    ]
    if message.properties is not None:
        headers.append(("p", encode_properties(message.properties)))
    if message.expires_ms:
        headers.append(("x", b"%d" % message.expires_ms))
    if record.origin is not None:
        headers.append(("o", b"%d;%d" % (record.origin.generation, record.origin.packet_id)))
    return headers + [("a", stamp_text(stamp)) for stamp in record.stamps]


def plain_headers(stamps: Sequence[bytes] = (), /, **others: bytes | None) -> Headers:
    """Those of an ordinary record; `others` replaces or, with None, removes one."""
    headers: dict[str, bytes | None] = {
        "v": b"1.0",
        "f": b"41",
        "t": b"1750000000000",
        "c": b"car-1",
    }
    headers |= others
    return [(name, value) for name, value in headers.items() if value is not None] + [
        ("a", one) for one in stamps
    ]


def kafka_rows(spark: SparkSession, rows: Sequence[KafkaRow]) -> DataFrame:
    """As Spark's Kafka source gives them, in so far as they are used."""
    return spark.createDataFrame(list(rows), SCHEMA).coalesce(1)


def as_headers(row: Mapping[str, object]) -> Headers:
    """The headers of a row that a transform gave."""
    headers = row["headers"]
    assert isinstance(headers, list)
    return [(header.key, bytes(header.value)) for header in headers]
