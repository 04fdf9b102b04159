"""The log for threads: each call waits for its answer.

`mqlake.log.contract` is of event loops. A client here has a thread with a loop of its own, in which
those of the contract do the work: options, limits, errors and retries are theirs.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from mqlake.errors import LogError
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import ANY_PARTITION, MOST_QUEUED_RECORDS, LogFull, Missing, queue
from mqlake.log.following import GrowthFollower
from mqlake.log.kafka_ranges import KafkaRangeReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.records.messages import INBOUND, LogRecord
from mqlake.records.versions import Headers

TIMEOUT_SECONDS: Final = 10.0

T = TypeVar("T")
R = TypeVar("R")


class Append(NamedTuple):
    """A record for a partition of its own choice, or `ANY_PARTITION`: the one of its key."""

    partition: int
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int = 0
    """UTC epoch; 0 for now."""


class _Client(Generic[T]):
    """A client that lives in an event loop of its own; safe to use from any thread.

    Args:
        name: Name of the thread.
        make: Makes the client, in the loop.
        servers: host:port[,host:port…].
        timeout_seconds: Longest time for an answer of the log.
    """

    def __init__(
        self, name: str, make: Callable[[], T], servers: str, timeout_seconds: float
    ) -> None:
        self.servers = servers
        self._timeout = timeout_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._client = self._run(_made(make))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the log; the client is of no more use."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(LogError):
            self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        raise NotImplementedError

    def _run(self, work: Coroutine[Any, Any, R], seconds: float | None = None) -> R:
        """Have work done in the loop; wait for it, for so long.

        Raises:
            LogError: Not in time, or that of the work.
        """
        waited = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waited.result(seconds)
        except TimeoutError as exc:
            waited.cancel()
            raise LogError(
                f"no answer from {self.servers} within {seconds:g} s", definite=False
            ) from exc


async def _made(make: Callable[[], T]) -> T:
    return make()


class BlockingWriter(_Client[KafkaLogWriter]):
    """Appends, and waits until every in-sync replica has the records.

    Messages go where the log's growth has them, as those of gateways.

    Args:
        servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        timeout_seconds: For each call.
        max_queued_records: Bound for all calls; later records of a larger call wait for the others.
    """

    def __init__(
        self,
        servers: str,
        client_id: str,
        timeout_seconds: float = TIMEOUT_SECONDS,
        *,
        max_queued_records: int = MOST_QUEUED_RECORDS,
    ) -> None:
        make = partial(
            KafkaLogWriter,
            servers,
            client_id=client_id,
            max_queued_records=max_queued_records,
            delivery_timeout_seconds=timeout_seconds,
        )
        super().__init__("log appender", make, servers, timeout_seconds)
        self._growth: GrowthFollower | None = None  # once messages are appended
        self._opening = asyncio.Lock()

    def append_all(self, log_topic: str, records: Sequence[Append], *, what: str) -> list[int]:
        """Append records in their order, wait until the log has them, return their offsets.

        Args:
            log_topic: It must exist.
            records: Those of a partition stay in their order.
            what: They in words, for the error.

        Raises:
            LogError: The log does not answer in time, or refuses; unless it is definite, some may
                be in the log.
        """
        return self.append_each([(log_topic, one) for one in records], what=what)

    def append_each(self, records: Sequence[tuple[str, Append]], *, what: str) -> list[int]:
        """Append records, each to its log topic, as `append_all` does.

        Raises:
            LogError: As `append_all`.
        """
        try:
            # librdkafka reports in time; twice that is for when its thread does not get to run.
            return self._run(self._append(records), 2 * self._timeout)
        except LogError as exc:
            raise LogError(f"{what}: {exc}", definite=exc.definite, passing=exc.passing) from exc

    def made_with(self) -> int:
        """Return how many partitions `mqlake.inbound` was made with.

        Raises:
            LogError: The log does not answer in time, or has no such topic.
        """
        return self._run(self._followed(), 2 * self._timeout).watch.made_with

    def use_partitions(self, log_topic: str, used: int) -> None:
        """Wait until `used` partitions can be written to.

        Raises:
            LogError: The log has fewer, or does not answer.
        """
        self._run(self._client.use_partitions(log_topic, used, is_fixed=True), 2 * self._timeout)

    async def _append(self, records: Sequence[tuple[str, Append]]) -> list[int]:
        if any(name == INBOUND and one.partition == ANY_PARTITION for name, one in records):
            await (await self._followed()).look()
        appended: list[asyncio.Future[tuple[int, int]]] = []
        refused: LogError | None = None
        for log_topic, record in records:
            try:
                appended.append(await self._begin(log_topic, record, appended))
            except LogError as exc:
                refused = exc
                break
        found = await asyncio.gather(*appended, return_exceptions=True)
        failed = [one for one in found if isinstance(one, LogError)]
        if not failed and refused is None:
            return [offset for _, offset in found]  # type: ignore[misc]
        first = failed[0] if failed else refused
        assert first is not None
        is_nothing_there = len(failed) == len(found) and all(one.definite for one in failed)
        raise LogError(str(first), definite=is_nothing_there, passing=first.passing)

    async def _begin(
        self, log_topic: str, record: Append, before: Sequence[asyncio.Future[tuple[int, int]]]
    ) -> asyncio.Future[tuple[int, int]]:
        """Queue a record; when there is no room, wait until those before it are done."""
        try:
            return self._queue(log_topic, record)
        except LogFull:
            if not before:
                raise
        await asyncio.wait(before)
        return self._queue(log_topic, record)

    def _queue(self, log_topic: str, record: Append) -> asyncio.Future[tuple[int, int]]:
        return queue(
            self._client,
            log_topic,
            record.key,
            record.value,
            record.headers,
            timestamp_ms=record.timestamp_ms,
            partition=record.partition,
        )

    async def _followed(self) -> GrowthFollower:
        async with self._opening:
            if self._growth is None:
                self._growth = await GrowthFollower.open(self._client, self.servers, self._timeout)
            return self._growth

    async def _close(self) -> None:
        await self._client.close(0.0)  # calls that wait get the error
        if self._growth is not None:
            await self._growth.close()


class BlockingReader(_Client[KafkaRangeReader]):
    """Reads ranges over one connection that stays warm.

    Args:
        servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        timeout_seconds: Longest without an answer.

    Attributes:
        admin: Says where the log begins and ends.
    """

    def __init__(
        self, servers: str, client_id: str, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        make = partial(KafkaRangeReader, servers, client_id=client_id)
        super().__init__("log scan", make, servers, timeout_seconds)
        self.admin = LogAdmin(servers, timeout_seconds)

    def read(
        self,
        log_topic: str,
        ranges: Mapping[int, tuple[int, int]],
        take: Callable[[LogRecord], bool],
    ) -> list[Missing]:
        """Hand records over, in order within each partition, until `take` says that it is enough.

        Args:
            log_topic: Which.
            ranges: Partition -> offsets, from the first up to and without the second.
            take: Called on another thread; returns whether it is enough.

        Returns:
            Records that retention has removed before they were read.

        Raises:
            LogError: The log does not answer, or there is no such topic or partition.
        """

        async def take_batch(batch: list[LogRecord]) -> None:
            for record in batch:
                if take(record):
                    raise _EnoughError

        work = self._client.read_range(log_topic, ranges, take_batch, timeout_seconds=self._timeout)
        try:
            return self._run(work)
        except _EnoughError:
            return []

    async def _close(self) -> None:
        await self._client.close()


class _EnoughError(Exception):
    """Ends a read."""
