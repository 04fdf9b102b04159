"""Clients leave a gateway in good order and find everything at another one."""

import asyncio
import json
from typing import Any

import pytest

from ingest.protocol.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.records.messages import CONTROL_KEY_PREFIX, GATEWAYS, VERSION_KEY
from tests.ingest.gateway.harness import Client, Harness, is_read, running_gateway, turns, until
from tests.ingest.gateway.test_survival import FIRST, NEVER, SECOND, publish, resume, site

pytestmark = pytest.mark.anyio


def ask(harness: Harness, action: str, **value: Any) -> None:
    """Write a control record, as the API does."""
    key = CONTROL_KEY_PREFIX + action.encode()
    gateway = harness.gateway.settings.name
    harness.deliver(key, json.dumps(value).encode(), [], gateway=gateway)


def drain(harness: Harness, rate: float = 10_000, **value: Any) -> None:
    ask(harness, "drain", connections_per_second=rate, **value)


async def drained(harness: Harness) -> None:
    await until(lambda: harness.gateway.draining.state == "drained")


async def test_clients_are_told_where_to_go() -> None:
    async with running_gateway(server_reference="setting:1883") as harness:
        new = await Client.connect(harness.port, "new")
        old = await Client.connect(harness.port, "old", level=4)
        drain(harness, server_reference="other:1883")
        disconnect = await new.expect(Disconnect)
        assert disconnect.reason_code is DisconnectReasonCode.USE_ANOTHER_SERVER
        assert disconnect.properties["server_reference"] == "other:1883"
        assert await new.is_closed()
        await old.expect_disconnect(DisconnectReasonCode.USE_ANOTHER_SERVER)
        await drained(harness)
        assert harness.gateway.status.health() == (True, "0 clients, 0 subscriptions, drained")


@pytest.mark.parametrize(
    ("asked", "reason_code", "reference"),
    [
        ({}, ConnackReasonCode.USE_ANOTHER_SERVER, "setting:1883"),
        ({"moved": True}, ConnackReasonCode.SERVER_MOVED, "setting:1883"),
        (
            {"server_reference": "other:1883"},
            ConnackReasonCode.USE_ANOTHER_SERVER,
            "other:1883",
        ),
    ],
)
async def test_new_clients_are_turned_away(
    asked: dict[str, Any], reason_code: ConnackReasonCode, reference: str
) -> None:
    async with running_gateway(server_reference="setting:1883") as harness:
        drain(harness, **asked)
        await drained(harness)
        new = await Client.open(harness.port)
        connack = await new.handshake("new")
        assert connack.reason_code is reason_code
        assert connack.properties["server_reference"] == reference
        assert await new.is_closed()
        old = await Client.open(harness.port, level=4)
        assert (await old.handshake("old")).reason_code is ConnackReasonCode.SERVER_UNAVAILABLE
        assert await old.is_closed()


async def test_without_a_reference_the_reason_goes_alone() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "c")
        drain(harness, moved=True)
        disconnect = await client.expect(Disconnect)
        assert disconnect.reason_code is DisconnectReasonCode.SERVER_MOVED
        assert "server_reference" not in disconnect.properties


async def test_what_a_client_has_sent_is_answered_before_it_goes() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "c")
        harness.log.hold_reports()
        client.send(Publish("a", b"1", 1, packet_id=1), Publish("a", b"2", 2, packet_id=2))
        await until(lambda: harness.counters.messages_received == 2)
        drain(harness)
        await until(lambda: not is_read(harness.connection("c")))
        client.send(Publish("a", b"too late", 1, packet_id=3))
        await turns(50)
        assert harness.gateway.draining.state == "draining"
        assert harness.gateway.sessions.connected_count == 1
        harness.log.release_reports()
        assert {type(await client.receive()) for _ in range(2)} == {Puback, Pubrec}
        await client.expect_disconnect(DisconnectReasonCode.USE_ANOTHER_SERVER)
        await drained(harness)
        assert [record.value for record in harness.inbound()] == [b"1", b"2"]


