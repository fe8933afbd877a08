"""Those who fail again and again: answered late, and banned in the end."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

FIRST_DELAY_S = 0.25
"""Of the first failure too many; each further one doubles it."""
WINDOW_S = 60.0
"""An address without a failure for so long begins anew: longer than who guesses by hand takes for a try."""
DELAY_MAX_S = 3.0
"""The latest answer: below the patience of MQTT clients, so that a mistyped password is still told as one."""
ADDRESSES_MAX = 4_096
"""Addresses with failures that are remembered; the one that has been quiet longest goes first."""
NETWORK_BITS = 64
"""Of an IPv6 address: what is behind them belongs to one customer of a network."""


class Slowing:
    """Counts failures of addresses. `free` of them cost nothing; `WINDOW_S` after the last one all are forgotten."""

    def __init__(self, *, free: int) -> None:
        self._free = free
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: str, now_s: float) -> float:
        """Count a failure; returns by how many seconds its answer is to be late. `now_s` never goes back."""
        place = network_of(address)
        count, last_s = self._failures.pop(place, (0, now_s))
        if now_s - last_s > WINDOW_S:
            count = 0
        count += 1
        self._failures[place] = (count, now_s)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        beyond = count - self._free
        if beyond <= 0:
            return 0.0
        return min(DELAY_MAX_S, FIRST_DELAY_S * 2.0 ** min(beyond - 1, 32))


def network_of(address: str) -> str:
    """What is counted together: an IPv4 address, an IPv6 network of 64 bits, anything else as it is."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> NETWORK_BITS << NETWORK_BITS)}/{NETWORK_BITS}"


LOOPBACK = network_of("::1")


class FailureCounts:
    """Counts failures of addresses; `failures_max` 0: of none. A count is of the `window_s` after its first failure;
    `ADDRESSES_MAX` are kept at most."""

    def __init__(self, *, failures_max: int, window_s: float) -> None:
        self._failures_max = failures_max
        self._window_s = window_s
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: str, now_s: float) -> str:
        """Count a failure; returns the address, or the IPv6 network, when that was one too many, else "". Never one of
        this machine, nor what is no address. `now_s` never goes back."""
        if not self._failures_max:
            return ""
        place = network_of(address)
        if not _may_be_banned(place):
            return ""
        count, first_s = self._failures.pop(place, (0, now_s))
        if now_s - first_s > self._window_s:
            count, first_s = 0, now_s
        if count + 1 >= self._failures_max:
            return place
        self._failures[place] = (count + 1, first_s)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        return ""


def _may_be_banned(place: str) -> bool:
    try:
        return place != LOOPBACK and not ip_address(place.partition("/")[0]).is_loopback
    except ValueError:  # a Unix socket
        return False
