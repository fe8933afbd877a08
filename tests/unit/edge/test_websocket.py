"""WebSocket without a network: however the bytes come, the same comes out."""

from __future__ import annotations

import base64
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw_client import BINARY, CLOSE, CONTINUATION, PING, TEXT, frame, upgrade_request

from embermq.edge.settings import WebSocketSettings
from embermq.edge.websocket import FRAMES_A_TURN, WebSocket
from embermq.edge.websocket_handshake import HEAD_BYTES_MAX

FRAMES = st.one_of(
    st.builds(
        frame,
        st.integers(0, 15),
        st.binary(max_size=200),
        final=st.booleans(),
        masked=st.booleans(),
        reserved=st.sampled_from((0, 0, 0, 0, 1, 4)),
    ),
    st.binary(max_size=40),
)


def opened(settings: WebSocketSettings | None = None) -> WebSocket:
    websocket = WebSocket(settings or WebSocketSettings())
    assert websocket.receive(upgrade_request()) == b""
    assert websocket.is_open
    websocket.out.clear()
    return websocket


def take_all(websocket: WebSocket, data: bytes) -> bytes:
    """As the server does: turn after turn."""
    found = websocket.receive(data)
    while websocket.more:
        found += websocket.receive(b"")
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_bytes_come_out_as_they_were_put_in(parts: list[tuple[bytes, bool]], places: list[int]) -> None:
    sent, begun = upgrade_request(), False
    for payload, final in [*parts, (b"", True)]:
        sent += frame(CONTINUATION if begun else BINARY, payload, final=final) + frame(PING, b"")
        begun = not final
    websocket = WebSocket(WebSocketSettings())
    found = b"".join(take_all(websocket, chunk) for chunk in cut(sent, places))
    assert found == b"".join(payload for payload, _ in parts)
    assert websocket.is_open and not websocket.is_over()


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 1_000), max_size=4))
def test_any_bytes_end_in_order(frames: list[bytes], places: list[int]) -> None:
    """No exception, nothing after the end, and a close frame where the end is the client's fault."""
    websocket = opened()
    for chunk in cut(b"".join(frames), places):
        ended, said = websocket.is_over(), len(websocket.out)
        found = take_all(websocket, chunk)
        assert not (ended and (found or websocket.out[said:]))
    if websocket.is_over():
        assert websocket.out[-1][0] == 0x88
        assert websocket.frame(b"x") == b""


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_any_request_is_answered_once(head: bytes, more: bytes) -> None:
    websocket = WebSocket(WebSocketSettings())
    for data in (head, b"\r\n\r\n", more):
        websocket.receive(data)
    assert websocket.is_over()
    assert len(websocket.out) == 1 and websocket.out[0].startswith(b"HTTP/1.1 4")


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_requests_with_wrong_bytes_in_them(place: int, wrong: bytes) -> None:
    request = upgrade_request(extra="Origin: null")
    place %= len(request)
    websocket = WebSocket(WebSocketSettings())
    websocket.receive(request[:place] + wrong + request[place + len(wrong) :] + b"\r\n\r\n")
    assert websocket.out and websocket.out[0].startswith(b"HTTP/1.1 ")


def test_the_answer_to_the_key_is_the_one_of_the_specification() -> None:
    """The example of RFC 6455, 1.3."""
    websocket = WebSocket(WebSocketSettings())
    request = upgrade_request().split(b"\r\n")
    request[4] = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    assert base64.b64decode("dGhlIHNhbXBsZSBub25jZQ==") == b"the sample nonce"
    websocket.receive(b"\r\n".join(request))
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in websocket.out[0]


def test_a_turn_takes_so_many_frames() -> None:
    websocket = opened()
    assert websocket.receive(frame(BINARY, b"x") * (FRAMES_A_TURN + 1)) == b"x" * FRAMES_A_TURN
    assert websocket.more
    assert websocket.receive(b"") == b"x"
    assert not websocket.more


def test_several_pings_have_one_answer_and_none_for_who_does_not_read() -> None:
    websocket = opened()
    websocket.receive(frame(PING, b"1") + frame(PING, b"2"))
    assert websocket.out == [b"\x8a\x012"]
    websocket.out.clear()
    websocket.receive(frame(PING, b"3"), answers_pings=False)
    assert websocket.out == []


def test_the_closing_handshake_that_the_broker_begins() -> None:
    websocket = opened()
    assert websocket.close() == b"\x88\x02\x03\xe8"
    assert not websocket.is_open and not websocket.is_over()
    assert websocket.receive(frame(BINARY, b"late")) == b"late"
    websocket.receive(frame(CLOSE, b"\x03\xe8"))
    assert websocket.is_over() and websocket.out == []


def test_what_is_wrong_after_the_broker_has_closed_is_not_answered() -> None:
    websocket = opened()
    websocket.close()
    websocket.receive(frame(TEXT, b"?"))
    assert websocket.is_over() and websocket.out == []


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_of_the_broker_have_the_shortest_length(size: int) -> None:
    sent = opened().frame(b"x" * size)
    assert sent[0] == 0x82
    assert len(sent) - size == (2 if size < 126 else 4 if size < 65_536 else 10)


def test_a_request_has_a_longest_size() -> None:
    websocket = WebSocket(WebSocketSettings())
    filling = "x" * (HEAD_BYTES_MAX - len(upgrade_request(extra="X: ")))
    websocket.receive(upgrade_request(extra=f"X: {filling}"))
    assert websocket.is_open
    websocket = WebSocket(WebSocketSettings())
    websocket.receive(upgrade_request(extra=f"X: {filling}x"))
    assert websocket.out[0].startswith(b"HTTP/1.1 431 ")
