"""Headers of a record in Kafka as native expressions: what each says, and what is wrong with them.

The layout is that of `model.kafka_record`. Nothing here can fail on a record: what cannot be understood is a reason.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

FORMAT_MAJOR = "1"
SINGLE_HEADERS = ("v", "n", "f", "t", "c", "p", "x", "o", "s")
"""At most one of each; any number of `a`, and of headers that are not known."""

LOG_NAME_CHARACTERS_MAX = 249
"""Of a topic, as Kafka has it."""

_SHOWN_CHARACTERS = 60
_NUMBER = r"^[0-9]{1,18}\z"
_STAMP = rf"^[a-zA-Z0-9._-]{{1,{LOG_NAME_CHARACTERS_MAX}}};[0-9]{{1,18}};[0-24-6];([0-9]{{1,9}}(,[0-9]{{1,9}})*)?\z"
_ORIGIN = r"^[0-9]{1,18};[0-9]{1,5}\z"
_FLAGS_MAX = 255
YEAR_10000_MS = 253_402_300_800_000


def header(name: str) -> Column:
    """The bytes of the first header of that name, null when there is none."""
    position = F.array_position(F.col("headers.key"), name)
    return F.get(F.col("headers.value"), position.cast("int") - 1)


def header_text(name: str) -> Column:
    """As text; bytes that are no UTF-8 are in it as they are."""
    return header(name).cast("string")


def header_number(name: str) -> Column:
    """A decimal number of at most 18 digits, null for anything else."""
    return _number(header_text(name))


def stamp_texts() -> Column:
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
    """Whether there is one of that name."""
    return F.coalesce(F.array_contains(F.col("headers.key"), name), F.lit(False))


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
        (header_number("n").isNotNull(), _shown("n")),
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
    """Whether no header is there twice that may not; names that are all different need no closer look."""
    names = F.col("headers.key")
    singles = F.filter(names, lambda name: name.isin(*SINGLE_HEADERS))
    repeated_stamps = F.greatest(F.size("stamp_texts") - 1, F.lit(0))
    all_different = F.size(F.array_distinct(names)) + repeated_stamps == F.size(names)
    return F.when(F.col("headers").isNull() | all_different, True).otherwise(
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
