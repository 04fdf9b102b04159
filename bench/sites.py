"""Three sites in a row that are federated by their logs: time of a hop, and an outage of a link.

Each has a log of its own (an embedded Kafka) and a federator process; there are no gateways and no
Spark. A client appends to the log of site 1 as a gateway would; another one follows the logs of all
three and sees when a message is there. The time of a hop is from when a consumer of site 1's log
has a message to when one of the next site's log has it. A hop goes through a log, so beside it
stands how long a log takes by itself: from the append at site 1 to its consumer there. As many
messages as are measured go ahead of them at the same rate, as logs that have just started are slow.

For the outage the federator of site 2 is killed (SIGKILL) and started again when the messages of
the outage are in the log of site 1. Then sites 1 and 3 become neighbours, too, and the bytes are
counted that come on two paths to one of them.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from bench.results.latencies import summary
from ingest.federation.sites.interest.subscriptions import LOG_TOPICS
from launcher.log.kafka import running_kafka
from launcher.ports import free_ports
from mqlake.clock import SystemClock
from mqlake.errors import OperationalError
from mqlake.identifiers import MessageIdentifiers
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import END
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.processes.heartbeat import read_heartbeat
from mqlake.records.messages import EVENTS, GATEWAYS, INBOUND, Message, message_headers, message_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mqlake.errors import LogError
    from mqlake.records.messages import LogRecord

SITES: Final = (1, 2, 3)
PARTITIONS: Final = 4
TOPICS: Final = 20
PAYLOAD_BYTES: Final = 64
START_SECONDS: Final = 60.0
WARM_UP: Final = 50
"""At least."""
MOST_QUEUED: Final = 20_000
SLOWEST_A_SECOND: Final = 500
"""Messages of an outage that must be made up for in this time at least."""
SETTINGS: Final = """
filters_in = ["bench/#"]
filters_out = ["bench/#"]
interests = ["bench/#"]
reconnect_max_seconds = 0.2
heartbeat_file = "{heartbeat}"
[host]
id = {site}
[log]
bootstrap_servers = "{servers}"
[listen]
port = {port}
"""
NEIGHBOUR: Final = """
[[neighbors]]
id = {site}
uri = "mqtt://127.0.0.1:{port}"
password = "of the bench"
"""


class Row:
    """The logs and federators of the three sites.

    Args:
        folder: For all their files.
        servers: Bootstrap servers of each site's log.
    """

    def __init__(self, folder: Path, servers: Mapping[int, str]) -> None:
        self.servers = servers
        self._folder = folder
        self._ports = dict(zip(SITES, free_ports(len(SITES)), strict=True))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._links = [(1, 2), (2, 3)]

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[Row]:
        with ExitStack() as stack:
            servers = {}
            for site in SITES:
                (folder / f"site-{site}").mkdir()
                kafka = stack.enter_context(running_kafka(folder / f"site-{site}"))
                servers[site] = kafka.bootstrap_servers
                admin = LogAdmin(kafka.bootstrap_servers)
                admin.ensure(INBOUND, {"segment.bytes": str(64 * 1024 * 1024)}, PARTITIONS)
                for log_topic in (*LOG_TOPICS, GATEWAYS):
                    admin.ensure(log_topic, {"cleanup.policy": "compact"})
                admin.ensure(EVENTS, {})
            row = cls(folder, servers)
            stack.callback(row.stop)
            for site in SITES:
                row.start_federator(site)
            yield row

    def link(self, site: int, other: int) -> None:
        """Make neighbours of two sites, while they run."""
        self._links.append((site, other))
        for one in (site, other):
            self._write_settings(one)
            self._processes[one].send_signal(signal.SIGHUP)

    def figures(self, site: int, after: float = 0.0) -> dict[str, Any] | None:
        """Return a federator's last status after a time; None: none."""
        heartbeat = read_heartbeat(self._heartbeat(site))
        return None if heartbeat is None or heartbeat.written_at <= after else heartbeat.figures

    def _write_settings(self, site: int) -> Path:
        path = self._folder / f"federation-{site}.toml"
        text = SETTINGS.format(
            heartbeat=self._heartbeat(site),
            site=site,
            servers=self.servers[site],
            port=self._ports[site],
        )
        for pair in self._links:
            if site in pair:
                other = sum(pair) - site
                text += NEIGHBOUR.format(site=other, port=self._ports[other])
        path.write_text(text)
        return path

    def start_federator(self, site: int) -> None:
        path = self._write_settings(site)
        with (self._folder / f"federation-{site}.log").open("ab") as output:
            self._processes[site] = subprocess.Popen(
                [sys.executable, "-m", "cli", "federation", "--config", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill(self, site: int) -> None:
        process = self._processes.pop(site)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def are_linked(self) -> bool:
        """Tell whether all neighbours say that they are there."""
        for site, process in self._processes.items():
            if process.poll() is not None:
                log = (self._folder / f"federation-{site}.log").read_text()[-2000:]
                raise OperationalError(f"the federator of site {site} has ended: {log}")
            heartbeat = read_heartbeat(self._heartbeat(site))
            if heartbeat is None or heartbeat.pid != process.pid or not heartbeat.is_fresh():
                return False
            there = [link["there"] for link in heartbeat.figures.get("links", [])]
            if there != [True for pair in self._links if site in pair]:
                return False
        return True

    def _heartbeat(self, site: int) -> Path:
        return self._folder / f"federation-{site}.json"


class SiteFollower:
    """Notes when a message is in the log of a site."""

    def __init__(self, servers: str) -> None:
        self.arrivals: dict[bytes, float] = {}
        self.again = 0
        """Messages that the log has more than once."""
        self._reader = KafkaLogReader(servers, client_id="bench")

    async def start(self) -> None:
        positions = dict.fromkeys(range(PARTITIONS), END)
        await self._reader.start(INBOUND, positions, self._take, _fail)

    async def close(self) -> None:
        await self._reader.close()

    def _take(self, records: list[LogRecord]) -> None:
        now = time.perf_counter()
        for record in records:
            payload = record.value or b""
            self.again += payload in self.arrivals
            self.arrivals.setdefault(payload, now)


def measure_sites(messages: int, rate: float, outage: int) -> dict[str, Any]:
    """Measure a row of three sites once.

    Args:
        messages: For the time of a hop.
        rate: Messages a second.
        outage: Messages while site 2 has no federator.

    Returns:
        Milliseconds of each hop, and the fate of the outage's messages.

    Raises:
        OperationalError: The sites do not find each other, or messages do not arrive.
    """
    with (
        tempfile.TemporaryDirectory(prefix="mqlake-sites-") as folder,
        Row.running(Path(folder)) as row,
    ):
        return uvloop.run(_measure(row, messages, rate, outage))


async def _measure(row: Row, messages: int, rate: float, outage: int) -> dict[str, Any]:
    followers = {site: SiteFollower(servers) for site, servers in row.servers.items()}
    writer = KafkaLogWriter(row.servers[1], client_id="bench")
    publish = _publisher(writer)
    try:
        for follower in followers.values():
            await follower.start()
        await _until(row.are_linked, "the sites are linked")
        warm_up = await _publish_all(publish, "warm-up", max(WARM_UP, messages), rate)
        await _until(
            lambda: _have(followers, [*warm_up]),
            "the first messages are at all sites",
            lambda: (row.are_linked(), {s: len(one.arrivals) for s, one in followers.items()}),
        )
        names = await _publish_all(publish, "message", messages, rate)
        await _until(lambda: _have(followers, [*names]), "all messages are at all sites")
        at_first = followers[SITES[0]].arrivals
        log = summary([1000 * (at_first[one] - appended) for one, appended in names.items()])
        hops = {
            f"site {site} to {site + 1}": summary(
                [
                    1000 * (followers[site + 1].arrivals[one] - followers[site].arrivals[one])
                    for one in names
                ]
            )
            for site in SITES[:-1]
        }
        missed, caught_up = await _measure_outage(row, followers, writer, publish, outage)
        return {
            "paths": await _measure_paths(row, followers, publish, messages, rate),
            "messages": messages,
            "rate": rate,
            "log": log,
            "hops": hops,
            "outage": {
                "messages": outage,
                "lost": sum(len(missed - one.arrivals.keys()) for one in followers.values()),
                "twice": sum(follower.again for follower in followers.values()),
                "caught_up_seconds": round(caught_up, 2),
            },
        }
    finally:
        await writer.close()
        for follower in followers.values():
            await follower.close()


async def _measure_outage(
    row: Row,
    followers: Mapping[int, SiteFollower],
    writer: KafkaLogWriter,
    publish: Callable[[str], bytes],
    messages: int,
) -> tuple[set[bytes], float]:
    """Publish while site 2 has no federator; return the payloads, and the seconds to catch up."""
    row.kill(2)
    missed = set()
    for number in range(messages):
        missed.add(publish(f"outage {number}"))
        if writer.queued() >= MOST_QUEUED:
            await writer.flush(START_SECONDS)
    await writer.flush(START_SECONDS)
    begin = time.perf_counter()
    row.start_federator(2)
    # Each topic keeps its order, so a message that is lost or comes twice does so before these.
    last = [publish(f"last {number}") for number in range(TOPICS)]
    await _until(
        lambda: _have(followers, last),
        "the last messages are at all sites",
        seconds=START_SECONDS + messages / SLOWEST_A_SECOND,
    )
    return missed, time.perf_counter() - begin


async def _publish_all(
    publish: Callable[[str], bytes], name: str, messages: int, rate: float
) -> dict[bytes, float]:
    """Publish evenly; return when each payload was appended."""
    begin = time.perf_counter()
    appended = {}
    for number in range(messages):
        await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        now = time.perf_counter()
        appended[publish(f"{name} {number}")] = now
    return appended


async def _measure_paths(
    row: Row,
    followers: Mapping[int, SiteFollower],
    publish: Callable[[str], bytes],
    messages: int,
    rate: float,
) -> dict[str, Any]:
    """Count the bytes that come to a site from each neighbour while both bring the same messages.

    In the triangle it is site 2 or site 3: the other one then gets all from it or from site 1, and
    which of them that is follows from the one that was first once.
    """
    row.link(1, 3)
    await _until(row.are_linked, "all three sites are linked")
    deadline = time.monotonic() + START_SECONDS
    probes = 0
    while (twice_told := _twice_told(row)) is None:
        if time.monotonic() > deadline:
            raise OperationalError(f"not within {START_SECONDS:g} s: one path offers messages only")
        probes += 1
        probe = publish(f"probe {probes}")
        await _until(lambda: _have(followers, [probe]), "a probe is at all sites")  # noqa: B023
        await asyncio.sleep(1 / rate)
    before = await _fresh(row, twice_told)
    names = await _publish_all(publish, "both", messages, rate)
    await _until(lambda: _have(followers, [*names]), "all messages are at all sites")
    after = await _fresh(row, twice_told)
    carried = {site: after[site]["bytes"] - before[site]["bytes"] for site in after}
    return {
        "to": twice_told,
        "bytes": carried,
        "whole": {site: after[site]["sent"] - before[site]["sent"] for site in after},
        "times_one_path": sum(carried.values()) / max(carried.values()),
    }


def _twice_told(row: Row) -> int | None:
    """Return the site that one of its neighbours only offers messages; None: not yet."""
    for site in SITES[1:]:
        if any(link["offered"] for link in _sent_to(row, site).values()):
            return site
    return None


def _sent_to(row: Row, site: int, after: float = 0.0) -> dict[int, dict[str, int]]:
    """Return the counts that its neighbours have sent a site; without those that say nothing."""
    found = {}
    for neighbour in SITES:
        for link in (row.figures(neighbour, after) or {}).get("links", []):
            if link["site"] == site:
                found[neighbour] = {"bytes": link["bytes"], **link["counters"]}
    return found


async def _fresh(row: Row, site: int) -> dict[int, dict[str, int]]:
    now = time.time()
    await _until(
        lambda: len(_sent_to(row, site, now)) == len(SITES) - 1, "the federators say something"
    )
    return _sent_to(row, site, now)


def _publisher(writer: KafkaLogWriter) -> Callable[[str], bytes]:
    clock = SystemClock()
    identifiers = MessageIdentifiers(clock, datacenter=0, machine=0)
    count = 0

    def publish(name: str) -> bytes:
        nonlocal count
        count += 1
        topic = f"bench/{count % TOPICS}"
        payload = name.ljust(PAYLOAD_BYTES, ".").encode()
        message = Message(
            "default",
            topic,
            payload,
            1,
            False,
            identifiers.next(),
            "bench",
            clock.now_ms(),
            "site-1/bench",
        )
        headers = message_headers(message)
        writer.append(INBOUND, message_key("default", topic), payload, headers, _appended)
        return payload

    return publish


def _have(followers: Mapping[int, SiteFollower], names: list[bytes]) -> bool:
    return all(one in follower.arrivals for follower in followers.values() for one in names)


async def _until(
    is_done: Callable[[], bool],
    what: str,
    state: Callable[[], object] = lambda: "",
    seconds: float = START_SECONDS,
) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise OperationalError(f"not within {seconds:g} s: {what} {state()}")
        await asyncio.sleep(0.02)


def _appended(_partition: int, _offset: int, error: LogError | None) -> None:
    if error is not None:
        _fail(error)


def _fail(error: LogError) -> None:
    raise error


def to_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the result for people."""
    lines = [f"{result['messages']} messages, {result['rate']:g} a second; milliseconds:"]
    for hop, found in {"a log by itself": result["log"], **result["hops"]}.items():
        lines.append(
            f"  {hop}: mean {found['mean']:.2f} ± {found['deviation']:.2f}, "
            f"median {found['p50']:.2f}, p99 {found['p99']:.2f}"
        )
    outage = result["outage"]
    lines.append(
        f"federator 2 killed for {outage['messages']} messages: {outage['lost']} lost, "
        f"{outage['twice']} twice, made up for in {outage['caught_up_seconds']:.2f} s"
    )
    paths = result["paths"]
    each = ", ".join(f"{count} from site {site}" for site, count in paths["bytes"].items())
    lines.append(
        f"two paths to site {paths['to']}: bytes {each}; "
        f"together {paths['times_one_path']:.2f} times one path"
    )
    return lines
