"""Many sessions come back after a long absence: read for together, served one group at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.history import gaps
from ingest.gateway.lake.reader import LakeReader
from ingest.gateway.sessions import resuming, slow_clients
from ingest.protocol.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from ingest.protocol.reason_codes import SubackReasonCode
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import INBOUND, decode_message
from mqlake.tables.catalogue import MESSAGES
from tests.ingest.gateway.harness import Client, Harness, new_log, running_gateway, until
from tests.ingest.gateway.lake.tables import append, row_of
from tests.ingest.gateway.test_slow_clients import another_is_read_for

pytestmark = [pytest.mark.anyio, pytest.mark.programs]

NEVER: Any = {"session_expiry_interval": 0xFFFF_FFFF}
CLIENTS = 25
TOGETHER = 10


async def resume(harness: Harness, number: int) -> Client:
    client = await Client.open(harness.port)
    await client.handshake(f"device-{number}", clean_start=False, properties=NEVER)
    return client


def keep(log: MemoryLog, data_dir: Path, *, but_for: int) -> None:
    """Write what the log has into the table, but for its last messages."""
    rows = []
    for one in log.records(INBOUND):
        if one.key is None or one.key[:1] == b"\0" or one.key == b"default/another":
            continue
        message = decode_message(one.key, one.value, one.headers, one.timestamp_ms)
        rows.append(row_of(message, one.partition, one.offset, at_ms=one.timestamp_ms))
    append(data_dir, MESSAGES, rows[:-but_for])


class Questions:
    """Those to the table, which are answered when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        """How many filters each had."""
        self._allowed = asyncio.Semaphore(0)
        messages = LakeReader.messages

        async def ask(lake: LakeReader, tenant: str, ranges: Any, filters: Any, **more: Any) -> Any:
            self.asked.append(len(filters))
            await self._allowed.acquire()
            return await messages(lake, tenant, ranges, filters, **more)

        monkeypatch.setattr(LakeReader, "messages", ask)

    def allow(self, count: int = 1) -> None:
        for _ in range(count):
            self._allowed.release()


async def absent_devices(harness: Harness, tmp_path: Path) -> None:
    """Have sessions whose clients have gone, and two messages for each since then."""
    for number in range(CLIENTS):
        client = await resume(harness, number)
        await client.subscribe(f"device/{number}", 1)
        await client.disconnect()
    await until(lambda: harness.gateway.sessions.connected_count == 0)
    publisher = await Client.connect(harness.port, "publisher")
    for text in ("first", "second"):
        for number in range(CLIENTS):
            await publisher.publish(f"device/{number}", f"{text} {number}".encode(), 1)
    await publisher.disconnect()
    keep(harness.log, tmp_path, but_for=CLIENTS // 2)


Away = tuple[Harness, Questions]


@pytest.fixture
async def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Away]:
    """Have devices that are away, for each of which the table is asked when it comes back."""
    monkeypatch.setattr(gaps, "LONG_AWAY_SECONDS", -60.0)
    monkeypatch.setattr(resuming, "MOST_AT_ONCE", TOGETHER)
    async with running_gateway(log=new_log(), lake_dir=tmp_path) as harness:
        await absent_devices(harness, tmp_path)
        yield harness, Questions(monkeypatch)


def expected(number: int) -> list[bytes]:
    return [f"first {number}".encode(), f"second {number}".encode()]


async def served(clients: list[Client], condition: Callable[[int], bool]) -> None:
    for number, client in enumerate(clients):
        if condition(number):
            assert await client.payloads(2) == expected(number)


