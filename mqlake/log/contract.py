"""Interface of a log: append, follow partitions, read ranges, read a compacted topic.

The modules `mqlake.log.kafka_*` keep this contract with a real cluster, `mqlake.log.memory` in
memory; both pass the tests in `tests/mqlake/log/test_contract.py`. Every object belongs to the
event loop it was made in: all its methods are called and all its callbacks come there, in batches.
"""

from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from mqlake.errors import LogError
from mqlake.records.messages import LogRecord
from mqlake.records.versions import Headers

BEGINNING: Final = -2
"""Position: the oldest record that the log still holds."""

END: Final = -1
"""Position: of records appended after `LogReader.start` was called."""

DELIVERY_SECONDS: Final = 60.0
"""A record that is not in the log so long after its append is given up, and not sent any more, also
when the process has stood still meanwhile. Longer than a restart of the log's broker, so that one
costs publishers time only."""

MOST_QUEUED_RECORDS: Final = 100_000
"""Records of one writer that wait for the log; beyond it `append` raises `LogFull`."""

ANY_PARTITION: Final = -1
"""Let the key choose the partition: the same key always the same one."""


class LogFull(LogError):  # noqa: N818 - a state to wait out, not a failure
    """The writer's bounded queue is full; the record is not taken. Stop reading from clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message, definite=True)


AppendCallback = Callable[[int, int, LogError | None], None]
"""Takes (partition, offset, error); with an error the offset is -1 and the partition may be."""

RecordsCallback = Callable[[list[LogRecord]], None]
"""Takes one batch, in order of offset within each partition, never empty.

