"""The load experiment: the cost to a broker of a number of clients, and of one message.

A quarter of the clients subscribes to one topic, a quarter to another one, and a quarter each
publishes to them, one message at the same moment. Each number of clients is measured several
times; none at all is the broker by itself.
"""

import asyncio
import io
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from resilience import definition as definitions
from resilience.drivers.frames import ConnectOptions, FrameClient
from resilience.errors import TargetError
from resilience.history import Writer
from resilience.local import LocalTarget
from resilience.usage import UsageSampler, taken_by

TOPICS: Final = ("load/a", "load/b")
CONNECTS_AT_ONCE: Final = 50
CONNECT_SECONDS: Final = 30.0
DELIVERY_SECONDS: Final = 120.0
IDLE_SECONDS: Final = 3.0
"""The broker is looked at so long without clients."""

PUBLISHED: Final = (
    {"clients": 0, "cpu_percent": 0.0, "kilobytes": 5.6},
    {"clients": 100, "cpu_percent": 2.693, "kilobytes": 198.685},
    {"clients": 1000, "cpu_percent": 28.545, "kilobytes": 1924.8},
)
"""Peaks of a small broker, as its authors have measured them."""

COLUMNS: Final = ("cpu_percent", "memory_bytes", "cpu_seconds", "seconds")


class _Tally(Writer):
    """Counts messages received, and keeps none."""

    def __init__(self, expected: int) -> None:
        super().__init__(io.StringIO(), {}, time.monotonic)
        self.received = 0
        self.expected = expected
        self.complete = asyncio.Event()

    def write(self, process: str, f: str, type_: str, **fields: Any) -> None:
        """Count one operation."""
        if f == "receive":
            self.received += 1
            if self.received >= self.expected:
                self.complete.set()


def deliveries(clients: int) -> int:
    """Return how many messages subscribers get in one repetition."""
    quarter = clients // 4
    return len(TOPICS) * quarter * quarter