async def test_a_log_that_does_not_answer_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.gateway.clients.draining.ANSWER_SECONDS", 0.0)
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "c")
        harness.log.hold_reports()
        client.send(Publish("a", b"1", 1, packet_id=1))
        await until(lambda: harness.counters.messages_received == 1)
        drain(harness)
        await client.expect_disconnect(DisconnectReasonCode.USE_ANOTHER_SERVER)
        assert harness.gateway.draining.state == "draining"  # the log does not have all
        harness.log.release_reports()
        await drained(harness)


async def test_clients_go_at_the_rate_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ingest.gateway.clients.draining.STEP_SECONDS", 0.0
    )  # it looks at each turn
    async with running_gateway() as harness:
        for number in range(5):
            await Client.connect(harness.port, f"c{number}")
        drain(harness, rate=0.001)
        await until(lambda: harness.gateway.sessions.connected_count == 4)
        await turns(50)
        assert harness.gateway.sessions.connected_count == 4
        assert harness.gateway.draining.state == "draining"
        drain(harness)  # another rate, while it is under way
        await drained(harness)


async def test_a_drain_is_undone() -> None:
    async with running_gateway() as harness:
        staying = await Client.connect(harness.port, "c1")
        await Client.connect(harness.port, "c2")
        harness.log.hold_reports()
        for client in ("c1", "c2"):
            session = harness.gateway.sessions.get("default", client)
            assert session.connection is not None
        staying.send(Publish("a", b"1", 1, packet_id=1))
        await until(lambda: harness.counters.messages_received == 1)
        drain(harness)
        await until(lambda: harness.gateway.sessions.connected_count == 1)
        ask(harness, "serve")
        await until(lambda: harness.gateway.draining.state == "serving")
        harness.log.release_reports()
        assert await staying.expect(Puback) == Puback(1)
        await staying.expect_nothing()
        again = await Client.connect(harness.port, "c2")
        await again.expect_nothing()
        ask(harness, "serve")  # once more changes nothing
        await again.expect_nothing()


async def test_one_that_was_let_in_at_the_last_moment_goes_too() -> None:
    async with running_gateway() as harness:
        drain(harness)
        await drained(harness)
        with pytest.MonkeyPatch.context() as at_the_last_moment:
            at_the_last_moment.setattr(harness.gateway.draining, "refusal", lambda: None)
            late = await Client.connect(harness.port, "late")
        await late.expect_disconnect(DisconnectReasonCode.USE_ANOTHER_SERVER)


async def test_the_other_gateways_and_the_api_are_told() -> None:
    async with running_gateway(site="home") as harness:

        def said() -> list[tuple[str, str, int]]:
            words = [one for one in harness.log.records(GATEWAYS) if one.key != VERSION_KEY]
            values = [json.loads(one.value or b"{}") for one in words]
            return [(one["site"], one["state"], one["clients"]) for one in values]

        await until(lambda: ("home", "serving", 0) in said())
        drain(harness)
        await until(lambda: ("home", "drained", 0) in said())


async def test_a_session_with_messages_in_flight_goes_on_elsewhere() -> None:
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        client, _ = await resume(first, properties={**NEVER, "receive_maximum": 3})
        await client.subscribe("a/b", 1)
        await publish(second, b"1", b"2", b"3", b"4", b"5")
        in_flight = [await client.expect(Publish) for _ in range(3)]
        client.send(Publish("c", b"once", 2, packet_id=9))
        await client.expect(Pubrec)
        drain(first)
        await client.expect_disconnect(DisconnectReasonCode.USE_ANOTHER_SERVER)
        await drained(first)
        await publish(second, b"6")
        client, connack = await resume(second)
        assert connack.session_present
        for packet in in_flight:
            again = await client.expect(Publish)
            assert (again.payload, again.packet_id) == (packet.payload, packet.packet_id)
            assert again.dup
        rest = [await client.expect(Publish) for _ in range(3)]
        assert [packet.payload for packet in rest] == [b"4", b"5", b"6"]
        assert not any(packet.dup for packet in rest)
        client.send(Publish("c", b"once", 2, dup=True, packet_id=9))
        assert await client.expect(Pubrec) == Pubrec(9)
        client.send(Pubrel(9))
        assert await client.expect(Pubcomp) == Pubcomp(9)
        stored = [record.value for record in second.inbound() if record.key == b"default/c"]
        assert stored == [b"once"]


