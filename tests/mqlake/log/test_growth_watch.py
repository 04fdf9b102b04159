"""The log grows by the command, and whoever is no gateway follows; on a real broker."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from launcher.log.kafka import running_kafka
from launcher.testing.systems import await_condition
from mqlake.errors import LogError
from mqlake.log import growth_watch
from mqlake.log.admin import LogAdmin, ensure_log_topics
from mqlake.log.following import following_growth
from mqlake.log.grow import grow
from mqlake.log.growth import Growth, encode_growth
from mqlake.log.growth_watch import GRACE_SECONDS, LEASE_SECONDS, GrowthWatch
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.log.partitioning import partition_of
from mqlake.records.messages import GATEWAYS, GROWTH_KEY, INBOUND, VERSION_KEY

pytestmark = [pytest.mark.promise, pytest.mark.kafka]

SECONDS = 120.0
"""Of what a broker does."""
LEASE = 600
"""It is not over before the test is."""
KEYS = [b"default/plant/%d" % number for number in range(40)]


class Site:
    """What others say on a log."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._producer = Producer({"bootstrap.servers": servers})

    def say(self, key: bytes, value: bytes | None) -> None:
        self._producer.produce(GATEWAYS, value, key, 0)
        assert self._producer.flush(SECONDS) == 0

    def word(self, name: str, **members: Any) -> None:
        self.say(name.encode(), json.dumps(members).encode())

    def step(self, growth: Growth) -> None:
        self.say(GROWTH_KEY, encode_growth(growth))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """One on a log of its own: it does not get smaller again."""
    with running_kafka(tmp_path) as server:
        servers = server.bootstrap_servers
        with pytest.raises(LogError, match="does not exist"):
            GrowthWatch(servers)
        ensure_log_topics(
            servers,
            inbound_partitions=2,
            session_shards=1,
            retention_bytes=2**20,
            timeout_seconds=SECONDS,
        )
        yield Site(servers)


def test_the_log_grows_and_writers_follow(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = GrowthWatch(site.servers)
    assert (watch.growth, watch.made_with, watch.used()) == (None, 2, 2)
    site.word("one", partitions=2, fixed=True, lease=LEASE)
    site.word("old", state="serving")
    site.word("left", partitions=2)
    site.word("gone", partitions=2, state="retiring")
    site.say(b"left", None)
    for key, value in ((b"odd", b"{"), (b"list", b"[]"), (VERSION_KEY, b"{}"), (GROWTH_KEY, b"{")):
        site.say(key, value)
    watch.read_to_end()
    heard = watch.heard()
    assert heard.keys() == {"one", "old"}
    assert (heard["one"].partitions, heard["one"].is_fixed) == (2, True)
    assert heard["one"].lease_seconds == LEASE + GRACE_SECONDS
    assert (heard["old"].partitions, heard["old"].is_fixed) == (None, False)
    assert heard["old"].lease_seconds > LEASE_SECONDS
    site.say(b"old", None)
    assert GrowthWatch(site.servers).heard().keys() == {"one"}, "also by whoever comes later"

    places = asyncio.run(follow(site, watch))
    assert places == [[partition_of(key, count) for key in KEYS] for count in (2, 6)]
    later = GrowthWatch(site.servers)
    assert (later.used(), later.made_with) == (6, 2)
    assert later.growth == watch.growth
    monkeypatch.setattr(growth_watch, "IDLE_SECONDS", 0.0)
    site.step(Growth(6, 12).moved())
    assert watch.used() == 12, "nobody has looked for long, so it asks"
    watch.close()


async def follow(site: Site, watch: GrowthWatch) -> list[list[int]]:
    """Have the log grow to 6; return where a writer puts keys before and after."""
    writer = KafkaLogWriter(site.servers)

    async def places() -> list[int]:
        return [(await writer.append_durably(INBOUND, key, b"", []))[0] for key in KEYS]

    async with following_growth(writer, site.servers) as followed:
        before = await places()
        told: list[str] = []
        growing = threading.Thread(target=run_command, args=(site, watch, told))
        growing.start()
        await asyncio.to_thread(await_condition, lambda: followed.used() == 6, "it has moved")
        site.word("one", partitions=6, fixed=True, lease=LEASE)
        async with asyncio.timeout(SECONDS):
            while await places() == before:
                pass
        after = await places()  # it may have moved in the middle of the last
        waits = "messages are in all partitions; waits for the router"
        await asyncio.to_thread(await_condition, lambda: waits in told, "the command waits")
        assert followed.growth is not None
        cut = followed.growth.cut_at(LogAdmin(site.servers).ends(INBOUND))
        site.step(cut)
        site.step(cut.finished())
        await asyncio.to_thread(growing.join)
    await writer.close()
    return [before, after]


def run_command(site: Site, watch: GrowthWatch, told: list[str]) -> None:
    grow(watch, LogAdmin(site.servers), site.step, told.append, 6, SECONDS)
