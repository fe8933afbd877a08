"""Who may not come in for a while, whatever it proves: client ids, users and addresses.

Bans are looked up by what a client says before it is asked for a proof, and once more by what it has proved.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network

from msgspec import Struct

MAPPED_BITS = 96
"""In front of an IPv4 address that is written as one of IPv6."""


class BanKind(StrEnum):
    """What is banned."""

    CLIENT_ID = "client_id"
    USER = "user"
    ADDRESS = "address"
    """An address, or a network such as 10.0.0.0/8."""


class Ban(Struct, frozen=True):
    """Times are Unix milliseconds; `until_ms` is 0 until it is lifted."""

    kind: BanKind
    value: str
    since_ms: int
    until_ms: int = 0
    reason: str = ""

    def is_over(self, date_ms: int) -> bool:
        """Never while the clock is not set (0)."""
        return 0 < self.until_ms <= date_ms


class Bans:
    """A set of bans, which does not change."""

    def __init__(self, bans: Iterable[Ban] = ()) -> None:
        self._by_value = {(ban.kind, ban.value): ban for ban in bans}
        self._has_addresses = any(kind is BanKind.ADDRESS for kind, _ in self._by_value)
        self._networks = [
            (ip_network(ban.value), ban)
            for ban in self._by_value.values()
            if ban.kind is BanKind.ADDRESS and "/" in ban.value
        ]

    def __len__(self) -> int:
        return len(self._by_value)

    @property
    def networks(self) -> int:
        """How many are of a whole network: each is looked at for each client."""
        return len(self._networks)

    def all(self, date_ms: int) -> list[Ban]:
        """Those that are in force, by kind and value."""
        return [ban for _, ban in sorted(self._by_value.items()) if not ban.is_over(date_ms)]

    def find(self, client_id: str, user: str, peer: str, date_ms: int) -> Ban | None:
        """A ban of a client that comes from `peer`, an address with its port; None when it may come in."""
        if not self._by_value:
            return None
        found = [
            self._by_value.get((BanKind.CLIENT_ID, client_id)),
            self._by_value.get((BanKind.USER, user)) if user else None,
            *(self._of_address(peer) if self._has_addresses else ()),
        ]
        return next((ban for ban in found if ban is not None and not ban.is_over(date_ms)), None)

    def _of_address(self, peer: str) -> list[Ban | None]:
        try:
            address = ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:  # a Unix socket
            return []
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        exact = self._by_value.get((BanKind.ADDRESS, str(address)))
        return [exact, *(ban for network, ban in self._networks if address in network)]


def address_banned(text: str) -> str:
    """An address or a network, written in one way. Raises ValueError."""
    if "%" in text:
        raise ValueError("a peer's address is known without its zone (%)")
    network = ip_network(text, strict=False)
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= MAPPED_BITS:  # as a listener for both kinds shows a peer
        network = ip_network((mapped, network.prefixlen - MAPPED_BITS), strict=False)
    return str(network.network_address) if network.num_addresses == 1 else str(network)


NOBODY = Bans()
