"""A link to a broker: what it does not send, and one whose connection has just ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from ingest.federation.brokers.links import Link, LinkLimits
from ingest.federation.settings import BrokerSettings
from ingest.protocol.packets import Publish, Subscription
from ingest.protocol.properties import MAX_USER_PROPERTIES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

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


class OpenTransport:
    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...


def link_over(transport: object, subscriptions: Sequence[Subscription] = ()) -> Link:
    link = Link(
        BrokerSettings(id=1),
        "client",
        Owner(),
        subscriptions=subscriptions,
        limits=LinkLimits(
            keep_alive_seconds=5,
            max_queued=10,
            max_inflight=10,
            max_packet_bytes=1024,
            max_pause_seconds=1.0,
        ),
    )
    link.connection_made(cast("asyncio.Transport", transport))
    link.is_up = True
    return link


@pytest.mark.parametrize("is_host", [False, True])
async def test_what_is_written_to_a_connection_that_has_ended_holds_up_nothing_else(
    is_host: bool,
) -> None:
    link = link_over(ClosedTransport(), [Subscription("f/#", 1)] if is_host else [])
    link.publish(Publish("f/a", b"x", 1))
    link.acknowledge([7])
    assert link.waiting == 1, "it is sent again when the connection is another"


async def test_a_message_for_which_a_gateway_would_end_the_link_is_not_sent() -> None:
    link = link_over(OpenTransport())
    for count in (MAX_USER_PROPERTIES, MAX_USER_PROPERTIES + 1):
        pairs = [("", "")] * count
        link.publish(Publish("f/a", b"x", 1, properties={"user_property": pairs}))
    assert (link.waiting, link.dropped) == (1, 1)
