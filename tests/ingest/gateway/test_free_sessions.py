"""Clean sessions: begun by the owner of their shard without a record of them, or claimed."""

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from ingest.protocol.packets import Connack, Connect
from ingest.protocol.reason_codes import DisconnectReasonCode
from ingest.session.shard.subscription_records import MOST_IN_SESSION
from mqlake.clock import ManualClock
from mqlake.records.messages import SESSIONS
from mqlake.records.shards import claim_key
from tests.ingest.gateway.harness import SHARDS, Client, Harness, running_gateway, until
from tests.ingest.gateway.test_many_subscriptions import use_records
from tests.ingest.gateway.test_survival import (
    FIRST,
    LEASE_SECONDS,
    SECOND,
    die_out,
    paused,
    publish,
    seconds_pass,
    site,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


def claims(harness: Harness, client_id: str) -> list[bytes | None]:
    """Return what the log has of claims of a client."""
    key = claim_key("default", client_id)
    return [record.value for record in harness.log.records(SESSIONS) if record.key == key]


@asynccontextmanager
async def two(clock: ManualClock) -> "AsyncIterator[tuple[Harness, Harness]]":
    """Two gateways with half of the shards each."""
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=SECOND, clock=clock) as second,
        running_gateway(log=log, router=router, name=FIRST, clock=clock) as first,
    ):
        both = (first.gateway, second.gateway)
        await until(lambda: all(len(one.shards.owned) == SHARDS // 2 for one in both))
        yield first, second


def owned_by(harness: Harness) -> str:
    """Return a client whose session's shard a gateway owns."""
    return next(
        client_id
        for client_id in (f"client-{number}" for number in range(100))
        if harness.gateway.shards.owned_shard(("default", client_id)) is not None
    )


async def subscribe_to_many(client: Client) -> None:
    """Subscribe to more than the record of a session would hold, `a/b` last."""
    for number in range(MOST_IN_SESSION):
        await client.subscribe(f"plant/{number}", 1)
    await client.subscribe("a/b", 1)


async def test_a_clean_session_leaves_nothing_in_the_log() -> None:
    async with running_gateway() as harness:
        await use_records(harness)
        before = len(harness.log.records(SESSIONS))
        client = await Client.connect(harness.port, "alice")
        await subscribe_to_many(client)
        await client.disconnect()
        again = await Client.connect(harness.port, "alice")
        await again.disconnect()
        await harness.delivered()
        assert len(harness.log.records(SESSIONS)) == before


async def test_a_clean_session_is_taken_over_at_another_gateway() -> None:
    async with two(ManualClock()) as (first, second):
        client_id = owned_by(first)
        old = await Client.connect(first.port, client_id)
        new = await Client.connect(second.port, client_id)
        await old.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        await new.expect_nothing()


async def test_a_clean_session_is_taken_over_by_one_that_is_kept() -> None:
    async with running_gateway() as harness:
        old = await Client.connect(harness.port, "alice")
        new = await Client.open(harness.port)
        connack = await new.handshake("alice", properties={"session_expiry_interval": 100})
        assert not connack.session_present
        await old.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)


async def test_a_clean_session_is_claimed_when_its_shard_changes_its_owner() -> None:
    clock = ManualClock()
    async with two(clock) as (first, second):
        client_id = owned_by(first)
        await seconds_pass(clock, first, second)
        await use_records(first, second)
        client = await Client.connect(first.port, client_id)
        await subscribe_to_many(client)
        assert claims(first, client_id) == []
        with paused(first):
            for _ in range(5):
                await seconds_pass(clock, second)
            assert set(second.gateway.shards.owned) == set(range(SHARDS))
        await until(lambda: claims(first, client_id))
        await publish(second, b"1")
        assert await client.payloads(1) == [b"1"]
        await client.disconnect()
        await until(lambda: claims(first, client_id)[-1] is None)


async def test_a_clean_session_that_moved_while_its_gateway_stood_still_gets_nothing_there() -> (
    None
):
    clock = ManualClock()
    async with two(clock) as (first, second):
        client_id = owned_by(first)
        old = await Client.connect(first.port, client_id)
        await old.subscribe("a/b", 1)
        with paused(first):
            for _ in range(5):
                await seconds_pass(clock, second)
            new = await Client.connect(second.port, client_id)
            await new.subscribe("a/b", 1)
            await publish(second, b"1")
        assert await new.payloads(1) == [b"1"]
        await old.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        await new.expect_nothing()


async def test_a_client_is_not_welcomed_to_a_session_that_others_have_taken() -> None:
    clock = ManualClock()
    async with two(clock) as (first, second):
        client_id = owned_by(second)
        old = await Client.open(first.port)
        first.gateway.reader.pause()  # before the grant comes
        old.send(Connect(client_id, 5))
        await until(lambda: claims(first, client_id))
        with paused(first):
            await die_out(clock, second)
            await until(lambda: claims(first, client_id)[-1] is None)
            new = await Client.connect(second.port, client_id)
        assert not isinstance(await old.receive(), Connack)
        await new.expect_nothing()


async def test_a_clean_session_outlives_a_log_that_is_away_for_longer_than_the_lease() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/b", 1)
        harness.log.hold_reports()
        clock.advance(10 * LEASE_SECONDS)
        lease = harness.gateway.lease
        assert not lease.may_deliver()
        harness.log.release_reports()
        await until(lease.may_deliver)
        await publish(harness, b"1")
        assert await client.payloads(1) == [b"1"]
