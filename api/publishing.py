"""Append messages to `mqlake.inbound` from the event loop, and wait until the log has them.

librdkafka calls back only inside `poll`: one thread does nothing else. It crosses into the loop
once for a request, however many messages that has.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from api.messages import MadeMessage
from mqlake.errors import LogError
from mqlake.log.partitioning import partition_of
from mqlake.log.places import find_places
from mqlake.log.security import client_config
from mqlake.records import INBOUND
from mqlake.status import read_state

TIMEOUT_SECONDS: Final = 10.0
MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""As the broker's."""
KNOWN_SECONDS: Final = 1.0
_MAX_QUEUED_KIB: Final = 32_768
_POLL_SECONDS: Final = 0.2

_INDEFINITE: Final = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT})


class LogAddress:
    """Where the log is, as the system's state says; looked up again after a second.

    Reading the state takes a turn on a thread, which is half of what publishing costs otherwise.

    Args:
        data_dir: Of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._servers = ""
        self._known_until = 0.0

    async def servers(self) -> str:
        """Return the bootstrap servers.

        Raises:
            OperationalError: No system runs.
        """
        if time.monotonic() >= self._known_until:
            state = await asyncio.to_thread(read_state, self._data_dir)
            self._servers = state.bootstrap_servers
            self._known_until = time.monotonic() + KNOWN_SECONDS
        return self._servers


class Placed(NamedTuple):
    """What became of a message."""

    partition: int
    offset: int
    error: LogError | None


class Publisher:
    """Appends with `acks=all`; use it in one event loop."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout_seconds
        self._servers = ""
        self._producer: Producer | None = None
        self._placed_by = ("", 0)  # of which log, and how many partitions of it messages go to
        self._stop = threading.Event()

    async def publish(self, servers: str, messages: Sequence[MadeMessage]) -> list[Placed]:
        """Append messages in their order; return for each what became of it.

        Raises:
            LogError: No message is in the log, because it takes no more at the moment, or does not
                answer.
        """
        if self._placed_by[0] != servers:
            places = await asyncio.to_thread(find_places, servers, self._timeout)
            self._placed_by = (servers, places.used)
        batch = _Batch(len(messages))
        for at, message in enumerate(messages):
            try:
                self._produce(servers, message, batch.reporter(at))
            except LogError as exc:
                if at == 0:
                    raise
                batch.settle(at, Placed(-1, -1, exc))
        # librdkafka reports in time; this is for when its thread does not get to run.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self._timeout):
                await batch.done.wait()
        late = LogError("the log does not answer", definite=False)
        return [Placed(-1, -1, late) if one is None else one for one in batch.results]

    def close(self) -> None:
        """Let the thread end; nobody waits for an answer any more."""
        self._stop.set()

    def _produce(self, servers: str, message: MadeMessage, report: Any) -> None:
        producer = self._producer_for(servers)
        try:
            producer.produce(
                INBOUND,
                partition=partition_of(message.key, self._placed_by[1]),
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                timestamp=message.timestamp_ms,
                on_delivery=report,
            )
        except BufferError as exc:
            raise LogError("so much waits for the log that no more fits", definite=True) from exc
        except KafkaException as exc:
            self._servers = ""  # an idempotent producer that has given up never recovers
            raise LogError(f"publishing: {exc}", definite=True) from exc

    def _producer_for(self, servers: str) -> Producer:
        """Return the one producer; another one when the log has moved since."""
        if self._producer is None or self._servers != servers:
            self._stop.set()
            self._stop = threading.Event()
            self._servers = servers
            self._producer = Producer(
                {
                    **client_config(servers),
                    "client.id": "mqlake-api",
                    "acks": "all",
                    "enable.idempotence": True,
                    # As the gateways: a topic keeps its partition, and with it its order.
                    "partitioner": "murmur2_random",
                    "linger.ms": 0,
                    "message.timeout.ms": round(self._timeout * 1000),
                    "message.max.bytes": MAX_RECORD_BYTES,
                    "queue.buffering.max.kbytes": _MAX_QUEUED_KIB,
                    "allow.auto.create.topics": False,
                    "reconnect.backoff.max.ms": 1_000,
                    "log_level": 2,
                }
            )
            threading.Thread(
                target=_poll, args=(self._producer, self._stop), name="publisher", daemon=True
            ).start()
        return self._producer


class _Batch:
    """The messages of one request, until the log has reported on all of them."""

    def __init__(self, count: int) -> None:
        self.results: list[Placed | None] = [None] * count
        self.done = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._left = count
        self._lock = threading.Lock()

    def reporter(self, at: int) -> Any:
        def report(error: KafkaError | None, record: Any) -> None:
            if error is None:
                self.settle(at, Placed(record.partition(), record.offset(), None))
            else:
                definite = error.code() not in _INDEFINITE
                problem = LogError(f"the log refuses: {error.str()}", definite=definite)
                self.settle(at, Placed(-1, -1, problem))

        return report

    def settle(self, at: int, placed: Placed) -> None:
        """Note what became of a message; called from any thread."""
        with self._lock:
            self.results[at] = placed
            self._left -= 1
            is_done = self._left == 0
        if is_done:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self.done.set)


def _poll(producer: Producer, stop: threading.Event) -> None:
    while not stop.is_set() or len(producer):
        producer.poll(_POLL_SECONDS)
