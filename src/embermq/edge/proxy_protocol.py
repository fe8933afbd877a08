"""PROXY protocol: what a proxy says about the client before the client's own bytes (versions 1 and 2 of its text)."""

from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from embermq.edge.settings import Address

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""Of version 2; version 1 begins with `PROXY `. No header is shorter than this."""
LINE_BYTES_MAX = 107
BODY_BYTES_MAX = 4_096
UNKNOWN = Address("?", 0)
"""A client of which the proxy knows no address. It is not on loopback."""
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}
"""Family and transport of version 2, for TCP over IPv4 and IPv6, to bytes of an address."""

Read = Callable[[int], Awaitable[bytes]]
"""Reads exactly so many bytes of the network; raises EOFError at its end."""


class ProxyHeaderError(ValueError):
    """What came is no header that could be believed."""


async def read_header(read: Read) -> Address | None:
    """The client's address, UNKNOWN, or None when the proxy speaks for itself (a health check).

    Not one byte behind the header is read. Raises ProxyHeaderError, and EOFError as `read` does.
    """
    begin = await read(len(SIGNATURE))
    if begin == SIGNATURE:
        return await _read_version_2(read)
    if begin.startswith(b"PROXY "):
        line = bytearray(begin)
        while not line.endswith(b"\n"):
            if len(line) == LINE_BYTES_MAX:
                raise ProxyHeaderError(f"the line is longer than {LINE_BYTES_MAX} bytes")
            line += await read(1)
        return _from_line(bytes(line))
    raise ProxyHeaderError("it does not begin with a PROXY header")


def _from_line(line: bytes) -> Address:
    """`PROXY TCP4 192.0.2.1 192.0.2.9 50000 1883`."""
    words = line.decode("latin-1").removesuffix("\r\n").split(" ")
    if words[1] == "UNKNOWN":
        return UNKNOWN
    try:
        _, family, host, there, port, port_there = words
        version = {"TCP4": 4, "TCP6": 6}[family]
        for address in (host, there):
            if ip_address(address).version != version:
                raise ValueError(address)
        for number in (port, port_there):
            if not (number.isascii() and number.isdigit() and int(number) <= 65_535):
                raise ValueError(number)
    except (KeyError, ValueError):
        raise ProxyHeaderError("the line cannot be read") from None
    return Address(host, int(port))


async def _read_version_2(read: Read) -> Address | None:
    head = await read(4)
    version, command = head[0] >> 4, head[0] & 15
    size = int.from_bytes(head[2:4])
    if version != 2 or command > 1:
        raise ProxyHeaderError(f"version {version}, command {command} is not known")
    if size > BODY_BYTES_MAX:
        raise ProxyHeaderError(f"{size} bytes is more than a header may have, {BODY_BYTES_MAX}")
    body = await read(size) if size else b""
    if command == 0:
        return None
    width = _ADDRESS_BYTES.get(head[1])
    if width is None:
        return UNKNOWN
    if size < 2 * width + 4:
        raise ProxyHeaderError(f"{size} bytes are too few for its addresses")
    return Address(str(ip_address(body[:width])), int.from_bytes(body[2 * width : 2 * width + 2]))
