"""The transforms on rows that the batch reader gives."""

import json
import struct
from datetime import date

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows

from embermq.formats.log_record import Stamp
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.places import Places
from embermq.pipeline.transforms.archive import lake_rows, stored_messages
from embermq.pipeline.transforms.dispatch import application_entries


@pytest.mark.promise("pipeline-1")
def test_dispatch_gives_one_row_a_stamp_and_keeps_every_position(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    stamps = (Stamp("billing", 7, 1, True, (1, 70_000)), Stamp("audit", 9, 2))
    log.append([record(stamps=stamps), record(), b"\0\0\0\1\x10"])
    rows = (
        application_entries(log_rows(spark, places, 0, 3, "route")).orderBy("offset", "generation").collect()
    )
    assert [(row.offset, row.generation, row.log, row.flags) for row in rows] == [
        (0, 7, "billing", 5),
        (0, 9, "audit", 2),
        (1, None, None, None),
        (2, None, None, None),
    ]
    assert rows[0].identifiers == struct.pack(">II", 1, 70_000) and rows[1].identifiers == b""
    assert rows[2].error is None and rows[3].error and rows[3].body == b"\0\0\0\1\x10"


@pytest.mark.promise("pipeline-10")
def test_the_lake_has_decoded_json_day_and_first_level(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    payloads = [b'{"a": [1, null]}', b"17", b"{broken", b"\xff\xfe", b"", '"ü"'.encode()]
    log.append([record("cars/1", payload) for payload in payloads])
    log.append([record("/leading"), record("x" * 300 + "/y"), record("$SYS%a=b c/z")])
    rows = lake_rows(log_rows(spark, places, 0, log.end)).orderBy("offset").collect()
    assert [row.payload_json for row in rows[:6]] == ['{"a": [1, null]}', "17", None, None, None, '"ü"']
    assert [row.payload for row in rows[:6]] == payloads
    assert {row.date for row in rows} == {date(2025, 6, 15)}
    assert [row.root for row in rows[5:]] == ["cars", "", "x" * 300, "$SYS%a=b c"]


def test_json_with_something_behind_it_is_no_json(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    """Spark's parser stops at the end of the first value."""
    no_json = [b"3 boxes", b"21.5,0", b'{"a": 1} {"a": 2}', b"1] , [2", b"null null", b"{'a': 1}"]
    no_json += [b'{"a": 1},{"b": 2}]', b'"x",0] and so on', b"3 ,4]", b"[1],[2]] junk"]
    json = [b" 3 ", b"[]", b"null", b'{"a": {"b": [1, 2]}}\n', b'"x, y"']
    log.append([record("cars/1", payload) for payload in no_json + json])
    rows = lake_rows(log_rows(spark, places, 0, log.end)).orderBy("offset").collect()
    assert [row.payload_json for row in rows] == [*[None] * len(no_json), *(each.decode() for each in json)]


def test_the_message_store_keeps_properties_as_json(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    properties = Properties(
        payload_format_indicator=1,
        response_topic="re",
        correlation_data=b"\0\1",
        user_properties=(("k", "v"),),
    )
    log.append([record(properties=properties, expires_ms=NOON_MS + 1), record()])
    first, second = stored_messages(log_rows(spark, places, 0, 2)).orderBy("offset").collect()
    assert json.loads(first.properties) == {
        "payload_format_indicator": 1,
        "response_topic": "re",
        "correlation_data": "AAE=",
        "user_properties": [{"name": "k", "value": "v"}],
    }
    assert (first.accepted_ms, first.expires_ms, first.retain) == (NOON_MS, NOON_MS + 1, 0)
    assert second.properties is None and second.expires_ms is None
