"""Gateways that are gone for good: what they left is settled before their routes and topics go."""

import asyncio
import json

import pytest

from ingest.gateway.log.partitions import Partitions
from ingest.gateway.process.retiring import Retirement, Unsettled, withdraw_routes_of_ended
from mqlake.clock import SystemClock
from mqlake.errors import LogError, OperationalError
from mqlake.log.contract import LogAccess
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.records.messages import GATEWAYS, ROUTES, SESSIONS, Route, delivery_topic, route_key
from tests.ingest.gateway.harness import (
    PARTITIONS,
    SHARDS,
    Client,
    FakeHost,
    running_gateway,
    stored_session,
    until,
)
from tests.ingest.gateway.test_share_groups import collect, member, publish, two_gateways
from tests.ingest.gateway.test_survival import NEVER, SECOND

pytestmark = pytest.mark.anyio


async def log_with_routes(
    *gateways: str,
) -> tuple[MemoryLog, MemoryLogReader, MemoryLogWriter]:
    log = MemoryLog()
    log.create(ROUTES, 1)
    log.create(GATEWAYS, 1)
    writer = MemoryLogWriter(log)
    for gateway in gateways:
        for topic_filter in ("plant/#", "$share/group/plant/#"):
            key = route_key(Route(gateway, "default", topic_filter))
            await writer.append_durably(ROUTES, key, b"1", [])
    return log, MemoryLogReader(log), writer


async def say(writer: MemoryLogWriter, gateway: str, host: FakeHost) -> None:
    word = {"incarnation": "1", "epoch": 1, "process": host.identity, "state": "serving"}
    await writer.append_durably(GATEWAYS, gateway.encode(), json.dumps(word).encode(), [])


async def test_of_gateways_that_have_ended_the_routes_of_share_groups_stay() -> None:
    _, reader, writer = await log_with_routes("gateway-1", "gateway-2", "gateway-10")
    assert await withdraw_routes_of_ended(reader, writer, ["gateway-1"], FakeHost()) == 2
    left = await reader.read_compacted(ROUTES)
    assert sorted(left) == [
        b"gateway-1/default/$share/group/plant/#",
        b"gateway-1/default/plant/#",
        b"gateway-10/default/$share/group/plant/#",
        b"gateway-2/default/$share/group/plant/#",
    ]
    assert await withdraw_routes_of_ended(reader, writer, ["gateway-1"], FakeHost()) == 0


async def test_the_routes_of_a_gateway_that_may_still_run_stay() -> None:
    _, reader, writer = await log_with_routes("gateway-2", "gateway-3")
    ended, elsewhere = FakeHost(), FakeHost()
    ended.kill()
    await say(writer, "gateway-2", ended)
    await say(writer, "gateway-3", elsewhere)
    assert await withdraw_routes_of_ended(reader, writer, ["gateway-1"], FakeHost()) == 1
    assert b"gateway-3/default/plant/#" in await reader.read_compacted(ROUTES)


async def test_a_log_that_refuses_is_an_error() -> None:
    log, reader, writer = await log_with_routes("gateway-2")
    log.fail_next(LogError("no space left", definite=True))
    with pytest.raises(LogError, match="no space left"):
        await withdraw_routes_of_ended(reader, writer, ["gateway-1"], FakeHost())


class Retiring:
    """Somebody who retires the second gateway."""

    def __init__(self, log: MemoryLog, name: str = SECOND) -> None:
        self.log = log
        self.told: list[Unsettled] = []
        self.has_removed = False
        self.writer = MemoryLogWriter(log)
        access = LogAccess(self.writer, lambda: MemoryLogReader(log), MemoryRangeReader(log))
        self.retirement = Retirement(
            name,
            access,
            Partitions(PARTITIONS, SHARDS, PARTITIONS),
            10.0,
            SystemClock(),
            FakeHost(),
            self._ensure,
            self._remove,
        )

    async def _ensure(self) -> None:
        self.log.create(delivery_topic(SECOND), 1)

    async def _remove(self) -> None:
        self.has_removed = True

    async def run(self, timeout_seconds: float = 60.0) -> None:
        await self.retirement.run(timeout_seconds, self.told.append)

    async def left_in_log(self) -> list[bytes]:
        """Return the keys of what the log still has of the gateway."""
        reader = MemoryLogReader(self.log)
        keys = [*await reader.read_compacted(ROUTES), *await reader.read_compacted(GATEWAYS)]
        keys += await reader.read_compacted(SESSIONS)
        await reader.close()
        return [
            key for key in keys if key.startswith(SECOND.encode()) or key[2:] == SECOND.encode()
        ]


