"""A gateway that has too much to do: what it takes of whom, whom it lets in and whom it ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from ingest.gateway.limits.protection import (
    FULL_SECONDS,
    MODEST_FOR_SECONDS,
    OUT_SECONDS,
    PAUSE_SECONDS,
    Protection,
)
from ingest.gateway.load.overload import OverloadMeter
from ingest.gateway.process import gateway
from ingest.gateway.settings.overload import OverloadSettings
from ingest.protocol.packets import Connack, Connect, Disconnect, Puback, Publish
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from ingest.session.limits.credits import GRANT
from mqlake.clock import ManualClock
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until

pytestmark = pytest.mark.anyio


class Load(OverloadMeter):
    """Says what a test says."""

    def __init__(self) -> None:
        super().__init__(lambda: self.queued, lambda: 0, lambda: self.memory, lambda: 0.0)
        self.queued = 0
        self.memory = 0.0

    def note(self, seconds: float, late: float, worked: float) -> None:
        pass


class Loaded:
    """A gateway whose load a test makes up, at times that it makes up."""

    def __init__(self, harness: Harness, load: Load, clock: ManualClock) -> None:
        self.harness = harness
        self.port = harness.port
        self.load = load
        self.clock = clock
        self.protection = harness.gateway.overload

    def pass_time(self, seconds: float) -> None:
        """Have it look at its load ten times a second."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.protection.look()


@asynccontextmanager
async def loaded(highest_step: int = 4) -> AsyncIterator[Loaded]:
    settings = OverloadSettings(highest_step=highest_step)
    load, clock = Load(), ManualClock()
    with pytest.MonkeyPatch.context() as made_up:
        made_up.setattr(gateway, "OverloadMeter", lambda **_: load)
        made_up.setattr(gateway, "Protection", partial(Protection, now=clock.monotonic))
        async with running_gateway(overload=settings) as harness:
            yield Loaded(harness, load, clock)


def one(packet_id: int) -> Publish:
    return Publish("a", b"", 1, packet_id=packet_id)


async def test_who_publishes_is_read_no_further_while_the_log_is_behind() -> None:
    async with loaded() as system:
        publisher = await Client.connect(system.port, "publisher")
        reader = await Client.connect(system.port, "reader")
        system.load.queued = 40_000
        system.pass_time(0.2)
        assert system.protection.step == 2
        publisher.send(one(1), one(2))
        assert (await publisher.expect(Puback)).packet_id == 1, "it was read already"
        await until(lambda: system.protection.waiting == 1)
        await reader.expect_nothing()  # it is heard
        await Client.connect(system.port, "new")
        assert len(system.harness.inbound()) == 1
        system.load.queued = 0
        system.pass_time(0.2)
        assert (await publisher.expect(Puback)).packet_id == 2
        assert system.harness.counters.clients_waited_for_credits == 1
        system.pass_time(5.0)
        assert system.protection.step == 0


async def test_all_that_a_client_sends_comes_in_its_order_though_it_waits() -> None:
    async with loaded() as system:
        system.load.queued = 3_500
        publisher = await Client.connect(system.port, "publisher", level=4)
        system.pass_time(0.1)
        assert system.protection.step == 1
        publisher.send(*(one(number) for number in range(1, 2_001)))
        for number in range(1, 2_001):
            if system.protection.waiting:
                system.pass_time(0.1)
            assert await publisher.expect(Puback) == Puback(number)


async def test_who_goes_while_it_waits_is_forgotten() -> None:
    async with loaded() as system:
        publisher = await Client.connect(system.port, "publisher")
        system.load.queued = 40_000
        system.pass_time(0.1)
        publisher.send(one(1))
        await publisher.expect(Puback)
        assert system.protection.waiting == 1
        again = await Client.connect(system.port, "publisher")
        await publisher.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        await until(lambda: not system.protection.waiting)
        await again.expect_nothing()


