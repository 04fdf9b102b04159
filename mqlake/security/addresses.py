"""Addresses that a request on behalf of a rule may go to, and those of this machine alone.

A writer of rules must not thereby reach services that only this machine can reach: the metadata
service of a cloud, a database that trusts its network, the log itself.
"""

from collections.abc import Collection, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final
from urllib.parse import urlsplit

_MAPPED: Final = ip_network("::ffff:0:0/96")
_TRANSLATED: Final = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48")))
_COMPATIBLE: Final = ip_network("::/96")

NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "168.63.129.16/32",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/127",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "2620:4f:8000::/48",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
            "fe80::/10",
            "fec0::/10",
            "ff00::/8",
        ),
    )
)
"""IANA's special-purpose registries, multicast, and the public address at which Azure tells each
machine about itself. Networks of IPv6 that hold an IPv4 address are looked into."""


def is_public(address: str, allowed: Sequence[IPv4Network | IPv6Network] = ()) -> bool:
    """Tell whether an address is one that anybody can reach, or is in an allowed network.

    Args:
        address: As `getaddrinfo` writes it; a scope (`fe80::1%eth0`) makes it internal.
        allowed: Networks that may be reached though they are not public.
    """
    if "%" in address:
        return False
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return _is_public(parsed, allowed)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a host, which is an address or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_this_machine(host: str, names: Collection[str] = ()) -> bool:
    """Tell whether a Host header names this machine by itself, or by one of some names.

    Args:
        host: With a port or without; empty: it came from no browser.
        names: In small letters.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # an address in brackets that is none
        return False
    name = name.removesuffix(".")
    if not host or name in {"localhost", *names}:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_public(
    address: IPv4Address | IPv6Address, allowed: Sequence[IPv4Network | IPv6Network]
) -> bool:
    if any(address in network for network in allowed):
        return True
    if isinstance(address, IPv6Address) and (inner := _embedded(address)) is not None:
        return _is_public(inner, allowed)
    return not any(address in network for network in NOT_PUBLIC)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which a packet for this one goes, if it does."""
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _MAPPED or any(address in network for network in _TRANSLATED):
        return last
    if address in _COMPATIBLE and int(address) > 1:
        return last
    if address.sixtofour is not None:
        return address.sixtofour
    # Teredo (2001::/32) and ISATAP's ::5efe:a.b.c.d lead to an IPv4 address too.
    if (int(address) >> 32) & 0xFFFF_FFFF in (0x5EFE, 0x0200_5EFE):
        return last
    return None
