"""Probes a node: a client of the probe's own sends itself a message.

CONNECT, SUBSCRIBE to a topic of its own, PUBLISH, the message within the window, DISCONNECT: six
packets, QoS 0, a clean session that leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.errors import RemoteProtocolError
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PROBE_PREFIX: Final = "mqlake-balancer-"
"""Client identifiers of probes begin with it; each probe has another one."""
_LEVEL: Final = MQTT_3_1_1
_READ_BYTES: Final = 4_096
_MOST_PACKET_BYTES: Final = 65_536
_REFUSED: Final = 0x80
_PacketT = TypeVar("_PacketT", bound=Packet)


@dataclass(frozen=True, slots=True)
class ProbeCredentials:
    username: str | None = None
    password: bytes | None = None


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """How a probe went."""

    reason: str = ""
    """Empty: well."""
    definite: bool = False
    """No process listens there: no further probe is needed to be sure."""
    seconds: float = 0.0
    """From the beginning to the message."""


class _Failed(Exception):  # noqa: N818 - does not leave this module
    pass


class Probe:
    """Probes nodes, `concurrency` at a time.

    Args:
        window_seconds: For all of it.
        concurrency: How many nodes at the same time.
        topic_prefix: Beginning of the topic, which ends in a random name.
        credentials: User and password of the client.
    """

    def __init__(
        self,
        window_seconds: float,
        concurrency: int,
        topic_prefix: str = "mqlake/balancer/",
        credentials: ProbeCredentials = ProbeCredentials(),
    ) -> None:
        self._window_seconds = window_seconds
        self._places = asyncio.Semaphore(concurrency)
        self._topic_prefix = topic_prefix
        self._credentials = credentials

    async def run(self, address: str, port: int) -> ProbeOutcome:
        """Probe a node; never raises for a fault of the node."""
        async with self._places:
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            try:
                async with asyncio.timeout(self._window_seconds):
                    await self._exchange(address, port)
            except TimeoutError:
                return ProbeOutcome(f"no message within {self._window_seconds:g} s")
            except ConnectionRefusedError:
                return ProbeOutcome("connection refused", definite=True)
            except (OSError, _Failed, RemoteProtocolError) as exc:
                return ProbeOutcome(str(exc) or type(exc).__name__)
            return ProbeOutcome(seconds=loop.time() - began_at)

    async def _exchange(self, address: str, port: int) -> None:
        name = PROBE_PREFIX + secrets.token_hex(8)
        topic = self._topic_prefix + name
        payload = secrets.token_bytes(16)
        reader, writer = await asyncio.open_connection(address, port)
        try:
            client = _Client(reader, writer)
            login = self._credentials
            client.send(Connect(name, _LEVEL, username=login.username, password=login.password))
            connack = await client.receive(Connack, lambda _: True)
            if connack.reason_code:
                raise _Failed(f"CONNECT refused: {connack.reason_code!r}")
            client.send(Subscribe(1, [Subscription(topic)]))
            suback = await client.receive(Suback, lambda _: True)
            if any(code >= _REFUSED for code in suback.reason_codes):
                raise _Failed(f"SUBSCRIBE to {topic} refused")
            client.send(Publish(topic, payload))
            await client.receive(Publish, lambda one: one.payload == payload)
            client.send(Disconnect())
            await writer.drain()
        finally:
            writer.close()


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder(_LEVEL, _MOST_PACKET_BYTES, role=Role.CLIENT)

    def send(self, packet: Packet) -> None:
        self._writer.write(encode(packet, _LEVEL))

    async def receive(self, kind: type[_PacketT], matches: Callable[[_PacketT], bool]) -> _PacketT:
        """Return the next packet of a kind; others are passed over."""
        while True:
            packet = self._decoder.next_packet()
            if packet is NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise _Failed(f"connection closed before {kind.__name__}")
                self._decoder.receive_data(data)
            elif isinstance(packet, kind) and matches(packet):
                return packet
