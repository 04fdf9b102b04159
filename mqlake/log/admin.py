"""Create log topics and ask about them.

Everything here blocks; in an event loop call it by `asyncio.to_thread`.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from mqlake.errors import LogError
from mqlake.log.durability import CLEAN, COPIES, Durability, Keeping, topic_settings
from mqlake.log.kafka_errors import CONNECTION_CODES, error_of
from mqlake.log.log_topics import (
    ACKNOWLEDGED_LOG_TOPICS,
    DELIVERY,
    INBOUND_SEGMENT_BYTES,
    LOG_TOPICS,
    MIB,
    SHARED_LOG_TOPICS,
)
from mqlake.log.options import BATCH_BYTES, consumer_options
from mqlake.log.security import client_config
from mqlake.records.messages import INBOUND, delivery_topic

BEGIN_OFFSETS: Final = OFFSET_BEGINNING
END_OFFSETS: Final = OFFSET_END
"""Times that stand for an end of a partition (Kafka, ListOffsets)."""

REQUEST_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.05
CLIENT_ID: Final = "mqlake-admin"
ANSWER_SECONDS: Final = 1.0
"""How long a leader has for its first answer, and after that as long again as was asked already:
one that has died has a successor in the meantime."""


def ensure_log_topics(
    bootstrap_servers: str,
    *,
    inbound_partitions: int,
    session_shards: int,
    retention_bytes: int,
    timeout_seconds: float,
    durability: Durability = Durability.D1,
) -> None:
    """Create the log topics that all gateways share unless they exist; wait until they are usable.

    The number of partitions of an existing `mqlake.inbound` stays: it decides which partition a
    topic is in, as that of `mqlake.sessions` does for a client. `mqlake.outputs` is like it, so
    that outputs of a rule from a partition stay in order.

    Args:
        bootstrap_servers: host:port[,host:port…].
        inbound_partitions: Partitions of a new `mqlake.inbound`.
        session_shards: Partitions of a new `mqlake.sessions`.
        retention_bytes: How much is to be kept of accepted messages; of little the log makes small
            segments, for space comes back in whole ones.
        timeout_seconds: For everything together.
        durability: Class for acknowledged records; existing topics get it, too.

    Raises:
        LogError: The log does not answer in time, refuses, has too few brokers, or takes smaller
            batches than are sent.
    """
    admin = AdminRequests(bootstrap_servers, timeout_seconds)
    existing = admin.partitions(INBOUND)
    if not existing:
        admin.check_brokers(durability)
    counts = {"one": 1, "inbound": existing or inbound_partitions, "shards": session_shards}
    for one in LOG_TOPICS:
        config = dict(one.keeping)
        if one.partitions == "inbound":
            config["segment.bytes"] = str(_segment_bytes(retention_bytes // counts["inbound"]))
        if not admin.create(one.name, counts[one.partitions], config):
            admin.configure([one.name], config)
    admin.configure(SHARED_LOG_TOPICS, CLEAN)
    if durability is not Durability.D1:
        admin.until_clean(ACKNOWLEDGED_LOG_TOPICS)
    if durability is Durability.D2:
        # Before anything is changed: a topic with too few copies has no fewer than before.
        admin.check_keeping(ACKNOWLEDGED_LOG_TOPICS, durability)
    admin.configure(ACKNOWLEDGED_LOG_TOPICS, topic_settings(durability))
    admin.check_batches(SHARED_LOG_TOPICS)
    if durability is Durability.D3:
        admin.until_flushed(ACKNOWLEDGED_LOG_TOPICS)


def _segment_bytes(retention_bytes: int) -> int:
    """Return the size of segments of a partition that is to keep so much."""
    return max(MIB, min(INBOUND_SEGMENT_BYTES, retention_bytes // 4))


def check_durability(
    bootstrap_servers: str, wanted: Durability, timeout_seconds: float = REQUEST_SECONDS
) -> None:
    """Check that the log keeps acknowledged records as its users rely on.

    Raises:
        LogError: It does not, or does not answer in time.
    """
    AdminRequests(bootstrap_servers, timeout_seconds).check_keeping(ACKNOWLEDGED_LOG_TOPICS, wanted)


def keepings(
    bootstrap_servers: str, log_topics: Collection[str], timeout_seconds: float
) -> dict[str, Keeping]:
    """Return how each of these log topics keeps its records.

    Raises:
        LogError: The log does not answer in time, or there is no such topic.
    """
    return AdminRequests(bootstrap_servers, timeout_seconds).keepings(log_topics)


def ensure_delivery_topic(
    bootstrap_servers: str, gateway: str, *, timeout_seconds: float = 30.0
) -> None:
    """Create `mqlake.delivery.<gateway>` unless it exists, and wait until it can be used.

    Raises:
        LogError: The log does not answer in time or refuses.
    """
    AdminRequests(bootstrap_servers, timeout_seconds).create(
        delivery_topic(gateway),
        1,
        DELIVERY,
    )


def remove_delivery_topic(
    bootstrap_servers: str, gateway: str, *, timeout_seconds: float = 30.0
) -> None:
    """Remove `mqlake.delivery.<gateway>`, if it exists.

    Raises:
        LogError: The log does not answer in time or refuses.
    """
    AdminRequests(bootstrap_servers, timeout_seconds).remove(delivery_topic(gateway))


def partition_count(bootstrap_servers: str, log_topic: str, timeout_seconds: float) -> int:
    """Return how many partitions a log topic has.

    Raises:
        LogError: The log does not answer in time, or there is no such topic.
    """
    count = AdminRequests(bootstrap_servers, timeout_seconds).partitions(log_topic)
    if not count:
        raise LogError(f"log topic {log_topic} does not exist", definite=True)
    return count


def partition_counts(
    bootstrap_servers: str, log_topics: Collection[str], timeout_seconds: float
) -> dict[str, int]:
    """Return how many partitions each log topic has; 0 where there is no such topic.

    Raises:
        LogError: The log does not answer in time.
    """
    admin = AdminRequests(bootstrap_servers, timeout_seconds)
    return {log_topic: admin.partitions(log_topic) for log_topic in log_topics}


def offsets(
    bootstrap_servers: str, log_topic: str, time_ms: int, timeout_seconds: float
) -> dict[int, int]:
    """Return an offset per partition, of the first record of a time or later.

    Args:
        bootstrap_servers: host:port[,host:port…].
        log_topic: All its partitions are asked for.
        time_ms: Since 1970, or `BEGIN_OFFSETS` or `END_OFFSETS`.
        timeout_seconds: For everything together.

    Raises:
        LogError: The log does not answer in time, or there is no such topic.
    """
    return LogAdmin(bootstrap_servers, timeout_seconds)._offsets(log_topic, time_ms)


def topic_config(bootstrap_servers: str, log_topic: str, timeout_seconds: float) -> dict[str, str]:
    """Return the configuration in force for a log topic.

    Raises:
        LogError: The log does not answer in time, or there is no such topic.
    """
    return AdminRequests(bootstrap_servers, timeout_seconds).configs([log_topic])[log_topic]


def record_limit(
    bootstrap_servers: str,
    log_topic: str,
    timeout_seconds: float,
    options: Mapping[str, Any] | None = None,
) -> int:
    """Return `max.message.bytes` of a log topic: the most bytes of a batch.

    Args:
        bootstrap_servers: host:port[,host:port…].
        log_topic: Log topic to ask about.
        timeout_seconds: For everything together.
        options: Further ones of librdkafka, for a cluster that wants a login.

    Raises:
        LogError: The cluster does not answer in time, has no such log topic, or does not tell us.
    """
    admin = AdminRequests(bootstrap_servers, timeout_seconds, options)
    # First: the question for its configuration waits until it exists.
    if not admin.partitions(log_topic):
        raise LogError(f"log topic {log_topic} does not exist", definite=True)
    limit = admin.configs([log_topic])[log_topic].get("max.message.bytes")
    if not limit:
        raise LogError(
            f"asking how large records of {log_topic} may be: the answer does not say",
            definite=True,
        )
    return int(limit)


class LogAdmin:
    """An admin client that is kept: to ask each second opens no connection.

    Args:
        bootstrap_servers: host:port[,host:port…].
        timeout_seconds: For each call.
    """

    def __init__(self, bootstrap_servers: str, timeout_seconds: float = REQUEST_SECONDS) -> None:
        self._admin = AdminRequests(bootstrap_servers, timeout_seconds)

    def ends(self, log_topic: str) -> dict[int, int]:
        """Return the offset that the next record of each partition will get.

        Raises:
            LogError: The log does not answer in time, or there is no such topic.
        """
        return self._offsets(log_topic, END_OFFSETS)

    def begins(self, log_topic: str) -> dict[int, int]:
        """Return the oldest offset of each partition."""
        return self._offsets(log_topic, BEGIN_OFFSETS)

    def ends_before(self, log_topic: str, timestamp_ms: int) -> dict[int, int]:
        """Return the offset of each partition's first record that is later, else its end."""
        ends = self.ends(log_topic)
        later = self._offsets(log_topic, timestamp_ms)
        return {p: end if later[p] < 0 else min(end, later[p]) for p, end in ends.items()}

    def delete_before(self, log_topic: str, offsets: Mapping[int, int]) -> None:
        """Delete the records of partitions that are before an offset.

        Raises:
            LogError: The log does not answer in time or refuses.
        """
        self._admin.begin()
        self._admin.delete_before(log_topic, offsets)

    def ensure(self, log_topic: str, config: Mapping[str, str], partitions: int = 1) -> None:
        """Create a log topic unless it exists; wait until it can be used.

        Raises:
            LogError: The log does not answer in time or refuses.
        """
        self._admin.begin()
        self._admin.create(log_topic, partitions, config)

    def add_partitions(self, log_topic: str, partitions: int) -> None:
        """Give a log topic `partitions` unless it has them; wait until they can be used.

        Raises:
            LogError: The log does not answer in time or refuses.
        """
        self._admin.begin()
        self._admin.add_partitions(log_topic, partitions)

    def _offsets(self, log_topic: str, time_ms: int) -> dict[int, int]:
        self._admin.begin()
        count = self._admin.partitions(log_topic)
        if not count:
            raise LogError(f"log topic {log_topic} does not exist", definite=True)
        return self._admin.offsets(log_topic, range(count), time_ms)


