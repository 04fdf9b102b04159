"""A log that is a list for each log topic."""

from collections.abc import Callable

from api.tracing.scan import Scan, ScanRange, Seen
from mqlake.records.versions import Headers


class ListScan(Scan):
    """Reads what was put into it."""

    def __init__(self) -> None:
        self.records: dict[str, list[Seen]] = {}
        self.removed: dict[str, int] = {}
        """Records that a log topic no longer has, of each partition."""

    def put(
        self,
        log_topic: str,
        value: bytes = b"",
        headers: Headers | None = None,
        *,
        key: bytes = b"",
        at_ms: int = 0,
        partition: int = 0,
        offset: int | None = None,
    ) -> None:
        found = self.records.setdefault(log_topic, [])
        place = len(found) if offset is None else offset
        found.append(Seen(partition, place, at_ms, key, value, dict(headers or [])))

    def first_offset(self, log_topic: str, partition: int) -> int:
        return self.removed.get(log_topic, 0)

    def partition_count(self, log_topic: str) -> int:
        return 4

    def close(self) -> None:
        pass

    def read(self, within: ScanRange, take: Callable[[Seen], bool]) -> bool:
        for record in self.records.get(within.log_topic, []):
            wanted = within.partitions is None or record.partition in within.partitions
            since, until = within.from_ms, within.until_ms
            if not wanted or (since is not None and record.timestamp_ms < since):
                continue
            if (until is None or record.timestamp_ms <= until) and take(record):
                return True
        return True
