"""Cost of stored sessions, also while gateways come and go.

A log and four gateways on this machine, without Spark: nothing here needs a
message to be routed. Sessions are written into the log as gateways write them.
"""

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Producer

from bench.load.connector import Cycle, Names, hold_connections, run_cycles
from bench.load.loader import Latency
from bench.load.prepared import TENANT, write_sessions
from bench.load.programs import LoadPrograms
from bench.load.session_client import REFUSED_PAUSE_SECONDS, SessionClient
from bench.results.figures import Figures, figure, percentiles
from bench.systems.gateways import INBOUND_PARTITIONS, SHARDS, BenchFleet, running_fleet
from bench.systems.processes import MIB, cpu_percent_of
from bench.whole.connections import KINDS, connects
from mqlake.errors import OperationalError
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.options import producer_options
from mqlake.records.messages import GATEWAYS, SESSIONS
from mqlake.records.progress import ProgressRecord, encode_progress
from mqlake.records.sessions import progress_key
from mqlake.records.shards import Run, shard_of, stamp_headers

GATEWAY_NAMES: Final = ("gateway-1", "gateway-2", "gateway-3", "gateway-4")
SUBSCRIPTIONS: Final = 5
NAMES: Final = "stored-"

CONNECTS: Final = 1_000
CONNECTS_IN_FLIGHT: Final = 2
"""Few: it is the way of one CONNECT that is measured, not how many there can be."""

BUSY_CLIENTS: Final = 1_000
PROGRESS_PER_SECOND: Final = 5_000
BUSY_SECONDS: Final = 10.0
PACE_SECONDS: Final = 0.02
BUSY_EPOCH: Final = 1
"""Epoch of the busy sessions: before every claim in a log with this number of records."""

CROWD: Final = 2_000
CROWD_IN_FLIGHT: Final = 100
BACK_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 3.0
"""For the work of gateways after one of them has come: shards change their owners."""
SETTLED_PERCENT: Final = 30.0
"""Part of a core; a gateway that uses less has read all shards that it stands by for."""
STAND_BY_SECONDS: Final = 900.0

BLOCK_BYTES: Final = 512

RESTARTS: Final = 99
"""Restarts of three gateways of four, all three at once."""

IDLE_CONNECTIONS: Final = 19_000
"""A process may have 20,000 files open on many machines."""
PINGS: Final = 500
PING_PAUSE_SECONDS: Final = 0.02


def measure_sessions(
    programs: LoadPrograms, size: int, note: Callable[[str], None]
) -> list[Figures]:
    """Start, connect, idle, kill: with `stored` sessions of five subscriptions each."""
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        began_at = time.monotonic()
        servers = fleet.brokers.bootstrap_servers
        client_ids = (f"{NAMES}{number}" for number in range(size))
        cursor = [0] * INBOUND_PARTITIONS
        write_sessions(servers, client_ids, cursor, "bench", SUBSCRIPTIONS)
        seconds = time.monotonic() - began_at
        note(f"prepared: {size:,} sessions, written into the log in {seconds:.0f} s")
        results = [_starts(fleet, size), _sizes(fleet, size)]
        for take in (_connects_of_stored, _idle, _owner_killed, _holder_killed, _both_killed):
            results.append(take(fleet, programs, size))
            note(", ".join(f"{one.name}: {value:.4g}" for one, value in results[-1].items()))
        return results


def measure_connect_rates(programs: LoadPrograms) -> list[Figures]:
    """Connects a second of one gateway alone, and how long a ping takes beside idle clients."""
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        fleet.start(GATEWAY_NAMES[0])
        return [_rates(fleet, programs), _pings(fleet, programs)]