async def measure(
    target: LocalTarget, pids: list[int], clients: int, qos: int, number: int
) -> dict[str, Any]:
    """Measure once; the target runs.

    Args:
        target: To which clients connect.
        pids: Its processes.
        clients: How many there are, a multiple of four.
        qos: QoS of the messages and the subscriptions.
        number: Tells clients from those of other repetitions.

    Returns:
        The peak of the processor in percent of one and that of memory, processor time beyond that
        without clients, and seconds from the first PUBLISH to the last delivery.

    Raises:
        TargetError: A client does not get in, or not all messages arrived.
    """
    async with UsageSampler(pids) as sampler:
        await asyncio.sleep(IDLE_SECONDS)
    idle = sampler.cpu_seconds / sampler.seconds
    seconds = sampler.seconds
    if clients:
        tally = _Tally(deliveries(clients))
        members = _members(target, clients, tally, number)
        try:
            async with UsageSampler(pids) as sampler:
                await _connect(target, members, number)
                await _subscribe(members[: clients // 2], qos)
                begin = time.monotonic()
                await _publish(members[clients // 2 :], qos, tally)
                seconds = time.monotonic() - begin
        finally:
            await asyncio.gather(*(one.disconnect() for one in members if one.is_connected))
    return {
        "clients": clients,
        "deliveries": deliveries(clients),
        "cpu_percent": sampler.peak_percent,
        "memory_bytes": sampler.peak_bytes,
        "cpu_seconds": max(0.0, sampler.cpu_seconds - idle * sampler.seconds),
        "seconds": seconds,
    }


def _members(target: LocalTarget, clients: int, tally: Writer, number: int) -> list[FrameClient]:
    return [
        target.client(f"load-{number}-{index}", "raw", tally, on_lost=lambda: None, hold=None)
        for index in range(clients)
    ]


async def _connect(target: LocalTarget, members: Sequence[FrameClient], number: int) -> None:
    places = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def connect(index: int, member: FrameClient) -> None:
        node = target.nodes[index % len(target.nodes)]
        async with places:
            options = ConnectOptions(f"load-{number}-{index}", node)
            await member.connect(options, CONNECT_SECONDS)

    try:
        await asyncio.gather(*(connect(index, member) for index, member in enumerate(members)))
    except OSError as exc:
        raise TargetError(f"not all clients got in: {exc}") from exc


async def _subscribe(subscribers: Sequence[FrameClient], qos: int) -> None:
    half = len(subscribers) // 2
    answers = await asyncio.gather(
        *(member.subscribe(TOPICS[index >= half], qos) for index, member in enumerate(subscribers))
    )
    if set(answers) != {"ok"}:
        raise TargetError("not all subscriptions were granted")


async def _publish(publishers: Sequence[FrameClient], qos: int, tally: _Tally) -> None:
    half = len(publishers) // 2
    for index, member in enumerate(publishers):
        member.publish(f"load/{index}", TOPICS[index >= half], qos=qos)
    try:
        async with asyncio.timeout(DELIVERY_SECONDS):
            await tally.complete.wait()
    except TimeoutError:
        raise TargetError(
            f"{tally.received} of {tally.expected} messages came in {DELIVERY_SECONDS:g} s"
        ) from None


def run(
    definition: definitions.Definition,
    sizes: Sequence[int],
    repetitions: int,
    qos: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure each number of clients several times, each against a target that is started for it.

    Raises:
        TargetError: It does not start, or does not serve them all.
    """
    rows = asyncio.run(_run(definition, sizes, repetitions, qos, tell))
    return {
        "load": 1,
        "target": definition.name,
        "version": definitions.version_of(definition),
        "qos": qos,
        "published": list(PUBLISHED),
        "rows": rows,
        "summary": summary(rows),
    }


async def _run(
    definition: definitions.Definition,
    sizes: Sequence[int],
    repetitions: int,
    qos: int,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in sizes:
        target = LocalTarget(definition)
        await target.start()
        try:
            pids = await target.pids()
            base = taken_by(pids).memory_bytes
            for repetition in range(repetitions):
                row = await measure(target, pids, size, qos, len(rows))
                # An allocator keeps memory that it once had: all repetitions count from the same.
                row["memory_bytes"] -= base if size else 0
                rows.append(row)
                tell(f"{definition.name} load {repetition + 1}/{repetitions}: {to_line(row)}")
        finally:
            await target.stop()
    return rows


def to_line(row: dict[str, Any]) -> str:
    """Return a row for people."""
    return (
        f"{row['clients']} clients, peak {row['cpu_percent']:.1f} % of a processor, "
        f"{row['memory_bytes'] / 1000:,.0f} kB, {row['deliveries']} deliveries in "
        f"{row['seconds']:.2f} s"
    )


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return median and spread for each number of clients, and the cost of a delivery.

    `us_per_delivery` is processor time in microseconds, from the numbers of clients with the fewest
    and the most deliveries: connecting is in both, and so is not all of it.
    """
    sizes = []
    for clients in sorted({row["clients"] for row in rows}):
        own = [row for row in rows if row["clients"] == clients]
        size: dict[str, Any] = {"clients": clients, "deliveries": own[0]["deliveries"]}
        for column in COLUMNS:
            values = [row[column] for row in own]
            size[column] = statistics.median(values)
            size[f"{column}_spread"] = [min(values), max(values)]
        sizes.append(size)
    loaded = [size for size in sizes if size["deliveries"]]
    cost = None
    if len(loaded) > 1:
        first, last = loaded[0], loaded[-1]
        more = last["deliveries"] - first["deliveries"]
        cost = 1e6 * (last["cpu_seconds"] - first["cpu_seconds"]) / more
    return {"sizes": sizes, "us_per_delivery": cost}


def to_text(result: dict[str, Any]) -> str:
    """Return the summary as a table."""
    lines = [f"{result['target']} {result['version']}, QoS {result['qos']}"]
    lines.append(f"{'clients':>8} {'peak CPU %':>22} {'memory kB':>26} {'deliveries':>11} {'s':>7}")
    for size in result["summary"]["sizes"]:
        low, high = size["cpu_percent_spread"]
        least, most = (value / 1000 for value in size["memory_bytes_spread"])
        cpu = f"{size['cpu_percent']:.1f} ({low:.1f} to {high:.1f})"
        memory = f"{size['memory_bytes'] / 1000:,.0f} ({least:,.0f} to {most:,.0f})"
        lines.append(
            f"{size['clients']:>8} {cpu:>22} {memory:>26} {size['deliveries']:>11}"
            f" {size['seconds']:>7.2f}"
        )
    cost = result["summary"]["us_per_delivery"]
    if cost is not None:
        lines.append(f"one delivery takes {cost:.0f} µs of processor time")
    return "\n".join(lines)
