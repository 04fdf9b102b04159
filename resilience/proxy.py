"""A TCP proxy between the clients and one part, that can fail as networks do."""

import asyncio
import contextlib
import socket
import struct
from typing import Final

CHUNK: Final = 16_384
WAITING: Final = 64
"""Chunks on their way in one direction of a connection; then the sender waits."""

_RESET: Final = struct.pack("ii", 1, 0)


class FaultProxy:
    """Listens on a port of its own for one part; see `target.Network`.

    Args:
        host: Host that the part listens at.
        port: Port that the part listens at.
    """

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._rate: int | None = None
        self._delay = 0.0

    async def start(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=CHUNK)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        for writer in list(self._writers):
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    def hold(self, *, held: bool) -> None:
        if held:
            self._open.clear()
        else:
            self._open.set()

    def slow(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second

    def delay(self, seconds: float) -> None:
        self._delay = seconds

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to, limit=CHUNK)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._writers.update(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer, to_client=False))
                group.create_task(self._pump(far_reader, writer, to_client=True))
        except* OSError:
            pass
        finally:
            self._writers.difference_update(pair)
            for each in pair:
                each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_client: bool
    ) -> None:
        """Carry bytes one way: read at once, write when they are due."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING)
        loop = asyncio.get_running_loop()
        writing = asyncio.create_task(self._write(waiting, writer, to_client=to_client))
        try:
            while data := await reader.read(CHUNK):
                await waiting.put((loop.time() + self._delay, data))
            await waiting.put((loop.time() + self._delay, b""))
            await writing
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await writing

    async def _write(
        self,
        waiting: "asyncio.Queue[tuple[float, bytes]]",
        writer: asyncio.StreamWriter,
        *,
        to_client: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await waiting.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._open.wait()
            if not data:
                if not writer.is_closing() and writer.can_write_eof():
                    writer.write_eof()
                return
            while data:
                await self._open.wait()
                rate = self._rate if to_client else None
                size = len(data) if rate is None else max(1, rate // 20)
                writer.write(data[:size])
                await writer.drain()
                if rate is not None:
                    await asyncio.sleep(0.05)
                data = data[size:]
