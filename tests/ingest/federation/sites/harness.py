"""Federated sites in one process: real services, real sockets, a log in memory for each."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from ingest.federation.settings import FederationSettings, ListenSettings, NeighborSettings
from ingest.federation.sites.service import SiteService
from launcher.ports import free_ports
from mqlake.clock import SystemClock
from mqlake.identifiers import MessageIdentifiers
from mqlake.log.contract import LogAccess, settle
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.records.federation import FEDERATION
from mqlake.records.messages import (
    EVENTS,
    GATEWAYS,
    INBOUND,
    ROUTES,
    RULES,
    SESSIONS,
    Barrier,
    Message,
    Route,
    barrier_key,
    decode_message,
    is_message,
    message_headers,
    message_key,
    route_headers,
    route_key,
)
from mqlake.records.rules import (
    Activation,
    OffsetRange,
    RulesKey,
    Span,
    encode_activation,
    rules_key,
)
from mqlake.records.sessions import StoredSubscription, encode_session, session_key
from mqlake.settings import LogSettings
from tests.ingest.federation.sites.router import Router
from tests.mqlake.sessions import a_session
from tests.waiting import until as until

TURN_SECONDS: Final = 0.005
TENANT: Final = "default"


class Site:
    """One mqlake site: its log, and its federator, which may be killed.

    Args:
        number: Its identifier.
        partitions: Of its log.
    """

    def __init__(self, number: int, partitions: int = 2) -> None:
        self.number = number
        (self.port,) = free_ports(1)
        self.log = MemoryLog()
        self.log.create(INBOUND, partitions)
        for log_topic in (FEDERATION, GATEWAYS, EVENTS, ROUTES, SESSIONS, RULES):
            self.log.create(log_topic, 1)
        self.settings = FederationSettings()
        self.service: SiteService | None = None
        self.open_reader: Callable[[MemoryLog], MemoryLogReader] = MemoryLogReader
        self._writer: MemoryLogWriter | None = None
        self._clients = MemoryLogWriter(self.log)
        self._task: asyncio.Task[None] | None = None
        self.router = Router(self.log)
        self._stop = asyncio.Event()
        self._identifiers = MessageIdentifiers(SystemClock(), datacenter=number, machine=1)

    def link(self, *others: "Site", connects: bool = True, **changes: Any) -> None:
        """Say who its neighbours are."""
        neighbours = [
            NeighborSettings(
                id=one.number,
                uri=f"mqtt://127.0.0.1:{one.port}" if connects else "",
                password="-".join(map(str, sorted((self.number, one.number)))),  # type: ignore[arg-type]
            )
            for one in others
        ]
        given: dict[str, Any] = {
            "host": {"id": self.number, "uri": "mqtt://127.0.0.1"},
            "log": LogSettings(),
            "listen": ListenSettings(port=self.port),
            "neighbors": tuple(neighbours),
            "filters_in": ("f/#",),
            "filters_out": ("f/#",),
            "interests": ("f/#",),
            "reconnect_max_seconds": 0.1,
        }
        self.settings = FederationSettings(**given | changes)

    async def start(self) -> None:
        log = self.log
        self._writer = MemoryLogWriter(log)
        access = LogAccess(self._writer, lambda: self.open_reader(log), MemoryRangeReader(log))

        async def make_topic(log_topic: str) -> None:
            log.create(log_topic, 1)

        self.service = service = SiteService(
            self.settings, SystemClock(), access, make_topic, lambda: None
        )
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(service.run(self._stop))
        await until(lambda: service.is_ready or (self._task is not None and self._task.done()))

    async def stop(self) -> None:
        """Let it end as it should."""
        self._stop.set()
        if self._task is not None:
            await self._task
        self._task = self.service = None

    async def kill(self) -> None:
        """Let it end at once: nothing that it has not written yet gets into the log."""
        assert self._task is not None
        assert self._writer is not None
        self._writer.kill()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = self.service = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def publish(self, topic: str, payload: bytes, **fields: Any) -> bytes:
        """Do what a gateway does with a PUBLISH; return the message's identifier."""
        message_id, done = self.hand_over(topic, payload, **fields)
        await done
        return message_id

    def hand_over(
        self, topic: str, payload: bytes, **fields: Any
    ) -> tuple[bytes, asyncio.Future[tuple[int, int]]]:
        """Do likewise and do not wait for the log."""
        given: dict[str, Any] = {"qos": 1, "retain": False}
        message = Message(
            tenant=TENANT,
            topic_name=topic,
            payload=payload,
            message_id=self._identifiers.next(),
            client_id="c",
            received_at_ms=0,
            origin=f"site-{self.number}/gateway-1",
            **given | fields,
        )
        key = message_key(TENANT, topic)
        done: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._clients.append(INBOUND, key, payload, message_headers(message), partial(settle, done))
        return message.message_id, done

    async def subscribe(
        self, topic_filter: str, members: int = 1, *, asks_sites: bool = False
    ) -> int:
        """Do what a gateway does when so many of its clients have subscribed.

        Returns:
            The offset of the route.
        """
        key = route_key(Route("gateway-1", TENANT, topic_filter))
        value = b"%d" % members if members else None
        headers = route_headers("i", 1, 0, asks_sites=asks_sites)
        return (await self._clients.append_durably(ROUTES, key, value, headers))[1]

    async def share(self, shared_filter: str, members: int = 1) -> None:
        """Do what a gateway does when so many of its clients are in a share group."""
        offset = await self.subscribe(shared_filter, members)
        key = barrier_key(Barrier("gateway-1", "i", 1, offset))
        for partition in range(len(self.log.partitions(INBOUND))):
            await self._clients.append_durably(INBOUND, key, b"", [], partition=partition)

    async def store_session(self, client_id: str, *filters: str) -> None:
        """Do what a gateway does when a client with a session has gone."""
        session = a_session(
            tenant=TENANT,
            client_id=client_id,
            connected=False,
            disconnected_at_ms=1_700_000_000_001,
            subscriptions=[StoredSubscription(one, 1) for one in filters],
        )
        key = session_key(TENANT, client_id)
        await self._clients.append_durably(SESSIONS, key, encode_session(session), [])

    async def run_rule(self, rule: str, *filters: str) -> None:
        """Do what the rule engine does when it puts a rule in force."""
        span = Span(1, filters, "null", (), None, {INBOUND: OffsetRange((0, 0))})
        value = encode_activation(Activation(TENANT, rule, "running", 1, 1, spans=(span,)))
        key = rules_key(RulesKey("activation", TENANT, rule))
        await self._clients.append_durably(RULES, key, value, [])

    def events(self) -> list[tuple[str, int, str | None]]:
        """Return what became of its links: event, neighbour and reason."""
        found = [json.loads(one.value or b"{}") for one in self.log.records(EVENTS)]
        return [(one["event"], one["neighbour"], one["reason"]) for one in found]

    def messages(self, topic: str | None = None) -> list[Message]:
        """Return what its log has, partition by partition."""
        found = [
            decode_message(one.key or b"", one.value, one.headers, one.timestamp_ms)
            for one in self.log.records(INBOUND)
            if is_message(one.key, dict(one.headers))
        ]
        return [one for one in found if topic in (None, one.topic_name)]

    def payloads(self, topic: str) -> list[bytes]:
        return [one.payload for one in self.messages(topic)]

    def have(self, payloads: Iterable[bytes]) -> bool:
        """Tell whether its log has at least these."""
        return set(payloads) <= {one.payload for one in self.messages()}

    def repeated(self) -> list[bytes]:
        """Return identifiers of messages that its log has more than once."""
        counted = Counter(one.message_id for one in self.messages())
        return [one for one, count in counted.items() if count > 1]


def are_linked(*sites: Site) -> bool:
    """Tell whether all links are up."""
    return all(
        link.is_up
        for site in sites
        if site.service is not None
        for link in site.service.links.values()
    )
