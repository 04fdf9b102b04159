"""What a link holds back for its rate goes on, whenever the clock is looked at."""

from typing import Any

import pytest

from ingest.federation.settings import FederationSettings, NeighborSettings
from ingest.federation.sites.link import SiteLink
from mqlake.federation_records import LinkPlaces

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class SlowLoop:
    """Between two looks at its clock ten seconds pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Any] = []

    def time(self) -> float:
        self.now += 10
        return self.now

    def call_at(self, _when: float, action: Any) -> Any:
        self.due.append(action)


class Acknowledged:
    def __init__(self) -> None:
        self.packets: list[int] = []
        self.acknowledge = self.packets.append


async def test_a_rate_that_is_over_when_it_is_looked_at_holds_nothing_back() -> None:
    neighbour = NeighborSettings(id=2, messages_in_per_second=1)
    nothing: Any = None
    link = SiteLink(
        *(FederationSettings(), neighbour, nothing, LinkPlaces({})),
        *(nothing, nothing, nothing, nothing, nothing),
    )
    loop: Any = SlowLoop()
    connection: Any = Acknowledged()
    link._loop, link.connection = loop, connection
    link._durable.extend((packet_id, 1) for packet_id in range(1, 10))
    link._acknowledge()
    while loop.due:
        loop.due.pop()()
    assert connection.packets == list(range(1, 10))
