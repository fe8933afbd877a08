"""PROXY headers, read to their last byte and not further."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.edge.proxy_protocol import SIGNATURE, UNKNOWN, ProxyHeaderError, read_header
from embermq.edge.settings import Address

IPV4, IPV6 = socket.inet_aton("192.0.2.1"), socket.inet_pton(socket.AF_INET6, "2001:db8::1")


def read(data: bytes) -> tuple[Address | None, bytes]:
    """What the header says, and what is left."""
    left = bytearray(data)

    async def read_exactly(size: int) -> bytes:
        if len(left) < size:
            raise EOFError
        taken = bytes(left[:size])
        del left[:size]
        return taken

    return asyncio.run(read_header(read_exactly)), bytes(left)


def version_2(code: int, body: bytes, *, first: int = 0x21) -> bytes:
    return SIGNATURE + bytes([first, code]) + len(body).to_bytes(2) + body


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 50000 1883\r\n", Address("192.0.2.1", 50_000)),
        (b"PROXY TCP6 2001:db8::1 ::1 0 65535\r\n", Address("2001:db8::1", 0)),
        (b"PROXY UNKNOWN\r\n", UNKNOWN),
        (b"PROXY UNKNOWN 192.0.2.1 192.0.2.2 50000 1883\r\n", UNKNOWN),
        (version_2(0x11, IPV4 * 2 + b"\xc3\x50\x07\x5b"), Address("192.0.2.1", 50_000)),
        (version_2(0x21, IPV6 * 2 + b"\xc3\x50\x07\x5b" + b"\x04\0\1x"), Address("2001:db8::1", 50_000)),
        (version_2(0x31, b"\0" * 216), UNKNOWN),
        (version_2(0x12, IPV4 * 2 + b"\0" * 4), UNKNOWN),
        (version_2(0x00, b""), UNKNOWN),
        (version_2(0x11, IPV4 * 2 + b"\0" * 4, first=0x20), None),
        (version_2(0x00, b"", first=0x20), None),
    ],
)
def test_headers(header: bytes, address: Address | None) -> None:
    assert read(header + b"\x10\x0c") == (address, b"\x10\x0c")
    for size in range(len(header)):
        with pytest.raises(EOFError):
            read(header[:size])


def test_a_client_nobody_knows_is_not_on_loopback() -> None:
    assert not UNKNOWN.is_loopback


@given(
    st.one_of(
        st.binary(), st.binary().map(lambda data: b"PROXY " + data), st.binary().map(lambda d: SIGNATURE + d)
    )
)
def test_anything_is_a_header_or_an_error(data: bytes) -> None:
    try:
        read(data)
    except (ProxyHeaderError, EOFError):
        return
