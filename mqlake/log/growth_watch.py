"""Growth of the log from `mqlake.gateways`, for processes that are no gateway.

The log's client fetches on a thread of its own, so a look costs microseconds when that is done now
and then. All functions here have a time-out.
"""

import contextlib
import threading
import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from mqlake.errors import InvalidRecord, LogError
from mqlake.log.admin import REQUEST_SECONDS, LogAdmin, partition_counts
from mqlake.log.growth import Growth, Heard, decode_growth
from mqlake.log.options import consumer_options
from mqlake.log.places import made_with
from mqlake.records.gateway_heartbeat import decode_gateway_heartbeat
from mqlake.records.messages import GATEWAYS, GROWTH_KEY, INBOUND, NO_GATEWAY, OUTPUTS, RETIRING

_MOST_RECORDS: Final = 1_000
_POLL_SECONDS: Final = 0.1
IDLE_SECONDS: Final = 10.0
"""Time without a look after which the log is asked for its end: the client does not fetch without
bound records that are not taken."""
LEASE_SECONDS: Final = 60.0
"""Lease of a gateway that does not announce its own."""
GRACE_SECONDS: Final = 1.0


class GrowthWatch:
    """Reads all there is when it is made, and from then on new records; from any thread.

    Args:
        servers: host:port[,host:port…].
        timeout_seconds: To read all there is, also after a while without a look.

    Attributes:
        growth: The last step; None: the log has never grown.
        made_with: Number of partitions that `mqlake.inbound` was made with.

    Raises:
        LogError: The log does not answer in time, or has no such topics.
    """

    def __init__(self, servers: str, timeout_seconds: float = REQUEST_SECONDS) -> None:
        self.growth: Growth | None = None
        counts = partition_counts(servers, (INBOUND, OUTPUTS, GATEWAYS), timeout_seconds)
        missing = [log_topic for log_topic in (INBOUND, GATEWAYS) if not counts[log_topic]]
        if missing:
            raise LogError(f"log topic {missing[0]} does not exist", definite=True)
        self.made_with = made_with(counts[INBOUND], counts[OUTPUTS])
        self._heard: dict[str, Heard] = {}
        self._next = 0
        self._looked_at = time.monotonic()
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        # On a connection of its own: on the consumer's the answer waits for that to its fetch.
        self._log = LogAdmin(servers, timeout_seconds)
        options = {"auto.offset.reset": "earliest"}
        self._consumer = Consumer(consumer_options(servers, "mqlake-growth", options))
        self._consumer.assign([TopicPartition(GATEWAYS, 0, OFFSET_BEGINNING)])
        self.read_to_end()

    def used(self) -> int:
        """Return how many partitions messages go into now.

        Raises:
            LogError: The last look was long ago, and the log does not answer.
        """
        if time.monotonic() - self._looked_at > IDLE_SECONDS:
            self.read_to_end()
        else:
            self.look()
        return self.made_with if self.growth is None else self.growth.used

    def look(self, timeout_seconds: float = 0.0) -> None:
        """Take new records; wait for some so long."""
        with self._lock:
            self._looked_at = time.monotonic()
            while messages := self._consumer.consume(_MOST_RECORDS, timeout_seconds):
                for message in messages:
                    self._take(message)
                timeout_seconds = 0.0

    def heard(self) -> dict[str, Heard]:
        """Return the last state of each gateway, without those that have left."""
        with self._lock:
            return dict(self._heard)

    def read_to_end(self) -> None:
        """Take all that the log has at this moment.

        Raises:
            LogError: Not in time.
        """
        with self._lock:
            self._looked_at = time.monotonic()
            deadline = self._looked_at + self._timeout
            end = self._log.ends(GATEWAYS)[0]
            while self._position() < end:
                if time.monotonic() > deadline:
                    raise LogError(f"{GATEWAYS} was not read in time", definite=False)
                for message in self._consumer.consume(_MOST_RECORDS, _POLL_SECONDS):
                    self._take(message)

    def close(self) -> None:
        with self._lock:
            self._consumer.close()

    def _position(self) -> int:
        """Return the next offset; records that compaction has removed at the end are passed."""
        (found,) = self._consumer.position([TopicPartition(GATEWAYS, 0)])
        return max(self._next, found.offset)

    def _take(self, message: Message) -> None:
        if message.error() is not None:
            return  # librdkafka tries again by itself
        self._next = (message.offset() or 0) + 1
        key: Any = message.key() or b""
        value: Any = message.value()
        if key == GROWTH_KEY:
            with contextlib.suppress(InvalidRecord):  # another program has written it
                self.growth = None if value is None else decode_growth(value)
        elif not key.startswith(NO_GATEWAY):
            self._hear(key.decode(errors="replace"), value)

    def _hear(self, name: str, value: bytes | None) -> None:
        try:
            found = None if value is None else decode_gateway_heartbeat(value)
        except InvalidRecord:
            return
        if found is None or found.state == RETIRING:
            self._heard.pop(name, None)
            return
        lease = LEASE_SECONDS if found.lease is None else found.lease
        self._heard[name] = Heard(
            found.partitions, found.fixed, lease + GRACE_SECONDS, time.monotonic()
        )
