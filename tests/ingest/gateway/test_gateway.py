"""The gateway as a whole: start, health, stop, and real MQTT clients."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from ingest.gateway.log.lease import HEARTBEAT_SECONDS, SURE_SECONDS, Lease
from ingest.gateway.retained.retained_shards import RetainedShards
from ingest.protocol.packets import Disconnect, Puback, Publish, Will
from ingest.protocol.reason_codes import DisconnectReasonCode
from mqlake.clock import ManualClock
from mqlake.errors import LogError, OperationalError
from mqlake.log.contract import ErrorCallback
from mqlake.log.memory import MemoryLogReader
from mqlake.records.messages import (
    BARRIER_KEY_PREFIX,
    GATEWAYS,
    ROUTES,
    Route,
    delivery_topic,
    retained_route,
    route_key,
)
from mqlake.settings import LogDiskSettings
from tests.ingest.gateway.harness import (
    NAME,
    PARTITIONS,
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    until,
)

pytestmark = pytest.mark.anyio


async def test_a_gateway_is_healthy_when_the_router_has_answered() -> None:
    async with running_gateway() as harness:
        assert harness.gateway.status.health() == (True, "0 clients, 0 subscriptions")
        figures = harness.gateway.status.figures()
        assert figures["address"] == f"127.0.0.1:{harness.port}"
        assert figures["messages_received"] == 0
    assert harness.gateway.status.health() == (False, "stopping")


async def test_health_says_what_is_missing() -> None:
    async with running_gateway() as harness:
        gateway = harness.gateway
        gateway.publisher.is_refusing = "0 MiB free"
        assert gateway.status.health() == (False, "publishers are refused: 0 MiB free")
    log = new_log(NAME)
    router = MemoryRouter(log)  # it does not run
    async with running_gateway(log=log, router=router, answered=False) as harness:
        told = harness.gateway.status.health()
        assert told == (False, "waiting for the router's first answer")


async def test_health_notices_a_router_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ingest.gateway.process.status.STUCK_SECONDS", 0.0)
    async with running_gateway() as harness:
        harness.router.pause()
        client = await Client.connect(harness.port, "alice")
        task = asyncio.create_task(client.subscribe("a"))
        await until(lambda: not harness.gateway.status.health()[0])
        assert "no answer from the router" in harness.gateway.status.health()[1]
        harness.router.resume()
        await task
        assert harness.gateway.status.health()[0]


async def test_a_gateway_that_was_not_heard_while_it_starts_finds_out_what_others_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deliveries wait until then, and it may need them to start."""
    clock = ManualClock()
    was_unheard: list[bool] = []
    leases: list[Lease] = []

    def make(*args: Any) -> Lease:
        leases.append(Lease(*args))
        return leases[-1]

    def is_settled(_shards: RetainedShards) -> bool:
        (lease,) = leases
        if not was_unheard:
            clock.advance(SURE_SECONDS + 0.1)
            was_unheard.append(not lease.may_deliver())
        return lease.may_deliver()

    monkeypatch.setattr("ingest.gateway.process.gateway.Lease", make)
    monkeypatch.setattr(RetainedShards, "is_settled", property(is_settled))
    async with running_gateway(clock=clock):
        assert was_unheard == [True]


async def test_routes_of_an_earlier_run_are_withdrawn_and_others_kept() -> None:
    log = new_log(NAME)
    kept = Route("gateway-2", "default", "a")
    for key in (route_key(Route(NAME, "default", "a")), route_key(kept), b"nonsense"):
        log.store(ROUTES, key, b"1", [], 1, 0)
    absent = MemoryRouter(new_log(NAME))
    async with running_gateway(log=log, router=absent, answered=False) as harness:
        records = log.records(ROUTES)[3:]
        withdrawn = route_key(Route(NAME, "default", "a"))
        retained = [(route_key(retained_route(NAME, one)), b"1") for one in range(PARTITIONS)]
        assert [(one.key, one.value) for one in records] == [(withdrawn, None), *retained]
        client = await Client.connect(harness.port, "alice")
        await client.publish("a", b"stored all the same", 2)


