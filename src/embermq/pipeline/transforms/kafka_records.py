"""Records in Kafka as native expressions: headers, MQTT 5 properties, and rows of `pipeline.schema`.

Headers of a record in Kafka as native expressions: what each says, and what is wrong with them. The layout is that of
`formats.kafka_record`. Nothing here can fail on a record: what cannot be understood is a reason.

The MQTT 5 property block as native expressions: a walk over its bytes [MQTT 5.0, 2.2.2]. Only queries that keep what
a message says need it (message store, lake); dispatch carries the block as it is.

Samples of delivery latency, of the records of their topic in Kafka. Native expressions only; the layout of the
samples is that of `model.receipts`.

Native expressions only. A row's position is its partition and offset in Kafka; its `body`, when it cannot be
understood, is the value.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from embermq.formats.log_record import FIELD_SLOT
from embermq.pipeline.schema import COPY, RECEIPTS, record_schema, traffic_schema
from embermq.queues.names import QUEUE_PREFIX

FORMAT_MAJOR = "1"
SINGLE_HEADERS = ("v", "f", "t", "c", "p", "x", "o", "s")
"""At most one of each; any number of `a`, and of headers that are not known."""

NUMBER_HEADERS = ("f", "t", "x")
OPTIONAL_HEADERS = ("p", "x", "o")

LOG_NAME_CHARACTERS_MAX = 249
"""Of a topic, as Kafka has it."""

_SHOWN_CHARACTERS = 60
_NUMBER = r"^[0-9]{1,18}\z"
_STAMP = rf"^[a-zA-Z0-9._-]{{1,{LOG_NAME_CHARACTERS_MAX}}};[0-9]{{1,18}};[0-24-6];([0-9]{{1,9}}(,[0-9]{{1,9}})*)?\z"
_ORIGIN = r"^[0-9]{1,18};[0-9]{1,5}\z"
_FLAGS_MAX = 255
_VALUE, _NUMBER_OF, _IS_THERE = "header_{}", "number_{}", "has_header_{}"
YEAR_10000_MS = 253_402_300_800_000


def with_headers(records: DataFrame, *columns: str) -> DataFrame:
    """These columns, and what all others here ask for: `stamp_texts`, the bytes of each header, numbers as such. Looked
    for once a record: each question would look through all headers again, and there are many questions."""
    names = F.col("headers.key")
    found = {name: look_up(name) for name in SINGLE_HEADERS}
    there = {name: F.coalesce(F.array_contains(names, name), F.lit(False)) for name in OPTIONAL_HEADERS}
    return records.select(
        *columns,
        _stamp_texts().alias("stamp_texts"),
        *(value.alias(_VALUE.format(name)) for name, value in found.items()),
        *(_number(found[name].cast("string")).alias(_NUMBER_OF.format(name)) for name in NUMBER_HEADERS),
        *(is_there.alias(_IS_THERE.format(name)) for name, is_there in there.items()),
    )


def look_up(name: str) -> Column:
    """The bytes of the first header of that name, null when there is none: of the columns of Spark's source."""
    return F.get(F.col("headers.value"), F.array_position(F.col("headers.key"), name).cast("int") - 1)


def header(name: str) -> Column:
    """The same, of those of `with_headers`."""
    return F.col(_VALUE.format(name))


def header_text(name: str) -> Column:
    """As text; bytes that are no UTF-8 are in it as they are."""
    return header(name).cast("string")


def header_number(name: str) -> Column:
    """Of one that is a decimal number of at most 18 digits, null for anything else."""
    return F.col(_NUMBER_OF.format(name))


def _stamp_texts() -> Column:
    """Each `a`, in order: "<topic name of the log>;<generation>;<flags>;<identifiers>"."""
    there = F.array_contains(F.col("headers.key"), "a")
    found = F.filter(F.col("headers"), lambda one: one["key"] == "a")
    return F.when(there, F.transform(found, lambda one: one["value"].cast("string"))).otherwise(
        F.array().cast("array<string>")
    )


def origin_parts() -> Column:
    """`o` as a struct (generation, packet_id), null when there is none."""
    parts = F.split(header_text("o"), ";")
    generation = F.get(parts, F.lit(0)).try_cast("bigint").alias("generation")
    packet_id = F.get(parts, F.lit(1)).try_cast("int").alias("packet_id")
    return F.when(has_header("o"), F.struct(generation, packet_id))


def has_header(name: str) -> Column:
    """Whether there is one of that name, of `OPTIONAL_HEADERS`."""
    return F.col(_IS_THERE.format(name))


