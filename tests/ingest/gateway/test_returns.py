"""A crowd comes and goes while the log grows: each gets every message of its topic once, in order.

What one has missed is mostly known from another, and the rest comes live.
"""

import asyncio
import random
import re
from typing import Any

import pytest

from bench.load.session_client import SessionClient, publish
from mqlake.log.contract import Missing
from mqlake.log.memory import MemoryRangeReader
from tests.ingest.gateway.harness import running_gateway
from tests.pace import within
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.promise]

CLIENTS = 40
ROUNDS = 6


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def payload(number: int, count: int) -> bytes:
    return b"%d of %d" % (count, number)


async def test_a_crowd_that_comes_and_goes_misses_nothing() -> None:
    rng = random.Random(48)
    async with running_gateway() as harness:
        address = f"127.0.0.1:{harness.port}"
        clients = [SessionClient(f"device-{number}") for number in range(CLIENTS)]
        for number, client in enumerate(clients):
            await client.connect(address)
            await client.subscribe(f"device/{number}/{'+' if number % 3 else 'cmd'}")
            await client.disconnect()
        published = [0] * CLIENTS

        def more() -> list[tuple[str, bytes]]:
            messages = []
            for _ in range(3 * CLIENTS):
                number = rng.randrange(CLIENTS)
                messages.append((f"device/{number}/cmd", payload(number, published[number])))
                messages.append((f"others/{number}", b""))
                published[number] += 1
            return messages

        async def come_and_go(number: int) -> None:
            client = clients[number]
            await asyncio.sleep(rng.random() / 20)  # no two come at once, some together
            async with asyncio.timeout(within(20)):
                assert await client.connect(address)
                await client.receive(published[number])
                await client.disconnect()

        for round_ in range(ROUNDS):
            await publish(address, f"before-{round_}", more())
            some = rng.sample(range(CLIENTS), rng.randint(1, CLIENTS))
            during = publish(address, f"during-{round_}", more())
            await asyncio.gather(during, *map(come_and_go, some))
        await asyncio.gather(*map(come_and_go, range(CLIENTS)))
        for number, client in enumerate(clients):
            wanted = [payload(number, count) for count in range(published[number])]
            assert list(client.arrivals) == wanted
            assert not client.repeated


async def test_how_many_are_still_read_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    may_read = asyncio.Event()
    read_range = MemoryRangeReader.read_range

    async def read_later(reader: MemoryRangeReader, *args: Any, **options: Any) -> list[Missing]:
        await may_read.wait()
        return await read_range(reader, *args, **options)

    def told() -> str:
        return status.health()[1]

    async with running_gateway() as harness:
        status, address = harness.gateway.status, f"127.0.0.1:{harness.port}"
        clients = [SessionClient(f"device-{number}") for number in range(3)]
        for client in clients:
            await client.connect(address)
            await client.subscribe("cmd")
            await client.disconnect()
        await publish(address, "publisher", [("cmd", b"go")])
        monkeypatch.setattr(MemoryRangeReader, "read_range", read_later)
        for client in clients:
            await client.connect(address)
        await until(lambda: status.gauges()["sessions_catching_up"] == 3)
        assert status.heartbeat().sessions_catching_up == 3
        assert ", 3 sessions get what they missed (0/s)" in told()
        status.counters.sessions_caught_up += 1  # as another one of them
        assert re.search(r", 3 sessions get what they missed \(\d+/s, \d+ s left\)", told())
        may_read.set()
        for client in clients:
            await client.receive(1)
        await until(lambda: not status.gauges()["sessions_catching_up"])
        assert status.counters.sessions_caught_up == 4
        assert "missed" not in told()
