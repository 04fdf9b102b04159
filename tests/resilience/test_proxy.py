"""The proxy does to a connection what its faults promise."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from resilience.proxy import FaultProxy

TURNS = 100
"""Of the event loop, in which all sides are: an echo takes fewer."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo_through_proxy() -> AsyncIterator[tuple[FaultProxy, Streams]]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
    try:
        yield proxy, (reader, writer)
    finally:
        writer.close()
        await proxy.stop()
        server.close()


def through(test: Callable[[FaultProxy, Streams], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), echo_through_proxy() as (proxy, streams):
            await test(proxy, streams)

    asyncio.run(main())


def test_bytes_go_both_ways_and_the_end_too() -> None:
    async def test(_proxy: FaultProxy, streams: Streams) -> None:
        reader, writer = streams
        data = bytes(range(256)) * 2_000
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data

    through(test)


def test_a_reset_is_an_error_and_not_an_end() -> None:
    async def test(proxy: FaultProxy, streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await reader.read()

    through(test)


def test_what_is_held_comes_later_and_whole() -> None:
    async def test(proxy: FaultProxy, streams: Streams) -> None:
        reader, writer = streams
        proxy.hold(held=True)
        writer.write(b"abc")
        for _ in range(TURNS):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await reader.readexactly(1)
        proxy.hold(held=False)
        assert await reader.readexactly(3) == b"abc"

    through(test)


def test_a_delay_counts_both_ways_and_holds_no_byte_up_behind_another() -> None:
    async def test(proxy: FaultProxy, streams: Streams) -> None:
        reader, writer = streams
        loop = asyncio.get_running_loop()
        proxy.delay(0.1)
        start = loop.time()
        for _ in range(10):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.001)
        assert await reader.readexactly(10) == b"x" * 10
        assert loop.time() - start >= 0.2

    through(test)


def test_a_slow_reader_gets_no_more_than_its_rate() -> None:
    async def test(proxy: FaultProxy, streams: Streams) -> None:
        reader, writer = streams
        loop = asyncio.get_running_loop()
        proxy.slow(20_000)
        start = loop.time()
        writer.write(b"x" * 5_000)
        await reader.readexactly(5_000)
        # The first slice is not waited for.
        assert loop.time() - start >= 4_000 / 20_000

    through(test)
