"""What nodes of a cluster say to one another is believed from nodes alone."""

from __future__ import annotations

import asyncio
import hmac
import json
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from embermq.app.config import KAFKA_PACKET_BYTES_MAX
from embermq.edge.node_door import NodeMessages
from embermq.edge.node_link import (
    ANSWER_BYTES_MAX,
    INTRODUCTION_BYTES_MAX,
    OLDEST_VERSION,
    RECORD_BYTES_MAX,
    VERSION,
    AnswerReader,
    Introduced,
    Introduction,
    IntroductionError,
    Messages,
    NotUnderstoodError,
    encode_introduction,
    read_introduction,
)
from embermq.formats.log_record import decode_record

RECORDED = Path(__file__).parents[2] / "stored" / "node_messages_1.json"
"""What a node of version 1 has said."""
NONCE, SECRET = b"n" * 16, b"s" * 32
CLIENT = Introduced(
    slot=1,
    host="192.0.2.1",
    port=4_711,
    loopback=False,
    allow_anonymous=None,
    client_type="DEVICE",
    certificate_name="pump",
    certificate="CN=pump",
    max_qos=2,
    protocol_versions=("5.0",),
    allow_empty_client_id=True,
)


@pytest.mark.parametrize("told", [CLIENT, Messages(slot=3)])
def test_an_introduction_is_read_whole_and_what_follows_is_left(told: Introduced | Messages) -> None:
    said = encode_introduction(told, NONCE, SECRET)
    for size in range(len(said)):
        assert read_introduction(said[:size], NONCE, lambda: SECRET) is None
    assert read_introduction(said + b"rest", NONCE, lambda: SECRET) == (told, b"rest")


def said_as(told: bytes) -> bytes:
    """An introduction of another version."""
    framed = len(told).to_bytes(4) + told
    return framed + hmac.digest(SECRET, NONCE + framed, sha256)


@pytest.mark.promise("cluster-20")
def test_what_the_version_before_says_is_understood_and_said_in_the_same_bytes() -> None:
    recorded = json.loads(RECORDED.read_text())
    kinds = set()
    for told in recorded["introductions"]:
        said = bytes.fromhex(told)
        read = read_introduction(said, NONCE, lambda: SECRET)
        assert read is not None
        kinds.add(type(read[0]))
        if read[0].speaks == VERSION:
            assert encode_introduction(read[0], NONCE, SECRET) == said
    assert kinds == set(get_args(Introduction)), "record what is new beside what is there"
    taken: list[bytes] = []
    following = NodeMessages(taken.append, partial(taken.append, b"asked"), pytest.fail, pytest.fail, print)
    following.data_received(bytes.fromhex(recorded["messages"]))
    assert [each if each == b"asked" else decode_record(each).message.payload for each in taken] == [
        b"21.5",
        b"asked",
    ]


def test_fields_of_a_later_version_are_passed_over() -> None:
    told = b'{"type":"messages","slot":3,"speaks":2,"route":["a/b"]}'
    assert read_introduction(said_as(told), NONCE, lambda: SECRET) == (Messages(slot=3, speaks=2), b"")


def test_a_kind_of_a_later_version_is_not_understood_and_a_damaged_one_refused() -> None:
    with pytest.raises(NotUnderstoodError, match=r"version 2 .*: routes"):
        read_introduction(said_as(b'{"type":"routes","speaks":2,"of":[1]}'), NONCE, lambda: SECRET)
    with pytest.raises(IntroductionError, match="cannot be read") as refused:
        read_introduction(said_as(b'{"type":"messages","speaks":1}'), NONCE, lambda: SECRET)
    assert not isinstance(refused.value, NotUnderstoodError)


def test_a_node_that_calls_and_is_too_old_is_refused() -> None:
    told = b'{"type":"messages","slot":3,"speaks":%d}' % (OLDEST_VERSION - 1)
    with pytest.raises(IntroductionError, match=r"speaks version 0 .*, and this node 1 to 1"):
        read_introduction(said_as(told), NONCE, lambda: SECRET)


