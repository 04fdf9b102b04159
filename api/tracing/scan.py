"""Short ranges of the log, by time: the records around a message."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from api.log.appending import CLIENT_ID
from mqlake.errors import LogError
from mqlake.log.blocking import BlockingReader
from mqlake.records.messages import LogRecord


class Seen(NamedTuple):
    """A record as it was read."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes
    headers: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class ScanRange:
    """A range to read in each partition of a log topic.

    Attributes:
        partitions: None: all.
        from_ms: From the first record of this time or later; None: by `starts`.
        until_ms: Up to the first record of a later time; None: up to the end.
        starts: Partition -> offset, where the time does not say it.
        most: Records, over all partitions.
    """

    log_topic: str
    partitions: tuple[int, ...] | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    starts: Mapping[int, int] | None = None
    most: int = 50_000


class Scan(Protocol):
    """Reads the log."""

    def read(self, within: ScanRange, take: Callable[[Seen], bool]) -> bool:
        """Hand records over, in order within each partition, until `take` says that it is enough.

        Returns:
            Whether all of the range was read, or enough: false when there were more than may be.

        Raises:
            LogError: The log does not answer, or there is no such topic.
        """
        ...

    def first_offset(self, log_topic: str, partition: int) -> int:
        """Return the offset of the oldest record that is kept; of the next one if there is none.

        Raises:
            LogError: The log does not answer, or there is no such partition.
        """
        ...

    def partition_count(self, log_topic: str) -> int:
        """Return how many partitions a log topic has.

        Raises:
            LogError: The log does not answer, or there is no such log topic.
        """
        ...

    def close(self) -> None:
        """Let go of the log."""
        ...


class KafkaScan:
    """A `Scan` of a Kafka-compatible cluster.

    Args:
        bootstrap_servers: host:port[,host:port…].
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._reader = BlockingReader(bootstrap_servers, CLIENT_ID)

    def read(self, within: ScanRange, take: Callable[[Seen], bool]) -> bool:
        left = within.most
        is_enough = False

        def look(record: LogRecord) -> bool:
            nonlocal left, is_enough
            is_enough = take(_seen(record))
            left -= 1
            return is_enough or left <= 0

        self._reader.read(within.log_topic, self._ranges(within), look)
        return is_enough or left > 0

    def first_offset(self, log_topic: str, partition: int) -> int:
        try:
            return self._reader.admin.begins(log_topic)[partition]
        except KeyError as exc:
            raise LogError(f"{log_topic} has no partition {partition}", definite=True) from exc

    def partition_count(self, log_topic: str) -> int:
        return len(self._reader.admin.ends(log_topic))

    def close(self) -> None:
        self._reader.close()

    def _ranges(self, within: ScanRange) -> dict[int, tuple[int, int]]:
        admin, log_topic = self._reader.admin, within.log_topic
        ends = last = admin.ends(log_topic)
        if within.until_ms is not None:
            ends = admin.ends_before(log_topic, within.until_ms + 1)
        if within.from_ms is not None:
            starts = admin.ends_before(log_topic, within.from_ms)
        else:
            begins = admin.begins(log_topic)
            given = within.starts or {}
            starts = {
                # A negative start counts from the end.
                one: max(begin, at if (at := given.get(one, begin)) >= 0 else last[one] + at)
                for one, begin in begins.items()
            }
        wanted = within.partitions if within.partitions is not None else tuple(ends)
        return {one: (starts[one], ends[one]) for one in wanted if one in ends}


def _seen(record: LogRecord) -> Seen:
    headers = {name: value for name, value in record.headers if isinstance(value, bytes)}
    return Seen(
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key or b"",
        record.value or b"",
        headers,
    )
