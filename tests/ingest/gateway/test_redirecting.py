"""Clients that are pointed to the gateway which owns their shard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from ingest.gateway.clients.redirecting import AGAIN_SECONDS, MAX_REDIRECTED, Redirecting
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.listeners import TcpListener, WebSocketListener, advertised
from ingest.protocol.reason_codes import ConnackReasonCode
from ingest.session.placement import ShardPlacement
from mqlake.clock import ManualClock
from mqlake.records.shards import shard_of
from tests.ingest.gateway.harness import (
    Client,
    Harness,
    MemoryRouter,
    free_port,
    new_log,
    running_gateway,
    until,
)
from tests.ingest.gateway.listeners.websocket_client import WebSocketClient

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def two_gateways(**settings: Any) -> AsyncIterator[tuple[Harness, Harness]]:
    """Run two that both own shards and know of each other."""
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    shared: Any = {"log": log, "router": router}
    async with (
        running_gateway(name="gateway-1", **shared, **settings) as one,
        running_gateway(name="gateway-2", **shared) as two,
    ):
        gateways = (one.gateway, two.gateway)
        await until(lambda: all(len(each.peers.owners()) == 2 for each in gateways))
        await until(lambda: all(each.shards.is_settled for each in gateways))
        yield one, two
    await router.close()


def client_of(one: Harness, other: Harness) -> str:
    """Return a client identifier whose shard the other gateway owns."""
    names = (f"client-{number}" for number in range(1_000))
    places = one.gateway.shards.places
    return next(
        name
        for name in names
        if places[shard_of("default", name, len(places))].owner == other.gateway.me.gateway
    )


async def connack_of(client: Client, client_id: str) -> tuple[int, str | None]:
    connack = await client.handshake(client_id)
    return connack.reason_code, connack.properties.get("server_reference")


async def test_a_client_is_pointed_to_the_owner_of_its_shard() -> None:
    async with two_gateways(redirect_clients=True) as (one, two):
        name = client_of(one, two)
        client = await Client.open(one.port)
        code, reference = await connack_of(client, name)
        assert code == ConnackReasonCode.USE_ANOTHER_SERVER
        assert reference == f"127.0.0.1:{two.port}"
        await client.expect_end()  # [MQTT5-3.2.2-7]
        assert await connack_of(await Client.open(two.port), name) == (0, None)
        assert one.gateway.sessions.connected_count == 0


async def test_a_client_that_comes_back_is_served() -> None:
    async with two_gateways(redirect_clients=True) as (one, two):
        name = client_of(one, two)
        assert (await connack_of(await Client.open(one.port), name))[1]
        client = await Client.open(one.port)
        assert await connack_of(client, name) == (0, None)


async def test_who_cannot_be_pointed_elsewhere_is_served() -> None:
    async with two_gateways(redirect_clients=True) as (one, two):
        name = client_of(one, two)
        for level in (3, 4):
            assert await connack_of(await Client.open(one.port, level), name) == (0, None)
        assert (await connack_of(await Client.open(one.port), ""))[0] == 0
        assert await connack_of(await Client.open(one.port), client_of(one, one)) == (0, None)


async def test_a_client_is_not_pointed_to_a_listener_of_another_kind() -> None:
    port = free_port()
    listener = WebSocketListener(kind="ws", port=port)
    async with two_gateways(redirect_clients=True, listeners=(listener,)) as (one, two):
        client = (await WebSocketClient.connect(port)).mqtt()
        assert await connack_of(client, client_of(one, two)) == (0, None)


async def test_nobody_is_pointed_elsewhere_unless_asked_for() -> None:
    async with two_gateways() as (one, two):
        assert await connack_of(await Client.open(one.port), client_of(one, two)) == (0, None)


def redirecting(clock: ManualClock, address: str = "two:1883") -> Redirecting:
    places = [ShardPlacement("two", "one")]
    return Redirecting("one", lambda: places, lambda _name, _kind: address, clock)


def test_a_client_is_pointed_elsewhere_again_after_a_while() -> None:
    clock = ManualClock()
    one = redirecting(clock)
    key = ("default", "alice")
    assert [one.elsewhere(key, "tcp") for _ in range(4)] == ["two:1883", "", "two:1883", ""]
    assert one.elsewhere(key, "tcp")
    clock.advance(AGAIN_SECONDS)
    assert one.elsewhere(key, "tcp")


def test_the_memory_of_those_pointed_elsewhere_is_bounded() -> None:
    clock = ManualClock()
    one = redirecting(clock)
    for number in range(MAX_REDIRECTED):
        assert one.elsewhere(("default", str(number)), "tcp")
    assert not one.elsewhere(("default", "one more"), "tcp")
    clock.advance(AGAIN_SECONDS)
    assert one.elsewhere(("default", "one more"), "tcp")


def test_an_owner_that_nobody_can_reach_is_no_place_to_go() -> None:
    one = redirecting(ManualClock(), address="")
    assert one.elsewhere(("default", "alice"), "tcp") == ""
    assert (
        Redirecting("one", list, lambda *_: "x", ManualClock()).elsewhere(("t", "c"), "tcp") == ""
    )


def test_listeners_are_advertised_by_the_host_that_clients_reach() -> None:
    every = TcpListener(kind="tcp", host="0.0.0.0", port=1883)
    local = TcpListener(kind="tcp", host="10.0.0.1", port=1884)
    web = WebSocketListener(kind="ws", host="::1", port=8083)
    assert advertised([every], "") == {}
    assert advertised([every, local, web], "") == {"tcp": "10.0.0.1:1884", "ws": "[::1]:8083"}
    assert advertised([every, local, web], "mqtt.example.org") == {
        "tcp": "mqtt.example.org:1883",
        "ws": "mqtt.example.org:8083",
    }


@pytest.mark.parametrize("host", ["a b", "mqtt:1883", "mqtt://a"])
def test_an_advertised_host_is_a_host(host: str) -> None:
    with pytest.raises(ValidationError, match="advertised_host"):
        GatewaySettings(advertised_host=host)
