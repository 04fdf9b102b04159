"""What the gateway's tests share: a router in memory, MQTT clients on raw sockets, a gateway.

`MemoryRouter` keeps the promises of the Spark router: per partition of `mqlake.inbound` it works in
order, a barrier waits until the routes up to its offset are applied, each message goes once to each
gateway that has a matching route, a retain-flagged one also to each that wants those of its
shard, a question to the gateway that is asked.
"""

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any, ClassVar, TypeVar, cast
from unittest.mock import patch

from ingest.gateway.clients.connection import ClientConnection
from ingest.gateway.log.partitions import count_partitions
from ingest.gateway.process.gateway import Gateway
from ingest.gateway.process.process import Process
from ingest.gateway.sessions import session_marks
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from ingest.protocol.properties import NO_PROPERTIES, Properties
from ingest.protocol.reason_codes import DisconnectReasonCode, SubackReasonCode
from launcher.ports import is_free
from mqlake.clock import Clock, SystemClock
from mqlake.errors import LogError
from mqlake.log.contract import BEGINNING, LogAccess
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.processes.tracing import Tracer
from mqlake.records.messages import (
    BARRIER_KEY_PREFIX,
    EVENTS,
    FLAG_UNSHARED,
    GATEWAYS,
    HEADER_BY,
    HEADER_CLIENT_ID,
    HEADER_NUMBER,
    HEADER_SINCE,
    HEADER_SOURCE,
    INBOUND,
    METRICS,
    OUTPUTS,
    QUESTION_KEY_PREFIX,
    RETAINED_FILTER_PREFIX,
    ROUTES,
    ROUTES_IN_FORCE,
    RULES,
    SESSIONS,
    Barrier,
    LogRecord,
    Route,
    Source,
    decode_barrier_key,
    decode_route_key,
    delivery_topic,
    encode_source,
    groups_of,
    is_retained,
)
from mqlake.records.sessions import SessionRecord
from mqlake.records.versions import HEADER_MQTT, RECORD_VERSION, Headers
from mqlake.topics.matching import TopicFilterTrie, filter_matches
from mqlake.topics.names import split_shared
from mqlake.topics.sharing import ShareWeight, choose_gateway, decode_weight
from tests.waiting import turns as turns
from tests.waiting import until as until

