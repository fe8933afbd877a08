"""From rows of the 1.x tables to what is stored of them, each with what is wrong with it."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

TEXT_BYTES_MAX = 65_535
_NOT_PAIRS = 'user_properties is not {"props": [{"k": text, "v": text}, ...]}'
SERIAL_NUMBER_MAX = 2**36
"""A place in the queue is a serial number times 65,536, and a double has to hold it exactly."""
EXPIRY_END_S = 1 << 32
TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999."""
_PAIRS = "STRUCT<props: ARRAY<STRUCT<k: STRING, v: STRING>>>"

GOOD, REJECTED, EXPIRED, OVER_LIMIT = "good", "rejected", "expired", "over_limit"


def judged_messages(
    rows: DataFrame, *, now_ms: int, ttl_s: int, payload_bytes_max: int, zero_expires: bool
) -> DataFrame:
    """`verdict` (null for rows that are no message), `reason` and `detail` where it is rejected, and what is stored:
    `released` (PUBREC came), `expiry_s` (null: none), `expires_ms` (when the stored message goes), `properties`.

    A message goes `ttl_s` seconds after it was written, or at its own expiry when that is sooner. One whose PUBREC has
    come is kept for `ttl_s` from now on: its client waits for PUBREL.
    """
    released = F.coalesce(F.col("packet_type") == "PUBREL", F.lit(False))
    raw_expiry = F.col("msg_expiry_interval")
    # 32 bits, which Java has with a sign. Versions 1.0 and 1.1 write 0 where there is none.
    expiry_s = F.when(raw_expiry < 0, raw_expiry + F.lit(EXPIRY_END_S)).otherwise(raw_expiry)
    has_expiry = _is_expiry() if zero_expires else _is_expiry() & (raw_expiry != 0)
    text = F.trim("user_properties")
    said = F.when((text != "") & (text != "null"), F.from_json(text, _PAIRS))
    lived = rows.select(
        "*",
        released.alias("released"),
        F.when(has_expiry, expiry_s).alias("expiry_s"),
        said.alias("said"),
        F.coalesce((text != "") & (text != "null"), F.lit(False)).alias("says"),
    )
    # Of a time that is none nothing is made: a sum that 64 bits do not hold would end the job.
    ends = F.when(_is_time(), F.col("time") + F.least(F.lit(ttl_s).cast("long"), F.col("expiry_s")) * 1000)
    expires_ms = F.when(F.col("released"), F.lit(now_ms + ttl_s * 1000)).otherwise(ends)
    ended = lived.select("*", expires_ms.alias("expires_ms"), F.col("said.props").alias("properties"))
    objections = _objections(payload_bytes_max)
    objection = F.lit(None).cast("STRUCT<reason: STRING, detail: STRING>")
    for name, condition, sentence in reversed(objections):
        said = F.struct(F.lit(name).alias("reason"), sentence.alias("detail"))
        objection = F.when(condition, said).otherwise(objection)
    is_message = F.col("kind") == "message"
    told = ended.select("*", F.when(is_message, objection).alias("objection"))
    verdict = (
        F.when(~is_message, F.lit(None).cast("string"))
        .when(F.col("objection").isNotNull(), F.lit(REJECTED))
        .when(F.col("over_limit"), F.lit(OVER_LIMIT))
        .when(F.col("expires_ms") <= now_ms, F.lit(EXPIRED))
        .otherwise(F.lit(GOOD))
    )
    return told.select(
        "piece",
        "kind",
        "client_id",
        "serial_number",
        "last_packet_id",
        verdict.alias("verdict"),
        F.col("objection.reason").alias("reason"),
        F.col("objection.detail").alias("detail"),
        "packet_id",
        "released",
        "topic",
        "time",
        "qos",
        F.coalesce("retain", F.lit(False)).alias("retain"),
        "expiry_s",
        "expires_ms",
        "payload_format_indicator",
        "content_type",
        "response_topic",
        "correlation_data",
        "properties",
        "payload",
    )


Objection = tuple[str, Column, Column]


