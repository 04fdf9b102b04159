"""How long clients wait for messages that they have missed."""

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from bench.load.prepared import PastMessage, await_messages, write_messages
from bench.load.session_client import SessionClient, end_session, publish
from bench.results.figures import Figures, figure
from bench.systems.system import Bench
from mqlake.errors import OperationalError

FILLING: Final = b"x" * 100

MISSED: Final = 1_000
MISSED_TOPICS: Final = 10
RESUME_SECONDS: Final = 60.0
"""How long a client waits for messages that it missed."""

CROWD: Final = 2_000
CROWD_IN_FLIGHT: Final = 100
"""Sessions of the crowd that are made, or ended, at once."""

HISTORY: Final = 2_000_000
HISTORY_SECONDS: Final = 3_600
HISTORY_TOPICS: Final = 5_000
ABSENT: Final = 3
"""Clients that missed the history, each measured once."""
ABSENT_MESSAGES: Final = 100
OWN_TOPICS: Final = 5
"""Topics of a client's own, beside the common ones."""


def measure_resume(bench: Bench) -> Figures:
    """A client comes back to another gateway and takes 1,000 messages that it has missed."""
    bench.await_quiet()
    return asyncio.run(resume(bench.gateways))


async def resume(gateways: Sequence[str]) -> Figures:
    """Miss messages at the first gateway, come back to the last."""
    name = _new_name()
    missed = [
        (f"{name}/{number % MISSED_TOPICS}", _payload(number % MISSED_TOPICS, number))
        for number in range(MISSED)
    ]
    client = SessionClient(name)
    await _leave_behind(client, gateways[0], f"{name}/#")
    await publish(gateways[0], f"{name}-p", missed)
    first, last = await _come_back(client, gateways[-1], [payload for _, payload in missed])
    await end_session(gateways[-1], name)
    what = f"resume with {MISSED:,} missed messages"
    return {
        figure(f"{what}, CONNECT to first", "ms"): first * 1000,
        figure(f"{what}, CONNECT to last", "ms"): last * 1000,
    }


def measure_resume_crowd(bench: Bench) -> Figures:
    """All clients of a gateway that is killed come back at once; each has missed a message."""
    system = bench.own
    if system is None or len(bench.gateways) < 2:
        bench.note("a gateway is only killed in a system of the bench's own, with two gateways")
        return {}
    system.await_healthy()
    bench.await_quiet()
    name = bench.state.gateways[-1].name
    pid = next(one.pid for one in bench.state.processes if one.name == name)
    assert pid is not None
    waits = sorted(
        asyncio.run(resume_crowd(bench.gateways, CROWD, partial(os.kill, pid, signal.SIGKILL)))
    )
    system.await_healthy()
    what = f"kill of a gateway to resumed, {CROWD:,} sessions"
    return {
        figure(f"{what}, {part}", "s"): waits[min(len(waits) - 1, int(share * len(waits)))]
        for part, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    }


async def resume_crowd(
    gateways: Sequence[str], count: int, kill: Callable[[], object]
) -> list[float]:
    """Return for each client the seconds from the kill until it had its session and message.

    Args:
        gateways: The last is killed.
        count: How many clients.
        kill: Ends the gateway.
    """
    name = _new_name()
    clients = [SessionClient(f"{name}-{number}") for number in range(count)]
    turn = asyncio.Semaphore(CROWD_IN_FLIGHT)

    async def settle(client: SessionClient) -> None:
        async with turn:
            await client.connect(gateways[-1])
            await client.subscribe(f"{name}/{client.client_id}")

    async def come_back(client: SessionClient, number: int) -> None:
        await client.resume(gateways, number)
        await client.receive(1)

    async def end(client: SessionClient) -> None:
        async with turn:
            await client.disconnect()
            await end_session(gateways[0], client.client_id)

    await asyncio.gather(*map(settle, clients))
    killed_at = asyncio.get_running_loop().time()
    kill()
    missed = [(f"{name}/{client.client_id}", client.client_id.encode()) for client in clients]
    await publish(gateways[0], f"{name}-p", missed)
    try:
        async with asyncio.timeout(RESUME_SECONDS):
            await asyncio.gather(
                *(come_back(client, number) for number, client in enumerate(clients))
            )
    except TimeoutError:
        served = sum(bool(client.arrivals) for client in clients)
        raise OperationalError(
            f"{served} of {count} sessions were served within {RESUME_SECONDS:.0f} s"
        ) from None
    for client in clients:
        if list(client.arrivals) != [client.client_id.encode()] or client.repeated:
            raise OperationalError(f"{client.client_id} did not get its message once")
    waits = [at - killed_at for client in clients for at in client.arrivals.values()]
    await asyncio.gather(*map(end, clients))
    return waits


