"""A link whose connection has just ended, and nobody has said so yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from ingest.federation.links import Link
from ingest.federation.settings import BrokerSettings
from ingest.protocol.packets import Publish, Subscription

if TYPE_CHECKING:
    import asyncio

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Owner:
    def link_is_up(self, link: Link) -> None: ...

    def link_is_down(self, link: Link) -> None: ...

    def receive(self, link: Link, publish: Publish) -> None: ...


class ClosedTransport:
    """As uvloop's is between the end of a connection and `connection_lost`."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")


@pytest.mark.parametrize("is_host", [False, True])
async def test_what_is_written_to_a_connection_that_has_ended_holds_up_nothing_else(
    is_host: bool,
) -> None:
    limits: Any = {"keep_alive_seconds": 5, "max_queued": 10, "max_inflight": 10}
    subscriptions = [Subscription("f/#", 1)] if is_host else []
    link = Link(
        BrokerSettings(id=1),
        "client",
        Owner(),
        subscriptions=subscriptions,
        max_packet_bytes=1024,
        max_pause_seconds=1.0,
        **limits,
    )
    link._transport = cast("asyncio.Transport", ClosedTransport())
    link.is_up = True
    link.publish(Publish("f/a", b"x", 1))
    link.acknowledge([7])
    assert link.waiting == 1, "it is sent again when the connection is another"
