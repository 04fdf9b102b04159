"""Follows `mqlake.sessions` and `mqlake.gateways`, so that a request finds them read already."""

import logging
import threading
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from api.cache import CacheWriter, Record, SessionCache
from api.presence import Gateways
from mqlake.errors import InvalidRecord, LogError, MqlakeError
from mqlake.records import GATEWAYS, SESSIONS
from mqlake.status import read_state

_logger = logging.getLogger(__name__)

LOG_TOPICS: Final = (SESSIONS, GATEWAYS)
"""Each has one partition."""

BATCH_RECORDS: Final = 2_000
POLL_SECONDS: Final = 0.2
"""How long a batch may take to fill; what happens is seen that much later."""
RETRY_SECONDS: Final = 1.0

_FATAL_CODES: Final = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,
    }
)
"""Reading begins anew; whatever else is reported, librdkafka tries again by itself."""


class Follower:
    """A thread that reads both log topics from their beginning, then what comes.

    Args:
        data_dir: Of the system: its state says where the log is.
        cache: Takes the sessions.
        gateways: Take their words.
    """

    def __init__(self, data_dir: Path, cache: SessionCache, gateways: Gateways) -> None:
        self._data_dir = data_dir
        self._cache = cache
        self._gateways = gateways
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._problem = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop; returns when the thread has ended."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow(read_state(self._data_dir).bootstrap_servers)
            except (MqlakeError, KafkaException) as exc:
                if str(exc) != self._problem:  # said once, not each second
                    _logger.warning("sessions cannot be read", extra={"fields": {"reason": exc}})
                self._problem = str(exc)
            self._stop.wait(RETRY_SECONDS)

    def _follow(self, bootstrap_servers: str) -> None:
        """Read until told to stop.

        Raises:
            LogError: The log has no such topic (yet), or no longer what was to be read.
            OperationalError: The cache cannot be written.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": "mqlake-api",
                # librdkafka wants a name; partitions are assigned by hand, nothing is committed.
                "group.id": "mqlake-api",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "enable.partition.eof": True,
                # Nobody waits for single records: a few answers a second are enough.
                "fetch.min.bytes": 65_536,
                "fetch.wait.max.ms": 200,
                "queued.max.messages.kbytes": 16_384,
                "topic.metadata.propagation.max.ms": 1_000,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 2,
                "error_cb": _ignore,
            }
        )
        unread = set(LOG_TOPICS)
        self._gateways.forget()
        try:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in LOG_TOPICS])
            with self._cache.writing() as writer:
                while not self._stop.is_set():
                    batch = consumer.consume(BATCH_RECORDS, timeout=POLL_SECONDS)
                    ended = self._take(writer, batch, is_old=bool(unread))
                    if unread and not (unread := unread - ended):
                        writer.complete()
                        self._problem = ""
                        _logger.info("sessions are read")
        finally:
            consumer.close()

    def _take(self, writer: CacheWriter, batch: list[KafkaMessage], *, is_old: bool) -> set[str]:
        """Apply a batch; return the log topics whose end has come."""
        ended: set[str] = set()
        sessions: list[Record] = []
        for record in batch:
            error = record.error()
            log_topic = record.topic() or ""
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    ended.add(log_topic)
                elif error.code() in _FATAL_CODES:
                    raise LogError(f"reading {log_topic}: {error.str()}", definite=True)
                continue
            key, value = record.key() or b"", record.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes | None)
            if log_topic == SESSIONS:
                sessions.append((key, value))
                continue
            try:
                self._gateways.receive(key, value, is_old=is_old)
            except InvalidRecord as exc:
                _refuse(exc)
        if sessions:
            for refused in writer.apply(sessions):
                _refuse(refused)
        return ended


def _refuse(error: InvalidRecord) -> None:
    _logger.warning("record ignored", extra={"fields": {"reason": str(error)}})


def _ignore(_error: KafkaError) -> None:
    """Take what librdkafka says of its connections: it tries again by itself."""
