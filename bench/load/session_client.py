"""MQTT clients whose sessions outlive their connections: the messages they get, and when.

In Python, by the gateway's own codec: operations measured with them take milliseconds at the
broker, and 2,000 of them a second of one processor here.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode, encode_puback
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    Subscription,
)
from mqlake.errors import OperationalError

KEEP_ALIVE: Final = 300
REFUSED_PAUSE_SECONDS: Final = 0.2
"""How long a client waits after a refusal before it tries the next gateway."""


class SessionClient(asyncio.Protocol):
    """One client of MQTT 3.1.1, on one connection after another; acknowledges messages at once.

    Any failure, the end of the connection included, is a `ConnectionError`.

    Attributes:
        arrivals: Payload -> when it came first, by the loop's clock; in the order of coming.
        repeated: Messages that came again.
        began_at: When the last connection was begun.
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.arrivals: dict[bytes, float] = {}
        self.repeated = 0
        self.began_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Packet] = self._loop.create_future()
        self._unacknowledged = 0
        self._wanted = 0
        self._complete: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[None] | None = None

    async def connect(self, address: str, *, clean_session: bool = False) -> bool:
        """Connect to host:port; return whether the gateway had the session."""
        host, _, port = address.rpartition(":")
        self.began_at = self._loop.time()
        self._decoder = Decoder(MQTT_3_1_1, role=Role.CLIENT)
        self._lost = self._loop.create_future()
        transport, _ = await self._loop.create_connection(lambda: self, host, int(port))
        self._transport = transport
        connect = Connect(
            self.client_id, MQTT_3_1_1, clean_start=clean_session, keep_alive=KEEP_ALIVE
        )
        connack = await self._ask(connect)
        if not isinstance(connack, Connack) or connack.reason_code:
            self.cut()
            raise ConnectionRefusedError(f"{self.client_id}: {connack}")
        return connack.session_present

    async def resume(self, addresses: Sequence[str], number: int) -> None:
        """Connect to one gateway after the other, behind this number, until one has the session.

        Raises:
            OperationalError: None has it any more.
        """
        while True:
            number += 1
            try:
                is_present = await self.connect(addresses[number % len(addresses)])
                break
            except ConnectionError:
                await asyncio.sleep(REFUSED_PAUSE_SECONDS)
        if not is_present:
            raise OperationalError(f"the session of {self.client_id} was lost")

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe with QoS 1."""
        await self._ask(Subscribe(1, [Subscription(topic_filter, 1)]))

    async def publish(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Publish with QoS 1; return when all, 65,535 at most, are acknowledged."""
        packets = [
            encode(Publish(topic_name, payload, 1, packet_id=packet_id), MQTT_3_1_1)
            for packet_id, (topic_name, payload) in enumerate(messages, 1)
        ]
        self._unacknowledged = len(packets)
        self._complete = self._loop.create_future()
        self._transport.write(b"".join(packets))
        await self._complete

    async def receive(self, count: int) -> None:
        """Return when `count` different messages have come and are acknowledged."""
        if len(self.arrivals) < count:
            self._wanted = count
            self._complete = self._loop.create_future()
            await self._complete

    async def ping(self) -> None:
        """Return when the gateway has taken everything that was sent to it."""
        await self._ask(Pingreq())

    async def disconnect(self) -> None:
        """Take leave; return when the gateway has closed the connection."""
        assert self._lost is not None
        self._transport.write(encode(Disconnect(), MQTT_3_1_1))
        await self._lost

    def cut(self) -> None:
        """End the connection as a crash does."""
        self._transport.abort()

    async def _ask(self, packet: Packet) -> Packet:
        self._answer = self._loop.create_future()
        self._transport.write(encode(packet, MQTT_3_1_1))
        return await self._answer

    # asyncio.Protocol

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._lost is not None
        if not self._lost.done():
            self._lost.set_result(None)
        for waiting in (self._answer, self._complete):
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionResetError(f"{self.client_id}: closed ({exc})"))

    def data_received(self, data: bytes) -> None:
        self._decoder.receive_data(data)
        now = self._loop.time()
        pubacks = []
        while (packet := self._decoder.next_packet()) is not NEED_DATA:
            if isinstance(packet, Publish):
                if packet.payload in self.arrivals:
                    self.repeated += 1
                else:
                    self.arrivals[packet.payload] = now
                if packet.qos:
                    pubacks.append(encode_puback(packet.packet_id))
            elif isinstance(packet, Puback):
                self._unacknowledged -= 1
            elif not self._answer.done():
                self._answer.set_result(packet)
        if pubacks:
            self._transport.write(b"".join(pubacks))
        complete = self._complete
        if (
            complete is not None
            and not complete.done()
            and self._unacknowledged <= 0
            and len(self.arrivals) >= self._wanted
        ):
            complete.set_result(None)


async def publish(address: str, client_id: str, messages: Sequence[tuple[str, bytes]]) -> None:
    """Publish by a client that comes and goes."""
    client = SessionClient(client_id)
    await client.connect(address, clean_session=True)
    await client.publish(messages)
    await client.disconnect()


async def end_session(address: str, client_id: str) -> None:
    """Have the gateways forget a session."""
    client = SessionClient(client_id)
    await client.connect(address, clean_session=True)
    await client.disconnect()
