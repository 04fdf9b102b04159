"""Which records of a session are written: no more than whoever takes it over needs."""

from typing import Any

import pytest

from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
)
from mqlake.records.messages import SESSIONS
from mqlake.records.sessions import NEVER_EXPIRES
from tests.ingest.gateway.harness import Client, Harness, new_log, running_gateway, until

pytestmark = pytest.mark.anyio

KEPT: dict[str, Any] = {"properties": {"session_expiry_interval": NEVER_EXPIRES}}
NOTHING_OWED: dict[str, Any] = {"retain_handling": 2}
"""Retained messages that a subscription is owed are part of the progress."""


class Alice:
    """Comes and goes, and knows what was written of her session meanwhile."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._seen = 0

    async def connect(self, **fields: Any) -> Client:
        client = await Client.open(self._harness.port)
        self.connack: Connack = await client.handshake("alice", **fields)
        return client

    async def gone(self) -> None:
        """Wait until the log has what is written of a connection that has ended."""
        await until(lambda: self._harness.gateway.sessions.is_idle)
        await until(lambda: not self._harness.writer.queued())
        self._harness.gateway.sessions.end_claims()
        await until(lambda: not self._harness.writer.queued())

    def written(self) -> list[str]:
        """Return the new records in their order, each as what it is, `-` if it ends that."""
        records = [
            record
            for record in self._harness.log.records(SESSIONS)
            if record.key is not None and record.key.endswith(b"/default/alice")
        ]
        new, self._seen = records[self._seen :], len(records)
        kinds = ((one.key or b"").decode().partition("/")[0] for one in new)
        return [kind + "-" * (one.value is None) for kind, one in zip(kinds, new, strict=True)]


async def test_a_session_with_nothing_to_miss_has_no_progress() -> None:
    async with running_gateway() as harness:
        alice = Alice(harness)
        for session_present in (False, True):
            client = await alice.connect(clean_start=False, **KEPT)
            assert alice.connack.session_present is session_present
            await client.publish("a/b", b"1", 1)
            await client.disconnect()
            await alice.gone()
            assert sorted(alice.written()) == ["c", "c-", "s", "s"]


async def test_who_is_back_before_his_claim_has_ended_claims_in_its_place() -> None:
    async with running_gateway() as harness:
        alice = Alice(harness)
        for _ in range(2):
            client = await alice.connect(clean_start=False, **KEPT)
            await client.expect_answered()
            await client.disconnect()
            await until(lambda: harness.gateway.sessions.is_idle)
        await alice.gone()
        written = alice.written()
        assert written.count("c") == 2
        assert 1 <= written.count("c-") <= 2  # one that was written is not waited for
        assert written[-2:].count("c-") == 1


async def test_a_gateway_that_ends_leaves_no_claims() -> None:
    """Also of clients who went before the log had told of their sessions."""
    log = new_log()
    async with running_gateway(log=log) as harness:
        for number in range(20):
            client = await Client.open(harness.port)
            client.send(Connect(f"c{number}", 5, clean_start=False, **KEPT))
            if number % 2:
                client.send(Disconnect())
            await client.expect(Connack)
    last = {record.key or b"": record.value for record in log.records(SESSIONS)}
    assert sum(key.startswith(b"s/") for key in last) == 20
    assert {value for key, value in last.items() if key.startswith(b"c/")} == {None}


async def test_with_the_first_subscription_stands_from_where_on_it_is_read_for() -> None:
    async with running_gateway() as harness:
        alice = Alice(harness)
        client = await alice.connect(**KEPT)
        await until(lambda: "c-" in alice.written())
        await client.subscribe("a/b", 1, **NOTHING_OWED)
        assert alice.written() == ["p", "s"]
        await client.subscribe("a/c", 1, **NOTHING_OWED)
        assert alice.written() == ["s"]


@pytest.mark.parametrize("is_back", [False, True], ids=["new", "back without subscriptions"])
async def test_what_comes_after_the_first_subscription_is_not_missed(is_back: bool) -> None:
    async with running_gateway() as harness:
        alice = Alice(harness)
        client = await alice.connect(**KEPT)
        if is_back:
            await client.disconnect()
            client = await alice.connect(clean_start=False, **KEPT)
            assert alice.connack.session_present
        await client.subscribe("a/b", 1, **NOTHING_OWED)
        client.cut()
        await alice.gone()
        bob = await Client.connect(harness.port, "bob")
        await bob.publish("a/b", b"missed", 1)
        back = await alice.connect(clean_start=False, **KEPT)
        assert (await back.message()).payload == b"missed"


async def test_an_exchange_of_a_session_without_subscriptions_goes_on() -> None:
    async with running_gateway() as harness:
        alice = Alice(harness)
        client = await alice.connect(**KEPT)
        client.send(Publish("a/b", b"once", 2, packet_id=7))
        await client.expect(Pubrec)
        client.cut()
        await alice.gone()
        back = await alice.connect(clean_start=False, **KEPT)
        back.send(Publish("a/b", b"once", 2, dup=True, packet_id=7))
        assert await back.expect(Pubrec) == Pubrec(7)
        back.send(Pubrel(7))
        assert await back.expect(Pubcomp) == Pubcomp(7)
        assert [record.value for record in harness.inbound()] == [b"once"]


async def test_a_session_that_has_only_a_will_has_no_progress_to_end() -> None:
    async with running_gateway() as harness:
        alice = Alice(harness)
        client = await alice.connect(will=Will("w", b""))
        await until(lambda: "c-" in alice.written())
        await client.disconnect()
        await alice.gone()
        assert alice.written() == ["s-"]
