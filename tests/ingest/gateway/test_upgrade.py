"""Gateways of two releases side by side: which version of records they write.

The old one is this code with the version of the release before, the new one with its own.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from mqlake.errors import OperationalError
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import (
    EVENTS,
    GATEWAYS,
    INBOUND,
    ROUTES,
    SESSIONS,
    VERSION_KEY,
    LogRecord,
)
from mqlake.records.sessions import session_key
from mqlake.records.shards import OWNER_KEY, encode_run
from mqlake.records.versions import HEADER_MQTT, HEADER_VERSION, RECORD_VERSION
from tests.ingest.gateway.harness import (
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    until,
)

pytestmark = pytest.mark.anyio

OLD, NEW = RECORD_VERSION - 1, RECORD_VERSION
LOG_TOPICS = (INBOUND, ROUTES, SESSIONS, EVENTS, GATEWAYS)
Ends = dict[str, list[int]]


class Site:
    """A log with its router, and gateways that come and go."""

    def __init__(self, log: MemoryLog, router: MemoryRouter, stack: AsyncExitStack) -> None:
        self.log = log
        self._router = router
        self._stack = stack
        self._gateways: dict[str, AsyncExitStack] = {}

    async def start(self, name: str, records: int) -> Harness:
        stack = await self._stack.enter_async_context(AsyncExitStack())
        self._gateways[name] = stack
        return await stack.enter_async_context(
            running_gateway(name=name, log=self.log, router=self._router, records=records)
        )

    async def stop(self, name: str) -> None:
        await self._gateways[name].aclose()

    def ends(self) -> Ends:
        return {one: [part.end for part in self.log.partitions(one)] for one in LOG_TOPICS}

    def words(self, gateway: str) -> int:
        """Return how many heartbeats of a gateway there are."""
        return sum(one.key == gateway.encode() for one in self.log.records(GATEWAYS))

    def versions(self, since: Ends) -> dict[str, set[int]]:
        """Return the versions of the records of each log topic, where they say one."""
        return {
            log_topic: {
                version
                for record in self.log.records(log_topic)
                if record.offset >= since[log_topic][record.partition]
                for version in _versions(record)
            }
            for log_topic in LOG_TOPICS
        }


def _versions(record: LogRecord) -> Iterator[int]:
    headers = dict(record.headers)
    if HEADER_VERSION in headers:
        yield int(headers[HEADER_VERSION])
    if HEADER_MQTT in headers:
        yield headers[HEADER_MQTT][0]
    elif (record.value or b"").startswith(b"{"):
        yield json.loads(record.value or b"")["v"]


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    async with AsyncExitStack() as stack:
        yield Site(log, router, stack)
    await router.close()


async def use(harness: Harness, client_id: str, *, is_known: bool = False) -> None:
    """Have a client do what makes records of every kind."""
    kept: Any = {"session_expiry_interval": 1000}
    client = await Client.open(harness.port)
    connack = await client.handshake(client_id, clean_start=False, properties=kept)
    assert (connack.reason_code, connack.session_present) == (0, is_known)
    await client.subscribe(f"{client_id}/{harness.port}/+", 1)
    await client.subscribe(f"$share/group/{client_id}/{harness.port}/shared/+", 1)
    for qos in (1, 2):
        await client.publish(f"nobody/{client_id}", b"x", qos)
    await client.disconnect()
    await harness.saved()


async def test_the_old_version_is_written_while_an_old_gateway_lives() -> None:
    async with site() as system:
        start = system.ends()
        old = await system.start("gateway-1", OLD)
        new = await system.start("gateway-2", NEW)
        await use(old, "alice")
        await use(new, "bob")
        await use(new, "alice", is_known=True)
        assert system.versions(start) == {one: {OLD} for one in LOG_TOPICS}

        await system.stop("gateway-1")
        await until(lambda: new.gateway.peers.version == NEW)
        changed = system.ends()
        await use(new, "alice", is_known=True)
        words = system.words("gateway-2")
        await until(lambda: system.words("gateway-2") > words)
        await until(lambda: not new.writer.queued())
        assert system.versions(changed) == {one: {NEW} for one in LOG_TOPICS}
        kept = [
            one
            for one in system.log.records(SESSIONS)
            if one.key == session_key("default", "alice")
        ]
        assert [set(_versions(one)) for one in (kept[0], kept[-1])] == [{OLD}, {NEW}]


async def test_an_old_gateway_does_not_start_where_the_new_version_is_written() -> None:
    async with site() as system:
        new = await system.start("gateway-2", NEW)
        await until(lambda: new.gateway.peers.version == NEW)
        await system.stop("gateway-2")
        before = system.ends()
        refusal = (
            f"records of version {NEW} since gateway-2 has said so, this release knows up to {OLD}"
            f": start gateway-1 in a release that knows version {NEW}"
        )
        with pytest.raises(OperationalError, match=refusal):
            await system.start("gateway-1", OLD)
        assert system.ends() == before
        again = await system.start("gateway-3", NEW)
        assert again.gateway.peers.version == NEW


@asynccontextmanager
async def ending_site(reason: str) -> AsyncIterator[tuple[Site, Harness]]:
    """Run one gateway, which ends by itself for a reason."""
    with pytest.raises(OperationalError, match=reason):  # noqa: PT012 - it ends in the block
        async with site() as system:
            gateway = await system.start("gateway-1", OLD)
            yield system, gateway
            await until(gateway.task.done)


async def test_an_old_gateway_that_was_not_heard_ends_when_it_goes_on() -> None:
    async with ending_site(f"release that knows version {NEW}") as (system, _):
        word = {"v": OLD, "written": NEW, "gateway": "gateway-2"}
        system.log.store(GATEWAYS, VERSION_KEY, json.dumps(word).encode(), [], 1, 0)


async def test_a_gateway_does_not_pass_over_a_record_of_a_later_release() -> None:
    async with ending_site("of version 5, expected 1 to 4: a later release") as (system, gateway):
        value = encode_run(gateway.gateway.me).replace(b'{"v":%d' % NEW, b'{"v":%d' % (NEW + 2))
        system.log.store(SESSIONS, OWNER_KEY, value, [], 1, 0)
