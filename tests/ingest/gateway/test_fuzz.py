"""Mutated packets against a gateway that runs; a bystander's messages go on meanwhile.

Invariant: whatever arrives, no exception reaches the event loop, nobody else notices, and when the
sender has gone nothing of it is left. Mutations, order and cuts follow from the seed.
"""

import asyncio
import contextlib
import gc
import logging
import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from ingest.protocol.encoder import encode
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import Connect, Disconnect
from mqlake.records.messages import (
    EVENTS,
    GATEWAYS,
    INBOUND,
    ROUTES,
    ROUTES_IN_FORCE,
    SESSIONS,
    delivery_topic,
)
from tests.ingest.gateway.harness import (
    NAME,
    PARTITIONS,
    Client,
    Harness,
    running_gateway,
    until,
)
from tests.ingest.wire import mutate, read_rows

pytestmark = pytest.mark.anyio

SEED = 20_260_215
FIRST_PACKETS = 1_200
"""Fill the caches, which are bounded, and whatever Python makes once."""
PACKETS = 4_000
AT_ONCE = 24
"""Connections at a time."""

LOOK_SECONDS = 30.0
"""At what is alive, before that counts as left behind."""

OTHERS = "dictionaries, lists, tuples and so on"

ROWS = read_rows()
VALID = {
    level: [
        row.data
        for row in ROWS
        if row.packet is not None
        and row.role is Role.SERVER
        and row.protocol_level == level
        and not isinstance(row.packet, Connect | Disconnect)
    ]
    for level in (3, 4, 5)
}
PREAMBLES = {
    level: [
        encode(Connect(client_id, level, clean_start=clean_start, keep_alive=60), level)
        for client_id in ("fuzz-1", "fuzz-2", "fuzz-3", "fuzz-4")  # fewer than connect at a time
        for clean_start in (False, True)
    ]
    for level in (3, 4, 5)
}


@dataclass(frozen=True, slots=True)
class Attack:
    """What one connection sends."""

    chunks: list[bytes]
    cut: bool
    """Whether it ends without taking leave of TCP."""


def attacks(count: int, source: random.Random) -> list[Attack]:
    return [_attack(source) for _ in range(count)]


def _attack(source: random.Random) -> Attack:
    row, other = source.choice(ROWS), source.choice(ROWS)
    data = mutate(row.data, other.data, source)
    if not row.file.startswith("connect-") or source.randrange(4) == 0:
        # Now and then the packet of one version comes on a connection of another.
        level = row.protocol_level if source.randrange(8) else source.choice((3, 4, 5))
        valid = source.choices(VALID[level], k=source.randrange(3))
        data = b"".join([source.choice(PREAMBLES[level]), *valid, data])
    way = source.randrange(10)
    if way == 0:
        chunks = [data[at : at + 1] for at in range(len(data))]
    elif way <= 4:
        places = sorted(source.randint(0, len(data)) for _ in range(source.randint(1, 4)))
        edges = [0, *places, len(data)]
        chunks = [data[start:end] for start, end in pairwise(edges)]
    else:
        chunks = [data]
    return Attack([chunk for chunk in chunks if chunk], source.randrange(4) == 0)


class _Attacker(asyncio.Protocol):
    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.closed.set_result(None)


async def attack(port: int, attack: Attack) -> None:
    """Send it and go; the gateway has to end the connection."""
    loop = asyncio.get_running_loop()
    transport, attacker = await loop.create_connection(_Attacker, "127.0.0.1", port)
    for chunk in attack.chunks:
        if transport.is_closing():
            break
        transport.write(chunk)
        await asyncio.sleep(0)  # so that the gateway reads it by itself
    if attack.cut:
        transport.abort()
    elif not transport.is_closing():
        with contextlib.suppress(OSError):  # the gateway has closed already
            transport.write_eof()
    async with asyncio.timeout(80):
        await attacker.closed


async def attack_all(port: int, waiting: list[Attack]) -> None:
    async def work() -> None:
        while waiting:
            await attack(port, waiting.pop())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())


