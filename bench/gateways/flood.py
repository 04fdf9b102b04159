"""20,000 connections at once, and a client that should not notice.

A gateway and a log of one broker, without the rest of the system. A client of its own publishes
some messages a second all the time; the flood comes from processes of its own.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bench.gateways.overload import part, publish_steadily
from bench.load.flooder import KINDS
from bench.load.session_client import SessionClient
from bench.results.figures import Figures, figure
from bench.systems.gateways import BenchFleet, running_fleet

GATEWAY_NAME: Final = "gateway-1"
CONNECTIONS: Final = 20_000
PROCESSES: Final = 2
"""Each may have as many open files as the gateway."""
QUIET_SECONDS: Final = 10.0
HELD_SECONDS: Final = 5.0
"""With all connections there, before they go."""
FLOOD_SECONDS: Final = 180.0
MiB: Final = 2**20


@dataclass(slots=True)
class FloodSeen:
    """Outcome of one flood.

    Attributes:
        outcomes: Number of connections by what became of them.
        waits: Seconds from due to PUBACK of the well behaved client meanwhile, sorted.
        seconds: Until each connection had come to something.
        resident_bytes: Memory of the gateway at the end.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    seconds: float = 0.0
    resident_bytes: int = 0


def measure_flood(note: Callable[[str], None], connections: int = CONNECTIONS) -> list[Figures]:
    """Flood a gateway by each kind of connection.

    Raises:
        OperationalError: The gateway does not start.
    """
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        fleet.start(GATEWAY_NAME)
        quiet, floods = asyncio.run(flood(fleet, connections, QUIET_SECONDS))
    figures: Figures = {figure("a client alone, p99", "ms"): 1_000 * part(quiet, 0.99)}
    for kind, seen in floods.items():
        name = f"{connections:,} connections ({kind})"
        note(f"{name}: {dict(seen.outcomes)} after {seen.seconds:.1f} s")
        figures |= {
            figure(f"{name}, another client, p99", "ms"): 1_000 * part(seen.waits, 0.99),
            figure(f"{name}, opened", "connections/s"): connections / seen.seconds,
            figure(f"{name}, memory of the gateway", "MiB"): seen.resident_bytes / MiB,
        }
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg()[:2])
    note(f"load of the machine {load}")
    return [figures]


async def flood(
    fleet: BenchFleet, connections: int, quiet_seconds: float
) -> tuple[list[float], dict[str, FloodSeen]]:
    """Return how long the well behaved client waits alone, and the outcome of each flood."""
    gateway = fleet.gateway(GATEWAY_NAME)
    probe = SessionClient("well-behaved")
    await probe.connect(gateway.address, clean_session=True)
    quiet: list[float] = []
    await publish_steadily(probe, quiet, quiet_seconds)
    found = {}
    for kind in KINDS:
        seen = found[kind] = FloodSeen()
        flooding = asyncio.create_task(_flood(gateway.address, connections, kind, seen))
        while not flooding.done():
            await publish_steadily(probe, seen.waits, 0.5)
        await flooding
        seen.resident_bytes = psutil.Process(gateway.pid).memory_info().rss
        seen.waits.sort()
    await probe.disconnect()
    return sorted(quiet), found


async def _flood(address: str, connections: int, kind: str, seen: FloodSeen) -> None:
    """Open connections by several processes, hold them a while, and let them go."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    each = connections // PROCESSES
    flooders = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "bench.load.flooder",
            address,
            str(each),
            kind,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for flooder in flooders:
            assert flooder.stdout is not None
            line = await asyncio.wait_for(flooder.stdout.readline(), FLOOD_SECONDS)
            seen.outcomes.update(json.loads(line))
        seen.seconds = loop.time() - began_at
        await asyncio.sleep(min(HELD_SECONDS, seen.seconds))
    finally:
        for flooder in flooders:
            if flooder.returncode is None:
                flooder.kill()
            await flooder.wait()
