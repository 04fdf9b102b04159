import gc
from typing import Any

import pytest

from ingest.gateway.clients.admission import Admission
from ingest.gateway.clients.connection import ClientConnection
from ingest.gateway.clients.receiving import Receiver
from ingest.gateway.clients.subscribing import SubscribeHandler
from ingest.gateway.load.garbage import YOUNG_OBJECTS, collect_rarely
from ingest.gateway.sending.progress import SessionProgress
from ingest.gateway.sending.retained_scans import RetainedScans
from ingest.gateway.sending.sending import Sender
from ingest.gateway.sessions.client_session import ClientSession
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until

pytestmark = pytest.mark.anyio

KINDS = (
    Admission,
    ClientConnection,
    ClientSession,
    SessionProgress,
    Receiver,
    RetainedScans,
    Sender,
    SubscribeHandler,
)


def left() -> list[Any]:
    """Return what is there of connections and their sessions, in use or not."""
    return [one for one in gc.get_objects() if type(one) in KINDS]


async def come_and_go(harness: Harness, client_id: str, *, keeps: bool, subscribes: bool) -> None:
    client = await Client.connect(
        harness.port, client_id, properties={"session_expiry_interval": 60 * keeps}
    )
    if subscribes:
        await client.subscribe("plant/#", 1)
        await client.publish("plant/line", b"1")
        await client.message()
    await client.disconnect()


@pytest.mark.parametrize("subscribes", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
async def test_a_client_that_goes_leaves_nothing_to_the_collector(
    keeps: bool, subscribes: bool
) -> None:
    async with running_gateway() as harness:
        gc.collect()  # what earlier tests have left
        gc.disable()
        try:
            before = left()  # held, so that none of them goes meanwhile
            for number in range(3):
                await come_and_go(harness, f"client-{number}", keeps=keeps, subscribes=subscribes)
            await until(lambda: len(left()) == len(before))
        finally:
            gc.enable()


def test_the_collector_passes_over_what_there_is() -> None:
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    more = [[number] for number in range(1_000)]
    try:
        collect_rarely()
        assert gc.get_freeze_count() >= frozen + len(more)
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    finally:
        gc.set_threshold(*threshold)
