"""Nodes from DNS: addresses of a name (A and AAAA), or its services (SRV), asked again and again.

Asked by ourselves, not by the C library: that has no SRV, may cache, and blocks a thread.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ingest.balancer.discovery.dns_messages import (
    Answer,
    DnsError,
    RecordType,
    Truncated,
    decode_answer,
    encode_query,
)
from ingest.balancer.fleet import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

ATTEMPT_SECONDS: Final = 2.0
LEAST_SECONDS: Final = 1.0
_RESOLV_CONF: Final = Path("/etc/resolv.conf")


def system_servers() -> list[str]:
    """Return the servers of /etc/resolv.conf."""
    try:
        lines = _RESOLV_CONF.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.split()[1] for line in lines if line.startswith("nameserver ")]


class Resolver:
    """Asks name servers, one after the other.

    Args:
        servers: Addresses, each with or without a port; without any those of the system.
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self._servers = [_server(one) for one in servers or system_servers()]

    async def ask(self, name: str, record_type: RecordType) -> Answer:
        """Return the answer of the first server that gives one.

        Raises:
            DnsError: None does, or the answer is an error.
        """
        problem: Exception = DnsError("there is no name server")
        for server in self._servers:
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    return await self._ask_one(server, name, record_type)
            except TimeoutError:
                problem = DnsError(f"{server[0]} does not answer for {name}")
            except (OSError, DnsError) as exc:
                problem = exc
        raise DnsError(f"{name} {record_type.name}: {problem}") from problem

    async def _ask_one(self, server: tuple[str, int], name: str, record_type: RecordType) -> Answer:
        identifier = secrets.randbelow(65_536)
        query = encode_query(identifier, name, record_type)
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            # Connected: datagrams of others do not get here.
            await loop.sock_connect(asking, server)
            await loop.sock_sendall(asking, query)
            while True:
                data = await loop.sock_recv(asking, 65_535)
                if data[:2] != query[:2]:
                    continue
                try:
                    return decode_answer(data, identifier)
                except Truncated:
                    return await self._ask_over_tcp(server, query, identifier)

    async def _ask_over_tcp(self, server: tuple[str, int], query: bytes, identifier: int) -> Answer:
        reader, writer = await asyncio.open_connection(*server)
        try:
            writer.write(struct.pack("!H", len(query)) + query)
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            return decode_answer(await reader.readexactly(length), identifier)
        except asyncio.IncompleteReadError as exc:
            raise DnsError("the server has closed the connection") from exc
        finally:
            writer.close()


class DnsSource:
    """The nodes of one name.

    Args:
        resolver: To be asked.
        name: Host name, or of services such as `_mqtt._tcp.example.org`.
        kind: `address`: A and AAAA; `srv`: services and the addresses of their targets.
        port: Of nodes found by address.
        metrics_url: Of each node, with `{address}` and `{name}` in it; empty: it has none.
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
        answer = await self._resolver.ask(self._name, RecordType.SRV)
        ttls = [float(answer.ttl_seconds or LEAST_SECONDS)]
        # Only the services of the lowest number are asked for clients (RFC 2782).
        first = min((service.priority for service in answer.services), default=0)
        nodes: dict[str, Node] = {}
        for service in answer.services:
            if service.priority != first:
                continue
            addresses, ttl = await self._addresses(service.target)
            ttls.append(ttl)
            if addresses:
                node = self._node(service.target, addresses[0], service.port)
                nodes[node.name] = node
        self.ttl_seconds = min(ttls)
        return list(nodes.values())

    async def _addresses(self, name: str) -> tuple[list[str], float]:
        """Return the addresses of a host, IPv4 first, and how long they are good for."""
        answers = await asyncio.gather(
            self._resolver.ask(name, RecordType.A), self._resolver.ask(name, RecordType.AAAA)
        )
        ttls = [one.ttl_seconds for one in answers if one.ttl_seconds is not None]
        addresses = {address for one in answers for address in one.addresses}
        ordered = sorted(
            addresses, key=lambda one: (ip_address(one).version, ip_address(one).packed)
        )
        return ordered, max(LEAST_SECONDS, float(min(ttls, default=0)))

    def _node(self, host: str, address: str, port: int) -> Node:
        name = f"{host.lower()}:{port}"
        url = self._metrics_url.format(address=_in_url(address), name=host)
        return Node(name, address, (("mqtt", port),), url)


def _order(address: str) -> tuple[int, bytes]:
    found = ip_address(address)
    return found.version, found.packed


def _server(place: str) -> tuple[str, int]:
    if place.count(":") == 1 or place.startswith("["):
        host, _, port = place.rpartition(":")
        return host.strip("[]"), int(port)
    return place, 53


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