async def test_a_gateway_that_is_gone_is_retired_when_all_it_held_is_settled() -> None:
    async with two_gateways() as (first, second):
        away = await Client.connect(second.port, "alice", clean_start=False, properties=NEVER)
        await away.subscribe("b/#", 1)
        there = await member(first, "here")
        gone = await member(second, "there", kept=True)
        await publish(first, 6)
        await second.delivered()
        await second.kill()
        retiring = Retiring(first.log)
        await retiring.run()
        assert retiring.has_removed
        assert await retiring.left_in_log() == []
        session = stored_session(first)
        assert session is not None
        assert not session.connected
        # Nothing that was given to the member that is gone is forgotten.
        back = await member(first, "there", kept=True)
        found = await collect(6, there, back)
        assert sorted(found) == [b"%d" % number for number in range(6)]
        del gone
        alice = await Client.open(first.port)
        connack = await alice.handshake("alice", clean_start=False, properties=NEVER)
        assert connack.session_present


async def test_a_gateway_that_is_there_is_not_retired() -> None:
    async with two_gateways() as (first, second):
        retiring = Retiring(first.log)
        with pytest.raises(OperationalError, match="gateway-2 is running"):
            await retiring.run()
        assert not retiring.has_removed
        await until(lambda: second.gateway.status.health()[0])


async def test_nobody_can_settle_what_the_last_gateway_held() -> None:
    async with running_gateway(name=SECOND) as only:
        log = only.log
        await only.kill()
        with pytest.raises(OperationalError, match="there is no other gateway"):
            await Retiring(log).run()


async def test_a_gateway_that_nobody_knows_is_an_error() -> None:
    async with two_gateways() as (first, _):
        with pytest.raises(OperationalError, match="knows no gateway gateway-7"):
            await Retiring(first.log, "gateway-7").run()


async def test_a_share_group_whose_members_are_away_misses_nothing() -> None:
    async with two_gateways() as (first, second):
        gone = await member(second, "there", kept=True)
        await publish(first, 2)
        await second.delivered()
        await second.kill()
        retiring = Retiring(first.log)
        run = asyncio.create_task(retiring.run())
        await publish(first, 4, first=2)
        await run
        await publish(first, 3, first=6)
        assert await retiring.left_in_log() == []
        back = await member(first, "there", kept=True)
        found = {int(payload) for payload in await collect(9, back)}
        assert found == set(range(9))
        del gone


async def test_what_nobody_has_settled_in_time_is_told_and_the_name_is_free_again() -> None:
    async with two_gateways() as (first, second):
        await second.kill()
        first.log.hold_reports_of(first.writer)
        retiring = Retiring(first.log)
        with pytest.raises(OperationalError, match="4 shards whose owner has not answered"):
            await retiring.run(timeout_seconds=2.0)
        assert not retiring.has_removed
        assert SECOND.encode() not in await MemoryLogReader(first.log).read_compacted(GATEWAYS)
        first.log.release_reports()
        await Retiring(first.log).run()


async def test_who_loses_the_name_meanwhile_leaves_it_to_the_gateway_that_has_it() -> None:
    async with two_gateways() as (first, second):
        await second.kill()
        first.log.hold_reports_of(first.writer)
        retiring = Retiring(first.log)
        run = asyncio.create_task(retiring.run())
        await until(lambda: Unsettled(0, 0, SHARDS) in retiring.told)
        word = {"incarnation": "later", "epoch": 99, "state": "serving"}
        first.log.store(GATEWAYS, SECOND.encode(), json.dumps(word).encode(), [], 1, 0)
        with pytest.raises(OperationalError, match="another gateway named gateway-2 has started"):
            await run
        assert SECOND.encode() in await MemoryLogReader(first.log).read_compacted(GATEWAYS)
