"""Gateways and a log without Spark: for measurements of gateways alone.

A stand-in sends barriers back as the router does, so that routes are answered; it routes nothing.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from launcher.child import die_with_parent
from launcher.log.kafka import Brokers, running_brokers
from launcher.ports import free_ports
from mqlake.errors import OperationalError
from mqlake.log.admin import END_OFFSETS, ensure_log_topics, offsets
from mqlake.log.durability import Durability
from mqlake.log.options import consumer_options, producer_options
from mqlake.log.security import environment_of
from mqlake.processes.heartbeat import Heartbeat, read_heartbeat
from mqlake.records.messages import (
    BARRIER_KEY_PREFIX,
    HEADER_SOURCE,
    INBOUND,
    Source,
    decode_barrier_key,
    delivery_topic,
    encode_source,
)

SHARDS: Final = 16
INBOUND_PARTITIONS: Final = 2
RETENTION_BYTES: Final = 2**30
LOG_SECONDS: Final = 30.0
START_SECONDS: Final = 900.0
"""A gateway reads a million sessions alone, maybe beside other work."""
STOP_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.02
POLL_SECONDS: Final = 0.2


@dataclass(slots=True)
class BenchFleet:
    """A log, and the gateways that run on it."""

    folder: Path
    brokers: Brokers
    _running: dict[str, "BenchGateway"] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self._running)

    def gateway(self, name: str) -> "BenchGateway":
        return self._running[name]

    def addresses(self, *without: str) -> list[str]:
        return [one.address for name, one in self._running.items() if name not in without]

    def start(self, *names: str, settings: Mapping[str, str] | None = None) -> float:
        """Start gateways at once; return the seconds until all of them serve.

        Args:
            names: Theirs.
            settings: Beside the defaults: key, in capitals, to value.

        Raises:
            OperationalError: One of them does not.
        """
        began_at = time.monotonic()
        for name in names:
            servers = self.brokers.bootstrap_servers
            self._running[name] = BenchGateway.start(self.folder / name, name, servers, settings)
        for name in names:
            self._running[name].await_healthy()
        return time.monotonic() - began_at

    def keep(self, durability: Durability) -> None:
        """Have the log keep acknowledged records so from now on.

        Raises:
            LogError: It has too few brokers.
        """
        ensure_log_topics(
            self.brokers.bootstrap_servers,
            inbound_partitions=INBOUND_PARTITIONS,
            session_shards=SHARDS,
            retention_bytes=RETENTION_BYTES,
            timeout_seconds=LOG_SECONDS,
            durability=durability,
        )

    def stop(self, *names: str) -> None:
        """Have gateways take leave, and wait for their ends."""
        stopping = [self._running.pop(name) for name in names]
        for gateway in stopping:
            gateway.process.terminate()
        for gateway in stopping:
            gateway.await_end()

    def kill(self, name: str) -> None:
        gateway = self._running.pop(name)
        gateway.process.kill()
        gateway.process.wait()


@dataclass(frozen=True, slots=True)
class BenchGateway:
    """A process, with the settings of `mqlake up`."""

    name: str
    address: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(
        cls,
        folder: Path,
        name: str,
        bootstrap_servers: str,
        settings: Mapping[str, str] | None = None,
    ) -> "BenchGateway":
        """Start one; nothing of an earlier run of that name is kept."""
        folder.mkdir(exist_ok=True)
        (port,) = free_ports(1)
        (folder / "heartbeat.json").unlink(missing_ok=True)
        environment = {
            "MALLOC_ARENA_MAX": "2",
            "MQLAKE_GATEWAY_NAME": name,
            "MQLAKE_GATEWAY_HOST": "127.0.0.1",
            "MQLAKE_GATEWAY_PORT": str(port),
            "MQLAKE_GATEWAY_STORE_DIR": str(folder / "store"),
            **environment_of(bootstrap_servers, "gateway"),
            "MQLAKE_GATEWAY_HEARTBEAT_FILE": str(folder / "heartbeat.json"),
            "MQLAKE_GATEWAY_LOG_FILE": str(folder / "gateway.log"),
            **{f"MQLAKE_GATEWAY_{key}": value for key, value in (settings or {}).items()},
        }
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "cli", "gateway"),
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        return cls(name, f"127.0.0.1:{port}", folder, process)

    @property
    def pid(self) -> int:
        return self.process.pid

    def heartbeat(self) -> Heartbeat | None:
        return read_heartbeat(self.folder / "heartbeat.json")

    def await_healthy(self) -> None:
        """Wait until it serves clients.

        Raises:
            OperationalError: It has ended, or takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while (heartbeat := self.heartbeat()) is None or not heartbeat.healthy:
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = self.folder / "gateway.log"
                lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
                words = lines[-1] if lines else f"exit code {self.process.returncode}"
                raise OperationalError(f"{self.name} does not start: {words}")
            time.sleep(LOOK_SECONDS)

    def await_end(self) -> None:
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def store_bytes(self) -> int:
        """How much it has on disk of the log's state."""
        return sum(one.stat().st_size for one in (self.folder / "store").iterdir())


@contextmanager
def running_fleet(folder: Path, brokers: int = 1) -> Iterator[BenchFleet]:
    """Run a log, still without gateways, for the length of a `with` block."""
    with running_brokers(folder, brokers) as log:
        fleet = BenchFleet(folder, log)
        fleet.keep(Durability.D1)
        with _barriers_answered(log.bootstrap_servers):
            try:
                yield fleet
            finally:
                fleet.stop(*fleet.names)


@contextmanager
def _barriers_answered(bootstrap_servers: str) -> Iterator[None]:
    """Send each barrier back to its gateway, by a thread."""
    stop = threading.Event()
    options = consumer_options(bootstrap_servers, "mqlake-bench", {"fetch.wait.max.ms": 100})
    consumer = Consumer(options)
    ends = offsets(bootstrap_servers, INBOUND, END_OFFSETS, LOG_SECONDS)
    consumer.assign([TopicPartition(INBOUND, partition, end) for partition, end in ends.items()])
    thread = threading.Thread(
        target=_answer_barriers, args=(consumer, bootstrap_servers, stop), name="barriers"
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _answer_barriers(consumer: Consumer, bootstrap_servers: str, stop: threading.Event) -> None:
    producer = Producer(producer_options(bootstrap_servers, "mqlake-bench", {"linger.ms": 0}))
    while not stop.is_set():
        first = consumer.poll(POLL_SECONDS)
        for message in () if first is None else (first, *consumer.consume(1_000, 0)):
            key = message.key()
            if message.error() is not None or not isinstance(key, bytes):
                continue
            if not key.startswith(BARRIER_KEY_PREFIX):
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            source = encode_source(Source(partition, offset, message.timestamp()[1]))
            producer.produce(
                delivery_topic(decode_barrier_key(key).gateway),
                key=key,
                partition=0,
                headers=[(HEADER_SOURCE, source)],
            )
        producer.poll(0)
    consumer.close()
    producer.flush(POLL_SECONDS)