Must not raise. If it does, the rest of the batch is not taken, so nothing that comes later is
handed over either: `BatchNotTaken` goes to the loop's exception handler, and the reader is of no
more use.
"""

RangeConsumer = Callable[[list[LogRecord]], Awaitable[None]]
"""Takes one batch as `RecordsCallback` does, and is awaited before it gets the next."""

ErrorCallback = Callable[[LogError], None]
"""Takes an error; the reader itself goes on trying."""


def settle(
    appended: Future[tuple[int, int]], partition: int, offset: int, error: LogError | None
) -> None:
    """Pass a report on to its waiter: with a future bound to it, an `AppendCallback`."""
    if appended.done():  # its waiter was cancelled
        return
    if error is None:
        appended.set_result((partition, offset))
    else:
        appended.set_exception(error)


class LogWriter(Protocol):
    """Appends records. Records of one partition are in the log in the order of their appends.

    Attributes:
        on_log_time: Called before records are reported, with the newest time that the log has given
            to one of a log topic with its time (`mqlake.log.log_topics.LOG_TIME`), UTC epoch in
            ms; 0 before the first.
    """

    on_log_time: Callable[[int], None]

    def append(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_appended: AppendCallback,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> None:
        """Queue a record and return at once; `on_appended` is called later, exactly once.

        Without an error the record is durable: every in-sync replica has it. With one,
        `LogError.definite` says whether the record is certainly not in the log.

        Args:
            log_topic: Target; it must exist.
            key: Chooses the partition unless `partition` does; without one it is any.
            value: None for a tombstone.
            headers: Kept by the writer until the report; do not change the list.
            on_appended: Called in the loop. Must not raise.
            timestamp_ms: UTC epoch; 0 for the time of the call.
            partition: A partition, or `ANY_PARTITION`.

        Raises:
            LogFull: The queue is full; nothing was queued and `on_appended` is not called.
            LogError: The log can never take this record (too large, writer closed); nothing was
                queued. A writer that holds the record for a moment reports it instead.
        """
        ...

    async def append_durably(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> tuple[int, int]:
        """Append one record, wait for it and return its partition and offset.

        Raises:
            LogError: It was not appended, or (`definite` false) this is unknown.
        """
        ...

    def partition_of(self, key: bytes, partitions: int) -> int:
        """Return where `ANY_PARTITION` puts a key in a log topic of `partitions`."""
        ...

    async def use_partitions(self, log_topic: str, used: int, *, is_fixed: bool = False) -> None:
        """Put keys into the first `used` partitions of a log topic, even if it has or gets others.

        Returns when the log has them. Nothing else runs between that and the code after the
        call: the next append is the first that goes by it.

        Args:
            log_topic: Log topic to write to.
            used: Number of partitions to use.
            is_fixed: Never leave it to the client library, which learns of partitions when it
                pleases. If it has noticed one all the same, a record that it has put there is
                appended once more, where it belongs, before its append is reported.

        Raises:
            LogError: The log does not answer in time, or has fewer.
        """
        ...

    def queued(self) -> int:
        """Return how many records were appended and are not yet reported."""
        ...

    def round_trip_seconds(self) -> float:
        """Return how long the log takes to answer, about, without waiting for others; 0 unknown."""
        ...

    async def flush(self, timeout_seconds: float) -> None:
        """Wait until nothing is queued.

        Raises:
            LogError: The time ran out; the reports still come.
        """
        ...

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """Flush for at most the given time, then report the rest as failed and let go."""
        ...


def queue(
    writer: LogWriter,
    log_topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    *,
    timestamp_ms: int = 0,
    partition: int = ANY_PARTITION,
) -> Future[tuple[int, int]]:
    """Queue a record as `LogWriter.append` does; return a future of its partition and offset.

    Raises:
        LogError: As `LogWriter.append`.
    """
    appended: Future[tuple[int, int]] = get_running_loop().create_future()
    writer.append(
        log_topic,
        key,
        value,
        headers,
        partial(settle, appended),
        timestamp_ms=timestamp_ms,
        partition=partition,
    )
    return appended


class LogReader(Protocol):
    """Follows partitions of one log topic; no consumer group, positions are the caller's."""

    async def start(
        self,
        log_topic: str,
        positions: Mapping[int, int],
        on_records: RecordsCallback,
        on_error: ErrorCallback,
    ) -> dict[int, int]:
        """Follow the given partitions; called once.

        Args:
            log_topic: The log topic to read.
            positions: Partition -> the first offset to read, `BEGINNING` or `END`.
            on_records: Called in the loop with each batch. At most two batches wait for the loop;
                beyond that reading stops until it has taken them.
            on_error: Called in the loop when the log cannot be reached, once until it has given a
                record again, and with `OffsetGone` before any later record when a position is not
                in the log (reading then goes on at the oldest record). It connects again by itself.

        Returns:
            The offset per partition from which it reads; `BEGINNING` and `END` have become numbers,
            so that records appended after `start` has returned are read for certain.

        Raises:
            LogError: The log does not answer, or there is no such topic or partition.
        """
        ...

    async def follow(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Follow further partitions of the log topic, after `start`.

        Args:
            positions: As for `start`.

        Returns:
            As `start`.

        Raises:
            LogError: As `start`; nothing is followed then.
        """
        ...

    def unfollow(self, partitions: Collection[int]) -> None:
        """Follow partitions no more; records fetched already may still be handed over."""
        ...

    def pause(self) -> None:
        """Hand over nothing until `resume`; records fetched ahead stay bounded."""
        ...

    def resume(self) -> None:
        """Go on after `pause`."""
        ...

    def hurry(self) -> None:
        """Ask for the next records at once, since a client waits for them."""
        ...

    async def partition_count(self, log_topic: str) -> int:
        """Return how many partitions a log topic has.

        Raises:
            LogError: The log does not answer, or there is no such topic.
        """
        ...

    async def end_offsets(self, log_topic: str) -> dict[int, int]:
        """Return per partition the offset that the next record will get.

        Raises:
            LogError: The log does not answer, or there is no such topic.
        """
        ...

    async def begin_offsets(self, log_topic: str) -> dict[int, int]:
        """Return per partition the first offset that the log has not removed.

        Raises:
            LogError: The log does not answer, or there is no such topic.
        """
        ...

    async def read_compacted(
        self, log_topic: str, timeout_seconds: float = 30.0
    ) -> dict[bytes, LogRecord]:
        """Return the last record of every key, as of the call, tombstones left out.

        Raises:
            LogError: The log does not answer, there is no such topic, or the time ran out.
        """
        ...

    async def close(self) -> None:
        """Stop; no callback comes after it has returned."""
        ...


class Missing(NamedTuple):
    """Offsets from `start` up to and without `end` that the log held once and holds no more."""

    partition: int
    start: int
    end: int


class LogRangeReader(Protocol):
    """Reads ranges that lie behind; one warm connection serves any number of reads."""

    async def read_range(
        self,
        log_topic: str,
        ranges: Mapping[int, tuple[int, int]],
        on_records: RangeConsumer,
        *,
        timeout_seconds: float = 10.0,
    ) -> list[Missing]:
        """Read offsets from start up to and without end of each partition; return when all is read.

        Concurrent reads take turns, so neither a long one nor a consumer that takes its time keeps
        the others waiting. Offsets without a record (compacted away, or a transaction's) are passed
        over. Cancelling ends the read; an error of the consumer ends it and is raised.

        Args:
            log_topic: The log topic to read.
            ranges: Partition -> (start, end); it is empty when end is not above start.
            on_records: Awaited with each batch, in order of offset within each partition. At most
                two batches wait for it; beyond that reading stops until it has taken them.
            timeout_seconds: Longest time in which the log gives nothing, a range beyond the end of
                the log included; the consumer's own time does not count.

        Returns:
            Records that retention had removed before they could be read.

        Raises:
            LogError: The log gave nothing for too long, there is no such topic or partition, or the
                reader was closed. Of a start that was behind the log's end all that time it says
                that the log has lost its end.
        """
        ...

    async def close(self) -> None:
        """End all reads with an error and let go."""
        ...


@dataclass(frozen=True, slots=True)
class LogAccess:
    """Everything that a process does with the log."""

    writer: LogWriter
    open_reader: Callable[[], LogReader]
    """Each reader follows one log topic; its opener closes it."""
    ranges: LogRangeReader
    spare: LogWriter | None = None
    """Second writer of a gateway, for records that must go out even when `writer` is full."""
    open_paced_reader: Callable[[], LogReader] | None = None
    """Opens one that takes a stream of records later, at less cost, while no client waits for it
    (`LogReader.hurry`); None: as `open_reader`."""
    open_late_reader: Callable[[], LogReader] | None = None
    """Opens one for records that no client waits for; None: as `open_reader`."""
    open_loader: Callable[[], LogReader] | None = None
    """Opens one that reads all there is and follows more and more; None: as `open_reader`."""
