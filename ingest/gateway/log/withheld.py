"""Deliveries that came while it was unknown which sessions are still this gateway's.

    [ a gap: in the log alone )[ records in memory )  next

They wait in memory up to a bound. One beyond it makes all of them a gap of the delivery topic, to
be read from there once it is known; if the log has removed some by then, clients get the messages
from where they were published. Reading goes on meanwhile: control records behind them may be what
tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqlake.records.messages import LogRecord

MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 64 * 1024 * 1024
"""Bound of values that wait in memory."""


class Withheld:
    """Withheld deliveries of one delivery topic, which has one partition.

    Invariant: the records in memory are all that came behind the gap.

    Attributes:
        gap: First offset to be read again and the first one behind; None: there is no gap.
        size: Bytes of the values in memory.
    """

    __slots__ = ("_records", "gap", "size")

    def __init__(self) -> None:
        self.gap: tuple[int, int] | None = None
        self.size = 0
        self._records: list[LogRecord] = []

    @property
    def is_empty(self) -> bool:
        return self.gap is None and not self._records

    def add(self, record: LogRecord) -> None:
        """Keep a record that came behind all others."""
        self._records.append(record)
        self.size += len(record.value or b"")
        if len(self._records) > MOST_RECORDS or self.size >= MOST_BYTES:
            start = self._records[0].offset if self.gap is None else self.gap[0]
            self.gap = (start, record.offset + 1)
            self.take()

    def passed(self, offset: int) -> None:
        """Note that the gap was read up to an offset."""
        assert self.gap is not None
        end = self.gap[1]
        self.gap = (offset, end) if offset < end else None

    def take(self) -> list[LogRecord]:
        """Take the records out, in their order."""
        records, self._records = self._records, []
        self.size = 0
        return records
