"""A fleet of devices: they make sessions, their broker stops, and all of them come back.

A log and one gateway run, without Spark: no client is connected while messages come, so there is
nothing to route. Mosquitto serves the same clients in the same way; its figures may show no more
than how fast these clients are.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from bench.load.session_client import SessionClient, publish
from bench.results.figures import Figures, figure
from bench.results.latencies import summary
from bench.systems.gateways import BenchFleet, running_fleet
from bench.systems.mosquitto import Mosquitto
from mqlake.errors import OperationalError

GATEWAY: Final = "gateway-1"

AT_ONCE: Final = 200
"""Clients that are on their way in."""

GAP: Final = 100_000
"""Messages that each session has missed when it comes back, nearly all of them of others."""

PUBLISHED_AT_ONCE: Final = 10_000
PARTS: Final = ("p50", "p99", "max")

FILLING: Final = b"x" * 64

FILTERS: Final = {"": "fleet/{}/cmd", ", wildcards": "fleet/{}/+"}
"""By kind of fleet: topic filter of a session, with `{}` in place of the session's number."""


class _Broker(Protocol):
    """A broker that is measured."""

    @property
    def address(self) -> str: ...
    def restart(self) -> None:
        """Stop the broker and start it again; return when it serves clients."""
        ...


class _Gateway:
    """One gateway of a fleet."""

    def __init__(self, fleet: BenchFleet) -> None:
        self._fleet = fleet
        fleet.start(GATEWAY)

    @property
    def address(self) -> str:
        return self._fleet.gateway(GATEWAY).address

    def restart(self) -> None:
        self._fleet.stop(GATEWAY)
        self._fleet.start(GATEWAY)


def measure_fleet(size: int, note: Callable[[str], None]) -> list[Figures]:
    """Make sessions, have each miss a message, and bring all of them back.

    Args:
        size: Number of sessions.
        note: Prints a line for the user of the bench.
    """
    results: list[Figures] = []
    for broker_name, running in (("", _running_gateway), (", Mosquitto", _running_mosquitto)):
        for kind, topic_filter in FILTERS.items():
            with running() as broker:
                what = f"fleet of {size:,}{kind}{broker_name}"
                results += _measure(broker, what, topic_filter, size, note)
    return results


@contextmanager
def _running_gateway() -> Iterator[_Broker]:
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        yield _Gateway(fleet)


@contextmanager
def _running_mosquitto() -> Iterator[_Broker]:
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder:
        broker = Mosquitto(Path(folder))
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()


def _measure(
    broker: _Broker, what: str, topic_filter: str, size: int, note: Callable[[str], None]
) -> Iterator[Figures]:
    begun_at = time.monotonic()
    waits = asyncio.run(make_sessions(broker.address, size, topic_filter))
    yield _figures(f"{what}, made", "CONNECT to SUBACK", waits, time.monotonic() - begun_at)
    asyncio.run(publish_commands(broker.address, size, GAP))
    begun_at = time.monotonic()
    broker.restart()
    note(f"{what}: stopped and started in {time.monotonic() - begun_at:.1f} s")
    begun_at = time.monotonic()
    waits = asyncio.run(bring_back(broker.address, size))
    seconds = time.monotonic() - begun_at
    yield _figures(f"{what}, back after {GAP:,} messages", "CONNECT to message", waits, seconds)


def _figures(what: str, step: str, waits: Sequence[float], seconds: float) -> Figures:
    found = summary(waits)
    figures = {figure(what, "1/s"): len(waits) / seconds}
    return figures | {figure(f"{what}, {step}, {part}", "ms"): found[part] * 1000 for part in PARTS}


async def make_sessions(address: str, size: int, topic_filter: str) -> list[float]:
    """Make sessions with one subscription each, and leave them.

    Args:
        address: Address of the broker, host:port.
        size: Number of sessions.
        topic_filter: Topic filter of a session, with `{}` in place of the session's number.

    Returns:
        Seconds from each CONNECT to SUBACK.
    """

    async def make(number: int) -> float:
        client = SessionClient(f"fleet-{number}")
        await client.connect(address)
        await client.subscribe(topic_filter.format(number))
        seconds = asyncio.get_running_loop().time() - client.began_at
        await client.disconnect()
        return seconds

    return await _in_turn(size, make)


async def bring_back(address: str, size: int) -> list[float]:
    """Bring clients back; return the seconds from each CONNECT to its message.

    Raises:
        OperationalError: A session was lost, or its message did not come once.
    """

    async def come_back(number: int) -> float:
        client = SessionClient(f"fleet-{number}")
        if not await client.connect(address):
            raise OperationalError(f"the session of {client.client_id} was lost")
        await client.receive(1)
        await client.disconnect()
        if list(client.arrivals) != [_command(number)] or client.repeated:
            raise OperationalError(f"{client.client_id} did not get its message once")
        return client.arrivals[_command(number)] - client.began_at

    return await _in_turn(size, come_back)


async def _in_turn(size: int, step: Callable[[int], Awaitable[float]]) -> list[float]:
    """Take a step for each session, many at once."""
    numbers = iter(range(size))

    async def go_on() -> list[float]:
        return [await step(number) for number in numbers]

    async with asyncio.TaskGroup() as tasks:
        going = [tasks.create_task(go_on()) for _ in range(AT_ONCE)]
    return [seconds for task in going for seconds in task.result()]


async def publish_commands(address: str, size: int, gap: int) -> None:
    """Publish a message for each session, and as many of others among them as make the gap."""
    of_others = max(0, gap - size) // size
    messages = (
        (f"others/{number}/{place}", FILLING)
        if place
        else (f"fleet/{number}/cmd", _command(number))
        for number in range(size)
        for place in range(of_others + 1)
    )
    while some := list(itertools.islice(messages, PUBLISHED_AT_ONCE)):
        await publish(address, "fleet-publisher", some)


def _command(number: int) -> bytes:
    return b"command for %d" % number
