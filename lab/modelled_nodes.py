"""MQTT nodes whose processor is made up: real connections, messages and metrics, modelled load.

A node takes clients and gives subscribers the messages of publishers at any node. The CPU that it
reports is computed by `lab.load_model` from the clients that it has.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode, encode_puback
from ingest.protocol.packets import Connack, Connect, Pingreq, Pingresp, Publish, Suback, Subscribe
from ingest.protocol.reason_codes import SubackReasonCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from lab.load_model import LoadModel
    from lab.waves import WaveClient

LEVEL: Final = 4
"""Protocol level of MQTT 3.1.1."""
CPU_METRIC: Final = "modelled_cpu_percent"


class ModelledNodes:
    """All nodes.

    Args:
        model: Model of their load.
        clients: That make load, by client identifier; others, such as probes, make none.

    Attributes:
        matched: Messages of these clients that anybody subscribes to.
        copied: Their copies, one for each node with a subscriber.
        sent: Their deliveries.
    """

    def __init__(self, model: LoadModel, clients: Mapping[str, WaveClient]) -> None:
        self._clients = clients
        self._subscribers: dict[str, defaultdict[str, set[_Connection]]] = {}
        self.model = model
        self.matched = self.copied = self.sent = 0

    @asynccontextmanager
    async def serve(
        self, name: str, cores: float, port: int, metrics_port: int
    ) -> AsyncIterator[None]:
        """Have a node take clients and tell metrics until the block is over."""
        self.model.join({name: cores})
        self._subscribers[name] = defaultdict(set)
        connections: set[_Connection] = set()

        async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            percent = self.model.nodes[name].cpu_percent
            writer.write(f"HTTP/1.0 200 OK\r\n\r\n{CPU_METRIC} {percent}\n".encode())
            writer.close()

        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Connection(self, name, connections), "127.0.0.1", port
        )
        metrics = await asyncio.start_server(tell, "127.0.0.1", metrics_port)
        try:
            yield
        finally:
            metrics.close()
            server.close()
            for one in tuple(connections):
                one.close()

    def connected(self, client_id: str, node: str) -> bool:
        """Add a client to a node's load; tell whether it makes any."""
        client = self._clients.get(client_id)
        if client is not None:
            self.model.admit(client, node)
        return client is not None

    def subscribed(self, topic: str, node: str, connection: _Connection) -> None:
        self._subscribers[node][topic].add(connection)

    def left(self, topic: str, node: str, connection: _Connection) -> None:
        self._subscribers[node][topic].discard(connection)

    def publish(self, message: Publish, *, counts: bool) -> None:
        """Give a message to its subscribers at all nodes."""
        heard = [
            of_topic
            for one in self._subscribers.values()
            if (of_topic := one.get(message.topic_name))
        ]
        packet = encode(Publish(message.topic_name, message.payload), LEVEL)
        for receivers in heard:
            for one in receivers:
                one.send(packet)
        if counts:
            self.matched += bool(heard)
            self.copied += len(heard)
            self.sent += sum(map(len, heard))


class _Connection(asyncio.Protocol):
    def __init__(self, nodes: ModelledNodes, name: str, connections: set[_Connection]) -> None:
        self._nodes = nodes
        self._name = name
        self._connections = connections
        self._decoder = Decoder()
        self._topics: list[str] = []
        self._counts = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        for topic in self._topics:
            self._nodes.left(topic, self._name, self)

    def data_received(self, data: bytes) -> None:
        self._decoder.receive_data(data)
        while (packet := self._decoder.next_packet()) is not NEED_DATA:
            match packet:
                case Publish():
                    self._nodes.publish(packet, counts=self._counts)
                    if packet.qos:
                        self.send(encode_puback(packet.packet_id))
                case Connect():
                    self._counts = self._nodes.connected(packet.client_id, self._name)
                    self.send(encode(Connack(), LEVEL))
                case Subscribe():
                    for one in packet.subscriptions:
                        self._topics.append(one.topic_filter)
                        self._nodes.subscribed(one.topic_filter, self._name, self)
                    codes = [SubackReasonCode.GRANTED_QOS_0] * len(packet.subscriptions)
                    self.send(encode(Suback(packet.packet_id, codes), LEVEL))
                case Pingreq():
                    self.send(encode(Pingresp(), LEVEL))
                case _:
                    self.close()

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
