"""Headers of a record in Kafka as native expressions: what each says, and what is wrong with them.

The layout is that of `formats.kafka_record`. Nothing here can fail on a record: what cannot be understood is a reason.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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
