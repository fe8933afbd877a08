"""Records of the message log for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from embermq.formats.log_record import LogRecord, Origin, Stamp, encode_record, encode_stamps
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
U16 = st.integers(0, 65_535)
U32 = st.integers(0, 0xFFFF_FFFF)
PROPERTIES = st.none() | st.builds(
    Properties,
    payload_format_indicator=st.none() | st.integers(0, 1),
    message_expiry_interval=st.none() | U32,
    content_type=st.none() | TEXTS,
    response_topic=st.none() | st.just("reply/to"),
    correlation_data=st.none() | st.binary(max_size=30),
    user_properties=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
).filter(lambda built: built != Properties())


def log_records(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[LogRecord]:
    """`numbers` are times and generations."""
    message = st.builds(
        Message,
        topic=TEXTS.filter(bool),
        payload=st.binary(max_size=100),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        publisher=TEXTS,
        version=st.sampled_from([3, 4, 5]),
        accepted_ms=numbers,
        expires_ms=numbers,
        properties=PROPERTIES,
    )
    stamp = st.builds(
        Stamp,
        log=TEXTS,
        generation=numbers,
        qos=st.integers(0, 2),
        retain_as_published=st.booleans(),
        subscription_identifiers=st.lists(st.integers(1, 0xFFFF_FFFF), max_size=5).map(tuple),
    )
    return st.builds(
        LogRecord,
        message=message,
        stamps=st.lists(stamp, max_size=4).map(tuple),
        origin=st.none() | st.builds(Origin, generation=numbers, packet_id=U16),
        unknown_fields=st.lists(st.tuples(st.integers(5, 255), st.binary(max_size=20)), max_size=3).map(
            tuple
        ),
    )


def encoded(record: LogRecord) -> bytes:
    """As the log has it."""
    return encode_record(record.message, encode_stamps(record.stamps), record.origin, record.unknown_fields)
