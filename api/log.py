"""What the API writes into the log: it waits until every in-sync replica has the record."""

import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from api.publishing import MAX_RECORD_BYTES
from mqlake.errors import LogError
from mqlake.log.partitioning import partition_of
from mqlake.log.places import find_places
from mqlake.log.security import client_config
from mqlake.records import INBOUND, Headers

TIMEOUT_SECONDS: Final = 10.0
ANY_PARTITION: Final = -1


class Append(NamedTuple):
    """A record for a partition of its own choice, or `ANY_PARTITION`: the one of its key."""

    partition: int
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int = 0
    """UTC epoch; 0 for now."""


class LogAppender:
    """Appends records; safe to use from any thread."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._servers = ""
        self._producer: Producer | None = None
        self._used = 0  # partitions of mqlake.inbound, once somebody has written there

    def append(
        self,
        bootstrap_servers: str,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        *,
        what: str,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> int:
        """Append a record, wait until the log has it and return its offset.

        Args:
            bootstrap_servers: host:port[,host:port…].
            log_topic: It must exist.
            key: Chooses the partition as the gateways do.
            value: Payload; None for a tombstone.
            what: The record in words, for the error.
            headers: None for a record without.
            timestamp_ms: UTC epoch; 0 for now.

        Raises:
            LogError: It does not answer in time, or refuses.
        """
        refused: list[KafkaError] = []
        offsets: list[int] = []

        def report(error: KafkaError | None, record: Any) -> None:
            if error is not None:
                refused.append(error)
            else:
                offsets.append(record.offset())

        producer = self._producer_for(bootstrap_servers)
        try:
            producer.produce(
                log_topic,
                partition=self._place(bootstrap_servers, log_topic, key),
                key=key,
                value=value,
                headers=list(headers or []),
                timestamp=timestamp_ms,
                on_delivery=report,
            )
        except (KafkaException, BufferError) as exc:
            raise LogError(f"{what}: {exc}", definite=True) from exc
        if producer.flush(self._timeout):
            raise LogError(
                f"{what}: no answer from {bootstrap_servers} within {self._timeout:g} s",
                definite=False,
            )
        if refused:
            raise LogError(f"{what}: {refused[0].str()}", definite=True)
        return offsets[0]

    def append_all(
        self, bootstrap_servers: str, log_topic: str, records: Sequence[Append], *, what: str
    ) -> list[int]:
        """Append records in their order, wait until the log has them, return their offsets.

        Raises:
            LogError: It does not answer in time, or refuses; some may be in the log.
        """
        refused: list[KafkaError] = []
        offsets = [-1] * len(records)

        def reporter(at: int) -> Any:
            def report(error: KafkaError | None, record: Any) -> None:
                if error is not None:
                    refused.append(error)
                else:
                    offsets[at] = record.offset()

            return report

        producer = self._producer_for(bootstrap_servers)
        try:
            for at, record in enumerate(records):
                producer.produce(
                    log_topic,
                    partition=self._place(
                        bootstrap_servers, log_topic, record.key, record.partition
                    ),
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp=record.timestamp_ms,
                    on_delivery=reporter(at),
                )
                producer.poll(0)
        except (KafkaException, BufferError) as exc:
            raise LogError(f"{what}: {exc}", definite=False) from exc
        if producer.flush(self._timeout):
            raise LogError(
                f"{what}: no answer from {bootstrap_servers} within {self._timeout:g} s",
                definite=False,
            )
        if refused:
            raise LogError(f"{what}: {refused[0].str()}", definite=False)
        return offsets

    def _place(
        self, bootstrap_servers: str, log_topic: str, key: bytes, partition: int = ANY_PARTITION
    ) -> int:
        """Return the partition for a record: a message goes where the gateways put its topic."""
        if log_topic != INBOUND or partition != ANY_PARTITION:
            return partition
        with self._lock:
            used = self._used
        if not used:
            used = find_places(bootstrap_servers, self._timeout).used
            with self._lock:
                self._used = used
        return partition_of(key, used)

    def _producer_for(self, bootstrap_servers: str) -> Producer:
        """Return the one producer; another one when the log has moved since."""
        with self._lock:
            if self._producer is None or self._servers != bootstrap_servers:
                self._servers = bootstrap_servers
                self._used = 0
                self._producer = Producer(
                    {
                        **client_config(bootstrap_servers),
                        "client.id": "mqlake-api",
                        "acks": "all",
                        "enable.idempotence": True,
                        # As the gateways: a topic keeps its partition, and with it its order.
                        "partitioner": "murmur2_random",
                        "message.timeout.ms": round(self._timeout * 1000),
                        "message.max.bytes": MAX_RECORD_BYTES,
                        "log_level": 2,
                    }
                )
            return self._producer
