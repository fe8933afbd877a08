"""Which addresses may be called.

A webhook is an address that somebody with rights on queues wrote down, called from where the broker stands: without a
guard that would reach services that trust their own network.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

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