def _objections(payload_bytes_max: int) -> list[Objection]:
    """Code, condition, sentence; the first that holds is the reason."""
    column = F.col
    serial, packet_id, qos = column("serial_number"), column("packet_id"), column("qos")
    packet_type = column("packet_type")
    return [
        ("client_id", F.coalesce(column("client_id"), F.lit("")) == "", F.lit("the client id is missing")),
        ("client_id", _too_long("client_id"), _long("the client id", "client_id")),
        (
            "serial_number",
            serial.isNull() | ~serial.between(0, SERIAL_NUMBER_MAX),
            _said("serial_number ", serial, f" is not in 0..{SERIAL_NUMBER_MAX}"),
        ),
        ("serial_number", column("repeated"), _said("serial_number ", serial, " is there more than once")),
        ("topic", F.coalesce(column("topic"), F.lit("")) == "", F.lit("the topic is missing")),
        ("topic", _has_wildcard("topic"), F.lit("the topic has a wildcard, + or #")),
        ("topic", _too_long("topic"), _long("the topic", "topic")),
        ("qos", qos.isNull() | ~qos.isin(1, 2), _said("qos ", qos, " is not 1 or 2")),
        (
            "packet_type",
            packet_type.isNotNull() & ~packet_type.isin("PUBLISH", "PUBREL"),
            _said("packet_type ", F.left(packet_type, F.lit(40)), " is not PUBLISH or PUBREL"),
        ),
        (
            "packet_type",
            column("released") & (qos != 2),
            _said("packet_type is PUBREL, but qos is ", qos, ""),
        ),
        (
            "packet_id",
            packet_id.isNull() | ~packet_id.between(1, 65_535),
            _said("packet_id ", packet_id, " is not in 1..65535"),
        ),
        (
            "time",
            ~_is_time(),
            _said("time ", column("time"), " is no time in milliseconds"),
        ),
        (
            "msg_expiry_interval",
            column("msg_expiry_interval").isNotNull() & ~_is_expiry(),
            _said("msg_expiry_interval ", column("msg_expiry_interval"), " is no number of 32 bits"),
        ),
        ("payload", column("payload_bytes").isNull(), F.lit("the payload is missing")),
        (
            "payload",
            column("payload_bytes") > payload_bytes_max,
            _said("the payload has ", column("payload_bytes"), f" bytes, the limit is {payload_bytes_max}"),
        ),
        *_objections_to_properties(),
    ]


def _objections_to_properties() -> list[Objection]:
    column = F.col
    return [
        (
            "user_properties",
            column("says") & ~_are_pairs(),
            F.lit(_NOT_PAIRS),
        ),
        (
            "user_properties",
            F.exists("properties", lambda pair: pair["k"].contains("\0") | pair["v"].contains("\0")),
            F.lit("user_properties has U+0000, which MQTT does not allow"),
        ),
        (
            "payload_format_indicator",
            ~column("payload_format_indicator").isin(0, 1),
            _said("payload_format_indicator ", column("payload_format_indicator"), " is not 0 or 1"),
        ),
        ("content_type", _too_long("content_type"), _long("content_type", "content_type")),
        ("response_topic", _too_long("response_topic"), _long("response_topic", "response_topic")),
        (
            "response_topic",
            (column("response_topic") == "") | _has_wildcard("response_topic"),
            F.lit("response_topic is empty or has a wildcard"),
        ),
        ("correlation_data", _too_long("correlation_data"), _long("correlation_data", "correlation_data")),
    ]


def _is_time() -> Column:
    return F.coalesce(F.col("time").between(1, TIME_MAX_MS), F.lit(False))


def _is_expiry() -> Column:
    """Signed or not, as long as it is of 32 bits."""
    return F.coalesce(
        F.col("msg_expiry_interval").between(-EXPIRY_END_S // 2, EXPIRY_END_S - 1), F.lit(False)
    )


def _are_pairs() -> Column:
    pairs = F.col("properties")
    good = F.forall(
        pairs,
        lambda pair: (
            pair["k"].isNotNull()
            & pair["v"].isNotNull()
            & (F.octet_length(pair["k"]) <= TEXT_BYTES_MAX)
            & (F.octet_length(pair["v"]) <= TEXT_BYTES_MAX)
        ),
    )
    return F.coalesce(good, F.lit(False))


def _has_wildcard(name: str) -> Column:
    return F.col(name).contains("+") | F.col(name).contains("#")


def _too_long(name: str) -> Column:
    return F.octet_length(name) > TEXT_BYTES_MAX


def _long(what: str, name: str) -> Column:
    return _said(f"{what} has ", F.octet_length(name), f" bytes, the limit is {TEXT_BYTES_MAX}")


def _said(before: str, value: Column, after: str) -> Column:
    return F.concat(F.lit(before), F.coalesce(value.cast("string"), F.lit("null")), F.lit(after))
