"""The layout of session data in Redis: round trips, what scripts rely on, what is refused."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.record_strategies import TEXTS, U16, U32, encoded, log_records

from embermq.formats.log_record import (
    Stamp,
    decode_record,
    encode_record,
    encode_stamps,
)
from embermq.formats.redis_layout import (
    PACKET_TYPE_AT,
    PUBLISH_HEAD,
    PUBREL_TYPE,
    LayoutError,
    Place,
    client_keys,
    decode_message,
    decode_name,
    decode_place,
    decode_retained,
    decode_schema,
    decode_session,
    decode_subscription,
    decode_will,
    encode_name,
    encode_place,
    encode_retained,
    encode_schema,
    encode_session,
    encode_subscription,
    encode_tail,
    encode_will,
    key_prefix,
    name_in,
    offset_in,
    position_of,
    retained_key,
    score_of,
    seq_of,
    session_fence,
)
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import RetainedRow, SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QueueRow
from embermq.mqtt.wire.properties import Properties

names = st.text(st.sampled_from("a/%{}27BD🦊"), min_size=1, max_size=12)
numbers = st.integers(0, 2**53)
frames = log_records(numbers).map(encoded)
rows = st.builds(
    QueueRow,
    generation=numbers,
    seq=numbers,
    offset=st.integers(-1, 2**53),
    packet_id=U16,
    state=st.sampled_from([0, 1, 2]),
    flags=st.sampled_from([0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14]),
    expires_ms=numbers,
    identifiers=st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple),
    record=frames,
)
sessions = st.builds(
    SessionRow,
    client_id=names,
    generation=numbers,
    epoch=numbers,
    client_type=st.sampled_from(ClientType),
    username=TEXTS,
    version=st.sampled_from([3, 4, 5]),
    expiry_interval_s=U32,
    connected=st.booleans(),
    expires_ms=numbers,
    created_ms=numbers,
    certificate=TEXTS,
)
wills = st.builds(
    WillRow,
    client_id=names,
    delay_s=U32,
    record=frames,
    due_ms=numbers,
    username=TEXTS,
    certificate=TEXTS,
)

RECORD = encode_record(
    Message("a/b", b"\x00\xff", 2, True, "ann", 5, 7, 9, Properties(user_properties=(("k", "v"),)))
)
ROW = QueueRow(3, 65_536, 12, 7, 1, 2 | 4, 2**42, (1, 300), RECORD)
ANN = SessionRow("ann", 7, 3, ClientType.DEVICE, "user", 5, 60, True, 0, 1)


PACKET_ID_AT = len('{"packetType":"PUBLISH","packetId":')
RECORD_BYTES_AT = len(PUBLISH_HEAD % 0)


def encode_message(row: QueueRow, client_id: str) -> bytes:
    """As `save_many.lua` puts it together, which chooses the packet id."""
    return (PUBLISH_HEAD % row.packet_id).encode() + encode_tail(row, client_id, decode_record(row.record))


@given(rows, names)
def test_a_stored_message_comes_back_as_it_was(row: QueueRow, client_id: str) -> None:
    value = encode_message(row, client_id)
    found = decode_message("k", value, generation=row.generation, seq=row.seq, state=row.state)
    assert found == row


@given(rows, names, st.integers(1, 65_535))
def test_type_and_packet_id_are_changed_in_place(row: QueueRow, client_id: str, packet_id: int) -> None:
    value = bytearray(encode_message(row, client_id))
    value[PACKET_TYPE_AT : PACKET_TYPE_AT + len(PUBREL_TYPE)] = PUBREL_TYPE.encode()
    value[PACKET_ID_AT : PACKET_ID_AT + 5] = b"%-5d" % packet_id
    found = decode_message("k", bytes(value), generation=row.generation, seq=row.seq, state=2)
    assert found.packet_id == packet_id
    assert found.record == row.record
    assert value[RECORD_BYTES_AT:].startswith(b'"recordBytes":%d,' % len(row.record))


def test_what_a_person_finds_in_a_stored_message() -> None:
    found = json.loads(encode_message(ROW, "bob"))
    assert found["packetType"] == "PUBLISH"
    assert found["packetId"] == 7
    assert found["clientId"] == "bob"
    assert found["publisher"] == "ann"
    assert found["topicName"] == "a/b"
    assert base64.b64decode(found["payload"]) == b"\x00\xff"
    assert (found["qos"], found["retained"], found["time"]) == (2, True, 7)
    assert json.loads(encode_message(replace(ROW, flags=1), "bob"))["retained"] is False
    assert found["userProperties"] == [["k", "v"]]


@given(frames, numbers)
def test_a_retained_message_comes_back_as_it_was(frame: bytes, offset: int) -> None:
    row = RetainedRow(decode_record(frame).message.topic, offset, frame)
    value = encode_retained(row)
    assert decode_retained("k", value) == row
    assert value.startswith(b'{"offset":%d,' % offset)


@given(sessions)
def test_a_session_comes_back_as_it_was_and_begins_with_its_fence(row: SessionRow) -> None:
    value = encode_session(row, "node-1")
    assert decode_session("k", value) == row
    assert value.startswith(session_fence(row.epoch, row.generation).encode())


@given(TEXTS, st.integers(0, 255), numbers, numbers)
def test_a_subscription_comes_back_as_it_was(
    topic_filter: str, options: int, identifier: int, since: int
) -> None:
    row = SubscriptionRow(topic_filter, options, identifier, since)
    assert decode_subscription("k", topic_filter, encode_subscription(row)) == row


@given(wills, numbers)
def test_a_will_comes_back_as_it_was(row: WillRow, generation: int) -> None:
    value = encode_will(generation, row)
    assert decode_will("k", value) == (generation, row)
    assert value.startswith(b'{"generation":%d,' % generation)


@given(names, st.integers(0, 2))
def test_names_survive_in_keys_and_share_one_hash_tag(client_id: str, slot: int) -> None:
    assert decode_name(encode_name(client_id)) == client_id
    keys = client_keys(client_id, key_prefix(slot))
    tags = {key[key.index("{") : key.index("}") + 1] for key in _texts(keys)}
    assert len(tags) == 1
    assert {name_in(key) for key in _texts(keys)} == {client_id}
    assert name_in(retained_key(client_id, "")) == client_id


@given(names, names, st.integers(0, 2))
def test_two_clients_and_two_slots_share_no_key(one: str, other: str, slot: int) -> None:
    if one != other or slot:
        assert not set(_texts(client_keys(one, ""))) & set(_texts(client_keys(other, key_prefix(slot))))


def _texts(keys: object) -> list[str]:
    return [getattr(keys, name) for name in keys.__struct_fields__]  # type: ignore[attr-defined]


def test_keys_as_documented() -> None:
    keys = client_keys("a{b}%", "")
    assert keys.session == "s:ol:{a%7Bb%7D%25}"
    assert keys.subscriptions == "s:s:{a%7Bb%7D%25}"
    assert keys.will == "s:w:{a%7Bb%7D%25}"
    assert keys.receiving == "s:f:ri:{a%7Bb%7D%25}"
    assert keys.sent == "s:f:p:{a%7Bb%7D%25}"
    assert keys.released == "s:f:r:{a%7Bb%7D%25}"
    assert keys.messages == "{a%7Bb%7D%25}_messages"
    assert keys.message + "7" == "{a%7Bb%7D%25}_messages_7"
    assert keys.last_packet_id == "{a%7Bb%7D%25}_last_packet_id"
    assert keys.positions == "{a%7Bb%7D%25}_positions"
    assert retained_key("a/b", "") == "t:r:{a/b}"
    assert client_keys("a", key_prefix(12)).message == "slot-12:{a}_messages_"
    assert retained_key("a/b", key_prefix(1)) == "slot-1:t:r:{a/b}"


@given(numbers)
def test_a_place_in_the_queue_is_a_score(seq: int) -> None:
    assert seq_of(score_of(seq)) == seq == seq_of(float(score_of(seq)))


def test_scores_are_1_2_3_and_what_is_stored_late_is_between() -> None:
    step = 65_536
    assert [score_of(number * step) for number in range(4)] == ["0", "1", "2", "3"]
    assert score_of(2 * step + step // 2) == "2.5"
    assert score_of(1) == "0.0000152587890625"


def test_a_will_is_read_as_it_was_written() -> None:
    will = WillRow("ann", 5, RECORD, 7, "user", "CN=ann", 12)
    assert decode_will("s:w:{ann}", encode_will(7, will)) == (7, will)


def test_a_will_of_a_version_that_kept_dates_alone_is_read() -> None:
    stored = json.loads(encode_will(7, WillRow("ann", 5, RECORD)))
    del stored["since_offset"]
    assert decode_will("s:w:{ann}", json.dumps(stored).encode())[1].since_offset == -1


def test_what_a_person_finds_in_a_will() -> None:
    found = json.loads(encode_will(7, WillRow("ann", 5, RECORD, 0, "user", "")))
    message = found["message"]
    assert (message["topicName"], base64.b64decode(message["payload"])) == ("a/b", b"\x00\xff")


@pytest.mark.parametrize("key", ["plain", "s:ol:{}", "s:ol:{", "}{"])
def test_a_key_without_a_name_is_told(key: str) -> None:
    with pytest.raises(LayoutError, match="no name in braces"):
        name_in(key)


@pytest.mark.parametrize(
    ("offset", "flags", "position", "told"),
    [
        (12, 1, "12", (12, 0)),
        (12, 9, "12:1:1", (12, 1)),
        (12, 1 | 77 << 3, "12:77:1", (12, 77)),
        (-1, 5, "-1:1", (-1, 1)),
    ],
)
def test_positions(offset: int, flags: int, position: str, told: tuple[int, int]) -> None:
    row = QueueRow(3, 65_536, offset, 0, 0, flags, 0, (), b"")
    assert position_of(row) == position
    assert offset_in("k", position) == told


def test_what_is_broken_names_its_key() -> None:
    whole = encode_message(ROW, "bob")
    session = encode_session(ANN)
    for value in (
        b"",
        b"x",
        b"[]",
        whole[:-1],
        whole.replace(b'"a/b"', b"1"),
        whole.replace(b"PUBLISH", b"PUBLISX"),
    ):
        with pytest.raises(LayoutError, match="'k'"):
            decode_message("k", value, generation=1, seq=1, state=0)
    for value in (
        b"",
        session.replace(b'"ann"', b"5"),
        session.replace(b"DEVICE", b"TOASTER"),
        session.replace(b"online", b"asleep"),
        session.replace(b'{"epoch":3,', b'{ "epoch":3,'),
    ):
        with pytest.raises(LayoutError, match="'k'"):
            decode_session("k", value)
    with pytest.raises(LayoutError, match="field a/b"):
        decode_subscription("k", "a/b", b'{"options":256,"identifier":0,"since_offset":0}')
    with pytest.raises(LayoutError, match="'k'"):
        decode_will("k", b"{}")
    with pytest.raises(LayoutError, match="'k'"):
        decode_retained("k", b"{}")
    with pytest.raises(LayoutError, match="embermq:schema"):
        decode_schema(b"1")


def test_broken_stamps_are_told() -> None:
    stamped = encode_record(Message("t", b"", 1, False, "p", 5, 0), encode_stamps((Stamp("log", 1, 1),)))
    row = QueueRow(1, 1, 1, 1, 0, 1, 0, (), stamped)
    value = encode_message(row, "c")
    short = json.loads(value) | {"stamps": base64.b64encode(b"\x00\x05").decode()}
    with pytest.raises(LayoutError):
        decode_message("k", json.dumps(short).encode(), generation=1, seq=1, state=0)


def test_small_values() -> None:
    assert decode_schema(encode_schema("ab12")).log == "ab12"
    assert decode_schema(encode_schema("ab12")).version == 2
    assert json.loads(encode_place(65_536, -1, 2)) == {"score": 1, "offset": -1, "qos": 2}
    assert decode_place("k", 7, encode_place(65_536, -1, 2)) == Place(1, -1, 2)
    with pytest.raises(LayoutError, match="'k, field 7'"):
        decode_place("k", 7, b"{}")
    with pytest.raises(LayoutError, match="'k'"):
        offset_in("k", "x:1")
    with pytest.raises(LayoutError, match="'k'"):
        offset_in("k", "1:x:1")