@pytest.mark.parametrize("level", [3, 4, 5])
async def test_nobody_is_let_in_while_the_queue_has_been_full_for_seconds(level: int) -> None:
    async with loaded() as system:
        here = await Client.connect(system.port, "here", level=level)
        system.load.queued = 90_000
        system.pass_time(FULL_SECONDS - 0.2)
        await Client.connect(system.port, "just so", level=level)
        system.pass_time(0.4)
        assert system.protection.step == 3
        client = await Client.open(system.port, level)
        client.send(Connect("new", level))
        connack = await client.expect(Connack)
        busy, unavailable = ConnackReasonCode.SERVER_BUSY, ConnackReasonCode.SERVER_UNAVAILABLE
        assert connack.reason_code is (busy if level == 5 else unavailable)
        assert await client.is_closed()
        await here.expect_nothing()
        system.load.queued = 50_000
        system.pass_time(1.0)
        assert system.protection.step == 3, "it is full until there is room for some"
        system.load.queued = 900
        system.pass_time(0.1)
        await Client.connect(system.port, "new", level=level)


async def test_who_holds_most_memory_is_disconnected_and_nobody_who_holds_little() -> None:
    async with loaded() as system:
        slow = await Client.connect(
            system.port, "slow", properties={"receive_maximum": 1}, clean_start=True
        )
        await slow.subscribe("a", 1)
        other = await Client.connect(system.port, "other", level=4)
        await other.subscribe("a", 1)
        other.send(*(one(number) for number in range(1, 1_101)))
        connection = system.harness.connection("slow")
        # A turn of the loop does not take that many at once: time has to pass.

        def is_held() -> bool:
            system.pass_time(0.1)
            return connection.held_bytes > 1024 * 1024

        await until(is_held)
        system.load.memory = 1.0
        system.pass_time(OUT_SECONDS - 0.2)
        await slow.expect(Publish)
        await slow.expect_nothing()
        system.pass_time(0.4)
        assert system.protection.step == 4
        assert (await slow.expect(Disconnect)).reason_code is DisconnectReasonCode.QUOTA_EXCEEDED
        await until(lambda: len(system.harness.events("client.disconnected")) == 1)
        (event,) = system.harness.events("client.disconnected")
        assert event["client_id"] == "slow"
        assert event["reason"].startswith("the gateway is short of memory")
        system.pass_time(5 * PAUSE_SECONDS)
        assert system.harness.counters.clients_disconnected_for_memory == 1
        assert not system.harness.connection("other").is_closing
        system.load.memory = 0.5
        system.pass_time(0.1)
        assert system.protection.step < 3


@pytest.mark.parametrize("highest_step", [0, 1, 2, 3])
async def test_it_goes_no_further_than_it_may(highest_step: int) -> None:
    async with loaded(highest_step) as system:
        publisher = await Client.connect(system.port, "publisher")
        system.load.queued = 100_000
        system.load.memory = 2.0
        system.pass_time(10.0)
        assert system.protection.step == highest_step
        assert (system.protection.credits_per_second == 0) == (highest_step >= 2)
        publisher.send(one(1), one(2))
        await publisher.expect(Puback)
        if highest_step < 2:
            system.pass_time(0.1)
            await publisher.expect(Puback)
        else:
            await until(lambda: system.protection.waiting)
        assert (system.protection.refusal() is not None) == (highest_step >= 3)


async def test_a_client_that_publishes_little_is_looked_after_for_a_while() -> None:
    async with loaded() as system:
        client = await Client.connect(system.port, "modest")
        system.pass_time(1.0)
        client.send(one(1))
        await client.expect(Puback)
        system.pass_time(1.0)
        assert not system.load.has_modest, "nobody has used his credits"
        client.send(*(one(number) for number in range(2, GRANT + 2)))
        for _ in range(GRANT):
            await client.expect(Puback)
        system.pass_time(MODEST_FOR_SECONDS - 0.1)
        assert system.load.has_modest
        system.pass_time(0.2)
        assert not system.load.has_modest