def record_problem(log_prefix: str) -> Column:
    """Why a record cannot be understood, null when it can: of columns key, value, headers and `stamp_texts`.

    `log_prefix` is what the name of each application log begins with: a stamp that names another topic, such as the
    message log itself, is none.
    """
    topic, version, flags = F.col("key").cast("string"), header_text("v"), header_number("f")
    checks = (
        (F.is_valid_utf8(topic) & (topic != ""), F.lit("the key is no topic")),
        (F.col("value").isNotNull(), F.lit("there is no value; an empty payload is not none")),
        (_is_single(), F.lit("a header is there twice that can be there once")),
        (version.rlike(r"^[0-9]{1,4}\.[0-9]{1,4}\z"), _shown("v")),
        (
            F.substring_index(version, ".", 1) == FORMAT_MAJOR,
            F.concat(F.lit("format "), version, F.lit(f": this reader knows major {FORMAT_MAJOR}")),
        ),
        (
            (flags <= _FLAGS_MAX)
            & (flags.bitwiseAND(F.lit(3)) <= 2)
            & F.shiftright(flags, 3).bitwiseAND(F.lit(7)).between(3, 5),
            _shown("f"),
        ),
        (header_number("t") < YEAR_10000_MS, _shown("t")),
        (F.is_valid_utf8(header_text("c")), _shown("c")),
        (~has_header("x") | (header_number("x") < YEAR_10000_MS), _shown("x")),
        (~has_header("o") | header_text("o").rlike(_ORIGIN), _shown("o")),
        (F.size("stamp_texts") == _good_stamps(log_prefix), _shown_stamps()),
    )
    return F.coalesce(*(F.when(~F.coalesce(is_good, F.lit(False)), reason) for is_good, reason in checks))


def _number(text: Column) -> Column:
    return F.when(text.rlike(_NUMBER), text.try_cast("bigint"))


def _is_single() -> Column:
    """Whether no header is there twice that may not. Where those that were found are all there are, it needs no closer
    look."""
    names = F.col("headers.key")
    singles = F.filter(names, lambda name: name.isin(*SINGLE_HEADERS))
    known = F.size("stamp_texts")
    for name in SINGLE_HEADERS:
        known = known + header(name).isNotNull().cast("int")
    return F.when(F.col("headers").isNull() | (F.size(names) == known), True).otherwise(
        F.size(F.array_distinct(singles)) == F.size(singles)
    )


def _good_stamps(log_prefix: str) -> Column:
    """How many can be understood; no work for a record without any."""
    good = F.filter(F.col("stamp_texts"), lambda text: text.rlike(_STAMP) & text.startswith(log_prefix))
    return F.when(F.size("stamp_texts") == 0, 0).otherwise(F.size(good))


def _shown(name: str) -> Column:
    value = F.substring(F.make_valid_utf8(header_text(name)), 1, _SHOWN_CHARACTERS)
    told = F.concat(F.lit(f"header {name} cannot be understood: "), value)
    return F.coalesce(told, F.lit(f"header {name} is missing"))


def _shown_stamps() -> Column:
    text = F.make_valid_utf8(F.array_join("stamp_texts", " ", "(null)"))
    return F.concat(F.lit("a header a cannot be understood: "), F.substring(text, 1, _SHOWN_CHARACTERS))


# One step of the walk reads the property at byte `s.at` (from 1) of `block` in three goes, so that each thing is worked
# out once: its identifier and the length of its first text, then that of its second one, then what it says. A block
# that cannot be read leaves `error`. A length that is past the end counts as one that leads past the end.
_U16 = "coalesce(cast(conv(hex(substring(block, {at}, 2)), 16, 10) as int), 70000)"
_FOUND = f"""named_struct('id', hex(substring(block, s.at, 1)), 'first', {_U16.format(at="s.at + 1")},
    'number', hex(substring(block, s.at + 1, 4)))"""
_PARTS = f"""named_struct('id', f.id, 'number', f.number, 'bytes', substring(block, s.at + 3, f.first),
    'text', cast(substring(block, s.at + 3, f.first) as string),
    'value', cast(substring(block, s.at + 5 + f.first, {_U16.format(at="s.at + 3 + f.first")}) as string),
    'next', CASE f.id WHEN '01' THEN s.at + 2 WHEN '02' THEN s.at + 5
        WHEN '26' THEN s.at + 5 + f.first + {_U16.format(at="s.at + 3 + f.first")}
        ELSE s.at + 3 + f.first END)"""
_PROBLEM = """CASE
    WHEN p.id NOT IN ('01', '02', '03', '08', '09', '26') THEN concat('property 0x', p.id, ' is not allowed')
    WHEN p.next > length(block) + 1 THEN concat('property 0x', p.id, ' ends after the block')
    WHEN p.id = '01' AND (s.indicator IS NOT NULL OR substring(p.number, 1, 2) NOT IN ('00', '01'))
        OR p.id = '02' AND s.expiry IS NOT NULL
        OR p.id = '03' AND (s.content_type IS NOT NULL OR NOT is_valid_utf8(p.text))
        OR p.id = '08' AND (s.response_topic IS NOT NULL OR NOT is_valid_utf8(p.text) OR p.text RLIKE '[+#]')
        OR p.id = '09' AND s.correlation IS NOT NULL
        OR p.id = '26' AND NOT (is_valid_utf8(p.text) AND is_valid_utf8(p.value))
    THEN concat('property 0x', p.id, ' is there twice or has a value that is not allowed') END"""
