"""How many retained messages a client or a user may have: in the copies, and on their way there."""

import random
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.base.outbound import OutboundMessage
from ingest.gateway.retained.retained import Retained
from ingest.gateway.retained.retained_publishers import (
    COMING_SECONDS,
    MOST_COMING,
    RetainedPublisher,
    RetainedPublishers,
)
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.store.database import Database
from ingest.protocol.packets import Will
from ingest.protocol.properties import NO_PROPERTIES
from mqlake.clock import ManualClock
from tests.ingest.gateway.harness import Client, running_gateway, until
from tests.ingest.gateway.test_limits import credentials, limits, of_user
from tests.ingest.gateway.test_tenant_limits import put

__all__ = ["credentials"]

pytestmark = pytest.mark.anyio

ANN = RetainedPublisher("default", "pump", "ann")
SHARDS = 12


class Site:
    """The copies of one gateway, and what it lets in."""

    def __init__(self, copies: int = SHARDS, **most: int) -> None:
        settings = GatewaySettings.model_validate({"limits": most}).limits
        self.clock = ManualClock()
        self.retained = Retained(Database(None), SHARDS, self.clock)
        self.publishers = RetainedPublishers(settings, self.retained, SHARDS, self.clock)
        for shard in range(copies):
            self.retained.hold(shard)
            self.retained.complete(shard)
        self._offset = 0

    def offer(self, publisher: RetainedPublisher, shard: int, topic: str, size: int = 1) -> str:
        whose = self.publishers.full(publisher, shard, topic, size)
        if not whose:
            self.publishers.let_in(publisher, topic, size)
        return whose

    def arrive(self, publisher: RetainedPublisher, shard: int, topic: str, size: int = 1) -> None:
        """Have the copies take a message; with a size of 0 nothing is retained any more."""
        self._offset += 1
        payload = bytes(size - len(topic)) if size else b""
        message = OutboundMessage(topic, payload, 1, True, NO_PROPERTIES, 0, shard, self._offset)
        self.retained.apply(
            publisher.tenant, publisher.client_id, message, None, publisher.user or ""
        )


def test_without_a_limit_nothing_is_counted() -> None:
    site = Site()
    assert not site.publishers.is_needed
    site.arrive(ANN, 0, "a", 2)
    with pytest.raises(Exception, match="published"):
        site.retained.published("client_id", "default", "pump")


def test_messages_count_once_on_their_way_and_in_the_copies() -> None:
    site = Site(retained_messages=3)
    for topic in "abc":
        assert site.offer(ANN, 0, topic, 2) == ""
    assert site.offer(ANN, 0, "d", 2) == "the client", "while they are on their way"
    for topic in "abc":
        site.arrive(ANN, 0, topic, 2)
    assert site.offer(ANN, 0, "d", 2) == "the client"
    assert site.offer(ANN, 0, "a", 2) == "", "in the place of its own"
    site.arrive(ANN, 0, "a", 0)
    assert site.offer(ANN, 1, "d", 2) == "", "one was removed"


def test_who_publishes_last_has_it() -> None:
    site = Site(retained_messages=1)
    bob = RetainedPublisher("default", "valve", "bob")
    for publisher in (ANN, bob):
        assert site.offer(publisher, 0, "a", 2) == ""
        site.arrive(publisher, 0, "a", 2)
    assert site.offer(ANN, 0, "b", 2) == "", "its place was taken"
    assert site.offer(bob, 0, "b", 2) == "the client"
    other = ANN._replace(tenant="acme")
    assert site.offer(other, 0, "x", 2) == ""


def test_clients_of_a_user_share_what_it_may_have() -> None:
    site = Site(user_retained_messages=2, retained_messages=2)
    assert site.offer(ANN, 0, "a", 2) == ""
    site.arrive(ANN, 0, "a", 2)
    again = ANN._replace(client_id="second")
    assert site.offer(again, 0, "b", 2) == ""
    assert site.offer(again, 0, "c", 2) == "its user"
    nobody = RetainedPublisher("default", "anonymous", None)
    assert site.offer(nobody, 0, "c", 2) == ""


def test_bytes_are_those_of_payloads_and_topics() -> None:
    site = Site(retained_bytes=100, user_retained_bytes=150)
    assert site.offer(ANN, 0, "a", 60) == ""
    site.arrive(ANN, 0, "a", 60)
    assert site.offer(ANN, 0, "b", 60) == "the client"
    assert site.offer(ANN, 0, "a", 90) == "", "30 more"
    site.arrive(ANN, 0, "a", 90)
    second = ANN._replace(client_id="second")
    assert site.offer(second, 0, "b", 70) == "its user"
    assert site.offer(second, 0, "b", 60) == ""


def test_what_does_not_come_counts_for_a_while() -> None:
    site = Site(copies=6, retained_messages=1)
    assert site.offer(ANN, 9, "a", 2) == "", "of a shard that is not here"
    assert site.offer(ANN, 9, "b", 2) == "the client"
    site.clock.advance(COMING_SECONDS)
    assert site.offer(ANN, 9, "b", 2) == ""


def test_what_is_on_its_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_COMING >= 1_000
    monkeypatch.setattr("ingest.gateway.retained.retained_publishers.MOST_COMING", 10)
    site = Site(copies=0, retained_messages=15)
    for number in range(50):
        assert site.offer(ANN, 0, f"t{number}", 5) == "", "10 of them count"


@pytest.mark.parametrize("copies", [8, 4])
@pytest.mark.parametrize("limit", [1_000, 4_000])
def test_a_part_of_the_copies_tells_of_all_within_a_tenth(copies: int, limit: int) -> None:
    """Of three and of six gateways: each has a copy of two thirds, or a third."""
    site, chosen = Site(copies, retained_messages=limit), random.Random(limit)
    let_in = 0
    for number in range(2 * limit):
        shard = chosen.randrange(SHARDS)
        if not site.offer(ANN, shard, f"t{number}", 9):
            site.arrive(ANN, shard, f"t{number}", 9)
            let_in += 1
        site.clock.advance(0.05)  # what is not here is out of sight after 100 more
    assert 0.9 * limit <= let_in <= 1.1 * limit


async def test_a_client_and_a_user_have_no_more_than_they_may(credentials: Path) -> None:
    rates: dict[str, Any] = limits(retained_messages=2, user_retained_messages=3)
    async with running_gateway(credentials_file=credentials, **rates) as harness:
        first, second = [await of_user(harness, "ann", name) for name in ("a1", "a2")]
        assert [await put(first, topic, b"1", 1) for topic in "abc"] == [0, 0, 0x97]
        assert [await put(second, topic, b"1", 1) for topic in "de"] == [0, 0x97]
        other = await of_user(harness, "bob", "b1")
        assert await put(other, "e", b"1", 1) == 0
        await until(lambda: len(harness.gateway.retained) == 4)
        assert [await put(first, topic, b"2", 1) for topic in "ab"] == [0, 0], "in its place"
        assert await put(first, "a", b"", 1) == 0
        await until(lambda: len(harness.gateway.retained) == 3)
        assert await put(second, "f", b"1", 1) == 0
        mortal = await Client.connect(
            harness.port,
            "a3",
            username="ann",
            password=b"x",
            will=Will("will", b"gone", 1, True),
        )
        mortal.cut()
        await until(lambda: harness.counters.dropped_retained_full == 3)
        assert harness.counters.messages_refused == 2