DEADLINE_SECONDS = 80.0
"""Never reached where things go well; a busy machine can be slow."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_SHARES = 8
"""More than there are workers: one that comes in the place of another has a name of its own."""
_PORTS = cycle(range(10_000, 20_000)[_WORKER % _SHARES :: _SHARES])
"""Systems under test have theirs above, outgoing connections too."""
PARTITIONS = 3
SHARDS = 4
NAME = "gateway-1"


def doubt_owners(harness: "Harness") -> None:
    """Have a gateway not know of owners that may have come after it, as after a silence."""
    lease = harness.gateway.lease
    with patch.object(type(lease), "is_heard", lambda _: False):
        assert not lease.is_sure()


async def ticks(harness: "Harness", count: int) -> None:
    """Wait until a gateway has done so many times more what is due."""
    system_topics: Any = harness.gateway.system_topics
    process_due, done = system_topics.process_due, 0

    def counted() -> None:
        nonlocal done
        process_due()
        done += 1

    system_topics.process_due = counted
    await until(lambda: done >= count)
    system_topics.process_due = process_due


def new_log(*gateways: str) -> MemoryLog:
    log = MemoryLog()
    log.create(INBOUND, PARTITIONS)
    log.create(OUTPUTS, PARTITIONS)
    log.create(SESSIONS, SHARDS)
    for log_topic in (ROUTES, ROUTES_IN_FORCE, EVENTS, GATEWAYS, METRICS, RULES):
        log.create(log_topic, 1)
    for gateway in gateways:
        log.create(delivery_topic(gateway), 1)
    return log


class FakeHost:
    """A machine on which every gateway of a test is a process of its own."""

    _numbers = count()
    _gone: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        self.identity = f"test/{next(self._numbers)}/1"

    def kill(self) -> None:
        """Be gone, as everybody on the machine can see."""
        self._gone.add(self.identity)

    def hide(self) -> None:
        """Have been on another machine: nobody can see it."""
        self._gone.discard(self.identity)

    def is_gone(self, identity: str) -> bool:
        return identity in self._gone


DOUBT_SECONDS = 1.0
"""How long a barrier waits for a route that `mqlake.routes` does not have."""


class RouteNumbers:
    """Up to which of its route records each gateway's last run is applied."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[str, int]] = {}
        self._sinces: dict[str, int] = {}
        self._shared: dict[tuple[str, int], int] = {}

    def is_past(self, gateway: str, headers: Headers) -> bool:
        """Tell whether a record of a run has come after those of a later one."""
        found = dict(headers)
        run = found.get(HEADER_BY, b"").decode()
        since = int(found.get(HEADER_SINCE, b"-1"))
        last = self._runs.get(gateway, (run, 0))[0]
        return bool(run) and run != last and 0 <= since < self._sinces[gateway]

    def apply(
        self, gateway: str, headers: Headers, offset: int = -1, *, is_shared: bool = False
    ) -> None:
        found = dict(headers)
        if HEADER_NUMBER in found:
            run = found[HEADER_BY].decode()
            before, number = self._runs.get(gateway, (run, 0))
            number = number if before == run else 0
            self._runs[gateway] = (run, max(number, int(found[HEADER_NUMBER])))
            self._sinces[gateway] = int(found.get(HEADER_SINCE, b"-1"))
            if is_shared:
                self._shared[run, int(found[HEADER_NUMBER])] = offset

    def forget(self) -> None:
        """Forget routes of share groups."""
        self._shared.clear()

    def last_shared(self, barrier: Barrier) -> int:
        """Return the last route of a share group up to the number that a barrier names."""
        return max(
            (
                offset
                for (run, number), offset in self._shared.items()
                if run == barrier.incarnation and number <= barrier.route_number
            ),
            default=-1,
        )

    def has(self, barrier: Barrier) -> bool:
        run, number = self._runs.get(barrier.gateway, ("", 0))
        applied = number if run == barrier.incarnation else 0
        return barrier.route_number <= applied


