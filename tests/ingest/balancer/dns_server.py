"""A small name server on real sockets, UDP and TCP, with bytes of its own making."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import cast

from tests.ingest.gateway.harness import free_port

A, AAAA, SRV = 1, 28, 33
_MOST_UDP_BYTES = 512


class DnsServer:
    """Answers from `records`: (name, type) -> bodies.

    Attributes:
        code: Answer code; 2 is a failure of the server.
        silent: Say nothing.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.place = f"127.0.0.1:{self.port}"
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.ttl = 0
        self.code = 0
        self.silent = False
        self.asked = {"udp": 0, "tcp": 0}

    def host(self, name: str, *addresses: str) -> None:
        """Set all addresses of a host."""
        for kind, version in ((A, 4), (AAAA, 6)):
            self.records[name, kind] = [
                ip_address(one).packed for one in addresses if ip_address(one).version == version
            ]

    def service(self, name: str, *targets: tuple[int, int, str]) -> None:
        """Set all services of a name: priority, port, target."""
        self.records[name, SRV] = [
            struct.pack("!HHH", priority, 1, port) + _name(target)
            for priority, port, target in targets
        ]

    def answer(self, query: bytes, most: int) -> bytes:
        question_end = query.index(b"\0", 12) + 5
        labels, offset = [], 12
        while query[offset]:
            labels.append(query[offset + 1 : offset + 1 + query[offset]].decode())
            offset += 1 + query[offset]
        (kind,) = struct.unpack_from("!H", query, offset + 1)
        bodies = self.records.get((".".join(labels), kind), [])
        known = any(name == ".".join(labels) for name, _ in self.records)
        code = self.code or (0 if known else 3)
        # A pointer to the name of the question, as servers write it.
        answers = b"".join(
            struct.pack("!HHHIH", 0xC00C, kind, 1, self.ttl, len(body)) + body for body in bodies
        )
        head = struct.pack("!HHHHH", 0x8180 | code, 1, len(bodies), 0, 0)
        whole = query[:2] + head + query[12:question_end] + answers
        if len(whole) <= most:
            return whole
        head = struct.pack("!HHHHH", 0x8380, 1, 0, 0, 0)
        return query[:2] + head + query[12:question_end]

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator["DnsServer"]:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self), ("127.0.0.1", self.port)
        )
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        try:
            yield self
        finally:
            server.close()
            transport.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answer = self.answer(await reader.readexactly(length), 65_535)
            self.asked["tcp"] += 1
            writer.write(struct.pack("!H", len(answer)) + answer)
            await writer.drain()
        writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._server.asked["udp"] += 1
        if not self._server.silent:
            # First somebody else's answer: it is not to be believed.
            other = bytes((data[0] ^ 0xFF,)) + data[1:]
            self._transport.sendto(self._server.answer(other, _MOST_UDP_BYTES), addr)
            self._transport.sendto(self._server.answer(data, _MOST_UDP_BYTES), addr)


def _name(name: str) -> bytes:
    return b"".join(bytes((len(one),)) + one.encode() for one in name.split(".") if one) + b"\0"
