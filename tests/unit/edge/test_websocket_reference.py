"""Frames beside another implementation of RFC 6455: what comes out, what is answered, and how it ends."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.raw_client import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame, upgrade_request
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from embermq.edge.settings import WebSocketSettings
from embermq.edge.websocket import FRAMES_A_TURN, WebSocket, frame_head, unmasked

REGISTERED_SINCE = 1014
"""A status that the other implementation does not know yet."""
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 124, 125, 126, 127, 128, 1_000, 65_535, 65_536, 70_001)


class Seen(NamedTuple):
    """`status` is that of the close frame that the server sends, 0 for none."""

    payload: bytes
    pong: bytes | None
    status: int


def reference(data: bytes) -> Seen:
    """What the other implementation makes of frames of a client that all come at once."""
    server, payload, pong, status = Connection(ConnectionType.SERVER), b"", None, 0
    server.receive_data(data)
    for event in server.events():
        if isinstance(event, BytesMessage):
            payload += event.data
        elif isinstance(event, Ping):
            pong = bytes(event.payload)
        elif isinstance(event, TextMessage):
            return Seen(payload, pong, 1003)
        elif isinstance(event, CloseConnection):
            if server.state is ConnectionState.REMOTE_CLOSING:
                return Seen(payload, pong, 1000 if event.code == 1005 else event.code)
            return Seen(payload, pong, event.code)
    return Seen(payload, pong, status)


def ours(data: bytes, pieces: list[int]) -> Seen:
    """The same of ours, of data that comes in pieces that begin at these places."""
    websocket = WebSocket(WebSocketSettings())
    websocket.receive(upgrade_request())
    websocket.out.clear()
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in pieces)})
    payload = b""
    for start, end in pairwise(edges):
        payload += websocket.receive(data[start:end])
        while websocket.more:
            payload += websocket.receive(b"")
    pongs = [sent[2:] for sent in websocket.out if sent[0] == 0x80 | PONG]
    closes = [int.from_bytes(sent[2:4], "big") for sent in websocket.out if sent[0] == 0x80 | CLOSE]
    assert len(closes) <= 1 and bool(closes) == websocket.is_over()
    return Seen(payload, pongs[-1] if pongs else None, closes[0] if closes else 0)


def alike(data: bytes, pieces: list[int]) -> None:
    expected, found = reference(data), ours(data, pieces)
    assert found.payload == expected.payload
    assert found.pong == expected.pong or expected.status  # behind a close frame there may be none
    if expected.status in (1003, 1007) and found.status in (1003, 1007):
        return  # text is refused as soon as its head is there, UTF-8 or not
    if found.status and not expected.status:  # for the head alone; the reference waits for what follows
        expected = reference(data + rest_of_frame(data))
    assert found.status == expected.status


def rest_of_frame(data: bytes) -> bytes:
    """What the last one lacks: a length that takes as many bytes, a mask of zeros, a payload, or a part of it."""
    at, rest = 0, b""
    while at + 2 <= len(data):
        is_masked, length = divmod(data[at + 1], 0x80)
        size = {126: 2, 127: 8}.get(length, 0)
        at += 2
        if at + size > len(data):
            rest = (b"\x01" + bytes(7))[: at + size - len(data)]
        if size:
            length = int.from_bytes((data + rest)[at : at + size])
        at += size + 4 * is_masked + length
    return rest + bytes(min(70_000, max(0, at - len(data) - len(rest))))


def head(first: int, length: int, size_of_length: int, key: bytes | None) -> bytes:
    """The head of a frame with a length as long as it is asked for."""
    mask = 0x80 if key is not None else 0
    if not size_of_length:
        return bytes([first, mask | length & 0x7F]) + (key or b"")
    extended = length.to_bytes(size_of_length, "big")
    return bytes([first, mask | (126 if size_of_length == 2 else 127)]) + extended + (key or b"")


CODES = st.integers(0, 65_535).filter(lambda code: code != REGISTERED_SINCE)
CLOSES = st.builds(
    lambda code, reason: code.to_bytes(2, "big") + reason,
    st.one_of(CODES, st.sampled_from((999, 1000, 1004, 1005, 1006, 1015, 1016, 2999, 3000, 4999, 5000))),
    st.one_of(st.text(max_size=20).map(str.encode), st.binary(max_size=20)),
)
FRAMES = st.one_of(
    st.builds(frame, st.just(BINARY), st.binary(max_size=200)),
    st.builds(frame, st.sampled_from((BINARY, CONTINUATION)), st.binary(max_size=9), final=st.booleans()),
    st.builds(frame, st.sampled_from((PING, PONG)), st.binary(max_size=125)),
    st.builds(frame, st.just(CLOSE), CLOSES),
    st.builds(
        frame,
        st.integers(0, 15),
        st.binary(max_size=130),
        final=st.booleans(),
        masked=st.sampled_from((True, True, True, False)),
        reserved=st.sampled_from((0, 0, 0, 1, 2, 4)),
    ),
    st.builds(
        head,
        st.integers(0, 255),
        st.one_of(st.integers(0, 200), st.integers(65_000, 65_535)),
        st.sampled_from((2, 8)),
        st.binary(min_size=4, max_size=4),
    ),
)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 2_000), max_size=12))
@example([frame(CLOSE, b""), frame(BINARY, b"late")], [])
@example([frame(BINARY, b"ab", final=False), frame(PING, b"p"), frame(CONTINUATION, b"cd")], [3, 9, 12])
@example([frame(TEXT, b"\xff"), frame(BINARY, b"x")], [])
def test_frames_are_read_as_the_reference_reads_them(frames: list[bytes], pieces: list[int]) -> None:
    alike(b"".join(frames), pieces)


@example(b"\x00~", [])
@example(b"\x00\x80", [])
@given(st.binary(max_size=60), st.lists(st.integers(0, 100), max_size=8))
def test_rubbish_is_read_as_the_reference_reads_it(data: bytes, pieces: list[int]) -> None:
    if data[:1] and data[0] & 0x0F == CLOSE and REGISTERED_SINCE.to_bytes(2, "big") in data:
        return
    alike(data, pieces)


@pytest.mark.parametrize("opcode", range(16))
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("reserved", range(8))
@pytest.mark.parametrize("masked", [False, True])
def test_every_first_byte(opcode: int, final: bool, reserved: int, masked: bool) -> None:
    sent = frame(opcode, b"\x03\xe8ok", final=final, masked=masked, reserved=reserved)
    behind = frame(BINARY, b"next") + frame(PING, b"p")
    for pieces in ([], list(range(len(sent)))):
        alike(sent, pieces)
        alike(sent + behind, pieces)
        alike(frame(BINARY, b"begun", final=False) + sent + behind, pieces)


@pytest.mark.parametrize("code", [*range(998, 1020), 2999, 3000, 3999, 4000, 4999, 5000, 65_535])
def test_every_status_of_a_close(code: int) -> None:
    if code != REGISTERED_SINCE:
        alike(frame(CLOSE, code.to_bytes(2, "big") + "grüße".encode()), [])
    assert ours(frame(CLOSE, code.to_bytes(2, "big")), [3]).status in (code, 1002)


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_that_is_cut_anywhere(size: int) -> None:
    payload = bytes(number * 7 % 256 for number in range(size))
    sent = frame(BINARY, payload) + frame(PING, b"p") + frame(BINARY, b"next")
    for place in {*range(min(len(sent), 20)), len(sent) // 2, *range(max(0, len(sent) - 20), len(sent))}:
        assert ours(sent, [place]) == Seen(payload + b"next", b"p", 0)
    if size < 2_000:
        assert ours(sent, list(range(len(sent)))) == Seen(payload + b"next", b"p", 0)


@pytest.mark.parametrize("length_bytes", [2, 8])
@pytest.mark.parametrize("length", [0, 125, 126, 65_535, 65_536, 2**31, 2**62, 2**63, 2**64 - 1])
def test_every_form_of_a_length(length: int, length_bytes: int) -> None:
    if length >= 256**length_bytes:
        return
    sent = head(0x82, length, length_bytes, b"mask")
    for pieces in ([], list(range(len(sent)))):
        alike(sent + b"x" * 10, pieces)


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_the_mask(data: bytes, key: bytes) -> None:
    assert unmasked(data, key) == bytes(byte ^ key[at % 4] for at, byte in enumerate(data))


@pytest.mark.parametrize("size", SIZES)
def test_a_client_reads_our_frames(size: int) -> None:
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(frame_head(BINARY, size) + bytes(size))
    messages = [event for event in client.events() if isinstance(event, BytesMessage)]
    assert b"".join(bytes(message.data) for message in messages) == bytes(size)
    assert not size or messages[-1].message_finished
    websocket = WebSocket(WebSocketSettings())
    websocket.receive(upgrade_request())
    parts = [bytes(size), b"behind"]
    assert b"".join(websocket.frame_parts(parts)) == websocket.frame(b"".join(parts))


def test_turns_lose_nothing() -> None:
    sent = (frame(BINARY, b"ab", final=False) + frame(CONTINUATION, b"c")) * FRAMES_A_TURN
    for pieces in ([], list(range(0, len(sent), 7)), [5, 1_000, 1_001]):
        assert ours(sent, pieces).payload == b"abc" * FRAMES_A_TURN
