"""What operators ask of a gateway through the log."""

import json
from typing import Any

import pytest

from ingest.protocol.packets import Will
from ingest.protocol.reason_codes import DisconnectReasonCode
from tests.ingest.gateway.harness import Client, Harness, running_gateway, stored_session, until
from tests.ingest.gateway.test_draining import ask
from tests.ingest.gateway.test_survival import FIRST, NEVER, SECOND, resume, site

pytestmark = pytest.mark.anyio


def disconnect(harness: Harness, client_id: str = "alice", *, end_session: bool) -> None:
    ask(harness, "disconnect", tenant="default", client_id=client_id, end_session=end_session)


async def test_a_client_is_disconnected_and_keeps_its_session() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness)
        await client.subscribe("a", 1)
        disconnect(harness, end_session=False)
        await client.expect_disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION)
        _, connack = await resume(harness)
        assert connack.session_present


async def test_a_client_is_disconnected_and_its_session_ends() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, will=Will("will", b"gone", 1))
        await client.subscribe("a", 1)
        disconnect(harness, end_session=True)
        await client.expect_disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION)
        await until(lambda: len(harness.gateway.sessions) == 0)
        await until(lambda: [record.value for record in harness.inbound()] == [b"gone"])
        _, connack = await resume(harness)
        assert not connack.session_present


async def test_a_client_without_a_session_is_disconnected() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=4)
        disconnect(harness, end_session=True)
        assert await client.is_closed()


async def test_the_session_of_an_absent_client_ends_once_whoever_is_asked() -> None:
    """All gateways are asked; a will that waits is published once."""
    will = Will("will", b"gone", 1, properties={"will_delay_interval": 1000})
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        client, _ = await resume(first, will=will)
        client.cut()
        await until(
            lambda: (one := stored_session(first, second)) is not None and not one.connected
        )
        for harness in (second, first):
            disconnect(harness, end_session=False)
            disconnect(harness, end_session=True)
        await until(lambda: stored_session(first, second) is None)
        await first.delivered()
        await second.delivered()
        assert [record.value for record in first.inbound()] == [b"gone"]
        _, connack = await resume(second)
        assert not connack.session_present


async def test_an_unknown_client_is_no_error() -> None:
    async with running_gateway() as harness:
        disconnect(harness, "nobody", end_session=True)
        ask(harness, "reload")
        ask(harness, "dance")
        await harness.rounds_are_over()
        assert harness.counters.deliveries_malformed == 0


@pytest.mark.parametrize(
    ("action", "value"),
    [
        ("disconnect", {}),
        ("disconnect", {"tenant": "default", "client_id": 7, "end_session": True}),
        ("disconnect", {"tenant": "default", "client_id": "alice", "end_session": 1}),
        ("drain", {"connections_per_second": 0}),
        ("drain", {"connections_per_second": "1"}),
        ("drain", {"connections_per_second": float("nan")}),
        ("drain", {"connections_per_second": True}),
        ("drain", {"server_reference": 1}),
        ("drain", {"moved": "yes"}),
        ("drain", []),
        ("drain", None),
    ],
)
async def test_what_makes_no_sense_is_refused(action: str, value: Any) -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, properties=NEVER)
        data = json.dumps(value).encode()
        harness.deliver(b"\0control/" + action.encode(), data, [])
        harness.deliver(b"\0control/" + action.encode(), b"{", [])
        await until(lambda: harness.counters.deliveries_malformed == 2)
        assert harness.gateway.draining.state == "serving"
        await client.expect_nothing()
