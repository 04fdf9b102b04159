"""How much one client may do: what is beyond it waits, is refused or ends the connection."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway import shared_limits as module
from ingest.gateway.settings import GatewaySettings
from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from ingest.protocol.reason_codes import (
    ConnackReasonCode,
    DisconnectReasonCode,
    SubackReasonCode,
)
from mqlake.credentials import make_verifier, set_user
from mqlake.errors import SettingsError
from mqlake.settings import load
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until

pytestmark = pytest.mark.anyio

GRANTED = SubackReasonCode.GRANTED_QOS_0
EXCEEDED = SubackReasonCode.QUOTA_EXCEEDED


def limits(**limits: Any) -> dict[str, Any]:
    return {"limits": GatewaySettings.model_validate({"limits": limits}).limits}


def named(*filters: str) -> list[Subscription]:
    return [Subscription(one, 0) for one in filters]


async def codes(client: Client, *filters: str) -> list[SubackReasonCode]:
    client.send(Subscribe(1, named(*filters)))
    return list((await client.expect(Suback)).reason_codes)


def is_held(harness: Harness) -> bool:
    return any(one._held for one in harness.connections())


async def test_a_session_has_no_more_subscriptions_than_it_may() -> None:
    async with running_gateway(**limits(subscriptions=3)) as harness:
        client = await Client.connect(harness.port, "alice")
        assert await codes(client, "a", "b") == [GRANTED, GRANTED]
        assert await codes(client, "c", "c", "d", "a") == [GRANTED, GRANTED, EXCEEDED, GRANTED]
        assert await codes(client, "e") == [EXCEEDED]
        client.send(Unsubscribe(2, ["a"]))
        await client.expect(Unsuback)
        assert await codes(client, "e", "f") == [GRANTED, EXCEEDED]
        other = await Client.connect(harness.port, "bob")
        assert await codes(other, "a", "b", "c") == [GRANTED] * 3, "each has its own"


@pytest.mark.parametrize("level", [3, 4], ids=["3.1", "3.1.1"])
async def test_a_client_of_3_is_told_too(level: int) -> None:
    async with running_gateway(**limits(subscriptions=1)) as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        assert await codes(client, "a", "b") == [GRANTED, SubackReasonCode.UNSPECIFIED_ERROR]


async def test_without_a_limit_a_session_has_any_number_of_subscriptions() -> None:
    async with running_gateway(**limits(subscriptions=0)) as harness:
        client = await Client.connect(harness.port, "alice")
        assert await codes(client, *(f"a/{number}" for number in range(50))) == [GRANTED] * 50


async def test_who_publishes_too_fast_is_read_no_further_and_loses_nothing() -> None:
    async with running_gateway(**limits(messages_per_second=5)) as harness:
        client = await Client.connect(harness.port, "alice", keep_alive=1)
        other = await Client.connect(harness.port, "bob")
        client.send(*(Publish("a", b"", qos=1, packet_id=number) for number in range(1, 13)))
        await until(lambda: is_held(harness))
        assert harness.counters.messages_received <= 5
        other.send(Publish("a", b"", qos=1, packet_id=1))
        await other.expect(Puback)  # nobody else waits
        for number in range(1, 13):
            assert (await client.expect(Puback)).packet_id == number
        assert harness.counters.clients_too_fast >= 2
        client.send(Pingreq())
        await client.expect(Pingresp)


async def test_who_sends_too_many_bytes_is_read_no_further_until_it_is_within() -> None:
    async with running_gateway(**limits(bytes_per_second=8192)) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Publish("a", bytes(12_000), qos=1, packet_id=1))
        await until(lambda: is_held(harness))
        await client.expect(Puback)
        assert harness.counters.clients_too_fast >= 1
        assert not is_held(harness)


async def test_who_names_too_many_filters_is_read_no_further_until_it_is_within() -> None:
    async with running_gateway(**limits(filters_per_second=2)) as harness:
        client = await Client.connect(harness.port, "alice")
        filters = [f"a/{number}" for number in range(21)]
        assert await codes(client, *filters) == [GRANTED] * 21
        assert is_held(harness)
        client.send(Unsubscribe(2, ["a/1"]), Pingreq())
        await client.expect(Unsuback)
        await client.expect(Pingresp)
        assert harness.counters.clients_too_fast >= 1


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("credentials") / "users"
    for name in ("ann", "bob"):
        set_user(path, name, make_verifier("x", iterations=4096))
    return path


async def of_user(harness: Harness, name: str, client_id: str) -> Client:
    return await Client.connect(harness.port, client_id, username=name, password=b"x")


async def test_all_connections_of_a_user_share_a_rate_and_lose_nothing(credentials: Path) -> None:
    rates = limits(user_messages_per_second=10)
    async with running_gateway(credentials_file=credentials, **rates) as harness:
        clients = [await of_user(harness, "ann", f"a{number}") for number in range(3)]
        for client in clients:
            client.send(*(Publish("a", b"", qos=1, packet_id=number) for number in range(1, 8)))
        await until(lambda: is_held(harness))
        assert harness.counters.messages_received <= 10 + len(clients)
        other = await of_user(harness, "bob", "b")
        other.send(Publish("a", b"", qos=1, packet_id=1))
        await other.expect(Puback)  # nobody else waits
        for client in clients:
            for number in range(1, 8):
                assert (await client.expect(Puback)).packet_id == number


async def test_who_comes_back_owes_what_he_owed(credentials: Path) -> None:
    rates = limits(user_messages_per_second=2, when_too_fast="disconnect")
    async with running_gateway(credentials_file=credentials, **rates) as harness:
        for client_id in ("a", "b"):
            client = await of_user(harness, "ann", client_id)
            client.send(*(Publish("a", b"", packet_id=0) for _ in range(10)))
            await client.expect_disconnect(DisconnectReasonCode.MESSAGE_RATE_TOO_HIGH)
        assert len(harness.inbound()) <= 4


async def test_all_connections_of_a_user_share_their_bytes(credentials: Path) -> None:
    rates = limits(user_bytes_per_second=8192)
    async with running_gateway(credentials_file=credentials, **rates) as harness:
        clients = [await of_user(harness, "ann", f"a{number}") for number in range(2)]
        for client in clients:
            client.send(Publish("a", bytes(6_000), qos=1, packet_id=1))
        await until(lambda: is_held(harness))
        for client in clients:
            await client.expect(Puback)


async def test_clients_of_nobody_share_nothing() -> None:
    async with running_gateway(**limits(user_messages_per_second=1)) as harness:
        client = await Client.connect(harness.port, "a", username="ann")
        client.send(*(Publish("a", b"", qos=1, packet_id=number) for number in range(1, 8)))
        for number in range(1, 8):
            assert (await client.expect(Puback)).packet_id == number
        assert not harness.counters.clients_too_fast


async def test_users_who_have_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECENT", 2)
    users = module.SharedLimits(1, 0, asyncio.get_running_loop(), list)
    (connected,) = users.of("default", "ann")
    for name in ("bob", "eve", "mallory"):
        users.of("default", name)
    assert users.of("default", "ann") == (connected,)
    assert set(users._users) == {"ann", "mallory"}


async def test_who_publishes_too_fast_is_disconnected_where_that_is_set() -> None:
    rates = limits(when_too_fast="disconnect", messages_per_second=3)
    async with running_gateway(**rates) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(*(Publish("a", b"", qos=1, packet_id=number) for number in range(1, 9)))
        while isinstance(packet := await client.receive(), Puback):
            pass  # as far as the log has answered
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is DisconnectReasonCode.MESSAGE_RATE_TOO_HIGH
        assert len(harness.inbound()) == 3, "one too many is not taken"


async def test_who_sends_too_many_bytes_is_disconnected_where_that_is_set() -> None:
    rates = limits(when_too_fast="disconnect", bytes_per_second=1024)
    async with running_gateway(**rates) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Publish("a", bytes(1500), qos=1, packet_id=1))
        await client.expect_disconnect(DisconnectReasonCode.QUOTA_EXCEEDED)
        assert not harness.inbound()


async def test_who_names_too_many_filters_is_disconnected_where_that_is_set() -> None:
    rates = limits(when_too_fast="disconnect", filters_per_second=1)
    async with running_gateway(**rates) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Subscribe(1, named(*map(str, range(30)))))
        await client.expect_disconnect(DisconnectReasonCode.QUOTA_EXCEEDED)
        assert len(harness.gateway.subscriptions) == 0


async def test_one_who_goes_while_it_waits_is_forgotten() -> None:
    async with running_gateway(**limits(bytes_per_second=1024)) as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Publish("a", bytes(500_000), qos=1, packet_id=1))
        await until(lambda: is_held(harness))
        other = await Client.connect(harness.port, "alice")  # takes it over
        await until(lambda: len(harness.gateway.connections) == 1)
        other.close()


async def test_too_many_who_connect_are_refused_before_they_are_asked() -> None:
    async with running_gateway(**limits(connects_per_second=2)) as harness:
        clients = [await Client.open(harness.port) for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(Connect(f"c{number}", protocol_level=5))
        answers = [(await client.expect(Connack)).reason_code for client in clients]
        refused = answers.count(ConnackReasonCode.CONNECTION_RATE_EXCEEDED)
        assert refused >= 1
        assert answers.count(ConnackReasonCode.SUCCESS) == 4 - refused

        async def comes_in() -> bool:
            client = await Client.open(harness.port)
            client.send(Connect("later", protocol_level=5))
            return (await client.expect(Connack)).reason_code == ConnackReasonCode.SUCCESS

        while not await comes_in():  # who is refused does not count: a storm keeps nobody out
            pass


def test_limits_are_read_from_the_file(tmp_path: Any) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[limits]\nmessages_per_second = 5\nwhen_too_fast = "disconnect"\n')
    read = load(GatewaySettings, file).limits
    assert (read.messages_per_second, read.when_too_fast) == (5, "disconnect")
    assert read.subscriptions == 100_000
    file.write_text('[limits]\nwhen_too_fast = "panic"\n')
    with pytest.raises(SettingsError, match="when_too_fast"):
        load(GatewaySettings, file)