async def test_stopping_tells_the_clients_fires_wills_and_withdraws_routes() -> None:
    async with running_gateway() as harness:
        new = await Client.connect(harness.port, "new", will=Will("w", b"gone"))
        old = await Client.connect(harness.port, "old", level=4)
        await new.subscribe("a", 1)
        await old.subscribe("$share/g/a", 1)
        harness.stop.set()
        await new.expect_disconnect(DisconnectReasonCode.SERVER_SHUTTING_DOWN)
        assert await old.is_closed()
    assert [record.value for record in harness.inbound()] == [b"gone"]
    assert harness.router.members == {}
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", harness.port)


async def test_a_gateway_that_has_left_does_not_say_again_that_it_is_there() -> None:
    """Its farewell may take longer than the time between two heartbeats."""
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        harness.gateway.peers.leave()
        clock.advance(2 * HEARTBEAT_SECONDS)
        harness.process.send_heartbeat()
        await until(lambda: not harness.writer.queued())
        assert harness.log.records(GATEWAYS)[-1].value is None


async def test_stopping_stores_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.gateway.process.process.SHUTDOWN_SECONDS", 0.2)
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        harness.log.hold_reports()
        client.send(Publish("a", b"x", 1, packet_id=1))
        await until(lambda: harness.writer.queued())
        harness.stop.set()
        await client.expect(Disconnect)
    assert [record.value for record in harness.inbound()] == [b"x"]


async def test_stopping_does_not_wait_for_a_log_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ingest.gateway.process.process.SHUTDOWN_SECONDS", 0.05)
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        harness.log.hold_reports()
        client.send(Publish("a", b"x", 1, packet_id=1))
        await until(lambda: harness.writer.queued())
        harness.stop.set()
        await until(lambda: harness.task.done())