_EMPTY_PAIRS = "cast(array() as array<struct<name: string, value: string>>)"
_BEGIN = f"""named_struct('at', 1, 'indicator', cast(null as int), 'expiry', cast(null as bigint),
    'content_type', cast(null as string), 'response_topic', cast(null as string),
    'correlation', cast(null as binary), 'pairs', {_EMPTY_PAIRS}, 'error', cast(null as string))"""
_AFTER = f"""named_struct(
    'at', p.next,
    'indicator', CASE WHEN p.id = '01'
        THEN cast(conv(substring(p.number, 1, 2), 16, 10) as int) ELSE s.indicator END,
    'expiry', CASE WHEN p.id = '02' THEN cast(conv(p.number, 16, 10) as bigint) ELSE s.expiry END,
    'content_type', CASE WHEN p.id = '03' THEN p.text ELSE s.content_type END,
    'response_topic', CASE WHEN p.id = '08' THEN p.text ELSE s.response_topic END,
    'correlation', CASE WHEN p.id = '09' THEN p.bytes ELSE s.correlation END,
    'pairs', CASE WHEN p.id = '26'
        THEN concat(s.pairs, array(named_struct('name', p.text, 'value', p.value))) ELSE s.pairs END,
    'error', {_PROBLEM})"""
_STEP = f"""CASE WHEN s.error IS NOT NULL OR s.at > length(block) THEN s
    ELSE transform(transform(array({_FOUND}), f -> {_PARTS}), p -> {_AFTER})[0] END"""
_SHORTEST_PROPERTY = 2
_CONTINUED = 0x80
_LENGTH_BYTES_MAX = 4
_FIELD_BYTES_MAX = 1 << 30


def property_walk() -> Column:
    """Of column `block` (null for a record without properties): a struct (indicator, expiry, content_type,
    response_topic, correlation, pairs, error, at), null without a block."""
    steps = f"sequence(1, greatest(1, length(block) div {_SHORTEST_PROPERTY}))"
    return F.expr(f"CASE WHEN block IS NOT NULL THEN aggregate({steps}, {_BEGIN}, (s, i) -> {_STEP}) END")


def property_block(field: Column) -> Column:
    """The block of a header `p` without the length in front; null where that is not the length of the rest."""
    found: Column = F.lit(None).cast("binary")
    size = F.lit(0)
    is_continued = F.lit(True)
    for digits in range(1, _LENGTH_BYTES_MAX + 1):
        byte = F.conv(F.hex(F.substring(field, digits, 1)), 16, 10).cast("int")
        size = size + byte.bitwiseAND(F.lit(0x7F)) * (1 << 7 * (digits - 1))
        rest = F.substring(field, digits + 1, _FIELD_BYTES_MAX)
        fits = is_continued & (byte < _CONTINUED) & (F.octet_length(rest) == size)
        found = F.when(fits, rest).otherwise(found)
        is_continued = is_continued & (byte >= _CONTINUED)
    return found


_SAMPLES = "array<struct<t: bigint, l: bigint, c: int, r: string>>"
_CLIENT_TYPES = (0, 1)


def receipts_from_kafka(rows: DataFrame) -> DataFrame:
    """Rows of `traffic_schema` of Spark's Kafka source on the topic of receipts.

    A sample is a row; its `partition` is RECEIPTS and below, its `offset` that of the record it is in. What cannot be
    understood is a row with an error.
    """
    split = rows.withColumn("sample", F.explode_outer(_samples()))
    values = {
        "partition": F.lit(RECEIPTS) - F.col("partition"),
        "offset": F.col("offset"),
        "span": F.lit(1),
        "accepted_at": F.when(_is_whole(), F.timestamp_millis("sample.t")),
        "root": F.when(_is_whole(), F.col("sample.r")),
        "latency_us": F.when(_is_whole(), F.col("sample.l")),
        "client_type": F.when(_is_whole(), F.col("sample.c")),
        "error": F.when(~_is_whole(), F.lit("a sample that cannot be understood")),
    }
    return split.select(
        *(
            values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in traffic_schema().fields
        )
    )


def _samples() -> Column:
    """Null when the value is nothing that this reader knows."""
    is_known = F.substring_index(look_up("v").cast("string"), ".", 1) == FORMAT_MAJOR
    return F.when(is_known, F.from_json(F.col("value").cast("string"), _SAMPLES))


