"""What a link holds back for its rate goes on; a log that grows is read in the order of topics."""

from typing import Any
from unittest.mock import patch

import pytest

from ingest.federation.settings import FederationSettings, NeighborSettings
from ingest.federation.sites.links.link import LinkContext, SiteLink
from ingest.protocol.packets import Publish
from mqlake.log.growth import Growth
from mqlake.records.federation import LinkPosition

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class SlowLoop:
    """Once it is slow, ten seconds pass between two looks at its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_slow = False
        self.due: list[Any] = []

    def time(self) -> float:
        self.now += 10 * self.is_slow
        return self.now

    def call_at(self, _when: float, action: Any) -> Any:
        self.due.append(action)


class Acknowledged:
    def __init__(self) -> None:
        self.packets: list[int] = []
        self.acknowledge = self.packets.append


def a_link(position: LinkPosition, **settings: Any) -> SiteLink:
    nothing: Any = None
    context = LinkContext(
        settings=FederationSettings(),
        log=nothing,
        open_reader=nothing,
        clock=nothing,
        retained=nothing,
        events=nothing,
        make_topic=nothing,
    )
    return SiteLink(context, NeighborSettings(id=2, **settings), position)


async def test_a_rate_that_is_over_when_it_is_looked_at_holds_nothing_back() -> None:
    loop = SlowLoop()
    with patch("asyncio.get_running_loop", lambda: loop):
        link = a_link(LinkPosition({}), messages_in_per_second=1)
    connection: Any = Acknowledged()
    link.connection = connection
    for packet_id in range(1, 10):
        link.acknowledge(connection, Publish("f/1", b"", 1, packet_id=packet_id))
    assert len(connection.packets) < 9
    loop.is_slow = True
    while loop.due:
        loop.due.pop()()
    assert connection.packets == list(range(1, 10))


async def test_new_partitions_are_read_when_what_came_before_has_been() -> None:
    link = a_link(LinkPosition({0: 7, 1: 9}))
    ends = {0: 20, 1: 20, 2: 5, 3: 5}
    moved = Growth(2, 4).moved()
    link.see(ends, moved)
    assert link.position.cursor == {0: 7, 1: 9}
    cut = moved.cut_at({0: 8, 1: 9})
    link.see(ends, cut)
    assert link.position.cursor == {0: 7, 1: 9}
    link.position.cursor[0] = 8
    link.see(ends, cut.finished())
    assert link.position.cursor == {0: 8, 1: 9, 2: 0, 3: 0}
    link.see({**ends, 4: 1}, None)
    assert link.position.cursor[4] == 0, "added by hand"
