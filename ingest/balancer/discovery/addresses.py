"""Addresses of hosts that are known by name: proxies get addresses alone."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.balancer.fleet import Node
    from mqlake.clock import Clock

logger = logging.getLogger(__name__)

FRESH_SECONDS: Final = 30.0


class Addresses:
    """Looks names up by the system's resolver, and remembers the last answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[str, tuple[str, float]] = {}

    async def of(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes with addresses; those that never had one are left out."""
        found = []
        for node in nodes:
            address = await self._address(node.address)
            if address:
                found.append(node if address == node.address else replace(node, address=address))
        return found

    async def _address(self, host: str) -> str:
        try:
            return str(ip_address(host))
        except ValueError:
            pass
        now = self._clock.monotonic()
        known, at = self._found.get(host, ("", -FRESH_SECONDS))
        if known and now - at < FRESH_SECONDS:
            return known
        try:
            answers = await asyncio.get_running_loop().getaddrinfo(
                host, None, type=socket.SOCK_STREAM
            )
        except OSError as exc:
            logger.warning("no address", extra={"fields": {"host": host, "reason": str(exc)}})
            return known
        addresses = [str(answer[4][0]) for answer in answers]
        # The one from before stays as long as it is among them: order means nothing.
        address = known if known in addresses else addresses[0]
        self._found[host] = (address, now)
        return address
