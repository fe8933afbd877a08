"""One POST: HTTP/1.1, a connection of its own, nothing read but the status, no redirect followed, no proxy asked.

Which addresses may be called. A webhook is an address that somebody with rights on queues wrote down, called from
where the broker stands: without a guard that would reach services that trust their own network.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import IPPROTO_TCP, SOCK_STREAM, getaddrinfo
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address

_NAT64 = ip_network("64:ff9b::/96")
_SPECIAL = tuple(
    ip_network(text)
    for text in (
        "192.0.0.0/24",  # protocol assignments, a metadata service among them
        "192.88.99.0/24",  # relays of 6to4
        "168.63.129.16/32",  # Azure's own service towards a machine, in a public range
        "fec0::/10",  # site-local, of before fc00::/7
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
    )
)
"""What `ipaddress` takes for public, in some versions of Python or in all."""


class AddressGuard:
    """`allowed` are networks in CIDR notation that may be called besides public ones."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = tuple(ip_network(text) for text in allowed)

    def allows(self, text: str) -> bool:
        """Whether this address, as text without a port, may be called."""
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:
            return False
        return all(self._is_fine(each) for each in _meant(address))

    def _is_fine(self, address: Address) -> bool:
        if any(address in network for network in self._allowed):
            return True
        if any(address in network for network in _SPECIAL):
            return False
        return address.is_global and not address.is_multicast and not address.is_reserved


def _meant(address: Address) -> list[Address]:
    """The address, or those that it carries: an IPv4 address has several IPv6 spellings that lead to it."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    meant: list[Address] = [address]
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    if address.sixtofour is not None:
        meant.append(address.sixtofour)
    if address.teredo is not None:
        meant += address.teredo
    return meant


LINE_BYTES_MAX = 8 * 1024
LINES_MAX = 200
ADDRESSES_MAX = 4
"""Of one name that are tried in one attempt."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r?\n)")
_REPEATED = frozenset({408, 425, 429})
"""Refusals that say: later. So do all from 500 on."""


class NotNow(Exception):
    """The webhook does not take it at present; another attempt may help."""


class Never(Exception):
    """No attempt will help: it says no, or sends elsewhere."""


class AddressRefused(Exception):
    """Its name leads to no address that may be called."""


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    guard: AddressGuard,
    tls: ssl.SSLContext,
    timeout_s: float,
) -> None:
    """Returns when the status is 2xx. Raises NotNow, Never or AddressRefused; the caller ends it after `timeout_s`, of
    which no address but the last takes more than a share."""
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    addresses = await _resolve(host, port, guard)
    try:
        share_s = timeout_s / (len(addresses) + 1)
        reader, writer = await _connect(addresses, host, port, tls if is_tls else None, share_s)
    except ssl.SSLError as error:
        raise NotNow(f"TLS: {error.reason or 'no agreement'}") from error
    except OSError as error:
        raise NotNow(f"no connection: {error.strerror or type(error).__name__}") from error
    try:
        writer.write(_request(parts.path or "/", parts.query, parts.netloc, headers, body))
        await writer.drain()
        status = await _status(reader)
    except OSError as error:
        raise NotNow(f"no answer: {error.strerror or type(error).__name__}") from error
    except (EOFError, ValueError) as error:
        raise NotNow(f"no answer: {error}") from error
    finally:
        writer.transport.abort()
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise Never(f"status {status}: redirects are not followed")
    if status in _REPEATED or status >= 500:
        raise NotNow(f"status {status}")
    raise Never(f"status {status}")


async def _resolve(host: str, port: int, guard: AddressGuard) -> list[str]:
    """Addresses that may be called. What is connected to is one of them, so no second look-up can lead elsewhere."""
    try:
        addresses = await _look_up(host, port)
    except (OSError, UnicodeError) as error:
        raise NotNow(f"its name cannot be looked up: {error}") from error
    allowed = [address for address in addresses if guard.allows(address)]
    if not allowed:
        raise AddressRefused(f"{', '.join(addresses[:4])} is not public, nor in webhook.allowed_networks")
    return allowed[:ADDRESSES_MAX]


async def _look_up(host: str, port: int) -> list[str]:
    """On a thread that may be left alone: no time limit of ours ends what the resolver does."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], error: Exception | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def ask() -> None:
        addresses: list[str] = []
        failure: Exception | None = None
        try:
            entries = getaddrinfo(host, port, type=SOCK_STREAM, proto=IPPROTO_TCP)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except (OSError, UnicodeError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: the broker has ended
            loop.call_soon_threadsafe(settle, addresses, failure)

    threading.Thread(target=ask, name="webhook-name", daemon=True).start()
    return await found


async def _connect(
    addresses: list[str], host: str, port: int, tls: ssl.SSLContext | None, share_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    last: OSError = OSError("no address")
    for left, address in zip(range(len(addresses) - 1, -1, -1), addresses, strict=True):
        try:
            async with asyncio.timeout(share_s if left else None):
                return await asyncio.open_connection(
                    address,
                    port,
                    limit=LINE_BYTES_MAX,
                    ssl=tls,
                    server_hostname=host if tls is not None else None,
                )
        except OSError as error:
            last = error
    raise last


def _request(path: str, query: str, netloc: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {path}{'?' if query else ''}{query} HTTP/1.1",
        f"Host: {netloc}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


async def _status(reader: asyncio.StreamReader) -> int:
    """Of the answer that is final: interim ones (1xx) come before it. Raises ValueError or EOFError."""
    for _ in range(LINES_MAX):
        line = await reader.readline()
        if not line:
            raise EOFError("the connection was closed")
        found = _STATUS.match(line)
        if found is None:
            raise ValueError("what came is not HTTP")
        status = int(found[1])
        if status >= 200:
            return status
        with suppress(EOFError):
            while (await reader.readline()).strip():
                pass
    raise ValueError("too many interim answers")