class SharedRoutes:
    """Share groups as the routes say that are in force: from a barrier on, in its partition."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, Route, ShareWeight | None]] = []
        self._in_force: dict[int, list[tuple[int, int]]] = {}

    def apply(self, offset: int, route: Route, weight: ShareWeight | None) -> None:
        self._changes.append((offset, route, weight))

    def last(self, routes_offset: int) -> int:
        return max((offset for offset, *_ in self._changes if offset <= routes_offset), default=-1)

    def advance(self, partition: int, offset: int, routes: int) -> bool:
        """Put routes in force from an offset on; return whether that is to be noted."""
        if routes < 0 or self._at(partition, offset) >= routes:
            return False
        self._in_force.setdefault(partition, []).append((offset, routes))
        return True

    def _at(self, partition: int, offset: int) -> int:
        places = self._in_force.get(partition, ())
        return max((routes for begin, routes in places if begin <= offset), default=-1)

    def forget(self) -> None:
        """Forget groups as they were."""
        self._changes.clear()
        self._in_force.clear()

    def groups(
        self, tenant: str, topic_name: str, partition: int, offset: int
    ) -> dict[str, dict[str, ShareWeight]]:
        """Return the groups that a message is for, with their gateways."""
        in_force = self._at(partition, offset)
        groups: dict[str, dict[str, ShareWeight]] = {}
        for at, route, weight in self._changes:
            plain = split_shared(route.topic_filter).topic_filter
            if at > in_force or route.tenant != tenant or not filter_matches(plain, topic_name):
                continue
            group = groups.setdefault(route.topic_filter, {})
            if weight is None:
                group.pop(route.gateway, None)
            else:
                group[route.gateway] = weight
        return {name: weights for name, weights in groups.items() if weights}


class MemoryRouter:
    """The router: reads routes and messages, writes deliveries."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._routes = MemoryLogReader(log)
        self._inbound = MemoryLogReader(log)
        self._tries: dict[str, TopicFilterTrie[tuple[str, str]]] = {}
        self._want_retained: dict[int, set[str]] = {}
        self._waiting: list[deque[LogRecord]] = [deque() for _ in range(PARTITIONS)]
        self.members: dict[tuple[str, str, str], ShareWeight] = {}
        self._shared = SharedRoutes()
        self.applied = -1
        self._numbers = RouteNumbers()
        # Until when barriers wait whose route is not to be seen, by partition and offset.
        self._doubts: dict[tuple[int, int], asyncio.TimerHandle] = {}

    async def start(self) -> None:
        await self._routes.start(ROUTES, {0: BEGINNING}, self._apply, _raise)
        await self._inbound.start(
            INBOUND, dict.fromkeys(range(PARTITIONS), BEGINNING), self._receive, _raise
        )

    async def close(self) -> None:
        await self._routes.close()
        await self._inbound.close()

    def pause(self) -> None:
        """Be down: nothing is routed until `resume`."""
        self._inbound.pause()

    def resume(self) -> None:
        self._inbound.resume()

    async def read_up_to(self, partitions: int) -> None:
        """Read so many, those that are new from their beginning."""
        new = range(len(self._waiting), partitions)
        self._waiting.extend(deque() for _ in new)
        await self._inbound.follow(dict.fromkeys(new, BEGINNING))

    def pause_routes(self) -> None:
        """Fall behind with the routes: barriers wait."""
        self._routes.pause()

    def resume_routes(self) -> None:
        self._routes.resume()

    def forget_groups(self) -> None:
        """Forget share groups as they were, which the router keeps in the log."""
        self._numbers.forget()
        self._shared.forget()

    def repeat_all(self) -> None:
        """Do what a restart from an old checkpoint does: route everything once more."""
        for record in self._log.records(INBOUND):
            self._route(record)

    def _apply(self, records: list[LogRecord]) -> None:
        for record in records:
            route = decode_route_key(record.key or b"")
            if self._numbers.is_past(route.gateway, record.headers):
                self.applied = record.offset
                continue
            self._numbers.apply(
                route.gateway, record.headers, record.offset, is_shared=route.is_shared
            )
            if route.topic_filter.startswith(RETAINED_FILTER_PREFIX):
                shard = int(route.topic_filter.removeprefix(RETAINED_FILTER_PREFIX))
                wanting = self._want_retained.setdefault(shard, set())
                (wanting.discard if record.value is None else wanting.add)(route.gateway)
                self.applied = record.offset
                continue
            if route.is_shared:
                weight = None if record.value is None else decode_weight(record.value)
                self._shared.apply(record.offset, route, weight)
            plain = split_shared(route.topic_filter).topic_filter
            trie = self._tries.setdefault(route.tenant, TopicFilterTrie())
            key = (route.gateway, route.tenant, route.topic_filter)
            if record.value is None:
                trie.remove(plain, (route.gateway, route.topic_filter))
                self.members.pop(key, None)
            else:
                trie.insert(plain, (route.gateway, route.topic_filter))
                self.members[key] = decode_weight(record.value)
            self.applied = record.offset
        for waiting in self._waiting:
            self._work(waiting)

    def _receive(self, records: list[LogRecord]) -> None:
        for record in records:
            self._waiting[record.partition].append(record)
            self._work(self._waiting[record.partition])

    def _work(self, waiting: deque[LogRecord]) -> None:
        while waiting:
            key = waiting[0].key or b""
            if key.startswith(BARRIER_KEY_PREFIX):
                barrier = decode_barrier_key(key)
                if barrier.routes_offset > self.applied:
                    return
                if not self._numbers.has(barrier):
                    self._doubt(waiting)
                    return
                doubt = self._doubts.pop((waiting[0].partition, waiting[0].offset), None)
                if doubt is not None:
                    doubt.cancel()
            self._route(waiting.popleft())

    def _doubt(self, waiting: deque[LogRecord]) -> None:
        """Give a barrier up, unanswered, when its route is not in the log after a while."""
        record = waiting[0]
        position = (record.partition, record.offset)
        if position in self._doubts:
            return

        def decide() -> None:
            del self._doubts[position]
            if self.applied + 1 == self._log.partitions(ROUTES)[0].end:
                waiting.popleft()
            self._work(waiting)

        loop = asyncio.get_running_loop()
        self._doubts[position] = loop.call_later(DOUBT_SECONDS, decide)

    def _route(self, record: LogRecord) -> None:
        key = record.key or b""
        if key.startswith(BARRIER_KEY_PREFIX):
            barrier = decode_barrier_key(key)
            self._deliver(barrier.gateway, record, [])
            routes = max(
                self._shared.last(barrier.routes_offset), self._numbers.last_shared(barrier)
            )
            if self._shared.advance(record.partition, record.offset, routes):
                self._note(record, routes)
            return
        if key.startswith(QUESTION_KEY_PREFIX):
            self._deliver(key.removeprefix(QUESTION_KEY_PREFIX).decode(), record, [])
            return
        tenant, _, topic_name = key.decode().partition("/")
        chosen: dict[str, list[str]] = {}
        groups = self._shared.groups(tenant, topic_name, record.partition, record.offset)
        trie = self._tries.get(tenant)
        for gateway, topic_filter in [] if trie is None else trie.match(topic_name):
            if not split_shared(topic_filter).share_name:
                chosen.setdefault(gateway, [])
        mqtt = dict(record.headers).get(HEADER_MQTT, b"")
        only = groups_of(mqtt)
        if only:
            chosen.clear()
            groups = {name: weights for name, weights in groups.items() if name in only}
        elif mqtt[2:3] and mqtt[2] & FLAG_UNSHARED:
            groups.clear()
        publisher = dict(record.headers).get(HEADER_CLIENT_ID, b"").decode()
        for topic_filter, weights in groups.items():
            gateway = choose_gateway(
                topic_filter, weights, topic_name, publisher, record.partition, record.offset
            )
            chosen.setdefault(gateway, []).append(topic_filter)
        if is_retained(dict(record.headers)):
            for gateway in self._want_retained.get(record.partition % PARTITIONS, ()):
                chosen.setdefault(gateway, [])
        for gateway, shared_filters in chosen.items():
            self._deliver(gateway, record, shared_filters)

    def _note(self, record: LogRecord, routes: int) -> None:
        source = Source(record.partition, record.offset, record.timestamp_ms, (str(routes),))
        headers = [(HEADER_SOURCE, encode_source(source))]
        key = b"%d" % record.partition
        self._log.store(ROUTES_IN_FORCE, key, b"", headers, record.timestamp_ms, 0)

    def _deliver(self, gateway: str, record: LogRecord, shared_filters: list[str]) -> None:
        source = Source(record.partition, record.offset, record.timestamp_ms, tuple(shared_filters))
        headers = [*record.headers, (HEADER_SOURCE, encode_source(source))]
        key = record.key or b""
        with contextlib.suppress(LogError):  # the gateway of an answer has gone
            self._log.store(
                delivery_topic(gateway), key, record.value, headers, record.timestamp_ms, 0
            )


