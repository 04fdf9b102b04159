"""What clients of each tenant do is counted for it, told to the log, and names nobody else."""

from dataclasses import fields

import pytest

from ingest.gateway.base.drops import DropReason
from ingest.gateway.base.tenant_counters import (
    MOST_TOLD,
    TELL_SECONDS,
    CountersOfTenants,
    TenantCounters,
)
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.records.messages import METRICS
from mqlake.records.shards import Run
from mqlake.tenant_metrics import (
    COUNTED,
    TenantMetrics,
    TenantMetricsKey,
    decode_tenant_metrics,
    decode_tenant_metrics_key,
)
from tests.ingest.gateway.harness import Client, turns, until
from tests.ingest.gateway.test_tenants import ACME, BETA, say, two

pytestmark = pytest.mark.anyio


def told(log: MemoryLog) -> dict[TenantMetricsKey, TenantMetrics | None]:
    """Return the last word of each gateway on each tenant."""
    found: dict[TenantMetricsKey, TenantMetrics | None] = {}
    for record in log.records(METRICS):
        key = decode_tenant_metrics_key(record.key or b"")
        assert key is not None
        found[key] = None if record.value is None else decode_tenant_metrics(record.value)
    return found


def made(clock: ManualClock) -> tuple[CountersOfTenants, MemoryLog, MemoryLogWriter]:
    log = MemoryLog()
    log.create(METRICS, 1)
    writer = MemoryLogWriter(log)
    return CountersOfTenants(writer, Run("gateway-1", "i1"), clock), log, writer


def test_the_fields_are_what_records_have() -> None:
    assert tuple(one.name for one in fields(TenantCounters)) == COUNTED


async def test_what_has_changed_is_told_now_and_then() -> None:
    clock = ManualClock()
    counters, log, _ = made(clock)
    counters.of(ACME).messages_received += 3
    counters.tell(lambda _: 1)
    assert not log.records(METRICS), "not yet"
    clock.advance(TELL_SECONDS)
    counters.tell(lambda _: 1)
    await turns()
    word = told(log)[TenantMetricsKey("gateway-1", ACME)]
    assert word is not None
    assert (word.incarnation, word.connections) == ("i1", 1)
    assert word.counters == dict.fromkeys(COUNTED, 0) | {"messages_received": 3}
    for connections in (1, 1, 0):
        clock.advance(TELL_SECONDS)
        counters.tell(lambda _, count=connections: count)  # type: ignore[misc]
    await turns()
    assert len(log.records(METRICS)) == 2, "what stays as it is is not told"


async def test_who_was_not_told_yet_goes_first() -> None:
    clock = ManualClock()
    counters, log, _ = made(clock)
    for number in range(MOST_TOLD + 20):
        counters.of(f"t{number}").connects += 1
    for turn in (1, 2):
        clock.advance(TELL_SECONDS)
        counters.tell(lambda _: 0)
        await turns()
        assert len(told(log)) == min(turn * MOST_TOLD, MOST_TOLD + 20)
        for number in range(MOST_TOLD + 20):
            counters.of(f"t{number}").connects += 1


async def test_what_the_log_did_not_take_is_told_again() -> None:
    clock = ManualClock()
    counters, log, writer = made(clock)
    counters.of(ACME).connects += 1
    log.fail_next(LogError("away", definite=True))
    clock.advance(TELL_SECONDS)
    counters.tell(lambda _: 0)
    await until(lambda: not writer.queued())
    assert not log.records(METRICS)
    clock.advance(TELL_SECONDS)
    counters.tell(lambda _: 0)
    await turns()
    assert len(log.records(METRICS)) == 1


async def test_clients_are_counted_for_their_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.gateway.base.tenant_counters.TELL_SECONDS", 0.0)
    async with two() as (harness, acme, beta):
        hears, says = await Client.connect(acme, "hears"), await Client.connect(acme, "says")
        await hears.subscribe("a/#", 1)
        await says.publish("a/b", b"12345", 1)
        await says.publish("nobody/x", b"1", 0)
        assert (await hears.message()).payload == b"12345"
        harness.gateway.drops.add(DropReason.EXPIRED, BETA, "x", "t", 1, 7)
        other = await Client.connect(beta, "other")
        await other.publish("b", b"123", 0)
        of_acme, of_beta = (TenantMetricsKey("gateway-1", one) for one in (ACME, BETA))

        wanted = {
            of_acme: (2, dict(zip(COUNTED, (2, 2, 6, 1, 5, 0), strict=True))),
            of_beta: (1, dict(zip(COUNTED, (1, 1, 3, 0, 0, 7), strict=True))),
        }
        await until(lambda: set(told(harness.log)) >= set(wanted))
        for key, expected in wanted.items():
            await until(
                lambda key=key, expected=expected: (
                    (one := told(harness.log)[key]) and (one.connections, one.counters) == expected
                )
            )
        say(harness.log, BETA, gone=True)
        await until(lambda: told(harness.log)[of_beta] is None)
