"""A page of Prometheus metrics that a test sets, as a node with nothing else offers it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.ingest.gateway.harness import free_port


class MetricsPage:
    """Serves `text` at `url`; below it, at the path of a node's name, its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/metrics"
        self.text = ""
        self.of: dict[str, str] = {}
        self.status = "200 OK"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = await reader.readuntil(b"\r\n\r\n")
            name = request.split()[1].decode().rpartition("/")[2]
            text = self.of.get(name, self.text)
            writer.write(f"HTTP/1.0 {self.status}\r\n\r\n{text}".encode())
            await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator["MetricsPage"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        try:
            yield self
        finally:
            server.close()
