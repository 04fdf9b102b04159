"""Events of deliveries and acknowledgements: told while a rule asks for them, and bounded."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ingest.gateway.base.counters import GatewayCounters
from ingest.gateway.base.events import Events
from ingest.gateway.base.outbound import LOCAL, OutboundMessage
from ingest.gateway.sending.delivery_events import DELIVERED, MAX_QUEUED_RECORDS, DeliveryEvents
from ingest.gateway.sending.wanted_events import WantedEvents
from ingest.protocol.packets import Puback, Publish, Pubrec
from ingest.protocol.properties import NO_PROPERTIES
from ingest.protocol.reason_codes import PubackReasonCode
from mqlake.clock import ManualClock
from mqlake.log.memory import MemoryLogReader, MemoryLogWriter
from mqlake.records.messages import EVENTS, INBOUND, RULES, Message, message_headers, message_key
from mqlake.records.rules import (
    Activation,
    OffsetRange,
    RulesKey,
    Span,
    decode_activation,
    encode_activation,
    rules_key,
)
from tests.ingest.gateway.harness import Client, Harness, new_log, running_gateway, until
from tests.waiting import turns

pytestmark = pytest.mark.anyio

MESSAGE_ID = bytes(15) + b"\x07"


def activate(log: Any, *events: str, rule: str = "r", tenant: str = "default") -> None:
    """Write what the engine writes when a rule over these events runs, or over none any more."""
    filters = tuple(f"$events/{event}" for event in events)
    spans = (Span(1, filters, "NULL", (), None, {EVENTS: OffsetRange((0,))}),) if events else ()
    activation = Activation(tenant, rule, "running" if events else "stopped", 1, 1, spans=spans)
    key = rules_key(RulesKey("activation", tenant, rule))
    log.store(RULES, key, encode_activation(activation), [], 0, 0)


async def ask(harness: Harness, *events: str) -> None:
    activate(harness.log, *events)
    told = harness.gateway.delivery_events
    await until(lambda: told.is_wanted is bool(events))


async def test_nothing_is_told_unless_a_rule_asks() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        activate(harness.log, "client_connected", rule="other")
        activate(harness.log, "message_delivered", tenant="somebody-else")
        await until(lambda: harness.gateway.delivery_events.delivered == {"somebody-else"})
        await client.publish("a", b"x", 0)
        await client.message()
        await client.disconnect()
        await until(lambda: harness.events("client.disconnected"))
        assert not harness.events("message.delivered")
        assert not harness.events("message.acked")
        assert not harness.counters.events_left_out


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_deliveries_and_acknowledgements_are_told(level: int, qos: int) -> None:
    async with running_gateway() as harness:
        await ask(harness, "message_delivered", "message_acked")
        client = await Client.connect(harness.port, "alice", level=level)
        await client.subscribe("a/b", 2)
        publisher = await Client.connect(harness.port, "bob")
        await publisher.publish("a/b", b"x", qos)
        await client.message()
        await client.expect_answered()
        await until(lambda: harness.events("message.delivered"))
        (delivered,) = harness.events("message.delivered")
        (record,) = harness.inbound()
        expected = {
            "client_id": "alice",
            "from_client_id": "bob",
            "topic": "a/b",
            "qos": qos,
            "tenant": "default",
            "gateway": "gateway-1",
            "id": dict(record.headers)["id"].hex(),
            "received_at": record.timestamp_ms,
        }
        assert {name: delivered[name] for name in expected} == expected
        if qos:
            await until(lambda: harness.events("message.acked"))
        acked = harness.events("message.acked")
        assert [{name: one[name] for name in expected} for one in acked] == [expected] * bool(qos)


async def test_what_a_client_refuses_is_not_acked_and_what_comes_again_not_told_twice() -> None:
    async with running_gateway() as harness:
        await ask(harness, "message_delivered", "message_acked")
        client = await Client.open(harness.port)
        kept = {"properties": {"session_expiry_interval": 100}}
        await client.handshake("alice", **kept)
        await client.subscribe("a", 2)
        publisher = await Client.connect(harness.port, "bob")
        await publisher.publish("a", b"1", 1)
        first = await client.expect(Publish)
        client.send(Puback(first.packet_id, PubackReasonCode.QUOTA_EXCEEDED))
        await publisher.publish("a", b"2", 2)
        await client.expect(Publish)
        client.cut()
        client = await Client.open(harness.port)
        await client.handshake("alice", clean_start=False, **kept)
        again = await client.expect(Publish)
        assert again.dup
        client.send(Pubrec(again.packet_id))
        await until(lambda: harness.events("message.acked"))
        assert [one["qos"] for one in harness.events("message.acked")] == [2]
        assert len(harness.events("message.delivered")) == 2


async def test_it_ends_when_the_rule_is_gone() -> None:
    async with running_gateway() as harness:
        await ask(harness, "message_delivered")
        await ask(harness)
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        await client.publish("a", b"x", 0)
        await client.message()
        await client.disconnect()
        await until(lambda: harness.events("client.disconnected"))
        assert not harness.events("message.delivered")


async def test_events_carry_the_rules_that_a_message_has_come_through() -> None:
    async with running_gateway() as harness:
        await ask(harness, "message_delivered")
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a")
        message = Message("default", "a", b"", 0, False, MESSAGE_ID, "rule:q", 1, "site/rules")
        headers = [*message_headers(message), ("chain", b"p,q")]
        harness.log.store(INBOUND, message_key("default", "a"), b"", headers, 1, 0)
        await client.message()
        await until(lambda: harness.events("message.delivered"))
        (record,) = [
            one for one in harness.log.records(EVENTS) if b"message.delivered" in (one.value or b"")
        ]
        assert record.headers == [("chain", b"p,q")]


class Bench:
    """Delivery events without a gateway."""

    def __init__(self, per_second: int) -> None:
        self.log = new_log("gateway-1")
        self.writer = MemoryLogWriter(self.log)
        self.counters = GatewayCounters()
        loop = asyncio.get_running_loop()
        events = Events(self.writer, "gateway-1", self.counters, ManualClock(), loop)
        self.told = DeliveryEvents(events, self.writer, self.counters, per_second, loop)
        self.wanted = WantedEvents(MemoryLogReader(self.log), self.change)

    def change(self) -> None:
        self.told.want(self.wanted)

    def deliver(self, count: int, partition: int = 0) -> None:
        message = OutboundMessage("a", b"", 0, False, NO_PROPERTIES, 1, partition, 0)
        for _ in range(count):
            self.told.add(DELIVERED, "default", "alice", message, 0, 5)

    def written(self) -> int:
        return len(self.log.records(EVENTS))


async def test_what_is_told_is_bounded() -> None:
    bench = Bench(per_second=100)
    bench.deliver(250)
    assert bench.counters.events_left_out == 150
    await until(lambda: bench.written() == 100)
    bench.deliver(1, LOCAL)
    bench.deliver(1)
    await until(lambda: bench.written() == 101)
    assert bench.counters.events_lost == 0
    await bench.writer.close()


async def test_a_busy_log_takes_messages_before_events() -> None:
    bench = Bench(per_second=100)
    bench.log.hold_reports()
    for _ in range(MAX_QUEUED_RECORDS + 1):
        bench.writer.append(INBOUND, b"k", b"", [], lambda *_: None)
    bench.deliver(10)
    await turns(20)
    assert not bench.written()
    bench.log.release_reports()
    await until(lambda: bench.written() == 10)
    await bench.writer.close()


async def test_with_a_rate_of_zero_nothing_is_told() -> None:
    bench = Bench(per_second=0)
    await bench.wanted.open()
    activate(bench.log, "message_delivered")
    await until(lambda: bench.wanted.tenants("message_delivered"))
    assert not bench.told.is_wanted
    await bench.wanted.close()
    await bench.writer.close()


async def test_activations_that_cannot_be_read_are_passed_over() -> None:
    bench = Bench(per_second=100)
    key = rules_key(RulesKey("activation", "default", "broken"))
    bench.log.store(RULES, key, b'{"filters": ["$events/message_acked"', [], 0, 0)
    bench.log.store(RULES, b"c", b"{}", [], 0, 0)
    activate(bench.log, "message_acked")
    await bench.wanted.open()
    await until(lambda: bench.told.acked == {"default"})
    bench.log.store(RULES, rules_key(RulesKey("activation", "default", "r")), None, [], 0, 0)
    await until(lambda: not bench.told.is_wanted)
    await bench.wanted.close()
    await bench.writer.close()


async def test_a_forged_activation_makes_events_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways check no signature: they look at names of events, and at nothing that runs."""

    class Poison(Span):
        def __getattribute__(self, name: str) -> Any:
            if name in ("expression", "plan", "actions", "schema"):
                raise AssertionError(f"the gateway has read {name}")
            return super().__getattribute__(name)

    def poisoned(value: bytes) -> Activation:
        found = decode_activation(value)
        spans = [
            Poison(one.version, one.filters, None, (), None, one.sources) for one in found.spans
        ]
        return replace(found, spans=tuple(spans))

    monkeypatch.setattr("ingest.gateway.sending.wanted_events.decode_activation", poisoned)
    bench = Bench(per_second=5)
    activate(bench.log, "message_delivered")
    await bench.wanted.open()
    await until(lambda: bench.told.delivered == {"default"})
    bench.deliver(100)
    assert bench.counters.events_left_out == 95, "as many as for any rule"
    await until(lambda: bench.written() == 5)
    await bench.wanted.close()
    await bench.writer.close()