def test_messages_of_a_later_kind_are_passed_over_and_counted() -> None:
    taken: list[bytes] = []
    unknown: list[int] = []
    protocol = NodeMessages(taken.append, print, lambda: unknown.append(1), pytest.fail, print)
    for record in (b"one", b"\x80later", b"two"):
        protocol.data_received(len(record).to_bytes(4) + record)
    assert (taken, len(unknown)) == ([b"one", b"two"], 1)


@pytest.mark.parametrize(("nonce", "secret"), [(b"m" * 16, SECRET), (NONCE, b"t" * 32)])
def test_who_does_not_know_the_secret_or_repeats_what_was_said_is_refused(
    nonce: bytes, secret: bytes
) -> None:
    said = encode_introduction(CLIENT, NONCE, SECRET)
    with pytest.raises(IntroductionError, match="another secret"):
        read_introduction(said, nonce, lambda: secret)


def test_a_node_without_a_secret_believes_nobody() -> None:
    with pytest.raises(IntroductionError, match="does not know the secret"):
        read_introduction(encode_introduction(CLIENT, NONCE, b""), NONCE, lambda: b"")


def test_an_introduction_without_end_is_refused() -> None:
    with pytest.raises(IntroductionError, match="more than 65536"):
        read_introduction((INTRODUCTION_BYTES_MAX + 1).to_bytes(4), NONCE, lambda: SECRET)


def test_an_introduction_that_is_too_long_is_not_made() -> None:
    with pytest.raises(IntroductionError, match="more than 65536"):
        encode_introduction(replace(CLIENT, certificate="x" * INTRODUCTION_BYTES_MAX), NONCE, SECRET)


def test_messages_are_taken_whole_however_their_bytes_come() -> None:
    records = [b"one", b"", b"three" * 100]
    said = b"".join(len(record).to_bytes(4) + record for record in records)
    for step in (1, 3, len(said)):
        taken: list[bytes] = []
        protocol = NodeMessages(taken.append, partial(taken.append, b"asked"), print, pytest.fail, print)
        for at in range(0, len(said), step):
            protocol.data_received(said[at : at + step])
        assert taken == [b"one", b"asked", records[2]]


@pytest.mark.parametrize("step", [1, 1_000])
def test_a_message_that_cannot_be_is_refused_as_soon_as_it_is_announced(step: int) -> None:
    """A packet of the size that Kafka takes can, and nothing behind the other one is read."""
    assert RECORD_BYTES_MAX > KAFKA_PACKET_BYTES_MAX + 2 * 65_535
    taken: list[bytes] = []
    refused: list[str] = []
    protocol = NodeMessages(taken.append, pytest.fail, pytest.fail, refused.append, print)
    said = b"\x00\x00\x00\x03one" + (RECORD_BYTES_MAX + 1).to_bytes(4) + b"\x00\x00\x00\x03two" * 9
    for at in range(0, len(said), step):
        protocol.data_received(said[at : at + step])
    assert (taken, refused) == (
        [b"one"],
        [f"a message of {RECORD_BYTES_MAX + 1} bytes, more than {RECORD_BYTES_MAX}"],
    )
    held = NodeMessages(taken.append, pytest.fail, pytest.fail, pytest.fail, print)
    held.data_received(RECORD_BYTES_MAX.to_bytes(4) + b"begins")
    assert len(taken) == 1


def test_an_answer_that_cannot_be_ends_the_question() -> None:
    answers: list[bytes] = []
    failed: list[str] = []

    class Reader(AnswerReader):
        def answered(self, answer: bytes) -> None:
            answers.append(answer)

        def failed(self, why: str) -> None:
            failed.append(why)

    async def scenario() -> None:
        nonce: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        reader = Reader(nonce)
        reader.data_received(bytes([VERSION]) + NONCE[1:])
        reader.data_received(b"\x00\x00\x00\x03one" + (ANSWER_BYTES_MAX + 1).to_bytes(4) + b"rest")
        assert nonce.result()[1:] == NONCE[1:]

    asyncio.run(scenario())
    assert answers == [b"one"]
    assert failed == [f"an answer of {ANSWER_BYTES_MAX + 1} bytes, more than {ANSWER_BYTES_MAX}"]
