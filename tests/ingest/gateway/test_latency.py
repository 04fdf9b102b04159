import json

import pytest

from ingest.gateway.load.latency import SAMPLES, GatewayLatencies, Sampler
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.processes.latency import ACCEPT, BOUNDS_MS, CLASSES, DELIVER, ROUTE, STAGES
from mqlake.records.messages import GATEWAYS, VERSION_KEY
from tests.ingest.gateway.harness import Client, running_gateway, until


def sampled(sampler: Sampler, messages: int) -> list[int]:
    """Offer messages as the packet path does; return for how many each measured one counts."""
    found = []
    for _ in range(messages):
        sampler.countdown -= 1
        if sampler.countdown < 0:
            found.append(sampler.begin())
    return found


def test_few_messages_are_all_measured() -> None:
    sampler = Sampler()
    for _ in range(3):
        assert sampled(sampler, SAMPLES) == [1] * SAMPLES
        sampler.adjust()


def test_of_many_some_count_for_all() -> None:
    sampler = Sampler()
    sampled(sampler, 100 * SAMPLES)
    for _ in range(3):
        sampler.adjust()
        found = sampled(sampler, 100 * SAMPLES)
        assert found == [100] * SAMPLES
    sampler.adjust()
    assert len(sampled(sampler, 10)) <= 1
    sampler.adjust()
    sampler.adjust()
    assert sampled(sampler, 10) == [1] * 10, "again few"


def test_what_the_log_refuses_is_no_latency() -> None:
    clock = ManualClock()
    latencies = GatewayLatencies(clock)
    reports: list[LogError | None] = []
    for error in (None, LogError("no", definite=True)):
        report = latencies.timed(lambda _partition, _offset, error: reports.append(error))
        clock.advance(0.0042)
        report(1, 2, error)
    assert [type(one) for one in reports] == [type(None), LogError]
    counts = latencies.counts()[ACCEPT]
    assert sum(counts) == 1
    assert counts[BOUNDS_MS.index(5.0)] == 1


def test_routing_and_delivery_are_measured_from_the_time_of_receipt() -> None:
    clock = ManualClock()
    latencies = GatewayLatencies(clock)
    received = clock.now_ms()
    clock.advance(0.012)
    latencies.deliver(received, received + 7)
    counts = latencies.counts()
    assert counts[ROUTE][BOUNDS_MS.index(8.0)] == 1
    assert counts[DELIVER][BOUNDS_MS.index(12.0)] == 1
    assert latencies.stages[DELIVER].sum_ms == 12.0


@pytest.mark.anyio
async def test_a_gateway_says_how_long_its_messages_take() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/#", 1)
        publisher = await Client.connect(harness.port, "publisher")
        for qos in (0, 1, 2):
            await publisher.publish("a/b", b"x", qos)
        assert len(await client.payloads(3)) == 3
        await publisher.publish("nobody/b", b"x", 1)
        counts = harness.gateway.latencies.counts()
        assert {stage: sum(found) for stage, found in counts.items()} == {
            ACCEPT: 3,
            ROUTE: 3,
            DELIVER: 3,
        }
        counters = harness.counters
        assert (counters.messages_received, counters.messages_sent) == (4, 3)
        assert (counters.messages_received_qos_1, counters.messages_received_qos_2) == (2, 1)
        assert (counters.messages_sent_qos_1, counters.messages_sent_qos_2) == (2, 0)

        def said() -> bool:
            words = [one for one in harness.log.records(GATEWAYS) if one.key != VERSION_KEY]
            word = json.loads(words[-1].value or b"{}")
            latency = word["latency"]
            assert set(latency) == set(STAGES)
            assert all(len(found) == CLASSES for found in latency.values())
            return bool(sum(latency[DELIVER]) == 3)

        await until(said)