def _raise(error: LogError) -> None:
    raise error


PacketKind = TypeVar("PacketKind", bound=Packet)


def has_end(reader: asyncio.StreamReader) -> bool:
    """Tell whether the other side has closed a connection, whatever was read of it."""
    found: bool = cast("Any", reader)._eof
    return found


opened_clients: "list[Client]" = []  # by the test that runs; cut at its end


class Client:
    """An MQTT client that does nothing by itself: a test sends and receives each packet."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, level: int
    ) -> None:
        self.level = level
        self.reader = reader
        self.writer = writer
        self._decoder = Decoder(level, role=Role.CLIENT)
        self._packet_id = 0
        self._early: deque[Packet] = deque()
        self._loop = asyncio.get_running_loop()
        opened_clients.append(self)

    @classmethod
    async def open(cls, port: int, level: int = 5) -> "Client":
        """Connect the socket, send nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, level)

    @classmethod
    async def connect(
        cls, port: int, client_id: str = "", *, level: int = 5, **fields: Any
    ) -> "Client":
        """Connect and be accepted."""
        client = await cls.open(port, level)
        connack = await client.handshake(client_id, **fields)
        assert connack.reason_code == 0, connack
        return client

    async def handshake(self, client_id: str, **fields: Any) -> Connack:
        self.send(Connect(client_id, self.level, **fields))
        return await self.expect(Connack)

    def send(self, *packets: Packet) -> None:
        """Send packets in one write."""
        self.send_bytes(b"".join(encode(packet, self.level) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> Packet | None:
        """Return the next packet, None when the gateway has closed the connection."""
        if self._early:
            return self._early.popleft()
        return await self._read()

    async def _read(self) -> Packet | None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (packet := self._decoder.next_packet()) is NEED_DATA:
                try:
                    data = await self.reader.read(65536)
                except ConnectionResetError:
                    return None
                if not data:
                    self.close()  # as every client does; the gateway may wait for it
                    return None
                self._decoder.receive_data(data)
        return packet

    async def expect(self, kind: type[PacketKind]) -> PacketKind:
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    async def is_closed(self) -> bool:
        """Wait for the gateway to close the connection without another packet."""
        packet = await self.receive()
        assert packet is None, packet
        return True

    async def expect_disconnect(self, reason_code: DisconnectReasonCode) -> None:
        """Wait for the end as the version has it: 5.0 is told why."""
        if self.level == 5:
            assert (await self.expect(Disconnect)).reason_code is reason_code
        assert await self.is_closed()

    async def expect_answered(self) -> None:
        """Wait until the gateway has taken all that was sent; what it sends meanwhile is lost."""
        self.send(Pingreq())
        while not isinstance(await self._read(), Pingresp):
            pass

    async def expect_end(self) -> None:
        """Wait until the gateway has closed the connection; what it sends before is lost."""
        while await self._read() is not None:
            pass

    async def expect_nothing(self) -> None:
        """Ask for a PINGRESP: whatever the gateway had to say would come before it."""
        self.send(Pingreq())
        await self.expect(Pingresp)

    def next_packet_id(self) -> int:
        self._packet_id += 1
        return self._packet_id

    async def subscribe(
        self, topic_filter: str, qos: int = 0, *, identifier: int = 0, **options: Any
    ) -> None:
        properties: Properties = {"subscription_identifier": [identifier]} if identifier else {}
        packet_id = self.next_packet_id()
        self.send(Subscribe(packet_id, [Subscription(topic_filter, qos, **options)], properties))
        while isinstance(packet := await self._read(), Publish):  # may precede SUBACK (5.0: 3.8.4)
            self._early.append(packet)
        assert packet == Suback(packet_id, [SubackReasonCode(qos)])

    async def unsubscribe(self, topic_filter: str) -> None:
        packet_id = self.next_packet_id()
        self.send(Unsubscribe(packet_id, [topic_filter]))
        assert (await self.expect(Unsuback)).packet_id == packet_id

    async def publish(
        self,
        topic_name: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        properties: Properties = NO_PROPERTIES,
        **fields: Any,
    ) -> None:
        """Publish and finish the exchange; the client must have no other packets to come."""
        packet_id = self.next_packet_id() if qos else 0
        self.send(
            Publish(topic_name, payload, qos, packet_id=packet_id, properties=properties, **fields)
        )
        if qos == 1:
            assert await self.expect(Puback) == Puback(packet_id)
        elif qos == 2:
            assert await self.expect(Pubrec) == Pubrec(packet_id)
            self.send(Pubrel(packet_id))
            assert await self.expect(Pubcomp) == Pubcomp(packet_id)

    async def message(self) -> Publish:
        """Receive a message and finish its exchange."""
        publish = await self.expect(Publish)
        if publish.qos == 1:
            self.send(Puback(publish.packet_id))
        elif publish.qos == 2:
            self.send(Pubrec(publish.packet_id))
            while (packet := await self._read()) != Pubrel(publish.packet_id):
                assert isinstance(packet, Publish), packet  # another message came in between
                self._early.append(packet)
            self.send(Pubcomp(publish.packet_id))
        return publish

    async def payloads(self, count: int) -> list[bytes]:
        return [(await self.message()).payload for _ in range(count)]

    async def disconnect(self, packet: Disconnect | None = None) -> None:
        self.send(packet or Disconnect())
        assert await self.is_closed()
        self.close()

    def close(self) -> None:
        self.writer.close()

    @property
    def has_end(self) -> bool:
        """Whether the gateway has closed the connection; the test may have read less than all."""
        return has_end(self.reader)

    def is_of_this_loop(self) -> bool:
        """Tell whether it can be cut here: a test on a running system may leave one of its loop."""
        return self._loop is asyncio.get_running_loop()

    def cut(self) -> None:
        """End the connection as a crash does, without DISCONNECT."""
        self.writer.transport.abort()


@dataclass
class Harness:
    """A gateway that runs, and what it runs on."""

    log: MemoryLog
    router: MemoryRouter
    writer: MemoryLogWriter
    gateway: Gateway
    process: Process
    port: int
    stop: asyncio.Event
    task: asyncio.Task[None]
    host: FakeHost
    spare: MemoryLogWriter
    readers: list[MemoryLogReader]

    @property
    def counters(self) -> Any:
        return self.gateway.counters

    def connections(self) -> list[ClientConnection]:
        """Return the gateway's end of each socket."""
        return [cast("ClientConnection", one) for one in self.gateway.connections]

    def connection(self, client_id: str) -> ClientConnection:
        """Return the gateway's end of a client's socket."""
        return next(one for one in self.connections() if one.client_id == client_id)

    def inbound(self) -> list[LogRecord]:
        """Return the messages in `mqlake.inbound`, barriers left out."""
        return [
            record
            for record in self.log.records(INBOUND)
            if not (record.key or b"").startswith((BARRIER_KEY_PREFIX, QUESTION_KEY_PREFIX))
        ]

    async def kill(self) -> None:
        """End the gateway as kill -9 does: nothing more reaches the log, nobody is told."""
        self.writer.kill()
        self.spare.kill()
        self.host.kill()
        for connection in self.connections():
            transport = connection.transport
            if transport is not None:
                transport.abort()
        self.task.cancel()
        await asyncio.wait([self.task])

    @contextlib.contextmanager
    def timing_out(self, kind: bytes) -> Iterator[list[bytes]]:
        """Have records of `mqlake.sessions` of one kind time out: they do not reach the log.

        Yields:
            Keys of those that have, as they come.
        """
        append, found = self.writer.append, list[bytes]()

        def time_out(log_topic: str, key: Any, *record: Any, **options: Any) -> None:
            if log_topic != SESSIONS or not key.startswith(kind + b"/"):
                append(log_topic, key, *record, **options)
                return
            found.append(key)
            error = LogError("timed out", definite=False)
            asyncio.get_running_loop().call_soon(record[2], -1, -1, error)

        with patch.object(self.writer, "append", time_out):
            yield found

    async def saved(self) -> None:
        """Wait until the log has all that the gateway knows of its sessions, events included."""
        self.gateway.context.events.flush()
        await until(lambda: not self.writer.queued())  # earlier marks may wait for that
        with patch.object(session_marks, "MARKS_SECONDS", float("-inf")):  # they are due
            self.gateway.sessions.marks.save()
        for connection in self.connections():
            if connection.session is not None and connection.session.progress is not None:
                connection.session.progress.save()
        await until(lambda: not self.writer.queued())

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of one name, oldest first; they come in portions."""
        found = [json.loads(record.value or b"{}") for record in self.log.records(EVENTS)]
        return [event for event in found if event["event"] == name]

    async def delivered(self) -> None:
        """Wait until all that is in `mqlake.inbound` has been through the router and delivered.

        A barrier round through the gateway's own routes tells.
        """
        await until(lambda: not self.writer.queued())
        await self.rounds_are_over()

    async def delivered_count(self, count: int) -> None:
        """Wait until so many messages were published, and delivered."""
        await until(lambda: len(self.inbound()) >= count)
        await self.delivered()

    async def rounds_are_over(self) -> None:
        """Wait for a barrier round that begins now."""
        request = self.gateway.routes.subscribe([])
        await until(request.routed.done)

    def deliver(
        self, key: bytes, value: bytes, headers: list[tuple[str, bytes]], *, gateway: str = NAME
    ) -> None:
        """Write a delivery as a router would that the test does not trust."""
        self.log.store(delivery_topic(gateway), key, value, headers, 1, 0)


def is_read(connection: ClientConnection) -> bool:
    """Tell whether the gateway reads what a client sends."""
    assert connection.transport is not None
    return connection.transport.is_reading()


def stored_session(*harnesses: Harness, client_id: str = "alice") -> SessionRecord | None:
    """Return a session as the gateway knows it that owns its shard."""
    key = ("default", client_id)
    for harness in harnesses:
        shard = harness.gateway.shards.owned_shard(key)
        if shard is not None:
            return shard.session(key)
    return None


def free_port() -> int:
    """Return a port that nothing else takes while it is free, twice if need be.

    Not `launcher.ports.claim`: thousands are asked for, and a claim ends with the process.
    """
    return next(port for port in _PORTS if is_free(port))


def _close_what_was_closed() -> None:
    """Have clients close what the gateway has closed, as every client does: it may wait for that.

    What came before stays to be read.
    """
    for client in opened_clients:
        if client.is_of_this_loop() and client.has_end:
            client.close()


@contextlib.asynccontextmanager
async def running_gateway(
    *,
    log: MemoryLog | None = None,
    router: MemoryRouter | None = None,
    clock: Clock | None = None,
    max_queued_records: int = 100_000,
    max_record_bytes: int = 1_000_000,
    answered: bool = True,
    tracer: Tracer | None = None,
    records: int = RECORD_VERSION,
    **settings: Any,
) -> AsyncIterator[Harness]:
    """Run a gateway on a free port; with a router of its own unless one is given.

    With `answered` false it is not waited for the router's first answer.
    """
    name = settings.setdefault("name", NAME)
    port = settings.setdefault("port", free_port())
    log = log or new_log(name)
    log.create(delivery_topic(name), 1)
    own_router = router is None
    if router is None:
        router = MemoryRouter(log)
        await router.start()
    writer = MemoryLogWriter(
        log, max_queued_records=max_queued_records, max_record_bytes=max_record_bytes
    )
    ranges = MemoryRangeReader(log)
    spare = MemoryLogWriter(log)
    readers: list[MemoryLogReader] = []

    def open_reader() -> MemoryLogReader:
        readers.append(MemoryLogReader(log))
        return readers[-1]

    access = LogAccess(writer, open_reader, ranges, spare)
    if clock is not None:
        log.now_ms = clock.now_ms
    host = FakeHost()
    stop = asyncio.Event()
    gateway = Gateway(
        GatewaySettings(**settings),
        access,
        await count_partitions(MemoryLogReader(log)),
        stop,
        clock or SystemClock(),
        tracer,
        host,
        records,
    )
    process = Process(gateway, stop)
    task = asyncio.create_task(process.run())
    try:
        await until(
            lambda: (
                task.done()
                or gateway.status.health()[0]
                or (
                    not answered
                    and gateway.status.health()[1] == "waiting for the router's first answer"
                )
            )
        )
        if task.done():
            task.result()
        yield Harness(log, router, writer, gateway, process, port, stop, task, host, spare, readers)
    finally:
        log.release_reports()
        stop.set()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not task.done():
                    await asyncio.wait([task], timeout=0.002)
                    _close_what_was_closed()
            if not task.cancelled():
                task.result()
        finally:
            while opened_clients:
                if (client := opened_clients.pop()).is_of_this_loop():
                    client.cut()
            await until(lambda: not gateway.connections)
            await turns()
            await ranges.close()
            await spare.close()
            await writer.close()
            if own_router:
                await router.close()