async def test_the_table_is_asked_once_for_many_and_each_group_is_served_at_once(
    away: Away,
) -> None:
    harness, questions = away
    clients = [await resume(harness, number) for number in range(CLIENTS)]
    await until(lambda: questions.asked)
    first = questions.asked[0]
    questions.allow()
    await served(clients, lambda number: number < first)
    await until(lambda: len(questions.asked) == 2)
    assert questions.asked[1] == TOGETHER
    questions.allow()
    await served(clients, lambda number: first <= number < first + TOGETHER)
    questions.allow(CLIENTS)
    await served(clients, lambda number: number >= first + TOGETHER)
    assert sum(questions.asked) == CLIENTS
    for client in clients:
        await client.expect_nothing()


async def test_who_has_missed_little_does_not_wait_for_long_gaps(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, questions = away
    waiting = await resume(harness, 0)
    await until(lambda: questions.asked)
    monkeypatch.undo()
    near = await resume(harness, CLIENTS)
    await near.subscribe("near", 1)
    await near.disconnect()
    near = await resume(harness, CLIENTS)
    publisher = await Client.connect(harness.port, "publisher")
    await publisher.publish("near", b"x", 1)
    assert await near.payloads(1) == [b"x"]
    questions.allow()
    assert await waiting.payloads(2) == expected(0)


async def test_a_client_that_gives_up_keeps_its_place(away: Away) -> None:
    harness, questions = away
    clients = [await resume(harness, 0)]
    await until(lambda: questions.asked == [1])
    clients += [await resume(harness, number) for number in range(1, CLIENTS)]
    clients[1].cut()
    clients[1] = await resume(harness, 1)
    questions.allow(2)
    await served(clients, lambda number: number <= TOGETHER)
    questions.allow(CLIENTS)
    await served(clients, lambda number: number > TOGETHER)


async def test_a_client_is_heard_while_its_session_is_on_its_way_back(away: Away) -> None:
    harness, questions = away
    client = await resume(harness, 0)
    for _ in range(3):
        client.send(Pingreq())
        await client.expect(Pingresp)
    gone = await resume(harness, 1)
    await until(lambda: harness.gateway.sessions.connected_count == 2)
    gone.cut()
    await until(lambda: harness.gateway.sessions.connected_count == 1)
    client.send(Subscribe(7, [Subscription("more", 1)]))  # what else it sends waits
    questions.allow(9)
    assert await client.payloads(2) == expected(0)
    assert await client.expect(Suback) == Suback(7, [SubackReasonCode.GRANTED_QOS_1])


async def test_a_client_that_goes_in_order_has_no_will_though_it_was_not_read(away: Away) -> None:
    harness, questions = away
    heir = await Client.connect(harness.port, "heir")
    await heir.subscribe("will", 1)
    client = await Client.open(harness.port)
    will = Will("will", b"gone", 1)
    await client.handshake("device-0", clean_start=False, properties=NEVER, will=will)
    await until(lambda: questions.asked)
    client.send(Disconnect())
    client.close()
    questions.allow(9)
    await until(lambda: harness.gateway.sessions.connected_count == 1)
    await heir.expect_nothing()


async def test_a_slow_client_gets_from_the_table_what_the_log_has_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_clients, "LONG_AWAY_SECONDS", -60.0)
    monkeypatch.setattr(slow_clients, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(slow_clients, "MOST_READING", 1)
    async with running_gateway(log=new_log(), lake_dir=tmp_path, max_queued_messages=1) as harness:
        client = await Client.open(harness.port)
        one_at_a_time = {**NEVER, "receive_maximum": 1}
        await client.handshake("slow", clean_start=False, properties=one_at_a_time)
        await client.subscribe("device/slow", 1)
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(20):
            await publisher.publish("device/slow", b"%d" % number, 1)
        await harness.delivered()
        await another_is_read_for(harness)  # so the first one holds no page
        keep(harness.log, tmp_path, but_for=4)
        held = [one for one in harness.inbound() if one.key == b"default/device/slow"][-4]
        harness.log.remove_before(INBOUND, held.partition, held.offset)
        assert await client.payloads(20) == [b"%d" % number for number in range(20)]
        assert harness.counters.dropped_unreadable == 0
        await client.expect_nothing()
