"""Who may not come in for a while, whatever it proves: client ids, users and addresses.

Bans are looked up by what a client says before it is asked for a proof, and once more by what it has proved.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from msgspec import Struct

PREFIX_MIN = {4: 8, 6: 16}
"""Bits that every address of a network shares at least: a wider one would keep out whole continents by a slip."""
MAPPED_BITS = 96
"""In front of an IPv4 address that is written as one of IPv6."""


class BanKind(StrEnum):
    """By what a ban finds whom it keeps out."""

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
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}
        """Version of IP and bits behind the prefix -> prefix -> ban: a client costs a look for each length of prefix
        that there is, however many networks are banned."""
        for ban in self._by_value.values():
            if ban.kind is BanKind.ADDRESS and "/" in ban.value:
                network = ip_network(ban.value)
                behind = network.max_prefixlen - network.prefixlen
                same = self._networks.setdefault((network.version, behind), {})
                same[int(network.network_address) >> behind] = ban

    def __len__(self) -> int:
        return len(self._by_value)

    def all(self, date_ms: int) -> list[Ban]:
        """Those that are in force, by kind and value."""
        return [ban for _, ban in sorted(self._by_value.items()) if not ban.is_over(date_ms)]

    def not_in(self, others: Bans) -> list[Ban]:
        """Those that the others have not, or for another time."""
        return [ban for key, ban in self._by_value.items() if others._by_value.get(key) != ban]

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
        address = address_of(peer)
        if address is None:
            return []
        number = int(address)
        return [
            self._by_value.get((BanKind.ADDRESS, str(address))),
            *(
                same.get(number >> behind)
                for (version, behind), same in self._networks.items()
                if version == address.version
            ),
        ]


def address_of(peer: str) -> IPv4Address | IPv6Address | None:
    """Of an address with its port, as it is banned; None for a Unix socket."""
    try:
        address = ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def address_banned(text: str) -> str:
    """An address or a network, written in one way. Raises ValueError."""
    if "%" in text:
        raise ValueError("a peer's address is known without its zone (%)")
    network = ip_network(text, strict=False)
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= MAPPED_BITS:  # as a listener for both kinds shows a peer
        network = ip_network((mapped, network.prefixlen - MAPPED_BITS), strict=False)
    if network.prefixlen < PREFIX_MIN[network.version]:
        widest = f"/{PREFIX_MIN[network.version]}"
        raise ValueError(f"{network} has more addresses than one ban may have: {widest} is the widest")
    return str(network.network_address) if network.num_addresses == 1 else str(network)


NOBODY = Bans()
