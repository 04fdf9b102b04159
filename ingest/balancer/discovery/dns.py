"""Nodes from DNS: addresses of a name (A and AAAA), or its services (SRV), asked again and again.

Asked by ourselves, not by the C library: that has no SRV, may cache, and blocks a thread.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Literal

from dns import asyncresolver
from dns.exception import DNSException
from dns.nameserver import Do53Nameserver
from dns.resolver import NXDOMAIN, NoResolverConfiguration

from ingest.balancer.fleet import Node
from mqlake.errors import MqlakeError

if TYPE_CHECKING:
    from collections.abc import Sequence

ATTEMPT_SECONDS: Final = 2.0
LEAST_SECONDS: Final = 1.0


class DnsError(MqlakeError):
    """An answer that cannot be read, that says no, or none at all."""


class Resolver:
    """Asks name servers, one after the other; over TCP what does not fit into a datagram.

    Args:
        servers: Addresses, each with or without a port; without any those of /etc/resolv.conf.
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        try:
            self._asked = asyncresolver.Resolver(configure=not servers)
        except NoResolverConfiguration:
            self._asked = asyncresolver.Resolver(configure=False)
        if servers:
            self._asked.nameservers = [Do53Nameserver(*_server(one)) for one in servers]
        self._asked.timeout = ATTEMPT_SECONDS
        self._asked.lifetime = ATTEMPT_SECONDS * max(1, len(self._asked.nameservers))

    async def ask(
        self, name: str, record_type: Literal["A", "AAAA", "SRV"]
    ) -> tuple[list[Any], float | None]:
        """Return the records of a name, of the first server that answers.

        Returns:
            Records as dnspython has them, and for how many seconds they are good; none without a
            time, if the name has none or there is no such name.

        Raises:
            DnsError: No server answers, or the answer is an error.
        """
        asked = asyncio.create_task(
            self._asked.resolve(name, record_type, raise_on_no_answer=False)
        )
        try:
            # Whoever is cancelled while an answer comes must hear of it: dnspython waits by
            # asyncio.wait_for, which forgets that before Python 3.12 (python/cpython#86296).
            await asyncio.wait([asked])
        except asyncio.CancelledError:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)  # until its socket is closed
            raise
        try:
            answer = asked.result()
        except NXDOMAIN:
            return [], None
        # OSError: a server that cannot be reached; UnicodeError: a name that none can have.
        except (DNSException, OSError, UnicodeError) as exc:
            raise DnsError(f"{name} {record_type}: {exc}") from exc
        if answer.rrset is None:
            return [], None
        return list(answer.rrset), answer.chaining_result.minimum_ttl


class DnsSource:
    """The nodes of one name.

    Args:
        resolver: To be asked.
        name: Host name, or of services such as `_mqtt._tcp.example.org`.
        kind: `address`: A and AAAA; `srv`: services and the addresses of their targets.
        port: Port of nodes found by address.
        metrics_url: URL of each node's metrics, with `{address}` and `{name}` in it; empty: it has
            none.
    """

    def __init__(
        self,
        resolver: Resolver,
        name: str,
        kind: Literal["address", "srv"],
        port: int,
        metrics_url: str = "",
    ) -> None:
        self._resolver = resolver
        self._name = name
        self._kind = kind
        self._port = port
        self._metrics_url = metrics_url
        self.ttl_seconds: float = LEAST_SECONDS

    async def find(self) -> list[Node]:
        """Return the nodes that there are now.

        Raises:
            DnsError: It cannot be found out; nothing is said of any node.
        """
        if self._kind == "address":
            addresses, ttl = await self._addresses(self._name)
            self.ttl_seconds = ttl
            return [self._node(address, address, self._port) for address in addresses]
        services, ttl_seconds = await self._resolver.ask(self._name, "SRV")
        ttls = [float(ttl_seconds or LEAST_SECONDS)]
        # Only the services of the lowest number are asked for clients (RFC 2782).
        first = min((service.priority for service in services), default=0)
        nodes: dict[str, Node] = {}
        for service in services:
            if service.priority != first:
                continue
            target = service.target.to_text(omit_final_dot=True)
            addresses, ttl = await self._addresses(target)
            ttls.append(ttl)
            if addresses:
                node = self._node(target, addresses[0], service.port)
                nodes[node.name] = node
        self.ttl_seconds = min(ttls)
        return list(nodes.values())

    async def _addresses(self, name: str) -> tuple[list[str], float]:
        """Return the addresses of a host, IPv4 first, and how long they are good for."""
        answers = await asyncio.gather(
            self._resolver.ask(name, "A"), self._resolver.ask(name, "AAAA")
        )
        ttls = [ttl_seconds for _, ttl_seconds in answers if ttl_seconds is not None]
        addresses = {record.address for records, _ in answers for record in records}
        ordered = sorted(
            addresses, key=lambda one: (ip_address(one).version, ip_address(one).packed)
        )
        return ordered, max(LEAST_SECONDS, float(min(ttls, default=0)))

    def _node(self, host: str, address: str, port: int) -> Node:
        name = f"{host.lower()}:{port}"
        url = self._metrics_url.format(address=_in_url(address), name=host)
        return Node(name, address, (("mqtt", port),), url)


def _server(place: str) -> tuple[str, int]:
    if place.count(":") == 1 or place.startswith("["):
        host, _, port = place.rpartition(":")
        return host.strip("[]"), int(port)
    return place, 53


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
