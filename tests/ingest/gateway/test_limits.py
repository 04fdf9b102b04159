"""How much one client may do: what is beyond it waits, is refused or ends the connection."""

import asyncio
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.limits import shared_limits as module
from ingest.gateway.listeners.info import ListenerInfo
from ingest.gateway.settings.gateway import GatewaySettings
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
    Will,
)
from ingest.protocol.reason_codes import (
    ConnackReasonCode,
    DisconnectReasonCode,
    SubackReasonCode,
)
from mqlake.errors import SettingsError
from mqlake.security.credentials import make_verifier, set_user
from mqlake.settings import load
from tests.ingest.gateway.harness import Client, Harness, free_port, is_read, running_gateway, until
from tests.mqlake.event_loop import SteppedLoop

pytestmark = pytest.mark.anyio

LISTENER = ListenerInfo("l", "tcp", "mqtt://l", frozenset({5}))
GRANTED = SubackReasonCode.GRANTED_QOS_0
EXCEEDED = SubackReasonCode.QUOTA_EXCEEDED


def limits(**limits: Any) -> dict[str, Any]:
    return {"limits": GatewaySettings.model_validate({"limits": limits}).limits}


def named(*filters: str) -> list[Subscription]:
    return [Subscription(one, 0) for one in filters]


async def codes(client: Client, *filters: str) -> list[SubackReasonCode]:
    client.send(Subscribe(1, named(*filters)))
    return list((await client.expect(Suback)).reason_codes)


def is_paused(harness: Harness) -> bool:
    return not all(is_read(one) for one in harness.connections())


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
        await until(lambda: is_paused(harness))
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
        await until(lambda: is_paused(harness))
        await client.expect(Puback)
        assert harness.counters.clients_too_fast >= 1
        assert not is_paused(harness)


async def test_who_names_too_many_filters_is_read_no_further_until_it_is_within() -> None:
    async with running_gateway(**limits(filters_per_second=2)) as harness:
        client = await Client.connect(harness.port, "alice")
        filters = [f"a/{number}" for number in range(21)]
        assert await codes(client, *filters) == [GRANTED] * 21
        assert is_paused(harness)
        client.send(Unsubscribe(2, ["a/1"]), Pingreq())
        await client.expect(Unsuback)
        await client.expect(Pingresp)
        assert harness.counters.clients_too_fast >= 1


async def test_a_message_costs_what_it_makes() -> None:
    """One, and one for each client that gets it: charged before the log has it."""
    async with running_gateway(**limits(deliveries_per_second=40)) as harness:
        for number in range(9):
            reader = await Client.connect(harness.port, f"r{number}")
            await reader.subscribe("wide", 0)
        client = await Client.connect(harness.port, "alice")
        for _ in range(30):
            await client.publish("narrow", b"", 1)
        assert not harness.counters.clients_too_fast
        client = await Client.connect(harness.port, "bob")
        client.send(*(Publish("wide", b"", qos=1, packet_id=number) for number in range(1, 9)))
        await until(lambda: is_paused(harness))
        assert harness.counters.messages_received <= 30 + 5
        for number in range(1, 9):
            assert (await client.expect(Puback)).packet_id == number, "nothing is lost"


async def test_who_costs_too_much_is_disconnected_where_that_is_set() -> None:
    rates = limits(when_too_fast="disconnect", deliveries_per_second=3)
    async with running_gateway(**rates) as harness:
        for number in range(9):
            await (await Client.connect(harness.port, f"r{number}")).subscribe("wide", 0)
        client = await Client.connect(harness.port, "alice")
        client.send(Publish("wide", b"", qos=1, packet_id=1))
        await client.expect_disconnect(DisconnectReasonCode.QUOTA_EXCEEDED)
        assert not harness.inbound(), "one too many is not taken"


Paid = list[tuple[str, int, str | None]]
"""Client identifier, deliveries, user."""


