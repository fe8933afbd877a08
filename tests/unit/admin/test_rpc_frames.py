"""Calls under way on one connection, told by the frames that pass."""

from __future__ import annotations

import pytest

from embermq.admin import rpc_frames
from embermq.admin.rpc_frames import CallsUnderWay, TooManyCalls

DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


CALL = frame(HEADERS, END_HEADERS, 1, b"x" * 70_000)
ANSWER = frame(HEADERS, END_HEADERS, 1, b"h") + frame(DATA, 0, 1, bytes(300))
SAID: list[tuple[str, bytes, bytes, int]] = [
    ("nothing", frame(SETTINGS) + frame(PING, 0, 0, bytes(8)), b"", 0),
    ("a call", frame(SETTINGS) + CALL, frame(SETTINGS, 1), 1),
    ("its body", CALL + frame(DATA, END_STREAM, 1, b"asked"), b"", 1),
    ("a part of its headers", frame(HEADERS, 0, 1, b"a"), b"", 0),
    (
        "all parts",
        frame(HEADERS, 0, 1, b"a") + frame(CONTINUATION, 0, 1) + frame(CONTINUATION, END_HEADERS, 1),
        b"",
        1,
    ),
    ("a part that belongs to no call", frame(CONTINUATION, END_HEADERS, 1), b"", 0),
    ("not the last byte", CALL[:-1], b"", 0),
    ("the beginning of an answer", CALL, ANSWER, 1),
    ("all of an answer", CALL, ANSWER + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"t"), 0),
    ("an answer without trailers", CALL, frame(DATA, END_STREAM, 1), 0),
    ("an answer to another call", CALL, frame(HEADERS, END_HEADERS | END_STREAM, 3), 1),
    ("two calls, one answered", CALL + frame(HEADERS, END_HEADERS, 3), frame(RST_STREAM, 0, 3, bytes(4)), 1),
    ("a call given up", CALL + frame(RST_STREAM, 0, 1, bytes(4)), b"", 0),
    ("a flag that means something else", CALL, frame(PING, END_STREAM, 0, bytes(8)) + frame(SETTINGS, 1), 1),
    ("a reserved bit", CALL, frame(DATA, END_STREAM, 0x8000_0001), 0),
]


@pytest.mark.parametrize(
    ("client", "server", "count"), [each[1:] for each in SAID], ids=[each[0] for each in SAID]
)
@pytest.mark.parametrize("piece", [1, 7, 9, 100_000])
def test_calls_begin_and_end(client: bytes, server: bytes, count: int, piece: int) -> None:
    calls = CallsUnderWay()
    for at in range(0, len(client), piece):
        calls.client_says(client[at : at + piece])
    for at in range(0, len(server), piece):
        calls.server_says(server[at : at + piece])
    assert len(calls) == count


def test_an_answered_call_does_not_begin_again() -> None:
    calls = CallsUnderWay()
    calls.client_says(CALL)
    calls.server_says(frame(DATA, END_STREAM, 1))
    calls.client_says(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"trailers"))
    assert not calls


def test_what_is_remembered_of_a_connection_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_frames, "CALLS_MAX", 3)
    calls = CallsUnderWay()
    for number in range(3):
        calls.client_says(frame(HEADERS, END_HEADERS, 2 * number + 1))
    with pytest.raises(TooManyCalls, match="more than 3 calls"):
        calls.client_says(frame(HEADERS, END_HEADERS, 7))
