"""A cluster in memory that takes and refuses whole batches, as brokers do."""

from dataclasses import dataclass, field
from functools import partial

from mqlake.errors import LogError
from mqlake.log.contract import ANY_PARTITION, AppendCallback
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.log.options import BATCH_BYTES
from mqlake.records.versions import Headers


@dataclass
class MemoryCluster:
    """What its log topics take.

    Attributes:
        limits: `max.message.bytes` of log topics; the others take the usual batches.
        keyed: Log topics that take no record without a key, as compacted ones.
        tells: Whether it says how large records may be.
        asked: Log topics that it was asked for.
        opened: Sizes of batches of its writers.
    """

    log: MemoryLog
    limits: dict[str, int] = field(default_factory=dict)
    keyed: set[str] = field(default_factory=set)
    tells: bool = True
    asked: list[str] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)

    async def record_limit(self, log_topic: str) -> int:
        self.asked.append(log_topic)
        if not self.tells:
            raise LogError("you are not told", definite=True)
        return self.limits.get(log_topic, BATCH_BYTES)

    def open_writer(self, batch_bytes: int) -> "BatchWriter":
        self.opened.append(batch_bytes)
        return BatchWriter(self, batch_bytes)


_Record = tuple[str, bytes | None, bytes, Headers, AppendCallback, int]


class BatchWriter(MemoryLogWriter):
    """Sends what comes in one turn of the loop, in batches of a size."""

    def __init__(self, cluster: MemoryCluster, batch_bytes: int = BATCH_BYTES) -> None:
        super().__init__(cluster.log)
        self._cluster = cluster
        self._batch_bytes = batch_bytes
        self._coming: list[_Record] = []

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
        assert value is not None
        if not self._coming:
            self._loop.call_soon(self._send)
        self._coming.append((log_topic, key, value, headers, on_appended, timestamp_ms))

    def _send(self) -> None:
        while self._coming:
            log_topic, size = self._coming[0][0], 0
            batch: list[_Record] = []
            while self._coming and self._coming[0][0] == log_topic:
                bytes_ = len(self._coming[0][2])
                if batch and size + bytes_ > self._batch_bytes:
                    break
                size += bytes_
                batch.append(self._coming.pop(0))
            is_keyless = any(record[1] is None for record in batch)
            if size > self._cluster.limits.get(log_topic, BATCH_BYTES):
                error = LogError("the batch is too large", definite=True, of_batch=True)
            elif is_keyless and log_topic in self._cluster.keyed:
                error = LogError("a record of it has no key", definite=True, of_batch=True)
            else:
                for _, key, value, headers, report, timestamp_ms in batch:
                    super().append(
                        log_topic, key, value, headers, report, timestamp_ms=timestamp_ms
                    )
                continue
            for record in batch:
                self._loop.call_soon(partial(record[4], -1, -1, error))
