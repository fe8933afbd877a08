"""Addresses that fail so often that they are to be banned."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import ip_address

from embermq.access.authentication.slowing import ADDRESSES_MAX, network_of

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