class AdminRequests:
    """Clients of the log, and the time they have for everything asked of them."""

    def __init__(
        self,
        bootstrap_servers: str,
        timeout_seconds: float,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = bootstrap_servers
        self._timeout = timeout_seconds
        self._options = dict(options or {})
        self._deadline = time.monotonic() + timeout_seconds
        self._idle: deque[Consumer] = deque()
        self._client: AdminClient | None = None

    def _ask(self, question: Callable[[Consumer], Any]) -> Any:
        """Ask through a consumer that is free at the moment: one has its calls stand in line.

        An admin client that asks a leader which has died tries to connect without a rest, on two
        threads, until its request has timed out: of each process that asks that is a core.
        """
        try:
            consumer = self._idle.pop()
        except IndexError:
            consumer = self._connect()
        try:
            answer = question(consumer)
        except KafkaException as exc:
            if error_of(exc).code() not in _STALE_CODES:
                self._idle.append(consumer)
            raise
        self._idle.append(consumer)
        return answer

    def _connect(self) -> Consumer:
        options = consumer_options(
            self._servers, CLIENT_ID, {"isolation.level": "read_uncommitted", **self._options}
        )
        del options["error_cb"]  # it is never polled: its events would pile up
        return Consumer(options)

    def _changing(self) -> AdminClient:
        """Return the client that makes changes."""
        client = self._client
        if client is None:
            client = AdminClient(
                {
                    **client_config(self._servers),
                    "client.id": CLIENT_ID,
                    "log_level": 2,
                    **self._options,
                }
            )
            self._client = client
        return client

    def begin(self) -> None:
        """Have the whole time again."""
        self._deadline = time.monotonic() + self._timeout

    def partitions(self, log_topic: str) -> int:
        """Return how many partitions the topic has; 0 when it does not exist."""
        metadata: Any = self._answer(
            lambda one: one.list_topics(log_topic, timeout=self._part()),
            f"asking for log topic {log_topic}",
        )
        return len(metadata.topics[log_topic].partitions)

    def check_brokers(self, wanted: Durability) -> None:
        """Refuse before anything is created: copies are not added later.

        A cluster that starts just now is not whole at once: brokers that are named are waited for.
        """
        named = len(self._servers.split(","))
        while wanted is Durability.D2:
            count = len(self.metadata("asking for the brokers").brokers)
            if count >= COPIES:
                return
            if count >= named or time.monotonic() >= self._deadline:
                raise LogError(
                    f"durability {wanted} takes {COPIES} brokers: {self._servers} has {count}",
                    definite=True,
                )
            time.sleep(RETRY_SECONDS)

    def create(self, log_topic: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Make a log topic unless it exists, and wait until it is usable; return if it was made."""
        metadata = self.metadata("asking for the brokers")
        is_new = log_topic not in metadata.topics
        if is_new:
            replicas = min(COPIES, len(metadata.brokers))
            settings = {**config, **CLEAN}
            if replicas == COPIES:
                settings["min.insync.replicas"] = "2"
            topic = NewTopic(log_topic, partitions, replicas, config=settings)
            self._until_done(
                lambda: self._await(
                    self._changing().create_topics([topic], request_timeout=self._left())
                ),
                f"creating log topic {log_topic}",
            )
        # Usable when every partition has a leader, which is a moment after it exists.
        count = self._until_partitions(log_topic)
        self.offsets(log_topic, range(count), END_OFFSETS)
        return is_new

    def add_partitions(self, log_topic: str, partitions: int) -> None:
        if self.partitions(log_topic) < partitions:
            new = [NewPartitions(log_topic, partitions)]
            self._until_done(
                lambda: self._await(
                    self._changing().create_partitions(new, request_timeout=self._left())
                ),
                f"adding partitions to log topic {log_topic}",
            )
        while (count := self.partitions(log_topic)) < partitions:
            # One broker hears of them later than another.
            self._pause(f"log topic {log_topic} has {count} partitions")
        self.offsets(log_topic, range(partitions), END_OFFSETS)

    def remove(self, log_topic: str) -> None:
        if self.partitions(log_topic):
            self._until_done(
                lambda: self._await(
                    self._changing().delete_topics([log_topic], request_timeout=self._left())
                ),
                f"removing log topic {log_topic}",
            )

    def configure(self, log_topics: Collection[str], config: Mapping[str, str | None]) -> None:
        """Set these keys of existing topics and leave their others; None: as the broker has it."""
        entries = [
            ConfigEntry(
                name,
                value,
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for name, value in config.items()
        ]
        resources = [
            ConfigResource(ResourceType.TOPIC, log_topic, incremental_configs=entries)
            for log_topic in log_topics
        ]

        def ask() -> None:
            self._await(
                self._changing().incremental_alter_configs(resources, request_timeout=self._left())
            )

        self._until_done(ask, f"configuring {', '.join(log_topics)}")

    def configs(self, log_topics: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the configuration in force of each log topic."""
        resources = [ConfigResource(ResourceType.TOPIC, log_topic) for log_topic in log_topics]

        def ask() -> dict[str, dict[str, str]]:
            futures = self._changing().describe_configs(resources, request_timeout=self._left())
            return {
                asked.name: {
                    name: entry.value for name, entry in future.result(self._left()).items()
                }
                for asked, future in futures.items()
            }

        doing = f"asking for the configuration of {', '.join(log_topics)}"
        found: dict[str, dict[str, str]] = self._until_done(ask, doing)
        return found

    def keepings(self, log_topics: Collection[str]) -> dict[str, Keeping]:
        configs = self.configs(log_topics)
        topics = self.metadata("asking for replicas").topics
        while missing := [
            one for one in log_topics if one not in topics or not topics[one].partitions
        ]:
            # One broker hears of a new topic later than another.
            self._pause(f"log topic {missing[0]} does not appear")
            topics = self.metadata("asking for replicas").topics
        return {
            log_topic: Keeping(
                copies=min(
                    len(partition.replicas) for partition in topics[log_topic].partitions.values()
                ),
                acknowledged=int(config["min.insync.replicas"]),
                is_flushed=config["flush.messages"] == "1",
                may_lose_leader=config.get(_UNCLEAN) == "true",
            )
            for log_topic, config in configs.items()
        }

    def until_flushed(self, log_topics: Collection[str]) -> None:
        """Wait until the configuration is in force: brokers hear of it a moment later."""
        while not all(found.is_flushed for found in self.keepings(log_topics).values()):
            self._pause("log topics that are to be flushed are not")

    def until_clean(self, log_topics: Collection[str]) -> None:
        """Wait until no copy that lacks records can become a leader."""
        while any(found.is_unclean for found in self.keepings(log_topics).values()):
            self._pause("log topics whose leaders are to have all records do not")

    def check_keeping(self, log_topics: Collection[str], wanted: Durability) -> None:
        for log_topic, found in self.keepings(log_topics).items():
            if not found.gives(wanted):
                raise LogError(
                    f"durability {wanted} is asked for, {log_topic} has {found.durability}: "
                    f"{found.describe()}",
                    definite=True,
                )

    def check_batches(self, log_topics: Collection[str]) -> None:
        """Refuse log topics that would refuse records for others which are in their batch."""
        for log_topic, config in self.configs(log_topics).items():
            most = int(config["max.message.bytes"])
            if most < BATCH_BYTES:
                raise LogError(
                    f"{log_topic} takes batches of {most} bytes (max.message.bytes of the log "
                    f"topic, message.max.bytes of the brokers), expected at least {BATCH_BYTES}",
                    definite=True,
                )

    def offsets(self, log_topic: str, partitions: range, time_ms: int) -> dict[int, int]:
        begin = time.monotonic()

        def ask(consumer: Consumer) -> dict[int, int]:
            wanted = [TopicPartition(log_topic, partition, time_ms) for partition in partitions]
            found = consumer.offsets_for_times(wanted, timeout=self._patience(begin))
            for one in found:
                if one.error is not None:
                    raise KafkaException(one.error)
            return {one.partition: one.offset for one in found}

        answer: dict[int, int] = self._answer(ask, f"asking for the offsets of {log_topic}")
        return answer

    def delete_before(self, log_topic: str, offsets: Mapping[int, int]) -> None:
        begin = time.monotonic()

        def ask() -> None:
            wanted = [TopicPartition(log_topic, p, offset) for p, offset in offsets.items()]
            seconds = self._patience(begin)
            self._await(self._changing().delete_records(wanted, request_timeout=seconds))

        self._until_done(ask, f"deleting old records of {log_topic}")

    def metadata(self, doing: str) -> Any:
        return self._answer(lambda one: one.list_topics(timeout=self._part()), doing)

    def _until_partitions(self, log_topic: str) -> int:
        while not (count := self.partitions(log_topic)):
            self._pause(f"log topic {log_topic} does not appear")
        return count

    def _answer(self, question: Callable[[Consumer], Any], doing: str) -> Any:
        return self._until_done(lambda: self._ask(question), doing)

    def _until_done(self, ask: Any, doing: str) -> Any:
        """Ask until there is an answer; a broker that starts or elects refuses for a while."""
        while True:
            try:
                return ask()
            except KafkaException as exc:
                error = error_of(exc)
                if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return None  # another process was quicker
                if not (error.retriable() or error.code() in _TRANSIENT_CODES):
                    raise LogError(f"{doing}: {error.str()}", definite=True) from exc
                self._pause(f"{doing}: {error.str()}")
                if error.code() in _STALE_CODES:
                    self._client = None  # as `_ask` leaves its own
            except TimeoutError:
                self._pause(doing)

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _await(self, futures: Mapping[Any, Future[Any]]) -> None:
        for future in futures.values():
            future.result(self._left())

    def _patience(self, begin: float) -> float:
        """Return how long leaders have for an answer, of which the first was asked at `begin`."""
        return min(max(ANSWER_SECONDS, time.monotonic() - begin), self._left())

    def _part(self) -> float:
        """Return how long to wait for any of the brokers: the one asked may stand still."""
        return max(1.0, self._left() / 3)

    def _pause(self, problem: str) -> None:
        if time.monotonic() >= self._deadline:
            raise LogError(
                f"{problem}: no answer from {self._servers} within {self._timeout:g} s",
                definite=False,
            )
        time.sleep(RETRY_SECONDS)


_UNCLEAN: Final = "unclean.leader.election.enable"
"""Not every log that speaks Kafka's protocol has it; who does not has no such elections."""
_STALE_CODES: Final = frozenset(
    {
        KafkaError._NOENT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
"""A client that has given one of these is left, as it may give it as long as it lives.

One broker hears of a new topic later than others: a client that heard from it that there is
no leader does not ask again. And a client goes on asking a broker that stands still; a new one has
no connection with it.
"""

_TRANSIENT_CODES: Final = (
    _STALE_CODES
    | CONNECTION_CODES
    | {
        KafkaError._DESTROY_BROKER,  # it was asked when it left the cluster
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_CONTROLLER,
        KafkaError.OFFSET_NOT_AVAILABLE,  # the leader is new
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,  # right after a topic was created
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.INVALID_REPLICATION_FACTOR,  # brokers register one by one
    }
)
