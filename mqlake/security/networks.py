"""Addresses that count as one: limits for an address are none for who has a network of them."""

import ipaddress
from typing import Final

IPV6_NETWORK_BITS: Final = 64
"""The smallest network that a customer is given."""


def network_of(address: str) -> str:
    """Return the network that counts as one address: of IPv6 that of one customer."""
    if ":" not in address:
        return address
    try:
        packed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if packed.ipv4_mapped is not None:
        return str(packed.ipv4_mapped)
    return str(ipaddress.IPv6Network((packed, IPV6_NETWORK_BITS), strict=False))