async def test_who_was_turned_out_and_has_gone_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may go on sending for a while, so that it can read why; its own end is heard."""
    monkeypatch.setattr("ingest.gateway.clients.client_socket.LINGER_SECONDS", 60.0)
    async with running_gateway() as harness:
        client = await Client.open(harness.port)
        await client.handshake("alice", properties={"authentication_method": "none of ours"})
        assert await client.is_closed()
        other = await Client.open(harness.port)
        await other.handshake("bob", properties={"authentication_method": "none of ours"})
        await until(lambda: len(harness.gateway.connections) == 1)
        harness.gateway.connections.pause_all()
        other.close()
        await until(lambda: not harness.gateway.connections, 10)


async def test_a_port_in_use_is_told_in_one_sentence() -> None:
    async with running_gateway() as harness:
        with pytest.RaisesGroup(
            pytest.RaisesExc(OperationalError, match=f"cannot listen on 127.0.0.1:{harness.port}")
        ):
            async with running_gateway(name="gateway-2", port=harness.port):
                pass


async def test_a_log_that_refuses_the_first_records_ends_the_start() -> None:
    log = new_log(NAME)
    log.fail_next(LogError("no", definite=True), count=2)  # that we are there, and the first claim
    router = MemoryRouter(log)
    await router.start()
    with pytest.raises(LogError):
        async with running_gateway(log=log, router=router):
            pass
    await router.close()


async def test_errors_of_the_reader_are_told_and_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: dict[str, ErrorCallback] = {}
    start = MemoryLogReader.start

    async def note(
        reader: MemoryLogReader, log_topic: str, positions: Any, take: Any, tell: ErrorCallback
    ) -> dict[int, int]:
        told[log_topic] = tell
        return await start(reader, log_topic, positions, take, tell)

    monkeypatch.setattr(MemoryLogReader, "start", note)
    async with running_gateway() as harness:
        told[delivery_topic(NAME)](LogError("away", definite=False))
        assert harness.gateway.status.health()[0]
    assert "deliveries cannot be read" in caplog.messages


async def test_a_log_that_grows_too_large_refuses_publishers(tmp_path: Path) -> None:
    disk = LogDiskSettings(folder=tmp_path, min_free_bytes=0, max_bytes=2 << 20)
    async with running_gateway(log_disk=disk) as harness:
        gateway = harness.gateway
        segment = tmp_path / "mqlake.inbound-0" / "0.log"
        segment.parent.mkdir()
        segment.write_bytes(b"x" * (3 << 20))
        gateway.disk.look()
        assert gateway.publisher.is_refusing == "3 MiB in the log, 2 MiB allowed"
        segment.unlink()
        gateway.disk.look()
        assert gateway.publisher.is_refusing == ""


async def test_messages_cross_gateways() -> None:
    log = new_log("gateway-1", "gateway-2", "gateway-3")
    router = MemoryRouter(log)
    await router.start()
    async with (
        running_gateway(log=log, router=router, name="gateway-1") as one,
        running_gateway(log=log, router=router, name="gateway-2") as two,
        running_gateway(log=log, router=router, name="gateway-3") as three,
    ):
        subscribers = [await Client.connect(h.port, h.gateway.settings.name) for h in (one, two)]
        for subscriber in subscribers:
            await subscriber.subscribe("a/+", 2)
        publisher = await Client.connect(three.port, "publisher", level=4)
        for number in range(9):
            await publisher.publish("a/b", b"%d" % number, number % 3)
        for subscriber in subscribers:
            assert await subscriber.payloads(9) == [b"%d" % number for number in range(9)]
        delivered = three.log.records(delivery_topic("gateway-3"))
        # Barriers, and perhaps questions of the others about retained messages: no message.
        assert all((one.key or b"")[:1] == BARRIER_KEY_PREFIX[:1] for one in delivered)
    await router.close()


async def test_500_messages_from_20_publishers_arrive_once_each() -> None:
    async with running_gateway() as harness:
        subscriber = await Client.connect(harness.port, "subscriber")
        await subscriber.subscribe("load/#", 1)

        async def publish(number: int) -> None:
            client = await Client.connect(harness.port, f"publisher-{number}")
            for index in range(25):
                client.send(
                    Publish(f"load/{number}", b"%d" % index, 1, packet_id=index + 1),
                )
            for index in range(25):
                assert await client.expect(Puback) == Puback(index + 1)

        await asyncio.gather(*(publish(number) for number in range(20)))
        received: dict[str, list[bytes]] = {}
        for _ in range(500):
            message = await subscriber.message()
            received.setdefault(message.topic_name, []).append(message.payload)
        assert len(received) == 20
        assert all(one == [b"%d" % index for index in range(25)] for one in received.values())
        await subscriber.expect_nothing()


class Paho:
    """paho-mqtt as an application uses it, on threads of its own."""

    def __init__(self, port: int, client_id: str, version: MQTTProtocolVersion) -> None:
        self.client = PahoClient(CallbackAPIVersion.VERSION2, client_id, protocol=version)
        self.messages: Queue[MQTTMessage] = Queue()
        self.connected = threading.Event()
        self.subscribed = threading.Event()
        self.client.on_connect = lambda *_: self.connected.set()
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self.connected.wait(60)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.subscribed.clear()
        self.client.subscribe(topic_filter, qos)
        assert self.subscribed.wait(60)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


PAHO_VERSIONS = (
    MQTTProtocolVersion.MQTTv31,
    MQTTProtocolVersion.MQTTv311,
    MQTTProtocolVersion.MQTTv5,
)


@pytest.mark.parametrize("version", PAHO_VERSIONS, ids=["3.1", "3.1.1", "5.0"])
async def test_paho_clients_work(version: MQTTProtocolVersion) -> None:
    def dialogue(port: int) -> list[tuple[str, bytes, int]]:
        subscriber = Paho(port, "subscriber", version)
        subscriber.subscribe("paho/#", 2)
        publisher = Paho(port, "publisher", version)
        for qos in (0, 1, 2):
            info = publisher.client.publish(f"paho/{qos}", b"payload", qos)
            info.wait_for_publish(10)
            assert info.is_published()
        received = [subscriber.messages.get(timeout=60) for _ in range(3)]
        publisher.close()
        subscriber.close()
        return sorted((one.topic, bytes(one.payload), one.qos) for one in received)

    async with running_gateway() as harness:
        received = await in_thread(dialogue, harness)
        assert received == [(f"paho/{qos}", b"payload", qos) for qos in (0, 1, 2)]


async def in_thread(dialogue: Callable[[int], Any], harness: Harness) -> Any:
    return await asyncio.to_thread(dialogue, harness.port)


async def test_an_exception_that_nobody_expected_makes_the_gateway_unhealthy() -> None:
    async with running_gateway() as harness:
        await until(lambda: harness.gateway.status.health()[0])

        def fail() -> None:
            raise ZeroDivisionError("a bug")

        harness.gateway.loop.call_soon(fail)
        await until(lambda: not harness.gateway.status.health()[0])
        assert harness.gateway.status.health()[1] == "internal error, see the log: a bug"