def note_charges(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Paid:
    """Return a list to which is added who pays for what deliveries cost after they were let in."""
    paid: Paid = []
    limits = harness.gateway.shared_limits
    charge = limits.charge

    def noting(tenant: str, client_id: str, count: int, user: str | None = None) -> None:
        paid.append((client_id, count, user))
        charge(tenant, client_id, count, user)

    monkeypatch.setattr(limits, "charge", noting)
    return paid


async def test_share_groups_cost_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(**limits(deliveries_per_second=5_000)) as harness:
        for number in range(6):  # three groups of two members
            member = await Client.connect(harness.port, f"m{number}")
            await member.subscribe(f"$share/g{number % 3}/jobs/#", 1)
        await (await Client.connect(harness.port, "all")).subscribe("jobs/#", 0)
        client = await Client.connect(harness.port, "alice")
        paid = note_charges(harness, monkeypatch)
        for _ in range(10):
            await client.publish("jobs/1", b"", 1)
        await harness.delivered()
        assert paid == [("alice", 3, None)] * 10, "it and the plain subscriber were paid before"


async def test_what_a_member_leaves_is_paid_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(**limits(deliveries_per_second=5_000)) as harness:
        leaving, staying = [await Client.connect(harness.port, name) for name in ("a", "b")]
        await leaving.subscribe("$share/g/jobs/#", 1)
        client = await Client.connect(harness.port, "alice")
        paid = note_charges(harness, monkeypatch)
        await client.publish("jobs/1", b"left", 1)
        assert (await leaving.expect(Publish)).payload == b"left"
        await staying.subscribe("$share/g/jobs/#", 1)
        leaving.cut()
        assert (await staying.message()).payload == b"left"
        assert paid == [("alice", 1, None)]


async def test_a_will_costs_what_it_makes(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = limits(user_deliveries_per_second=5_000)
    async with running_gateway(credentials_file=credentials, **rates) as harness:
        for number in range(9):
            reader = await of_user(harness, "bob", f"r{number}")
            await reader.subscribe("last", 0)
        will = Will("last", b"words", 0, False)
        dying = await Client.connect(harness.port, "dies", will=will, username="ann", password=b"x")
        paid = note_charges(harness, monkeypatch)
        dying.cut()
        await harness.delivered_count(1)
        assert paid == [("dies", 10, "ann")]


async def test_who_has_gone_leaves_his_user_and_his_tenant_to_pay() -> None:
    settings = limits(user_deliveries_per_second=50, gateway_deliveries_per_second=40)["limits"]
    loop: Any = SteppedLoop()
    shared = module.SharedLimits(settings, loop, list, lambda _: (0, 0), lambda *_: 0, "g")
    shared.charge("default", "gone", 10, "ann")
    for shares, left in zip(shared.of("default", "ann", LISTENER), (40, 30), strict=True):
        assert shares.deliveries is not None
        assert shares.deliveries.take(left, loop.time()) == 0
        assert shares.deliveries.take(1, loop.time()) > 0


async def test_retained_messages_are_paid_by_who_subscribes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paid: list[int] = []
    owes = True

    def charge(_limits: module.SharedLimits, tenant: str, client_id: str, count: int) -> float:
        assert (tenant, client_id) == ("default", "late")
        paid.append(count)
        return 0.01 if owes and sum(paid) >= 250 else 0.0

    monkeypatch.setattr(module.SharedLimits, "charge_retained", charge)
    async with running_gateway() as harness:
        publisher = await Client.connect(harness.port, "says")
        for topic in range(600):
            publisher.send(Publish(f"kept/{topic}", b"x", retain=True))
        await harness.delivered_count(600)
        client = await Client.connect(harness.port, "late")
        await client.subscribe("kept/#", 0)
        await until(lambda: sum(paid) >= 250)
        assert len(await client.payloads(sum(paid))) < 600, "a page of each shard more at most"
        await client.expect_nothing()  # no more comes, and it is heard
        owes = False
        assert len(await client.payloads(600 - sum(paid))) > 0
        assert sum(paid) == 600


async def test_retained_messages_come_from_the_clients_deliveries() -> None:
    async with running_gateway(**limits(deliveries_per_second=1_000)) as harness:
        await Client.connect(harness.port, "late")
        charge = harness.gateway.shared_limits.charge_retained
        assert charge("default", "late", 1_000) == 0.0
        assert 0.9 < charge("default", "late", 1_000) <= 1.0
        assert charge("default", "gone", 1_000) == 0.0
        assert not is_paused(harness)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("credentials") / "users"
    for name in ("ann", "bob"):
        set_user(path, name, make_verifier("x", iterations=4096))
    return path


async def of_user(harness: Harness, name: str, client_id: str, **more: Any) -> Client:
    return await Client.connect(harness.port, client_id, username=name, password=b"x", **more)


async def test_all_connections_of_a_user_share_a_rate_and_lose_nothing(credentials: Path) -> None:
    rates = limits(user_messages_per_second=10)
    async with running_gateway(credentials_file=credentials, **rates) as harness:
        clients = [await of_user(harness, "ann", f"a{number}") for number in range(3)]
        for client in clients:
            client.send(*(Publish("a", b"", qos=1, packet_id=number) for number in range(1, 8)))
        await until(lambda: is_paused(harness))
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
        await until(lambda: is_paused(harness))
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
    settings = limits(user_messages_per_second=1)["limits"]
    loop = asyncio.get_running_loop()
    users = module.SharedLimits(settings, loop, list, lambda _: (0, 0), lambda *_: 0, "g")
    (connected,) = users.of("default", "ann", LISTENER)
    gone = {name: weakref.ref(users.of("default", name, LISTENER)[0]) for name in ("bob", "eve")}
    last = weakref.ref(users.of("default", "mallory", LISTENER)[0])
    assert users.of("default", "ann", LISTENER) == (connected,)
    assert [gone["bob"](), gone["eve"]()] == [None, None]
    assert last() is not None


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
        assert harness.counters.dropped_too_fast == 1, "and told of"


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
        await until(lambda: is_paused(harness))
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


# What a session, a user, a listener and the gateway may have


async def test_the_filters_of_a_session_have_no_more_bytes_than_they_may() -> None:
    async with running_gateway(**limits(session_bytes=100)) as harness:
        client = await Client.connect(harness.port, "alice")
        assert await codes(client, "a" * 60, "b" * 60, "b" * 40) == [GRANTED, EXCEEDED, GRANTED]
        assert await codes(client, "a" * 60, "c") == [GRANTED, EXCEEDED], "an old one is no more"
        client.send(Unsubscribe(2, ["b" * 40]))
        await client.expect(Unsuback)
        assert await codes(client, "ü" * 21, "ü" * 20) == [EXCEEDED, GRANTED], "bytes, not letters"


async def test_what_a_session_brings_back_counts() -> None:
    kept = {"session_expiry_interval": 60}
    async with running_gateway(**limits(session_bytes=10)) as harness:
        client = await Client.connect(harness.port, "alice", properties=kept)
        assert await codes(client, "a" * 8) == [GRANTED]
        await client.disconnect()
        client = await Client.connect(harness.port, "alice", clean_start=False, properties=kept)
        assert await codes(client, "bbb", "bb") == [EXCEEDED, GRANTED]


@pytest.mark.parametrize(
    ("level", "code"),
    [(5, ConnackReasonCode.QUOTA_EXCEEDED), (4, ConnackReasonCode.SERVER_UNAVAILABLE)],
)
async def test_a_will_that_is_larger_than_a_session_is_refused(
    level: int, code: ConnackReasonCode
) -> None:
    async with running_gateway(**limits(session_bytes=100)) as harness:
        client = await Client.open(harness.port, level)
        answer = await client.handshake("alice", will=Will("a", bytes(100)))
        assert answer.reason_code is code
        await Client.connect(harness.port, "alice", level=level, will=Will("a", bytes(99)))


async def test_properties_of_a_will_are_bytes_of_its_session() -> None:
    pair = ("k" * 20, "v" * 20)  # 45 bytes on the wire

    def will(properties: int) -> Will:
        return Will("a", bytes(20), properties={"user_property": [pair] * properties})

    async with running_gateway(**limits(session_bytes=120)) as harness:
        client = await Client.open(harness.port)
        answer = await client.handshake("alice", will=will(3))
        assert answer.reason_code is ConnackReasonCode.QUOTA_EXCEEDED
        client = await Client.connect(harness.port, "alice", will=will(2))  # 111 bytes
        assert await codes(client, "b" * 10, "c" * 9) == [EXCEEDED, GRANTED]
    shared = limits(gateway_session_bytes=120)
    async with running_gateway(**shared) as harness:
        await Client.connect(harness.port, "alice", will=will(1))
        client = await Client.open(harness.port)
        answer = await client.handshake("bob", will=will(1))
        assert answer.reason_code is ConnackReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("is_there", [True, False])
async def test_what_waits_for_a_client_has_no_more_bytes_than_it_may(is_there: bool) -> None:
    """It waits behind a window that is used up, or for a session whose client comes back."""
    kept = {"session_expiry_interval": 60, "receive_maximum": 1}
    most = limits(queued_bytes=3000)
    async with running_gateway(when_queue_full="drop_newest", **most) as harness:
        client = await Client.connect(harness.port, "slow", properties=kept)
        await client.subscribe("a", 1)
        if not is_there:
            await client.disconnect()
            await harness.saved()
        other = await Client.connect(harness.port, "fast")
        for number in range(6):
            await other.publish("a", b"%d" % number * 1000, 1)
        await harness.delivered()
        if not is_there:
            client = await Client.connect(harness.port, "slow", clean_start=False, properties=kept)
        dropped = 2 if is_there else 3
        await until(lambda: harness.counters.dropped_queue_full == dropped)
        got = []
        for _ in range(6 - dropped):
            message = await client.message()
            got.append(message.payload[:1])
        assert got == [b"%d" % one for one in range(6 - dropped)]


async def test_a_user_has_no_more_connections_and_subscriptions_than_it_may(
    credentials: Path,
) -> None:
    most = limits(user_connections=2, user_subscriptions=3)
    async with running_gateway(credentials_file=credentials, **most) as harness:
        first, second = [await of_user(harness, "ann", f"a{number}") for number in range(2)]
        third = await Client.open(harness.port)
        answer = await third.handshake("a2", username="ann", password=b"x")
        assert answer.reason_code is ConnackReasonCode.QUOTA_EXCEEDED
        assert await codes(first, "a", "b") == [GRANTED] * 2
        assert await codes(second, "c", "d") == [GRANTED, EXCEEDED]
        bob = await of_user(harness, "bob", "b")
        assert await codes(bob, "a", "b", "c") == [GRANTED] * 3
        await first.disconnect()
        await until(lambda: len(harness.gateway.connections) == 2)
        await of_user(harness, "ann", "a2")
        assert await codes(second, "d", "e", "f") == [GRANTED, GRANTED, EXCEEDED]


async def test_a_user_is_let_in_no_more_often_than_he_may(credentials: Path) -> None:
    most = limits(user_connects_per_second=2)
    async with running_gateway(credentials_file=credentials, **most) as harness:
        answers = []
        for number in range(4):
            client = await Client.open(harness.port)
            connack = await client.handshake(f"a{number}", username="ann", password=b"x")
            answers.append(connack.reason_code)
        assert ConnackReasonCode.CONNECTION_RATE_EXCEEDED in answers
        await of_user(harness, "bob", "b")


@pytest.mark.parametrize("whose", ["listener", "gateway", "user"])
async def test_who_names_too_many_filters_together_waits(whose: str, credentials: Path) -> None:
    settings: dict[str, Any] = {"credentials_file": credentials}
    if whose == "listener":
        listener = {"kind": "tcp", "port": free_port(), "filters_per_second": 5}
        settings["listeners"] = [listener]
    else:
        settings |= limits(**{f"{whose}_filters_per_second": 5})
    async with running_gateway(**settings) as harness:
        port = settings["listeners"][0]["port"] if whose == "listener" else harness.port
        clients = [
            await Client.connect(port, f"a{number}", username="ann", password=b"x")
            for number in range(2)
        ]
        for client in clients:
            assert await codes(client, "a", "b", "c") == [GRANTED] * 3
        assert is_paused(harness)
        for client in clients:
            assert await codes(client, "d") == [GRANTED], "nothing is lost"
        assert harness.counters.clients_too_fast >= 1


@pytest.mark.parametrize("whose", ["listener", "gateway"])
@pytest.mark.parametrize("rate", ["messages", "bytes"])
async def test_what_all_clients_of_a_listener_or_gateway_send_is_paused(
    whose: str, rate: str
) -> None:
    settings: dict[str, Any] = {}
    limit = {"messages_per_second": 10} if rate == "messages" else {"bytes_per_second": 2048}
    if whose == "listener":
        settings["listeners"] = [{"kind": "tcp", "port": free_port(), **limit}]
    else:
        settings |= limits(**{f"gateway_{kind}": most for kind, most in limit.items()})
    async with running_gateway(**settings) as harness:
        port = settings["listeners"][0]["port"] if whose == "listener" else harness.port
        clients = [await Client.connect(port, f"a{number}") for number in range(3)]
        for client in clients:
            client.send(
                *(Publish("a", bytes(200), qos=1, packet_id=number) for number in range(1, 7))
            )
        await until(lambda: is_paused(harness))
        for client in clients:
            for number in range(1, 7):
                assert (await client.expect(Puback)).packet_id == number
        if whose == "listener":
            other = await Client.connect(harness.port, "other")
            for _ in range(20):
                await other.publish("a", bytes(200), 1)
            assert is_read(harness.connection("other"))


async def test_a_listener_looks_at_no_more_connects_than_it_may() -> None:
    port = free_port()
    listeners = [{"kind": "tcp", "port": port, "connects_per_second": 2}]
    async with running_gateway(listeners=listeners) as harness:
        answers = []
        for number in range(5):
            client = await Client.open(port)
            answers.append((await client.handshake(f"c{number}")).reason_code)
        assert ConnackReasonCode.CONNECTION_RATE_EXCEEDED in answers
        for number in range(5):
            await Client.connect(harness.port, f"d{number}")


@pytest.mark.parametrize("whose", ["listener", "gateway", "user"])
async def test_filters_and_wills_of_many_clients_have_no_more_bytes_than_they_may(
    whose: str, credentials: Path
) -> None:
    settings: dict[str, Any] = {"credentials_file": credentials}
    if whose == "listener":
        settings["listeners"] = [{"kind": "tcp", "port": free_port(), "session_bytes": 30}]
    else:
        settings |= limits(**{f"{whose}_session_bytes": 30})
    async with running_gateway(**settings) as harness:
        port = settings["listeners"][0]["port"] if whose == "listener" else harness.port

        async def come(client_id: str, **more: Any) -> Client:
            return await Client.connect(port, client_id, username="ann", password=b"x", **more)

        willing = await come("a", will=Will("will", b"123456", 0, False))  # 10 bytes
        second = await come("b")
        assert await codes(second, "a/23456789", "b/23456789", "c") == [GRANTED, GRANTED, EXCEEDED]
        third = await Client.open(port)
        will = Will("w", b"", 0, False)
        answer = await third.handshake("c", username="ann", password=b"x", will=will)
        assert answer.reason_code is ConnackReasonCode.QUOTA_EXCEEDED
        assert await codes(second, "a/23456789") == [GRANTED], "it has that already"
        await willing.disconnect()
        await until(lambda: len(harness.gateway.connections) == 1)
        assert await codes(second, "c/2345678", "d", "e") == [GRANTED, GRANTED, EXCEEDED]
        await second.disconnect()
        await until(lambda: not harness.gateway.connections)
        again = await come("c", will=Will("will", b"123456", 0, False))
        assert await codes(again, "a/23456789", "b/23456789", "c") == [GRANTED, GRANTED, EXCEEDED]


async def test_a_listener_has_no_more_subscriptions_than_it_may() -> None:
    listeners = [{"kind": "tcp", "port": free_port(), "subscriptions": 3}]
    async with running_gateway(listeners=listeners) as harness:
        alice, bob = [
            await Client.connect(listeners[0]["port"], name)  # type: ignore[arg-type]
            for name in ("alice", "bob")
        ]
        assert await codes(alice, "a", "b") == [GRANTED] * 2
        assert await codes(bob, "a", "b") == [GRANTED, EXCEEDED]
        other = await Client.connect(harness.port, "other")
        assert await codes(other, "a", "b", "c", "d") == [GRANTED] * 4
        await alice.disconnect()
        await until(lambda: len(harness.gateway.connections) == 2)
        assert await codes(bob, "b", "c", "d") == [GRANTED, GRANTED, EXCEEDED]


async def test_no_more_waits_for_the_clients_of_a_user_than_may(credentials: Path) -> None:
    most = limits(user_queued_bytes=2000)
    async with running_gateway(credentials_file=credentials, **most) as harness:
        one = {"receive_maximum": 1}
        slow = [await of_user(harness, "ann", f"a{number}", properties=one) for number in (1, 2)]
        bob = await of_user(harness, "bob", "b", properties=one)
        for client in (*slow, bob):
            await client.subscribe("a", 1)
        says = await of_user(harness, "bob", "says")
        for _ in range(4):
            await says.publish("a", bytes(1000), 1)
        await harness.delivered()
        # One each is in flight; of ann's two clients two wait, of bob's one two.
        await until(lambda: harness.counters.dropped_queue_full == 5)
        assert len(await bob.payloads(1)) == 1
        full = partial(harness.gateway.shared_limits.full, "queued_bytes", "default")
        assert full("ann", 1)
        await until(lambda: not full("bob", 1000))  # his client has answered, and got the next one
        assert full("bob", 1001)
        for client in slow:
            client.cut()
        await until(lambda: not full("ann", 2000))


async def test_a_gateway_keeps_no_more_retained_messages_than_it_may() -> None:
    async with running_gateway(**limits(gateway_retained_messages=2)) as harness:
        client = await Client.connect(harness.port, "says")

        async def put(topic_name: str, payload: bytes) -> int:
            packet_id = client.next_packet_id()
            client.send(Publish(topic_name, payload, 1, True, packet_id=packet_id))
            return int((await client.expect(Puback)).reason_code)

        assert [await put(topic, b"1") for topic in "aba"] == [0, 0, 0]
        assert await put("c", b"1") == EXCEEDED
        assert harness.counters.dropped_retained_full == 1
        assert await put("a", b"") == 0
        retained = harness.gateway.retained
        await until(lambda: retained.usage(None)[0] == 1)
        assert retained.usage(None) == retained.usage("default")


async def test_a_gateway_has_no_more_subscriptions_than_it_may() -> None:
    async with running_gateway(**limits(gateway_subscriptions=3)) as harness:
        alice, bob = [await Client.connect(harness.port, name) for name in ("alice", "bob")]
        assert await codes(alice, "a", "b") == [GRANTED] * 2
        assert await codes(bob, "a", "b") == [GRANTED, EXCEEDED]
        await alice.disconnect()
        await until(lambda: len(harness.gateway.connections) == 1)
        assert await codes(bob, "b", "c", "d") == [GRANTED, GRANTED, EXCEEDED]


def test_limits_are_read_from_the_file(tmp_path: Any) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[limits]\nmessages_per_second = 5\nwhen_too_fast = "disconnect"\n')
    read = load(GatewaySettings, file).limits
    assert (read.messages_per_second, read.when_too_fast) == (5, "disconnect")
    assert read.subscriptions == 100_000
    file.write_text('[limits]\nwhen_too_fast = "panic"\n')
    with pytest.raises(SettingsError, match="when_too_fast"):
        load(GatewaySettings, file)
