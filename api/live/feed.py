"""A thread that reads a log topic from about now on, but only while a stream is open.

Reading all messages costs a processor's time at high rates, so it is done on demand only. A feed
rests a minute after the last question.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from api.log.appending import CLIENT_ID
from api.log.following import take_batch
from mqlake.errors import LogError, MqlakeError
from mqlake.log.options import LOST_CODES, consumer_options

_logger = logging.getLogger(__name__)

BATCH_RECORDS: Final = 1_000
POLL_SECONDS: Final = 0.2
IDLE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
READY_SECONDS: Final = 5.0
"""How long a caller waits until the reading has begun."""
LOOK_SECONDS: Final = 2.0
"""How often it is looked whether the log has more partitions."""
LOG_SECONDS: Final = 5.0
"""How long the log may take to say where it is."""
MAX_BACK: Final = 2_000
"""Records of a partition that are read from before the beginning."""


class Record(Protocol):
    """A record that a feed hands on: of confluent_kafka, or like one of it."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...


class Feed(ABC):
    """Reads while it is held; safe to use from any thread.

    Args:
        servers: Bootstrap servers of the log.
        log_topic: All its partitions are read.
        back_seconds: Records that came so shortly before the beginning are read too.
    """

    def __init__(self, servers: str, log_topic: str, *, back_seconds: float = 0.0) -> None:
        self._servers = servers
        self._log_topic = log_topic
        self._back_seconds = back_seconds
        self._lock = threading.Lock()
        self._holders = 0
        self._used_at = 0.0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._ready = threading.Event()
        self._live_from: dict[int, int] = {}

    @abstractmethod
    def receive(self, records: Sequence[Record]) -> None:
        """Take records, on the feed's thread; those of a partition in their order."""

    @abstractmethod
    def forget(self) -> None:
        """Forget the records seen so far: the reading begins, or ends."""

    def is_old(self, record: Record) -> bool:
        """Tell whether a record was in the log when the reading began."""
        offset = record.offset() or 0
        return offset < self._live_from.get(record.partition() or 0, 0)

    def hold(self) -> None:
        """Keep reading until `release`."""
        with self._lock:
            self._holders += 1
            self._start()

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            self._used_at = time.monotonic()

    def touch(self) -> None:
        """Keep reading for another while."""
        with self._lock:
            self._start()

    def wait(self, timeout_seconds: float = READY_SECONDS) -> bool:
        """Wait until old records have been read and new ones are seen; tell whether they are."""
        return self._ready.wait(timeout_seconds)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def close(self) -> None:
        """Stop for good; returns when the thread has ended."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        self._used_at = time.monotonic()
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(
                target=self._run, name=f"feed of {self._log_topic}", daemon=True
            )
            self._thread.start()

    def _is_wanted(self) -> bool:
        """Tell whether to go on; when not, the thread is let go of in the same breath."""
        with self._lock:
            is_used = self._holders > 0 or time.monotonic() - self._used_at < IDLE_SECONDS
            if is_used and not self._is_closed:
                return True
            self._thread = None
            self._ready.clear()
            self.forget()
            return False

    def _run(self) -> None:
        problem = ""
        while True:
            try:
                self._follow()
            except (MqlakeError, KafkaException) as exc:
                if str(exc) != problem:  # said once, not each second
                    problem = str(exc)
                    _logger.warning(
                        "nothing live can be read",
                        extra={"fields": {"log_topic": self._log_topic, "reason": problem}},
                    )
                self._ready.clear()
                time.sleep(RETRY_SECONDS)
                if not self._is_wanted():
                    return
            else:
                return

    def _follow(self) -> None:
        """Read until it is not wanted any more.

        Raises:
            LogError: The log has no such topic (yet), or no longer the records to read.
            KafkaException: It does not answer.
        """
        options = {"queued.max.messages.kbytes": 16_384, "fetch.wait.max.ms": 100}
        consumer = Consumer(consumer_options(self._servers, CLIENT_ID, options))
        try:
            places = self._places(consumer)
            unread = {
                place.partition: self._live_from[place.partition]
                for place in places
                if place.offset < self._live_from[place.partition]
            }
            self.forget()
            consumer.assign(places)
            known, look_at = len(places), time.monotonic() + LOOK_SECONDS
            while self._is_wanted():
                if time.monotonic() >= look_at:
                    known, look_at = self._read_added(consumer, known), look_at + LOOK_SECONDS
                if not unread:
                    self._ready.set()
                batch = take_batch(consumer, BATCH_RECORDS, POLL_SECONDS)
                if not batch:
                    continue
                records = [one for one in batch if _is_record(one, self._log_topic)]
                self.receive(records)
                for record in records if unread else ():
                    if (record.offset() or 0) + 1 >= unread.get(record.partition() or 0, 0):
                        unread.pop(record.partition() or 0, None)
        finally:
            consumer.close()

    def _read_added(self, consumer: Consumer, known: int) -> int:
        """Read partitions that the log has got since, from their beginning; return how many."""
        metadata = consumer.list_topics(self._log_topic, timeout=LOG_SECONDS)
        count = len(metadata.topics[self._log_topic].partitions)
        added = [TopicPartition(self._log_topic, one, 0) for one in range(known, count)]
        if added:
            consumer.incremental_assign(added)
        return max(known, count)

    def _places(self, consumer: Consumer) -> list[TopicPartition]:
        """Return where to begin; offsets, since "the end" would be some later moment."""
        metadata = consumer.list_topics(self._log_topic, timeout=LOG_SECONDS)
        partitions = sorted(metadata.topics[self._log_topic].partitions)
        if not partitions:
            raise LogError(f"there is no log topic {self._log_topic} (yet)", definite=True)
        begin_ms = round((time.time() - self._back_seconds) * 1000)
        places = []
        for partition in partitions:
            place = TopicPartition(self._log_topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=LOG_SECONDS)
            begin = self._live_from[partition] = high
            if self._back_seconds:
                asked = TopicPartition(self._log_topic, partition, begin_ms)
                (found,) = consumer.offsets_for_times([asked], timeout=LOG_SECONDS)
                begin = found.offset if found.offset >= 0 else high
            places.append(
                TopicPartition(self._log_topic, partition, max(begin, low, high - MAX_BACK))
            )
        return places


def _is_record(record: Any, log_topic: str) -> bool:
    error = record.error()
    if error is None:
        return True
    if error.code() in LOST_CODES:
        raise LogError(f"reading {log_topic}: {error.str()}", definite=True)
    return False