class Subscriber:
    """Receives with QoS 2 exactly once, whatever gateway it is sent to."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.payloads: list[bytes] = []
        self._held: set[int] = set()

    async def connect(self, port: int) -> Client:
        client = await Client.open(port)
        connack = await client.handshake(self.client_id, clean_start=False, properties=NEVER)
        assert connack.reason_code == 0
        return client

    async def receive(self, client: Client, count: int) -> bool:
        """Receive until there are so many; False when the gateway ends the connection."""
        while len(self.payloads) < count or self._held:
            packet = await client.receive()
            if packet is None:
                return False
            if isinstance(packet, Publish):
                if packet.packet_id not in self._held:
                    self._held.add(packet.packet_id)
                    self.payloads.append(packet.payload)
                client.send(Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                self._held.discard(packet.packet_id)
                client.send(Pubcomp(packet.packet_id))
            else:
                assert isinstance(packet, Disconnect), packet
        return True


async def test_many_clients_that_move_while_messages_flow_get_each_once_in_order() -> None:
    count, messages = 20, 60
    subscribers = [Subscriber(f"c{number}") for number in range(count)]
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        clients = [await subscriber.connect(first.port) for subscriber in subscribers]
        for client in clients:
            await client.subscribe("a/b", 2)

        async def follow(subscriber: Subscriber, client: Client) -> None:
            assert not await subscriber.receive(client, messages + 1)
            client = await subscriber.connect(second.port)
            assert await subscriber.receive(client, messages)

        async with asyncio.TaskGroup() as tasks:
            for pair in zip(subscribers, clients, strict=True):
                tasks.create_task(follow(*pair))
            publisher = await Client.connect(second.port, "publisher")
            for number in range(messages):
                await publisher.publish("a/b", b"%d" % number, 2)
                if number == messages // 4:
                    drain(first, rate=200)
        await drained(first)
    expected = [b"%d" % number for number in range(messages)]
    assert all(subscriber.payloads == expected for subscriber in subscribers)


async def test_clients_go_to_others_before_a_process_ends_that_was_told_to() -> None:
    async with running_gateway(drain_seconds=60.0) as harness:
        clients = [await Client.connect(harness.port, f"c{number}") for number in range(3)]
        harness.stop.set()
        for client in clients:
            await client.expect_disconnect(DisconnectReasonCode.USE_ANOTHER_SERVER)
        await until(harness.task.done)


async def test_who_tells_it_twice_does_not_wait() -> None:
    async with running_gateway(drain_seconds=3_600.0) as harness:
        client = await Client.connect(harness.port, "c")
        harness.log.hold_reports()
        client.send(Publish("a", b"1", 1, packet_id=1))
        await until(lambda: harness.counters.messages_received == 1)
        harness.stop.set()
        await until(lambda: harness.gateway.draining.state == "draining")
        assert not harness.task.done()
        harness.stop.set()
        await until(lambda: harness.gateway.status.health() == (False, "stopping"))
        harness.log.release_reports()
        await until(harness.task.done)


async def test_one_that_nobody_leaves_is_ended_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ingest.gateway.clients.draining.ANSWER_SECONDS", 3_600.0)
    async with running_gateway(drain_seconds=0.1) as harness:
        client = await Client.connect(harness.port, "c")
        harness.log.hold_reports()
        client.send(Publish("a", b"1", 1, packet_id=1))
        await until(lambda: harness.counters.messages_received == 1)
        harness.stop.set()
        await until(lambda: harness.gateway.status.health() == (False, "stopping"))
        harness.log.release_reports()
        await client.expect(Puback)
        await client.expect_disconnect(DisconnectReasonCode.SERVER_SHUTTING_DOWN)
