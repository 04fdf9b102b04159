import pytest

from ingest.gateway.process.metrics import COUNTERS, add_metrics
from mqlake.metrics.families import Families
from mqlake.metrics.names import GATEWAY
from tests.ingest.gateway.harness import Client, running_gateway

pytestmark = pytest.mark.anyio


def samples(families: Families) -> dict[tuple[str, str], float]:
    """Return values by name and the value of its label."""
    return {
        (one.name, "".join(one.labels.values())): one.value
        for family in families
        for one in family.samples
    }


async def test_a_gateway_tells_all_that_is_in_the_table() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/#", 1)
        for qos in (0, 1, 2, 2):
            await client.publish("nobody/x", b"12345", qos)
        await client.publish("a/b", b"x", 0)
        await client.message()
        families = Families()
        add_metrics(harness.gateway.status, families)
        found = samples(families)
        names = {metric.name for metric in GATEWAY if metric.kind != "histogram"}
        histograms = {metric.name for metric in GATEWAY if metric.kind == "histogram"}
        assert {name for name, _ in found if name in names} == names
        assert {name.removesuffix("_count") for name, _ in found if name.endswith("_count")} == (
            histograms
        )
        received, sent = (
            "mqlake_gateway_messages_received_total",
            "mqlake_gateway_messages_sent_total",
        )
        assert [found[received, qos] for qos in "012"] == [2, 1, 2]
        assert [found[sent, qos] for qos in "012"] == [1, 0, 0]
        assert found["mqlake_gateway_payload_received_bytes_total", ""] == 21
        assert found["mqlake_gateway_connections", ""] == 1
        assert found["mqlake_gateway_subscriptions", ""] == 1
        assert found["mqlake_gateway_accept_seconds_count", ""] == 3
        assert found["mqlake_gateway_deliver_seconds_count", ""] == 1
        assert {label for name, label in found if "dropped" in name} == {
            *("slow_client", "queue_full", "expired", "too_large", "no_member", "unreadable"),
            *("not_authorized", "retained_full", "too_fast"),
        }


async def test_every_counter_is_told() -> None:
    async with running_gateway() as harness:
        told = {
            name
            for name in harness.counters.__slots__
            if name in COUNTERS or name.startswith(("dropped_", "messages_"))
        }
        assert set(harness.counters.__slots__) - told == {"connects_received"}