def measure_restarts() -> list[Figures]:
    """Load of an idle gateway, before and after many restarts of others."""
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-bench-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        stays, *others = GATEWAY_NAMES
        fleet.start(*GATEWAY_NAMES)
        pids = {stays: fleet.gateway(stays).pid}
        what = "4 gateways with nothing to do, the first of them"
        figures = {figure(what, "% of a core"): _resting(pids)}
        for _ in range(RESTARTS // len(others)):
            for name in others:
                fleet.kill(name)
            fleet.start(*others)
        figures[figure(f"{what}, after {RESTARTS} restarts", "% of a core")] = _resting(pids)
        return [figures]


def _resting(pids: dict[str, int]) -> float:
    time.sleep(SETTLE_SECONDS)
    return max(cpu_percent_of(pids, BUSY_SECONDS).values())


def _starts(fleet: BenchFleet, size: int) -> Figures:
    """Each gateway, from its process to the moment when clients can connect, after the others."""
    figures: Figures = {}
    for number, name in enumerate(GATEWAY_NAMES):
        what = f"{size:,} sessions, start beside {number} gateways"
        figures[figure(what, "s")] = fleet.start(name)
        _await_stand_by(fleet)
    return figures


def _await_stand_by(fleet: BenchFleet) -> None:
    """Wait until gateways have read the shards that they stand by for, beside their clients."""
    deadline = time.monotonic() + STAND_BY_SECONDS
    pids = {name: fleet.gateway(name).pid for name in fleet.names}
    while max(cpu_percent_of(pids, SETTLE_SECONDS).values()) > SETTLED_PERCENT:
        if time.monotonic() > deadline:
            raise OperationalError(f"gateways are busy {STAND_BY_SECONDS:.0f} s after a start")


def _sizes(fleet: BenchFleet, size: int) -> Figures:
    log = sum(
        file.stat().st_blocks * BLOCK_BYTES  # indexes are holes for the most part
        for partition in fleet.brokers.servers[0].log_dir.glob(f"{SESSIONS}-*")
        for file in partition.iterdir()
    )
    last = fleet.gateway(GATEWAY_NAMES[-1])
    stored = sum(fleet.gateway(name).store_bytes for name in GATEWAY_NAMES)
    resident = psutil.Process(last.process.pid).memory_info().rss
    return {
        figure(f"{size:,} sessions, log of one", "bytes"): log / size,
        figure(f"{size:,} sessions, in all stores, of one", "bytes"): stored / size,
        figure(f"{size:,} sessions, memory of a gateway", "MiB"): resident / MIB,
    }


def _connects_of_stored(fleet: BenchFleet, programs: LoadPrograms, size: int) -> Figures:
    count = min(CONNECTS, size)
    done = run_cycles(
        programs.connector,
        fleet.addresses(),
        cycles=count,
        in_flight=CONNECTS_IN_FLIGHT,
        cycle=Cycle(levels="4", keep=True),
        names=Names(NAMES, 0, size // count),
    )
    if done.present != count:
        raise OperationalError(f"{count - done.present} of {count} sessions were lost")
    return percentiles(f"{size:,} sessions, CONNECT to CONNACK", done.connack_ms)


def _idle(fleet: BenchFleet, _programs: LoadPrograms, size: int) -> Figures:
    """Gateways that have no client, while sessions of another one make progress."""
    with _progress_written(fleet, size):
        pids = {name: fleet.gateway(name).process.pid for name in GATEWAY_NAMES[1:]}
        time.sleep(SETTLE_SECONDS)
        percent = cpu_percent_of(pids, BUSY_SECONDS)
    what = f"{size:,} sessions, idle beside {PROGRESS_PER_SECOND:,} progress/s"
    return {figure(what, "% of a core"): max(percent.values())}


class _progress_written:  # noqa: N801 - used as a function
    """Progress of sessions that the first gateway holds, as far as the log says."""

    def __init__(self, fleet: BenchFleet, size: int) -> None:
        self._servers = fleet.brokers.bootstrap_servers
        self._ids = [f"{NAMES}{size + number}" for number in range(BUSY_CLIENTS)]
        self._run = asyncio.run(_run_of(self._servers, GATEWAY_NAMES[0]))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="progress")

    def __enter__(self) -> None:
        cursor = [0] * INBOUND_PARTITIONS
        write_sessions(self._servers, self._ids, cursor, "bench", 1, holder=self._run)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        cursor = [0] * INBOUND_PARTITIONS
        write_sessions(self._servers, self._ids, cursor, "bench", 1, epoch=BUSY_EPOCH)

    def _write(self) -> None:
        producer = Producer(producer_options(self._servers, "mqlake-bench", {"linger.ms": 2}))
        headers = stamp_headers(self._run.incarnation, BUSY_EPOCH)
        records = []
        for number, client_id in enumerate(self._ids):
            progress = ProgressRecord(f"{number:016x}", [number] * INBOUND_PARTITIONS, True)
            key = progress_key(TENANT, client_id)
            shard = shard_of(TENANT, client_id, SHARDS)
            records.append((key, encode_progress(progress), shard))
        began_at, written = time.monotonic(), 0
        while not self._stop.wait(PACE_SECONDS):
            due = round((time.monotonic() - began_at) * PROGRESS_PER_SECOND)
            for number in range(written, due):
                key, value, shard = records[number % len(records)]
                producer.produce(SESSIONS, value, key, shard, headers=headers)  # type: ignore[arg-type]
            written = due
            producer.poll(0)
        producer.flush(BUSY_SECONDS)


async def _run_of(servers: str, name: str) -> Run:
    reader = KafkaLogReader(servers)
    try:
        record = (await reader.read_compacted(GATEWAYS))[name.encode()]
    finally:
        await reader.close()
    return Run(name, json.loads(record.value or b"")["incarnation"])


def _owned(fleet: BenchFleet, name: str) -> set[int]:
    """Return the shards that a gateway says it owns."""

    async def ask() -> set[int]:
        reader = KafkaLogReader(fleet.brokers.bootstrap_servers)
        try:
            record = (await reader.read_compacted(GATEWAYS))[name.encode()]
        finally:
            await reader.close()
        return set(json.loads(record.value or b"")["shards"])

    deadline = time.monotonic() + BACK_SECONDS
    while len(found := asyncio.run(ask())) != SHARDS // len(GATEWAY_NAMES):
        if time.monotonic() > deadline:
            raise OperationalError(f"{name} owns {len(found)} shards")
        time.sleep(REFUSED_PAUSE_SECONDS)
    return found


def _in_shards(size: int, shards: set[int], count: int) -> list[str]:
    """Return stored clients in some shards, the last ones first."""
    found: list[str] = []
    for number in reversed(range(size)):
        client_id = f"{NAMES}{number}"
        if shard_of(TENANT, client_id, SHARDS) in shards:
            found.append(client_id)
            if len(found) == count:
                break
    return found


def _owner_killed(fleet: BenchFleet, _programs: LoadPrograms, size: int) -> Figures:
    """From the kill to CONNACK of a client in each of its shards."""
    name = GATEWAY_NAMES[-1]
    client_ids = [_in_shards(size, {shard}, 1)[0] for shard in _owned(fleet, name)]
    waits = asyncio.run(_come_back(fleet, name, client_ids, settle=False))
    figures = {figure(f"{size:,} sessions, owner killed, shards answer", "s"): max(waits)}
    return figures | _restart(fleet, name, size)


def _holder_killed(fleet: BenchFleet, _programs: LoadPrograms, size: int) -> Figures:
    """From the kill to CONNACK elsewhere of clients in shards of others."""
    name = GATEWAY_NAMES[-1]
    others = set(range(SHARDS)) - _owned(fleet, name)
    waits = asyncio.run(_come_back(fleet, name, _in_shards(size, others, CROWD), settle=True))
    what = f"{size:,} sessions, holder killed, {CROWD:,} clients back"
    return {figure(what, "s"): max(waits)} | _restart(fleet, name, size)


def _both_killed(fleet: BenchFleet, _programs: LoadPrograms, size: int) -> Figures:
    """The same of clients in shards that the killed one owned."""
    name = GATEWAY_NAMES[-1]
    client_ids = _in_shards(size, _owned(fleet, name), CROWD)
    waits = asyncio.run(_come_back(fleet, name, client_ids, settle=True))
    what = f"{size:,} sessions, holder and owner killed, {len(client_ids):,} clients back"
    return {figure(what, "s"): max(waits)}


def _restart(fleet: BenchFleet, name: str, size: int) -> Figures:
    seconds = fleet.start(name)
    _await_stand_by(fleet)
    return {figure(f"{size:,} sessions, start after a kill", "s"): seconds}


async def _come_back(
    fleet: BenchFleet, name: str, client_ids: Sequence[str], *, settle: bool
) -> list[float]:
    """Kill a gateway; return for each client the seconds until it has its session elsewhere.

    Args:
        fleet: Its gateways.
        name: Gateway that is killed.
        client_ids: Clients that come.
        settle: The clients were connected there before.
    """
    loop = asyncio.get_running_loop()
    clients = [SessionClient(client_id) for client_id in client_ids]
    turn = asyncio.Semaphore(CROWD_IN_FLIGHT)
    others = fleet.addresses(name)

    async def hold(client: SessionClient) -> None:
        async with turn:
            await client.connect(fleet.gateway(name).address)

    if settle:
        await asyncio.gather(*map(hold, clients))
    fleet.kill(name)
    killed_at = loop.time()

    async def come(client: SessionClient, number: int) -> float:
        await client.resume(others, number)
        return loop.time() - killed_at

    try:
        async with asyncio.timeout(BACK_SECONDS):
            waits = await asyncio.gather(
                *(come(client, number) for number, client in enumerate(clients))
            )
    except TimeoutError:
        raise OperationalError(f"not all clients were back within {BACK_SECONDS:.0f} s") from None
    await asyncio.gather(*(client.disconnect() for client in clients))
    return waits


def _rates(fleet: BenchFleet, programs: LoadPrograms) -> Figures:
    figures: Figures = {}
    gateway = fleet.gateway(GATEWAY_NAMES[0])
    for kind in KINDS:
        what = "connects, one gateway alone"
        figures |= connects(programs, gateway.address, gateway.pid, what, kind)
    return figures


def _pings(fleet: BenchFleet, programs: LoadPrograms) -> Figures:
    """A ping waits for all work of the loop: its time is that of a message through the loop."""
    with hold_connections(programs.connector, fleet.addresses(), IDLE_CONNECTIONS):
        time.sleep(SETTLE_SECONDS)
        latency = asyncio.run(_ping(fleet.addresses()[0]))
    return percentiles(f"ping beside {IDLE_CONNECTIONS:,} idle connections", latency)


async def _ping(address: str) -> Latency:
    client = SessionClient("pinging")
    await client.connect(address, clean_session=True)
    loop = asyncio.get_running_loop()
    samples = []
    for _ in range(PINGS):
        began_at = loop.time()
        await client.ping()
        samples.append((loop.time() - began_at) * 1000)
        await asyncio.sleep(PING_PAUSE_SECONDS)
    await client.disconnect()
    samples.sort()
    p50, p95, p99 = (samples[int(share * PINGS)] for share in (0.5, 0.95, 0.99))
    return Latency(PINGS, p50, p95, p99, samples[-1])
