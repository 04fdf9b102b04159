"""Appends records in the version that every gateway reads.

Encoders write the version of this release. Where that is the version in force, which is so but for
the time of an upgrade, `append` is the one of the writer below: nothing stands in its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.records.versions import RECORD_VERSION, in_version

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from mqlake.log.contract import AppendCallback, LogWriter
    from mqlake.records.versions import Headers


class VersionedWriter:
    """A `LogWriter` that appends by another one, which its maker closes.

    Attributes:
        append, append_durably: See the contract.
        queued, round_trip_seconds, flush, close, partition_of, use_partitions: See the contract;
            the writer below has them.
        on_log_time: See the contract; the writer below has it.
        version: Version of the records from now on; at first that of this release.
    """

    append: Callable[..., None]
    append_durably: Callable[..., Coroutine[Any, Any, tuple[int, int]]]

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self.queued = writer.queued
        self.round_trip_seconds = writer.round_trip_seconds
        self.flush = writer.flush
        self.close = writer.close
        self.partition_of = writer.partition_of
        self.use_partitions = writer.use_partitions
        self.use(RECORD_VERSION)

    @property
    def on_log_time(self) -> Callable[[int], None]:
        return self._writer.on_log_time

    @on_log_time.setter
    def on_log_time(self, told: Callable[[int], None]) -> None:
        self._writer.on_log_time = told

    def use(self, version: int) -> None:
        """Append in this version from now on."""
        self.version = version
        if version == RECORD_VERSION:
            self.append = self._writer.append
            self.append_durably = self._writer.append_durably
        else:
            self.append = self._append
            self.append_durably = self._append_durably

    def _append(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_appended: AppendCallback,
        **where: int,
    ) -> None:
        value, headers = in_version(value, headers, self.version)
        self._writer.append(log_topic, key, value, headers, on_appended, **where)

    async def _append_durably(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        **where: int,
    ) -> tuple[int, int]:
        value, headers = in_version(value, headers, self.version)
        return await self._writer.append_durably(log_topic, key, value, headers, **where)
