"""The header that Spark gives each copy of a record in an application log."""

from embermq.formats.kafka_record import Header
from embermq.model.position import offset_of, partition_of


def encode_source(position: int) -> Header:
    """Where the record stands that is copied."""
    return ("s", b"%d;%d" % (partition_of(position), offset_of(position)))
