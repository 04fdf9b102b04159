"""The runner as a process, the engine's part played by hand."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from launcher.testing.systems import await_condition
from mqlake.log.admin import LogAdmin
from mqlake.processes.heartbeat import Heartbeat, read_heartbeat
from mqlake.records.messages import DEAD_LETTERS, INBOUND, OUTPUTS, RULES
from mqlake.records.outputs import Output, Position, output_headers
from mqlake.records.rules import RulesKey, rules_key

PARTITIONS = 2


@dataclass
class RunningRunner:
    process: "subprocess.Popen[bytes]"
    heartbeat_file: Path
    log_file: Path

    def heartbeat(self) -> Heartbeat | None:
        beat = read_heartbeat(self.heartbeat_file)
        return beat if beat is not None and beat.pid == self.process.pid else None

    def is_healthy(self) -> bool:
        beat = self.heartbeat()
        return beat is not None and beat.healthy

    def figure(self, name: str) -> int:
        beat = self.heartbeat()
        return 0 if beat is None else int(beat.figures.get(name, 0))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@dataclass
class Stage:
    """A log with the topics of mqlake, and what tests do to it."""

    servers: str
    folder: Path
    runners: list[RunningRunner] = field(default_factory=list)
    source_offset: int = 0

    def __post_init__(self) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def close(self) -> None:
        for runner in self.runners:
            if runner.process.poll() is None:
                runner.kill()

    def start_runner(
        self, environment: Mapping[str, str] | None = None, *, name: str = "rules"
    ) -> RunningRunner:
        """Start the process; it may not be at work yet."""
        number = len(self.runners)
        heartbeat, log = self.folder / f"{number}.json", self.folder / f"{number}.log"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli", "rules-runner"],
            env={
                **os.environ,
                "MQLAKE_RULES_NAME": name,
                "MQLAKE_RULES_HEARTBEAT_FILE": str(heartbeat),
                "MQLAKE_RULES_LOG_FILE": str(log),
                "MQLAKE_RULES_LOG__BOOTSTRAP_SERVERS": self.servers,
                **(environment or {}),
            },
        )
        runner = RunningRunner(process, heartbeat, log)
        self.runners.append(runner)
        return runner

    def run_runner(
        self, environment: Mapping[str, str] | None = None, *, name: str = "rules"
    ) -> RunningRunner:
        """Start the process and wait until it works."""
        runner = self.start_runner(environment, name=name)
        await_condition(runner.is_healthy, "the runner works")
        return runner

    def create_topic(self, name: str) -> None:
        LogAdmin(self.servers).ensure(name, {})

    def define(self, rule: str, actions: Sequence[Mapping[str, Any]], *, version: int = 1) -> None:
        """Write a version of a rule, as the API does."""
        definition = {
            "id": rule,
            "tenant": "default",
            "version": version,
            "sql": "SELECT * FROM 't'",
            "actions": list(actions),
            "created_at": 1,
            "updated_at": 1,
        }
        value = json.dumps(definition).encode()
        self.producer.produce(
            RULES, value, rules_key(RulesKey("version", "default", rule, version))
        )
        self.producer.produce(RULES, value, rules_key(RulesKey("definition", "default", rule)))
        self.flush()

    def delete(self, rule: str) -> None:
        self.producer.produce(RULES, None, rules_key(RulesKey("definition", "default", rule)))
        self.flush()

    def put(
        self,
        rule: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        version: int = 1,
        chain: tuple[str, ...] = (),
    ) -> list[Output]:
        """Write outputs, as the engine does; row n comes from partition n modulo 2."""
        outputs = []
        for number, row in enumerate(rows):
            self.source_offset += 1
            output = Output(
                tenant="default",
                rule=rule,
                version=version,
                row=json.dumps(row, separators=(",", ":")).encode(),
                position=Position("i", number % PARTITIONS, self.source_offset, 0),
                received_at_ms=time.time_ns() // 1_000_000,
                topic_name="t/1",
                client_id="publisher",
                message_id=bytes(16),
                chain=chain,
            )
            self.put_output(output)
            outputs.append(output)
        self.flush()
        return outputs

    def put_output(self, output: Output) -> None:
        while True:
            try:
                self.producer.produce(
                    OUTPUTS,
                    output.row,
                    f"{output.tenant}/{output.rule}".encode(),
                    partition=output.position.partition,
                    headers=list(output_headers(output)),
                )
                return
            except BufferError:
                self.producer.poll(0.1)

    def flush(self) -> None:
        assert self.producer.flush(60) == 0

    def read(self, log_topic: str, is_wanted: Callable[[Message], bool]) -> list[Message]:
        """Return the records of a log topic that a test wants, to its present end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            count = len(consumer.list_topics(log_topic, timeout=60).topics[log_topic].partitions)
            consumer.assign([TopicPartition(log_topic, p, 0) for p in range(count)])
            unread, found = set(range(count)), []
            while unread:
                for message in consumer.consume(5_000, 0.2):
                    if message.error() is not None:
                        unread.discard(message.partition())
                    elif is_wanted(message):
                        found.append(message)
            return found
        finally:
            consumer.close()

    def published(self, rule: str) -> list[Message]:
        """Return the messages that a rule has published."""
        client_id = f"rule:{rule}".encode()
        return self.read(INBOUND, lambda m: headers_of(m).get("client_id") == client_id)

    def dead_letters(self, rule: str) -> list[Message]:
        key = f"default/{rule}".encode()
        return self.read(DEAD_LETTERS, lambda m: m.key() == key)


def headers_of(message: Message) -> dict[str, bytes]:
    headers: Any = message.headers()
    return dict(headers or [])