def measure_resume_history(bench: Bench) -> list[Figures]:
    """Clients come back after an hour in which 2,000,000 messages came, 100 for each of them.

    The messages are those of the last hour by their timestamps, and written within a minute.
    """
    if bench.own is None:
        bench.note("a history is only written into a system of the bench's own")
        return []
    bench.await_quiet()
    return asyncio.run(_resume_history(bench))


async def _resume_history(bench: Bench) -> list[Figures]:
    gateway = bench.gateways[0]
    name = _new_name()
    clients = [SessionClient(f"{name}-{number}") for number in range(ABSENT)]
    for number, client in enumerate(clients):
        await _leave_behind(client, gateway, f"{name}/{number}/#")
    began_at = time.monotonic()
    last = await asyncio.to_thread(
        write_messages, bench.state.bootstrap_servers, history(name, HISTORY)
    )
    written_at = time.monotonic()
    await asyncio.to_thread(await_messages, bench.data_dir, last)
    wrote, followed = written_at - began_at, time.monotonic() - written_at
    bench.note(
        f"prepared: {HISTORY:,} messages of one hour on {HISTORY_TOPICS:,} topics, written into "
        f"the log in {wrote:.0f} s, all in the table {followed:.0f} s later"
    )
    await asyncio.to_thread(bench.await_quiet)
    what = f"resume after {HISTORY:,} messages, {ABSENT_MESSAGES} of them its own"
    results: list[Figures] = []
    for client in clients:
        payloads = [_payload(count % OWN_TOPICS, count) for count in range(ABSENT_MESSAGES)]
        first, whole = await _come_back(client, bench.gateways[-1], payloads)
        await end_session(gateway, client.client_id)
        results.append(
            {
                figure(f"{what}, CONNECT to first", "s"): first,
                figure(f"{what}, CONNECT to last", "s"): whole,
            }
        )
    return results


def history(name: str, total: int) -> Iterator[PastMessage]:
    """Yield the messages of an hour; those for absent clients are spread over it."""
    begin_ms = round((time.time() - HISTORY_SECONDS) * 1000)
    own_every = total // ABSENT_MESSAGES
    for number in range(total):
        at_ms = begin_ms + number * HISTORY_SECONDS * 1000 // total
        count, place = divmod(number, own_every)
        if place < ABSENT:
            topic = count % OWN_TOPICS
            yield PastMessage(f"{name}/{place}/{topic}", _payload(topic, count), at_ms)
        else:
            topic_name = f"{name}/plant/{number % HISTORY_TOPICS}"
            yield PastMessage(topic_name, FILLING, at_ms)


def _payload(topic: int, number: int) -> bytes:
    """Return a payload that says which of the messages of which topic it is."""
    return b"%d:%d " % (topic, number) + FILLING


async def _leave_behind(client: SessionClient, gateway: str, topic_filter: str) -> None:
    """Make a session and leave it."""
    await client.connect(gateway)
    await client.subscribe(topic_filter)
    await client.disconnect()


async def _come_back(
    client: SessionClient, gateway: str, expected: Sequence[bytes]
) -> tuple[float, float]:
    """Return the seconds from CONNECT to the first message, and to the last acknowledged.

    Raises:
        OperationalError: Not every message came once, in the order of its topic.
    """
    try:
        async with asyncio.timeout(RESUME_SECONDS):
            is_present = await client.connect(gateway)
            await client.receive(len(expected))
            await client.ping()  # the gateway has all acknowledgements
            acknowledged_at = asyncio.get_running_loop().time()
    except TimeoutError:
        is_present, acknowledged_at = True, 0.0
    await client.disconnect()
    if not is_present or client.repeated or set(client.arrivals) != set(expected):
        raise OperationalError(
            f"{len(client.arrivals)} messages of {len(expected)} came, {client.repeated} twice"
        )
    for topic in {payload.partition(b":")[0] for payload in expected}:
        if _of_topic(client.arrivals, topic) != _of_topic(expected, topic):
            raise OperationalError(f"messages of topic {topic.decode()} came in another order")
    first_at = next(iter(client.arrivals.values()))
    return first_at - client.began_at, acknowledged_at - client.began_at


def _of_topic(payloads: Sequence[bytes] | dict[bytes, float], topic: bytes) -> list[bytes]:
    return [payload for payload in payloads if payload.partition(b":")[0] == topic]


def _new_name() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"
