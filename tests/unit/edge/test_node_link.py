"""What nodes of a cluster say to one another is believed from nodes alone."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from embermq.edge.node_door import NodeMessages
from embermq.edge.node_link import (
    INTRODUCTION_BYTES_MAX,
    Introduced,
    IntroductionError,
    Messages,
    encode_introduction,
    read_introduction,
)

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
        protocol = NodeMessages(taken.append, partial(taken.append, b"asked"), lambda: None)
        for at in range(0, len(said), step):
            protocol.data_received(said[at : at + step])
        assert taken == [b"one", b"asked", records[2]]
