"""Routes that an earlier run of a gateway wrote late neither count nor stay."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ingest.gateway.routing import late_routes
from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import HEADER_SINCE, ROUTES, LogRecord, Route, route_headers, route_key
from mqlake.records.versions import VERSION_HEADER, Headers
from tests.ingest.gateway.harness import (
    NAME,
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    until,
)

pytestmark = pytest.mark.anyio

HERE = Route(NAME, "default", "here/#")
GONE = Route(NAME, "default", "gone/#")
MEMBER = Route(NAME, "default", "$share/g/a")
NO_MEMBER = Route(NAME, "default", "$share/g/b")
WITHDRAWN = Route(NAME, "default", "$share/g/c")
OTHERS = Route("gateway-2", "default", "here/#")


def newest(log: MemoryLog) -> dict[bytes | None, LogRecord]:
    return {record.key: record for record in log.records(ROUTES)}


def write(log: MemoryLog, route: Route, value: bytes | None, headers: Headers) -> None:
    log.store(ROUTES, route_key(route), value, headers, 0, 0)


@pytest.fixture
async def second_run() -> AsyncIterator[tuple[Harness, Client, Headers]]:
    """A gateway that was started again, a client of it, and headers of the run before."""
    log = new_log(NAME)
    router = MemoryRouter(log)
    await router.start()
    async with running_gateway(log=log, router=router) as first:
        client = await Client.connect(first.port, "before")
        await client.subscribe("gone/#", 1)
        earlier = newest(log)[route_key(GONE)].headers
    async with running_gateway(log=log, router=router) as second:
        client = await Client.connect(second.port, "now")
        for topic_filter in (HERE.topic_filter, MEMBER.topic_filter, WITHDRAWN.topic_filter):
            await client.subscribe(topic_filter, 1)
        yield second, client, earlier
    await router.close()


async def test_a_later_run_began_later(second_run: tuple[Harness, Client, Headers]) -> None:
    harness, _, earlier = second_run
    now = newest(harness.log)[route_key(HERE)].headers
    assert int(dict(earlier)[HEADER_SINCE]) < int(dict(now)[HEADER_SINCE])


async def test_they_do_not_count_and_are_written_again(
    second_run: tuple[Harness, Client, Headers],
) -> None:
    harness, client, earlier = second_run
    log = harness.log
    write(log, HERE, None, earlier)
    write(log, GONE, b"1", earlier)
    write(log, MEMBER, None, earlier)
    write(log, NO_MEMBER, b"1 round_robin 0", earlier)
    write(log, OTHERS, None, earlier)
    write(log, WITHDRAWN, None, [VERSION_HEADER])  # by who has settled a membership
    publisher = await Client.connect(harness.port, "publisher")
    await publisher.publish("here/1", b"1", 1)
    assert await client.payloads(1) == [b"1"]
    await harness.gateway.late_routes.look()
    own = {HERE: b"1", GONE: None}
    await until(lambda: all(newest(log)[route_key(one)].value == own[one] for one in own))
    await until(lambda: (newest(log)[route_key(MEMBER)].value or b"").startswith(b"1 round_robin "))
    assert newest(log)[route_key(NO_MEMBER)].headers == earlier, "its membership may be unsettled"
    assert newest(log)[route_key(WITHDRAWN)].value is None
    assert newest(log)[route_key(OTHERS)].headers == earlier
    count = len(log.records(ROUTES))
    write(log, HERE, None, route_headers("earlier", 9, 0))
    write(log, HERE, b"1", newest(log)[route_key(GONE)].headers)  # by this run, meanwhile
    await harness.gateway.late_routes.look()
    await client.subscribe("more", 1)
    written = [record.key for record in log.records(ROUTES)[count + 2 :]]
    assert route_key(HERE) not in written
    assert written[-1] == route_key(Route(NAME, "default", "more"))


async def test_they_are_looked_for_until_the_log_answers(
    second_run: tuple[Harness, Client, Headers], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, _, earlier = second_run
    for name in ("LOOK_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(late_routes, name, 0)
    write(harness.log, GONE, b"1", earlier)
    late = harness.gateway.late_routes
    look, looks = late.look, 0

    async def fail_once() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise LogError("no answer", definite=True)
        await look()

    monkeypatch.setattr(late, "look", fail_once)
    async with asyncio.timeout(30):
        await late.run()
    assert looks == 2
    await until(lambda: newest(harness.log)[route_key(GONE)].value is None)