def _is_whole() -> Column:
    told = (
        F.col("sample.t").between(0, YEAR_10000_MS)
        & (F.col("sample.l") >= 0)
        & F.col("sample.c").isin(*_CLIENT_TYPES)
        & F.col("sample.r").isNotNull()
    )
    return F.coalesce(told, F.lit(False))


_TAGGED = r"^u(0|[1-9][0-9]{0,2})\z"
_COPY_HEADER = f"u{FIELD_SLOT}"
_POSITION = ("partition", "offset", "span", "error", "body")


def records_from_kafka(rows: DataFrame, log_prefix: str, *, has_copies: bool = False) -> DataFrame:
    """Rows of `record_schema` of the columns of Spark's Kafka source with headers.

    `log_prefix` is what the names of application logs begin with. A record that cannot be understood has `error` set
    and nothing else but its position and body. With `has_copies` copies of other slots' records have their position and
    `error` COPY alone.
    """
    schema = record_schema()
    known = with_headers(rows, "partition", "offset", "key", "value", "headers")
    checked = known.withColumn("block", property_block(header("p"))).withColumn("walk", property_walk())
    problem = F.coalesce(record_problem(log_prefix), _property_problem())
    if has_copies:
        problem = F.when(_is_copy(), COPY).otherwise(problem)
    checked = checked.withColumn("problem", problem)
    values = _values()
    return checked.select(*(_column(name, values[name], schema) for name in schema.names))


def _is_copy() -> Column:
    return F.coalesce(F.array_contains(F.col("headers.key"), _COPY_HEADER), F.lit(False))


def _property_problem() -> Column:
    unreadable = F.lit("header p cannot be understood: its length is not that of its properties")
    return F.when(has_header("p") & F.col("block").isNull(), unreadable).otherwise(
        F.concat(F.lit("header p cannot be understood: "), F.col("walk.error"))
    )


def _column(name: str, value: Column, schema: StructType) -> Column:
    value = value.cast(schema[name].dataType)
    if name not in _POSITION:
        value = F.when(F.col("problem").isNull(), value)
    return value.alias(name)


def _stamp(text: Column) -> Column:
    parts = F.split(text, ";")
    flags = F.get(parts, F.lit(2)).try_cast("int")
    identifiers = F.filter(F.split(F.get(parts, F.lit(3)), ","), lambda number: number != "")
    return F.struct(
        F.get(parts, F.lit(0)).alias("log"),
        F.get(parts, F.lit(1)).try_cast("bigint").alias("generation"),
        flags.bitwiseAND(F.lit(3)).alias("qos"),
        (flags >= 4).alias("retain_as_published"),
        F.transform(identifiers, lambda number: number.try_cast("bigint")).alias("subscription_identifiers"),
    )


def _unknown(one: Column) -> Column:
    """A header `u<tag>` is a field of the embedded log; any other one has a name."""
    name = one["key"]
    tag = F.when(name.rlike(_TAGGED), F.substring(name, 2, 3).try_cast("int"))
    return F.struct(tag.alias("tag"), one["value"].alias("value"), F.when(tag.isNull(), name).alias("name"))


def _time(name: str) -> Column:
    return F.timestamp_millis(header_number(name))


def _values() -> dict[str, Column]:
    flags = header_number("f").cast("int")
    topic = F.col("key").cast("string")
    payload = F.col("value")
    return {
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "span": F.lit(1),
        "accepted_at": _time("t"),
        "topic": topic,
        "root": F.substring_index(topic, "/", 1),
        "queue": F.when(topic.startswith(QUEUE_PREFIX), F.substr(topic, F.lit(len(QUEUE_PREFIX) + 1))),
        "qos": flags.bitwiseAND(F.lit(3)),
        "retain": flags.bitwiseAND(F.lit(4)) != 0,
        "publisher": header_text("c"),
        "version": F.shiftright(flags, 3).bitwiseAND(F.lit(7)),
        "expires_at": F.when(header_number("x") > 0, _time("x")),
        "payload_bytes": F.octet_length(payload),
        "payload_format_indicator": F.col("walk.indicator"),
        "message_expiry_interval": F.col("walk.expiry"),
        "content_type": F.col("walk.content_type"),
        "response_topic": F.col("walk.response_topic"),
        "correlation_data": F.col("walk.correlation"),
        "user_properties": F.coalesce(F.col("walk.pairs"), F.array()),
        "stamps": F.transform("stamp_texts", _stamp),
        "origin": origin_parts(),
        "payload": payload,
        "unknown_fields": F.transform(
            F.filter(F.col("headers"), lambda one: ~one["key"].isin(*SINGLE_HEADERS, "a")), _unknown
        ),
        "error": F.col("problem"),
        "body": F.when(F.col("problem") != COPY, F.coalesce(payload, F.lit(b""))),
    }
