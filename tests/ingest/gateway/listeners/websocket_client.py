"""A WebSocket client that does nothing by itself, and one that carries MQTT for the harness."""

import asyncio
import ssl
from typing import Any, cast

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
)

from tests.ingest.gateway.harness import DEADLINE_SECONDS, Client, has_end, opened_clients


class WebSocketClient:
    """Sends and receives WebSocket events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        self._loop = asyncio.get_running_loop()
        opened_clients.append(cast("Client", self))  # to be cut with the others

    @classmethod
    async def open(
        cls, port: int, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
    ) -> "WebSocketClient":
        """Connect the socket, send nothing."""
        return cls(*await asyncio.open_connection(host, port, ssl=context))

    @classmethod
    async def connect(cls, port: int, **more: Any) -> "WebSocketClient":
        """Connect and be accepted with the sub-protocol `mqtt`."""
        client = await cls.open(port, **more)
        answer = await client.request()
        assert isinstance(answer, AcceptConnection), answer
        assert answer.subprotocol == "mqtt"
        assert answer.extensions == []
        return client

    async def request(
        self,
        path: str = "/mqtt",
        subprotocols: tuple[str, ...] = ("mqtt",),
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> AcceptConnection | RejectConnection:
        self.send(
            Request(
                host="mqtt.example.org",
                target=path,
                subprotocols=list(subprotocols),
                extra_headers=list(headers),
            )
        )
        answer = await self.receive()
        assert isinstance(answer, AcceptConnection | RejectConnection)
        return answer

    def send(self, event: Event) -> None:
        self.writer.write(self._connection.send(event))

    def frame(self, event: Event) -> bytes:
        """Return the bytes of a frame instead of sending it."""
        return self._connection.send(event)

    async def receive(self) -> Event | None:
        """Return the next event, None at the end of the connection."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not self._events:
                try:
                    data = await self.reader.read(65536)
                except ConnectionResetError:
                    return None
                if not data:
                    return None
                self._connection.receive_data(data)
                self._events += self._connection.events()
        return self._events.pop(0)

    async def expect_close(self, code: int) -> None:
        """Wait for the Close frame and the end of the connection; pass over messages."""
        event = await self.receive()
        while isinstance(event, Message):
            event = await self.receive()
        assert isinstance(event, CloseConnection), event
        assert event.code == code, event
        assert await self.receive() is None

    @property
    def has_end(self) -> bool:
        return has_end(self.reader)

    def close(self) -> None:
        self.writer.close()

    def is_of_this_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    def cut(self) -> None:
        self.writer.transport.abort()

    async def rejection(self) -> str:
        """Return the text that explains a refused request."""
        text = b""
        while isinstance(event := await self.receive(), RejectData):
            text += event.data
        return text.decode()

    def mqtt(self, level: int = 5) -> Client:
        """Return an MQTT client on this connection: a write is a frame."""
        stream = cast("Any", _Stream(self))
        return Client(stream, stream, level)


class _Stream:
    """What the harness's client asks of its reader and its writer."""

    def __init__(self, client: WebSocketClient) -> None:
        self._client = client
        self.transport = client.writer.transport

    @property
    def _eof(self) -> bool:  # as a stream of asyncio has it, of which `has_end` asks
        return has_end(self._client.reader)

    async def read(self, _size: int) -> bytes:
        while (event := await self._client.receive()) is not None:
            if isinstance(event, BytesMessage):
                return bytes(event.data)
            if isinstance(event, CloseConnection):
                break
            assert isinstance(event, Ping | Pong), event
        return b""

    def write(self, data: bytes) -> None:
        self._client.send(BytesMessage(data))

    def close(self) -> None:
        self._client.writer.close()
