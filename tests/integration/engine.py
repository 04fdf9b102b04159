"""The streaming application on a log, as the tests of rules see it: its records, its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mqlake.heartbeat import read_heartbeat
from mqlake.local.kafka import KafkaServer
from mqlake.local.parts import STOP_TIMEOUT_SECONDS, STREAMING
from mqlake.local.paths import RUNTIME
from mqlake.local.testing import await_condition
from mqlake.log.admin import ensure_log_topics
from mqlake.records import INBOUND, OUTPUTS, RULES, Message, message_headers, message_key
from mqlake.rule_records import (
    Activation,
    Output,
    RulesKey,
    decode_activation,
    decode_output,
    encode_activation,
    rules_key,
)
from rules.model import Rule
from streaming.rules.signatures import Signatures
from tests.integration.thrift import NO_STATE_TABLES

PARTITIONS = 4
RULES_KEY = "a key of thirty-two bytes, or more"


class Engine:
    """The streaming application on a log, and what a test does with it."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.servers = servers
        self.folder = folder
        self.producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0}
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {
            "MQLAKE_STREAMING_DATA_DIR": str(self.folder),
            "MQLAKE_STREAMING_JARS_DIR": str(RUNTIME / "jars"),
            "MQLAKE_STREAMING_LOG__BOOTSTRAP_SERVERS": self.servers,
            "MQLAKE_STREAMING_RULES_KEY": RULES_KEY,
            "MQLAKE_STREAMING_HEARTBEAT_FILE": str(self._heartbeat),
            "MQLAKE_STREAMING_LOG_FILE": str(self.folder / "streaming.log"),
            **NO_STATE_TABLES,
        }
        self._heartbeat.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mqlake", "streaming"], env=environment
        )
        await_condition(self._is_healthy, "healthy")

    @property
    def _heartbeat(self) -> Path:
        return self.folder / "heartbeat.json"

    @property
    def figures(self) -> dict[str, Any]:
        """What it says of itself."""
        beat = read_heartbeat(self._heartbeat)
        return {} if beat is None else beat.figures

    def _is_healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "it ended"
        beat = read_heartbeat(self._heartbeat)
        return beat is not None and beat.healthy

    def kill(self) -> None:
        """Kill Python and Java at once."""
        assert self.process is not None
        beat = read_heartbeat(self._heartbeat)
        assert beat is not None
        for pid in (beat.figures["java_pid"], self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(STOP_TIMEOUT_SECONDS[STREAMING])

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
        admin = AdminClient({"bootstrap.servers": self.servers})
        count = len(admin.list_topics(log_topic, timeout=60).topics[log_topic].partitions)
        partitions = [TopicPartition(log_topic, partition, 0) for partition in range(count)]
        latest: dict[TopicPartition, OffsetSpec] = {
            TopicPartition(log_topic, p.partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for p in partitions
        }
        ends = {
            asked.partition: future.result(60).offset
            for asked, future in admin.list_offsets(latest).items()
        }
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "test"})
        consumer.assign(partitions)
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while any(
            max(position.offset, 0) < ends[position.partition]
            for position in consumer.position(partitions)
        ):
            assert time.monotonic() < deadline, f"{log_topic} is not read to its end"
            found += [m for m in consumer.consume(5000, 0.2) if m.error() is None]
        consumer.close()
        return sorted(found, key=lambda record: (record.partition(), record.offset()))

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
            output = decode_output(record.key(), record.value(), record.headers())
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
            *("default", topic, payload, 1, False, number.to_bytes(16), client_id, 0, "local/g"),
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
        timeout_seconds=30,
    )
    engine = Engine(kafka.bootstrap_servers, folder)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
