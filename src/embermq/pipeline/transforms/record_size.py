"""How large a record is when it is sent to Kafka alone: what a topic compares with its `max.message.bytes`."""

from pyspark.sql import Column
from pyspark.sql import functions as F

BATCH_BYTES = 61
"""Before the records of a batch, format 2."""
RECORD_BYTES = 3
"""Attributes, and the time and the offset since those of the batch, both 0."""


def batch_bytes(key: Column, value: Column, headers: Column) -> Column:
    """Of the batch that has this record alone, uncompressed. `headers`: array<struct<key: string, value: binary>>."""
    fields = F.lit(RECORD_BYTES) + _field(key) + _field(value) + _number_bytes(F.size(headers))
    body = F.aggregate(headers, fields, lambda total, one: total + _field(one["key"]) + _field(one["value"]))
    return F.lit(BATCH_BYTES) + body + _number_bytes(body)


def _field(field: Column) -> Column:
    """Its length and itself; what is null has the length -1."""
    there = F.coalesce(F.octet_length(field), F.lit(0))
    return there + _number_bytes(there)


def _number_bytes(number: Column) -> Column:
    """Of a number from 0 on, seven bits a byte, of which one is for the sign."""
    found = F.when(number < 1 << 6, 1)
    for length in (2, 3, 4):
        found = found.when(number < 1 << (7 * length - 1), length)
    return found.otherwise(5)
