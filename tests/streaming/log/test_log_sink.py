"""The router with its sink, in Spark, on three brokers: others do not feel what one target does."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from launcher.log.kafka import Brokers
from launcher.testing.systems import await_condition
from mqlake.clock import SystemClock
from mqlake.log.admin import LogAdmin, ensure_delivery_topic, ensure_log_topics
from mqlake.records.messages import (
    EVENTS,
    HEADER_SOURCE,
    INBOUND,
    ROUTES,
    Route,
    decode_source,
    delivery_topic,
    message_key,
    route_key,
    undelivered_topic,
)
from mqlake.settings import LogSettings
from streaming import queries
from streaming.application.figures import read_done
from streaming.jobs import router
from streaming.log.checkpoints import Offsets, checkpoint, committed, last_batch
from streaming.log.positions import Positions
from streaming.log.sinks import read_undelivered
from streaming.settings.lake import LakeSettings
from streaming.settings.router import RouterSettings

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.promise, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(700)]

AWAY_SECONDS = 12
"""Long enough to be noticed, and for requests to be given up."""
PARTITIONS = (0, 1)
STAYS, STOPPED = 1, 2
"""Brokers."""


class Reader:
    """A gateway as the log sees it: reads its deliveries, drops what it has seen."""

    def __init__(self, servers: str, gateway: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": gateway})
        self._consumer.assign([TopicPartition(delivery_topic(gateway), 0, 0)])
        self._marks = dict.fromkeys(PARTITIONS, -1)
        self.values: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
        self.repeated = 0

    def read(self) -> "Reader":
        """Take what has come."""
        while (message := self._consumer.poll(0.1)) is not None:
            if message.error() is not None:
                break
            source_header = dict(message.headers() or [])[HEADER_SOURCE]
            value = message.value()
            assert isinstance(source_header, bytes)
            assert isinstance(value, bytes)
            source = decode_source(source_header)
            if source.offset > self._marks[source.partition]:
                self._marks[source.partition] = source.offset
                self.values[source.partition].append(int(value))
            else:
                self.repeated += 1
        return self

    def close(self) -> None:
        self._consumer.close()


class Router:
    """The query, and what goes in."""

    def __init__(self, spark: SparkSession, settings: RouterSettings, brokers: Brokers) -> None:
        self.servers = brokers.bootstrap_servers
        self._spark = spark
        self.settings = settings
        self._producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        self._topic = f"sink/{uuid.uuid4().hex[:8]}"
        self.sent = 0
        self.query: StreamingQuery
        log = LogAdmin(self.servers)
        self._positions = Positions(
            checkpoint(settings.data_dir, queries.ROUTER),
            (INBOUND,),
            log.begins,
            log.ends,
            SystemClock(),
        )
        self.folder = settings.data_dir / "spark"

    def start(self, *, real_time: bool = True) -> Offsets | None:
        """Start the query; return where."""
        first = self._positions.look()
        self.query = router.start(
            self._spark,
            self.settings,
            self.folder,
            first,
            partitions=len(PARTITIONS),
            shards=len(PARTITIONS),
            real_time=real_time,
        )
        return first

    def note(self) -> Offsets:
        """Do what is done once a second; return how far it has come."""
        done = read_done(self._spark).get(queries.ROUTER, {})
        self._positions.note(done, last_batch(self.folder))
        return committed(checkpoint(self.settings.data_dir, queries.ROUTER)) or {}

    def add(self, name: str, broker: int | None = None) -> Reader:
        """Add a gateway that wants everything; its deliveries are on one broker alone."""
        gateway = f"{name}-{uuid.uuid4().hex[:6]}"
        admin = AdminClient({"bootstrap.servers": self.servers})
        # Else on all; led by one that stays, as readers here wait a minute for one that stops.
        replicas = [STAYS, STOPPED, 3] if broker is None else [broker]
        topic = NewTopic(delivery_topic(gateway), 1, replica_assignment=[replicas])
        admin.create_topics([topic])[delivery_topic(gateway)].result(120)
        ensure_delivery_topic(self.servers, gateway)
        self._producer.produce(ROUTES, b"1", route_key(Route(gateway, "default", self._topic)))
        assert self._producer.flush(120) == 0
        return Reader(self.servers, gateway)

    def publish(self, count: int = 1) -> None:
        """Append to each partition the next numbers."""
        for _ in range(count):
            for partition in PARTITIONS:
                key = message_key("default", self._topic)
                self._producer.produce(INBOUND, b"%d" % self.sent, key, partition)
            self.sent += 1
        assert self._producer.flush(120) == 0

    def await_batch(self) -> None:
        """Wait until another batch is done."""
        before = self.query.lastProgress
        await_condition(lambda: self.query.lastProgress != before, "a batch is done")

    def has_all(self, reader: Reader, begin: int = 0) -> bool:
        """Whether a gateway has all, and none passed another."""
        values = reader.read().values
        for found in values.values():
            assert found == list(range(begin, begin + len(found))), "no gap, nothing passes"
        return all(found and found[-1] == self.sent - 1 for found in values.values())


@pytest.fixture(scope="module", autouse=True)
def log_topics(brokers: Brokers) -> None:
    # What comes in shall be led by others than the one that stops: it is not the matter here.
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    inbound = NewTopic(
        INBOUND, len(PARTITIONS), replica_assignment=[[STAYS, STOPPED, 3], [3, STOPPED, STAYS]]
    )
    admin.create_topics([inbound])[INBOUND].result(120)
    ensure_log_topics(
        brokers.bootstrap_servers,
        inbound_partitions=len(PARTITIONS),
        session_shards=1,
        retention_bytes=1024**3,
        timeout_seconds=180,
    )


@pytest.fixture
def routing(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    brokers: Brokers,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Router]:
    settings = RouterSettings(
        data_dir=tmp_path,
        jars_dir=streaming_settings.jars_dir,
        log=LogSettings(bootstrap_servers=brokers.bootstrap_servers),
        batch_seconds=request.param,
    )
    running = Router(spark, settings, brokers)
    yield running
    running.query.stop()


SHORT_BATCHES = pytest.mark.parametrize("routing", [5.0], indirect=True)
LONG_BATCHES = pytest.mark.parametrize("routing", [None], indirect=True)


@SHORT_BATCHES
def test_a_target_that_is_away_holds_nobody_up_and_misses_nothing(
    routing: Router, brokers: Brokers, spark: SparkSession
) -> None:
    away, other = routing.add("away", STOPPED), routing.add("other")
    routing.start()
    routing.publish()
    await_condition(lambda: routing.has_all(away) and routing.has_all(other), "both")
    assert read_undelivered(spark) == []
    begun_ms = time.time() * 1000
    with brokers.paused(STOPPED):
        until = time.monotonic() + AWAY_SECONDS
        while not read_undelivered(spark) or time.monotonic() < until:
            routing.publish(5)
            await_condition(lambda: routing.has_all(other), "the other gateway goes on")
        # The other one's may have waited too, until those that are left had elected each other.
        await_condition(lambda: len(read_undelivered(spark)) == 1, "those of one wait")
        (waiting,) = read_undelivered(spark)
        assert (waiting.query, waiting.partition) == (queries.ROUTER, 0)
        assert waiting.log_topic.startswith(delivery_topic("away-"))
        assert 0 < waiting.records < waiting.size_bytes
        assert begun_ms < waiting.oldest_ms < time.time() * 1000
        routing.await_batch()
        routing.query.stop()
        routing.publish(100)
        # One that begins anew finds what waits. In micro-batches the sink is the same.
        routing.start(real_time=False)
        await_condition(lambda: routing.has_all(other), "the other gateway goes on")
    routing.publish()
    await_condition(lambda: routing.has_all(away) and routing.has_all(other), "both again")
    assert routing.query.isActive, routing.query.exception()
    log = LogAdmin(routing.servers)

    def left() -> int:
        log_topic = undelivered_topic(queries.ROUTER)
        return log.ends(log_topic)[0] - log.begins(log_topic)[0]

    await_condition(lambda: left() == 0, "nothing waits any more")
    assert read_undelivered(spark) == []
    assert log.ends(EVENTS) == {0: 0}, "nothing was left out"
    away.close()
    other.close()


@LONG_BATCHES
def test_a_router_begins_where_it_was_and_not_at_its_last_batch(
    routing: Router, brokers: Brokers
) -> None:
    away, other = routing.add("away", STOPPED), routing.add("other")
    log = LogAdmin(routing.servers)

    def both_have_all() -> bool:
        return routing.has_all(away) and routing.has_all(other)

    def note_all() -> None:
        """Wait until it is noted what was routed, though the batch goes on."""
        before = log.ends(INBOUND)

        def is_noted() -> bool:
            routing.publish()
            noted = routing.note().get(INBOUND, {})
            return all(noted.get(partition, 0) >= end for partition, end in before.items())

        await_condition(is_noted, f"{before} are noted")
        await_condition(both_have_all, "both")

    routing.start()
    routing.publish(100)
    note_all()
    routing.query.stop()
    # No batch was done.
    noted = routing.note()
    assert routing.start(real_time=False) == noted
    routing.publish()
    await_condition(both_have_all, "both, in micro-batches")
    await_condition(lambda: last_batch(routing.folder) is not None, "a batch is done")
    routing.query.stop()
    routing.start()
    routing.publish(100)
    note_all()
    done = log.ends(INBOUND)
    with brokers.paused(STOPPED):
        routing.publish(100)
        await_condition(lambda: routing.has_all(other), "the other gateway goes on")
        routing.publish()
        # What one of two has not got, neither itself nor where it waits, is not done.
        noted = routing.note()
        assert all(noted[INBOUND][partition] <= end for partition, end in done.items())
        routing.query.stop()
    left = sum(log.ends(INBOUND).values()) - sum(noted[INBOUND].values())
    repeated = other.repeated
    assert last_batch(routing.folder) is None, "its batch lasts a day"
    assert routing.start() == noted
    routing.publish(50)
    await_condition(both_have_all, "both again")
    assert other.repeated - repeated <= left
    assert routing.query.isActive, routing.query.exception()
    away.close()
    other.close()
