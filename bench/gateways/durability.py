"""Cost of the log's durability: PUBACK of each class, and a flush of this disk.

A log of one broker and one of three, each with a gateway, on this machine and its disk; nothing is
routed. The classes take turns within a run, each run in another order. Three brokers of one machine
share its processors and its disk: theirs is the price of three copies without a network.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from bench.load.loader import Latency, Load, LoadResult, run_load
from bench.load.programs import LoadPrograms
from bench.results.figures import Figures, figure, percentiles
from bench.systems.gateways import BenchFleet, running_fleet
from mqlake.log.durability import Durability

GATEWAY_NAME: Final = "gateway-1"
ROUNDS: Final = 3
WARM_UP_SECONDS: Final = 15.0
SECONDS: Final = 6.0
RATE: Final = 1_000.0
PUBLISHERS: Final = 10

FLUSHES: Final = 300
FLUSHED_BYTES: Final = 4_096


class Class(NamedTuple):
    """A class, and the log that has it."""

    name: str
    brokers: int
    durability: Durability


CLASSES: Final = (
    Class("D1, one broker", 1, Durability.D1),
    Class("D3, one broker", 1, Durability.D3),
    Class("D2, three brokers", 3, Durability.D2),
    Class("D2 and D3, three brokers", 3, Durability.D3),
)


def measure_durability(programs: LoadPrograms, note: Callable[[str], None]) -> list[Figures]:
    """PUBACK of messages one after the other, at a rate, and as many as there can be."""
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder,
        running_fleet(_made(folder, "one"), 1) as one,
        running_fleet(_made(folder, "three"), 3) as three,
    ):
        fleets = {1: one, 3: three}
        for fleet in fleets.values():
            fleet.start(GATEWAY_NAME)
            _run(programs, fleet, _at_a_rate(WARM_UP_SECONDS))
        results = [_flushes(Path(folder))]
        for turn in range(ROUNDS):
            for number in range(len(CLASSES)):
                found = CLASSES[(turn + number) % len(CLASSES)]
                fleet = fleets[found.brokers]
                fleet.keep(found.durability)
                results.append(_figures(programs, fleet, found.name))
                load = ", ".join(f"{one:.1f}" for one in os.getloadavg()[:2])
                note(f"{found.name}, {turn + 1} of {ROUNDS}; load of the machine {load}")
        return results


def _made(folder: str, name: str) -> Path:
    path = Path(folder) / name
    path.mkdir()
    return path


def _figures(programs: LoadPrograms, fleet: BenchFleet, name: str) -> Figures:
    alone = _run(programs, fleet, Load(publishers=1, window=1, seconds=SECONDS / 2))
    steady = _run(programs, fleet, _at_a_rate(SECONDS))
    most = _run(programs, fleet, Load(publishers=2 * PUBLISHERS, window=200, seconds=SECONDS / 2))
    figures = percentiles(f"PUBACK one after the other, {name}", alone.ack_ms)
    figures |= percentiles(f"PUBACK at {RATE:,.0f}/s, {name}", steady.ack_ms)
    figures[figure(f"acknowledged, {name}", "messages/s")] = most.acknowledged_per_second
    return figures


def _at_a_rate(seconds: float) -> Load:
    return Load(publishers=PUBLISHERS, rate=RATE, seconds=seconds)


def _run(programs: LoadPrograms, fleet: BenchFleet, load: Load) -> LoadResult:
    """Put a load on.

    Raises:
        OperationalError: Messages were not acknowledged.
    """
    result = run_load(programs.loader, replace(load, publish_to=fleet.addresses()))
    return result.completed("messages to be acknowledged")


def _flushes(folder: Path) -> Figures:
    """How long this disk takes for a small record, without anything of ours above it."""
    times = []
    with (folder / "flushed").open("wb", buffering=0) as file:
        for _ in range(FLUSHES):
            began_at = time.perf_counter()
            file.write(bytes(FLUSHED_BYTES))
            os.fdatasync(file.fileno())
            times.append(1_000 * (time.perf_counter() - began_at))
    times.sort()
    at = [times[int(part * (FLUSHES - 1))] for part in (0.5, 0.95, 0.99, 1.0)]
    return percentiles(f"write and flush of {FLUSHED_BYTES:,} bytes", Latency(FLUSHES, *at))