async def stand_by(publisher: Client, subscriber: Client, stop: asyncio.Event) -> int:
    """Publish and get each message once and in order; return how many."""
    count = 0
    while not stop.is_set():
        payload = b"%d" % count
        await publisher.publish("bystander/topic", payload, count % 3)
        message = await subscriber.message()
        assert (message.payload, message.qos) == (payload, count % 3)
        count += 1
        await asyncio.sleep(0.001)
    return count


class Errors(logging.Handler):
    """What the gateway logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


def objects() -> Counter[str]:
    """Count what is alive: of the gateway and the event loop by class, of all others together."""
    gc.collect()
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        is_ours = str(kind.__module__).startswith(("ingest.", "asyncio", "_asyncio", "uvloop"))
        found[f"{kind.__module__}.{kind.__qualname__}" if is_ours else OTHERS] += 1
    return found


def forget_log(harness: Harness) -> None:
    """Remove what is in the log: it is no part of the gateway."""
    log_topics = (INBOUND, ROUTES, ROUTES_IN_FORCE, SESSIONS, EVENTS, GATEWAYS)
    for log_topic in (*log_topics, delivery_topic(NAME)):
        for number, partition in enumerate(harness.log.partitions(log_topic)):
            harness.log.remove_before(log_topic, number, partition.end)
    harness.router.forget_groups()


async def settle(harness: Harness) -> None:
    """Wait until the gateway has let go of everybody but the bystanders."""
    gateway = harness.gateway
    await until(lambda: len(gateway.connections) == 2)
    await harness.delivered()
    await until(
        lambda: len(gateway.routes) == 1 + PARTITIONS
    )  # the bystander's, and those of the shards of retained messages
    session = gateway.sessions.get("default", "bystander-2")
    await until(lambda: not any(one.is_conditional for one in session.subscriptions.values()))


async def test_mutated_packets_harm_nobody_and_leave_nothing() -> None:
    source = random.Random(SEED)
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        async with running_gateway(
            max_session_expiry_interval=0,
            route_linger_seconds=0,
            max_packet_bytes=4096,
            sys_interval_seconds=0,  # its values would be new objects
        ) as harness:
            gateway = harness.gateway
            publisher = await Client.connect(harness.port, "bystander-1", level=4)
            subscriber = await Client.connect(harness.port, "bystander-2", level=5)
            await subscriber.subscribe("bystander/topic", 2)
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                standing_by = tasks.create_task(stand_by(publisher, subscriber, stop))
                await attack_all(harness.port, attacks(FIRST_PACKETS, source))
                await settle(harness)
                forget_log(harness)
                before, running = objects(), len(asyncio.all_tasks())
                opened = gateway.counters.connections_opened
                await attack_all(harness.port, attacks(PACKETS, source))
                assert gateway.counters.connections_opened == opened + PACKETS
                await settle(harness)
                stop.set()
            assert standing_by.result() > 100
            assert gateway.status.bug == ""
            assert errors.messages == []
            assert gateway.status.health()[0]
            assert_nothing_is_left(harness)
            assert len(asyncio.all_tasks()) < running  # the bystanders' has ended
            assert await left_behind(harness, before) == {}
    finally:
        logging.getLogger().removeHandler(errors)


async def left_behind(harness: Harness, before: Counter[str]) -> Counter[str]:
    """Return what there is more of than before; nothing if that is little.

    What is on its way out is waited for: it goes, and what is left behind stays.
    """
    growth = Counter[str]()

    def is_little() -> bool:
        nonlocal growth
        forget_log(harness)
        growth = objects() - before
        return growth.total() - growth[OTHERS] < 20 and growth[OTHERS] < PACKETS / 10

    try:
        await until(is_little, LOOK_SECONDS)
    except TimeoutError:
        return growth
    return Counter()


def assert_nothing_is_left(harness: Harness) -> None:
    """Check that the bystanders are all there is."""
    gateway: Any = harness.gateway
    assert len(gateway.sessions) == gateway.sessions.connected_count == 2
    assert len(gateway.subscriptions) == 1
    assert gateway.subscriptions.shared_count == 0
    assert len(gateway.log_room) == 0
    assert gateway.wills.waiting == 0
