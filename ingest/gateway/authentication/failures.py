"""Failed logins by address: guessing is slowed down before a guess costs anything."""

import ipaddress
import threading
from typing import Final

from mqlake.clock import Clock

MAX_ADDRESSES: Final = 10_000
"""Remembered at most; the one remembered longest goes first."""

IPV6_NETWORK_BITS: Final = 64
"""The smallest network that a customer is given: its addresses count as one."""


class FailedLogins:
    """A bucket per address that fills with failures and leaks `per_minute` of them a minute.

    Safe to use from any thread: passwords are checked in some.

    Args:
        per_minute: Failures an address may have at once, and a minute later again; 0: any number.
        clock: For the leaking.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # (failures, when)

    def __len__(self) -> int:
        return len(self._buckets)

    def note(self, address: str) -> None:
        """Count a failure; the address is empty where there is none (a Unix socket)."""
        if not self._per_minute or not address:
            return
        network = network_of(address)
        with self._lock:
            level = min(self._level(network) + 1.0, float(self._per_minute))
            self._buckets.pop(network, None)
            if len(self._buckets) >= MAX_ADDRESSES:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[network] = (level, self._clock.monotonic())

    def are_too_many(self, address: str) -> bool:
        """Tell whether an address has to wait before its next attempt."""
        if not self._buckets or not address:
            return False
        # One more would not fit; a bucket leaks in fractions, which do not add up exactly.
        return self._level(network_of(address)) + 1.0 > self._per_minute + 1e-6

    def _level(self, network: str) -> float:
        level, since = self._buckets.get(network, (0.0, 0.0))
        leaked = (self._clock.monotonic() - since) * self._per_minute / 60.0
        return max(0.0, level - leaked)


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
