"""Router and lake on a log, as the tests of rules see them: their records, their end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from launcher.log.kafka import KafkaServer
from launcher.paths import RUNTIME
from launcher.planning.parts import LAKE, NEXT, ROUTER, STOP_TIMEOUT_SECONDS
from launcher.testing.systems import await_condition
from mqlake.log.admin import ensure_log_topics
from mqlake.processes.heartbeat import read_heartbeat
from mqlake.records.messages import INBOUND, OUTPUTS, RULES, Message, message_headers, message_key
from mqlake.records.outputs import Output, decode_output
from mqlake.records.rules import (
    Activation,
    RulesKey,
    decode_activation,
    encode_activation,
    rules_key,
)
from rules.model import Rule
from streaming.application.poison_file import PLACES_FILE
from streaming.rules.signatures import Signatures
from tests.integration.thrift import NO_HISTORY, NO_STATE_TABLES

PARTITIONS = 4
HEALTHY_SECONDS = 480.0
"""A start takes ten seconds alone, and two minutes beside all that a busy machine has to do."""
RULES_KEY = "a key of thirty-two bytes, or more"


class _Reader:
    """The records of a log topic; a look costs what has come since the last one."""

    def __init__(self, servers: str, log_topic: str) -> None:
        self._log_topic = log_topic
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "test"})
        count = len(self._consumer.list_topics(log_topic, timeout=60).topics[log_topic].partitions)
        self._places = [TopicPartition(log_topic, partition, 0) for partition in range(count)]
        self._consumer.assign(self._places)
        self._records: list[Any] = []

    def read(self) -> list[Any]:
        """Return all that there are, in the order of each partition."""
        ends = {}
        for place in self._places:
            _, ends[place.partition] = self._consumer.get_watermark_offsets(place, timeout=60)
        known = len(self._records)
        deadline = time.monotonic() + 60
        while any(
            max(position.offset, 0) < ends[position.partition]
            for position in self._consumer.position(self._places)
        ):
            assert time.monotonic() < deadline, f"{self._log_topic} is not read to its end"
            found = self._consumer.consume(5000, 0.2)
            self._records += [one for one in found if one.error() is None]
        if len(self._records) > known:
            self._records.sort(key=lambda record: (record.partition(), record.offset()))
        return list(self._records)

    def close(self) -> None:
        self._consumer.close()


class Engine:
    """Router and lake on a log, and what a test does with them; the lake once it is asked for."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.servers = servers
        self.folder = folder
        self.producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0}
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._wanted = [ROUTER]
        self._read: dict[str, _Reader] = {}
        self._outputs: dict[tuple[int, int], Output] = {}

    def start(self) -> None:
        for name in self._wanted:
            self._start(name)
        for name in self._wanted:
            self._await_healthy(name, f"{name} is healthy")

    def start_lake(self) -> None:
        """Have the lake from now on."""
        if LAKE not in self._wanted:
            self._wanted.append(LAKE)
            self._start(LAKE)
            self._await_healthy(LAKE, "the lake is healthy")

    def follow(self) -> None:
        """Have another router follow the one that runs, as the supervisor does."""
        first = self._processes[ROUTER]
        beside = self._heartbeat(NEXT.format(ROUTER))
        beside.unlink(missing_ok=True)
        self._start(ROUTER, "--beside")
        self._await_healthy(ROUTER, "all flows beside it", beside)
        first.terminate()
        assert first.wait(STOP_TIMEOUT_SECONDS[ROUTER]) == 0
        self._await_healthy(ROUTER, "it is the router")

    def _await_healthy(self, name: str, what: str, heartbeat: Path | None = None) -> None:
        healthy = partial(self._is_healthy, name, heartbeat)
        await_condition(healthy, what, timeout_seconds=HEALTHY_SECONDS)

    def _start(self, name: str, *options: str) -> None:
        prefix = f"MQLAKE_{name.upper()}_"
        environment = os.environ | {
            f"{prefix}DATA_DIR": str(self.folder),
            f"{prefix}JARS_DIR": str(RUNTIME / "jars"),
            f"{prefix}LOG__BOOTSTRAP_SERVERS": self.servers,
            f"{prefix}RULES_KEY": RULES_KEY,
            f"{prefix}HEARTBEAT_FILE": str(self._heartbeat(name)),
            f"{prefix}LOG_FILE": str(self.folder / f"{name}.log"),
            **NO_STATE_TABLES,
            **NO_HISTORY,
        }
        if not options:
            self._heartbeat(name).unlink(missing_ok=True)
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "cli", name, *options], env=environment
        )

    def _heartbeat(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    @property
    def figures(self) -> dict[str, Any]:
        """What the router says of itself."""
        beat = read_heartbeat(self._heartbeat(ROUTER))
        return {} if beat is None else beat.figures

    @property
    def places(self) -> list[Path]:
        """Where the router notes what it evaluates: one of these, or both."""
        return [path for path in self.folder.glob(f"router/*/{PLACES_FILE}") if path.exists()]

    def _is_healthy(self, name: str, heartbeat: Path | None = None) -> bool:
        process = self._processes[name]
        assert process.poll() is None, "it ended"
        beat = read_heartbeat(heartbeat or self._heartbeat(name))
        return beat is not None and beat.healthy and beat.pid == process.pid

    def kill(self) -> None:
        """Kill Python and Java at once."""
        for name, process in self._processes.items():
            beat = read_heartbeat(self._heartbeat(name))
            assert beat is not None
            for pid in (beat.figures["java_pid"], process.pid):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes.values():
            process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for name, process in self._processes.items():
            process.wait(STOP_TIMEOUT_SECONDS[name])
        for reader in self._read.values():
            reader.close()

    def define(self, *rules: Rule) -> None:
        for rule in rules:
            key = RulesKey("definition", rule.tenant, rule.id)
            self.producer.produce(RULES, rule.model_dump_json(), rules_key(key), 0)
        assert self.producer.flush(30) == 0

    def activate(self, activation: Activation, key: str = RULES_KEY) -> None:
        """Write an activation as the rule controller would that has this key."""
        record = rules_key(RulesKey("activation", activation.tenant, activation.rule))
        value = encode_activation(activation)
        headers: Any = Signatures(key, self.folder / "unused").headers(record, value)
        self.producer.produce(RULES, value, record, 0, headers=headers)
        assert self.producer.flush(30) == 0

    def delete(self, rule: str) -> None:
        self.producer.produce(RULES, None, rules_key(RulesKey("definition", "default", rule)), 0)
        assert self.producer.flush(30) == 0

    def read(self, log_topic: str) -> list[Any]:
        """Return all records of a log topic, in the order of each partition."""
        if log_topic not in self._read:
            self._read[log_topic] = _Reader(self.servers, log_topic)
        return self._read[log_topic].read()

    def activations(self) -> dict[str, Activation]:
        found: dict[str, Activation] = {}
        for record in self.read(RULES):
            if record.key().startswith(b"a/"):
                name = record.key().decode().split("/")[2]
                if record.value() is None:
                    found.pop(name, None)
                else:
                    found[name] = decode_activation(record.value())
        return found

    def outputs(self) -> list[Output]:
        """Return what a reader sees that drops what is not above the last mark."""
        marks: dict[tuple[str, int], tuple[int, str, int]] = {}
        kept: list[Output] = []
        for record in self.read(OUTPUTS):
            place = record.partition(), record.offset()
            if place not in self._outputs:
                values = record.key(), record.value(), record.headers()
                self._outputs[place] = decode_output(*values)
            output = self._outputs[place]
            source = output.position.source, output.position.partition
            if output.mark > marks.get(source, (-1, "", -1)):
                marks[source] = output.mark
                kept.append(output)
        return kept

    def await_state(self, rule: str, version: int, state: str) -> Activation:
        found: Activation | None = None

        def is_there() -> bool:
            nonlocal found
            found = self.activations().get(rule)
            return found is not None and (found.version, found.state) == (version, state)

        await_condition(is_there, f"{rule} {version} {state}")
        assert found is not None
        return found

    def publish(self, topic: str, payload: bytes, number: int = 0, client_id: str = "c") -> None:
        message = Message(
            "default",
            topic,
            payload,
            1,
            False,
            number.to_bytes(16),
            client_id,
            0,
            "local/g",
        )
        headers: Any = message_headers(message)
        self.producer.produce(INBOUND, payload, message_key("default", topic), headers=headers)


def a_rule(number: int, version: int, **fields: Any) -> Rule:
    """A rule whose rows say which version made them; each reads a share of the topics."""
    sql = (
        f'SELECT payload.n AS n, {version} AS version FROM "load/{number % 4}/#" '
        f"WHERE payload.n > 0 AND mod(payload.n, {version % 3 + 1}) = 0"
    )
    return Rule(
        id=f"rule-{number:02}",
        version=version,
        created_at=1,
        updated_at=version,
        **({"sql": sql} | fields),
    )


@contextmanager
def running_engine(kafka: KafkaServer, folder: Path) -> Iterator[Engine]:
    ensure_log_topics(
        kafka.bootstrap_servers,
        inbound_partitions=PARTITIONS,
        session_shards=2,
        retention_bytes=1 << 30,
        timeout_seconds=120,
    )
    engine = Engine(kafka.bootstrap_servers, folder)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
