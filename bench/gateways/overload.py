"""Clients that publish as fast as they can, and a log that stands still in between.

A gateway and a log of one broker, without the rest of the system. A client of its own publishes
some messages a second all the time: the others should hardly concern it.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bench.load.loader import Load, LoadResult, new_prefix, run_load
from bench.load.programs import LoadPrograms
from bench.load.session_client import SessionClient
from bench.results.figures import Figures, figure
from bench.systems.gateways import BenchFleet, BenchGateway, running_fleet

GATEWAY_NAME: Final = "gateway-1"
PUBLISHERS: Final = 200
WINDOW: Final = 2_000
"""More unacknowledged messages than a gateway takes of one client: each has always more."""
INTERVAL_SECONDS: Final = 0.05
"""Between messages of the client that is well behaved."""
LOOK_SECONDS: Final = 0.1
DRAIN_SECONDS: Final = 60.0
NEAR: Final = 10
"""Times its quiet p99, the well behaved client may wait at the 99th percentile."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long each phase is: one client alone, all, all with the log stopped, all again."""

    quiet: float = 20.0
    before: float = 135.0
    stopped: float = 30.0
    after: float = 135.0


@dataclass(slots=True)
class OverloadSeen:
    """Outcome of an overload.

    Attributes:
        quiet: Seconds from due to PUBACK of the well behaved client, sorted.
        loaded: The same while others publish, but for the stop and until it was over.
        recovered: Seconds with a log after which it waited no longer than `NEAR` allows.
        flood: Result of the other clients.
        resident_bytes: Largest memory of the gateway.
        begun_bytes: Memory of the gateway before.
        steps: Steps of protection that there were.
    """

    quiet: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    recovered: float = 0.0
    flood: LoadResult | None = None
    resident_bytes: int = 0
    begun_bytes: int = 0
    steps: set[int] = field(default_factory=set)


def measure_overload(
    programs: LoadPrograms, note: Callable[[str], None], seconds: Seconds | None = None
) -> list[Figures]:
    """200 clients as fast as they can for five minutes, half a minute of them without a log.

    Raises:
        OperationalError: Messages were not acknowledged.
    """
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        fleet.start(GATEWAY_NAME)
        seen = asyncio.run(overload(programs, fleet, seconds or Seconds()))
    assert seen.flood is not None
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg()[:2])
    note(
        f"{seen.flood.acknowledged:,} messages, all acknowledged; steps {sorted(seen.steps)}; "
        f"load of the machine {load}"
    )
    seen.flood.completed("messages to be acknowledged")
    name = f"{PUBLISHERS} clients as fast as they can"
    quiet, loaded = (1_000 * part(one, 0.99) for one in (seen.quiet, seen.loaded))
    return [
        {
            figure(f"{name}, acknowledged", "messages/s"): seen.flood.acknowledged_per_second,
            figure(f"{name}, another client, quiet p99", "ms"): quiet,
            figure(f"{name}, another client, p99", "ms"): loaded,
            figure(f"{name}, another client, p99 by its quiet p99", "times"): loaded / quiet,
            figure(f"{name}, recovered after the log is back", "s"): seen.recovered,
            figure(f"{name}, memory of the gateway, most", "MiB"): seen.resident_bytes / 2**20,
            figure(f"{name}, memory of the gateway, more than before", "MiB"): (
                seen.resident_bytes - seen.begun_bytes
            )
            / 2**20,
        }
    ]


async def overload(programs: LoadPrograms, fleet: BenchFleet, seconds: Seconds) -> OverloadSeen:
    """Put the load on, stop the log, let it go on; all messages have come to an end then."""
    gateway, seen = fleet.gateway(GATEWAY_NAME), OverloadSeen()
    probe = SessionClient("well-behaved")
    await probe.connect(gateway.address, clean_session=True)
    looking = asyncio.create_task(_look(gateway, seen))
    try:
        await publish_steadily(probe, seen.quiet, seconds.quiet)
        seen.quiet.sort()
        seen.begun_bytes = seen.resident_bytes
        whole = seconds.before + seconds.stopped + seconds.after
        load = Load(
            publish_to=[gateway.address],
            publishers=PUBLISHERS,
            window=WINDOW,
            seconds=whole,
            warmup_seconds=0.0,
            drain_seconds=DRAIN_SECONDS,
        )
        flooding = asyncio.create_task(asyncio.to_thread(run_load, programs.loader, load))
        await publish_steadily(probe, seen.loaded, seconds.before)
        with fleet.brokers.paused(1):
            waiting = asyncio.create_task(publish_steadily(probe, [], 0.0))
            await asyncio.sleep(seconds.stopped)
        seen.recovered = await _recover(probe, waiting, NEAR * part(seen.quiet, 0.99))
        await publish_steadily(probe, seen.loaded, seconds.after - seen.recovered)
        seen.loaded.sort()
        seen.flood = await flooding
    finally:
        looking.cancel()
    await probe.disconnect()
    return seen


def part(values: list[float], of: float) -> float:
    """Return the value below which a part of sorted ones is."""
    return values[min(int(of * len(values)), len(values) - 1)]


async def publish_steadily(probe: SessionClient, waits: list[float], seconds: float) -> None:
    """Publish, with one message under way; each that was due meanwhile counts from when it was."""
    loop, topic_name = asyncio.get_running_loop(), f"{new_prefix()}/well-behaved"
    due = loop.time()
    end = due + seconds
    while True:
        await probe.publish([(topic_name, bytes(100))])
        now = loop.time()
        while due <= now:
            waits.append(now - due)
            due += INTERVAL_SECONDS
        if due > end:
            return
        await asyncio.sleep(due - loop.time())


async def _recover(probe: SessionClient, waiting: "asyncio.Task[None]", most: float) -> float:
    """Return after how long a message takes no longer than others do; the log is back just now."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await waiting
    while True:
        waits: list[float] = []
        await publish_steadily(probe, waits, 0.0)
        if waits[0] <= most:
            return loop.time() - began_at
        await asyncio.sleep(INTERVAL_SECONDS)


async def _look(gateway: BenchGateway, seen: OverloadSeen) -> None:
    process = psutil.Process(gateway.pid)
    while True:
        seen.resident_bytes = max(seen.resident_bytes, process.memory_info().rss)
        if (heartbeat := gateway.heartbeat()) is not None:
            seen.steps.add(heartbeat.figures.get("overload_step", 0))
        await asyncio.sleep(LOOK_SECONDS)
