"""A site whose log is full acknowledges nothing, says so, and takes it when there is room."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ingest.federation.sites import checkpoints, full_log
from ingest.federation.sites.full_log import FullLog
from mqlake.processes import log_disk
from mqlake.processes.log_disk import LogDisk
from mqlake.settings import LogDiskSettings
from tests.ingest.federation.sites.harness import Site, are_linked, until

if TYPE_CHECKING:
    from ingest.federation.sites.links.connection import SiteConnection

pytestmark = [pytest.mark.anyio, pytest.mark.promise]

WHY = "the log is full: 2 MiB in the log, 1 MiB allowed"


def fill(folder: Path) -> Path:
    file = folder / "segment"
    file.write_bytes(b"x" * (2 << 20))
    return file


def disk_in(folder: Path) -> LogDiskSettings:
    return LogDiskSettings(folder=folder, min_free_bytes=0, max_bytes=1 << 20)


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[tuple[Site, Site]]:
    """Two linked sites; the log of the second may be full."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(log_disk, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(full_log, "WAIT_SECONDS", 0.01)
    one, other = Site(1), Site(2)
    one.link(other)
    other.link(one, log_disk=disk_in(tmp_path))
    for site in (one, other):
        await site.start()
    await until(lambda: are_linked(one, other))
    yield one, other
    for site in (one, other):
        if site.is_running:
            await site.stop()


def figures_of_link(site: Site) -> dict[str, Any]:
    assert site.service is not None
    (link,) = site.service.figures()["links"]
    return cast("dict[str, Any]", link)


async def test_nothing_is_acknowledged_until_there_is_room(
    pair: tuple[Site, Site], tmp_path: Path
) -> None:
    one, other = pair
    file = fill(tmp_path)
    payloads = [b"%d" % number for number in range(20)]
    for payload in payloads:
        await one.publish("f/a", payload)
    await until(lambda: figures_of_link(other)["held"] == len(payloads))
    assert other.payloads("f/a") == []
    assert one.service is not None
    assert other.service is not None
    assert one.service.links[2].waiting == len(payloads), "unacknowledged"
    assert figures_of_link(other)["held_because"] == WHY
    assert other.service.health() == (
        True,
        "1 of 1 neighbours there; held back as the log is full: 1",
    )
    await until(lambda: ("federation.link_held", 1, WHY) in other.events())
    file.unlink()
    await until(lambda: other.payloads("f/a") == payloads)
    await until(lambda: one.service is not None and not one.service.links[2].waiting)
    assert (figures_of_link(other)["held"], figures_of_link(other)["held_because"]) == (0, "")
    await until(lambda: ("federation.link_resumed", 1, None) in other.events())


async def test_what_waited_comes_again_after_a_crash(
    pair: tuple[Site, Site], tmp_path: Path
) -> None:
    one, other = pair
    file = fill(tmp_path)
    await one.publish("f/a", b"x")
    await until(lambda: figures_of_link(other)["held"])
    await other.kill()
    file.unlink()
    await other.start()
    await until(lambda: other.payloads("f/a") == [b"x"])


async def test_what_comes_back_waits_for_room_too(
    pair: tuple[Site, Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for a share group that a neighbour has no member for."""
    _, other = pair
    assert other.service is not None
    link = other.service.links[1]
    taken: list[int] = []
    monkeypatch.setattr(link, "returned", lambda packet_id, _take_back: taken.append(packet_id))
    connection = link.connection
    assert connection is not None
    other.service.returned(connection, 7)
    assert taken == [7]
    file = fill(tmp_path)
    other.service.returned(connection, 8)
    other.service.returned(connection, 9)
    assert (taken, figures_of_link(other)["held_because"]) == ([7], WHY)
    file.unlink()
    await until(lambda: taken == [7, 8, 9])


async def test_who_does_not_keep_to_its_window_is_cut_off(tmp_path: Path) -> None:
    fill(tmp_path)
    closed: list[str] = []
    told: list[tuple[Any, ...]] = []
    taken: list[int] = []
    connection = cast("SiteConnection", SimpleNamespace(close=closed.append))
    events = cast("Any", SimpleNamespace(add=lambda *event: told.append(event)))
    held = FullLog(LogDisk(disk_in(tmp_path)), 2, events)
    for number in range(3):
        assert held.hold(7, connection, partial(taken.append, number))
    assert closed == ["more than 2 messages that wait for room in the log"]
    assert (held.held(7), held.reason(7), held.reason(8)) == (2, WHY, "")
    assert told == [("federation.link_held", 7, WHY)]
    held.close(7)
    assert (held.held(7), taken) == (0, [])
    held.stop()
    await asyncio.sleep(0)
