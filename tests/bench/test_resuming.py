"""What the benchmark does with sessions, against real gateways on a log in memory."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from bench.load.session_client import SessionClient, publish
from bench.whole.resuming import ABSENT, ABSENT_MESSAGES, history, resume, resume_crowd
from tests.ingest.gateway.harness import MemoryRouter, new_log, running_gateway, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def address(port: int) -> str:
    return f"127.0.0.1:{port}"


async def test_a_client_that_missed_messages_gets_them_all() -> None:
    async with running_gateway() as harness:
        figures = await resume([address(harness.port)])
        first, last = figures.values()
        assert 0 < first <= last
        assert {figure.goal for figure in figures} == {150, 1_000}
        await until(lambda: len(harness.gateway.sessions) == 0)


async def test_a_crowd_comes_back_to_the_gateways_that_are_left() -> None:
    log = new_log("gateway-1", "gateway-2")
    router = MemoryRouter(log)
    await router.start()
    async with (
        running_gateway(log=log, router=router) as living,
        running_gateway(log=log, router=router, name="gateway-2") as ending,
    ):
        gateways = [address(living.port), address(ending.port)]
        waits = await resume_crowd(gateways, 30, ending.stop.set)
        assert len(waits) == 30
        assert all(wait > 0 for wait in waits)
        await until(lambda: len(living.gateway.sessions) == 0)
    await router.close()


async def test_a_client_is_told_of_the_end_of_its_connection() -> None:
    async with running_gateway() as harness:
        client = SessionClient("alice")
        assert not await client.connect(address(harness.port))
        await client.subscribe("a")
        waiting = asyncio.create_task(client.receive(1))
        await asyncio.sleep(0)
        client.cut()
        with pytest.raises(ConnectionError):
            await waiting
        assert await client.connect(address(harness.port))
        await publish(address(harness.port), "bob", [("a", b"1"), ("a", b"2")])
        await client.receive(2)
        assert list(client.arrivals) == [b"1", b"2"]
        await client.disconnect()
    with pytest.raises(ConnectionError):
        await client.connect(address(harness.port))


def test_a_history_has_the_messages_of_absent_clients_spread_over_an_hour() -> None:
    messages = list(history("h", 10_000))
    assert len(messages) == 10_000
    assert messages[-1].accepted_at_ms - messages[0].accepted_at_ms > 3_590_000
    own = Counter(message.topic_name.split("/")[1] for message in messages)
    assert {own[str(client)] for client in range(ABSENT)} == {ABSENT_MESSAGES}
    first = [at for at, message in enumerate(messages) if message.topic_name.startswith("h/0/")]
    assert {later - sooner for sooner, later in pairwise(first)} == {100}
