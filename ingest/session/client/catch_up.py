"""Missed messages: the sources that they are read from, and where their reader may go live.

    cursor ──► table, as far as it has been written ──► log ──► the ends ──overtaken──► live
                                                                   │
                                      the router has come further: on to where it is now

A session that comes back, a subscription that asks for history and a share group that had no
member all miss messages between two positions of `mqlake.inbound`. A range that is long, or so old
that the log may not hold it any more, is read from the table, by topic; the log has the rest.
Meanwhile the router brings new messages: the reader goes live at exactly the offsets where reading
stopped, once these are not behind the router's. So no message is left out, and none comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from mqlake.records.offsets import advance, at, earliest, have_reached, latest, widened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

UNBOUNDED: Final = 2**63


@dataclass(slots=True, eq=False)
class Missed:
    """Messages that a reader has not been given.

    Attributes:
        cursor: Per partition the next offset; everything before it was handed over.
        ends: Per partition up to where is read before it is looked how far the router has come.
        long_offsets: More offsets than that are read from the table.
        is_old: The log alone may not have it: the table is read, however short it is.
        window: Offsets of each partition that a page of the table is looked for in at first; where
            little matches it grows. A table that is asked for all of its rest, a page at a time, is
            read through for each.
        begins_anywhere: It is not said that there are messages from the cursor on: a log that
            begins later is no loss, unless the table could not be read.
        is_partial: The table could not be read.

    Invariant: offsets of `cursor` never go back.
    """

    cursor: list[int]
    ends: list[int]
    long_offsets: int
    is_old: bool = False
    window: int = UNBOUNDED
    begins_anywhere: bool = False
    is_partial: bool = False
    _in_table: set[int] = field(default_factory=set)
    """Partitions of which the table may have more."""

    @property
    def needs_table(self) -> bool:
        """Tell whether it is to be read from the table first."""
        pairs = zip_longest(self.cursor, self.ends, fillvalue=0)
        length = sum(max(0, end - start) for start, end in pairs)
        return length > self.long_offsets or (self.is_old and length > 0)

    @classmethod
    def together(cls, missed: Sequence[Missed]) -> Missed:
        """Return what all of them have missed: from the first cursor up to the last end."""
        cursor = earliest(*(one.cursor for one in missed))
        ends = [max(offsets) for offsets in zip_longest(*(one.ends for one in missed), fillvalue=0)]
        return cls(cursor, ends, missed[0].long_offsets, window=missed[0].window)

    def aim(self, ends: Mapping[int, int]) -> None:
        """Read up to these offsets, by partition, or further."""
        self.ends = latest(self.ends, [ends[partition] for partition in range(len(ends))])

    def begin_table(self, partitions: range) -> None:
        """Read the table of these partitions, in the ranges of `table_ranges`."""
        self.cursor = widened(self.cursor, len(self.ends))
        self._in_table = set(partitions)
        self.is_partial = False

    def table_ranges(self) -> dict[int, tuple[int, int]]:
        """Return per partition the start and end to look for the next page in; none at the end."""
        return {
            partition: (start, min(self.ends[partition], start + self.window))
            for partition, start in enumerate(self.cursor)
            if partition in self._in_table and start < at(self.ends, partition)
        }

    def take_page(
        self,
        ranges: Mapping[int, tuple[int, int]],
        next_offsets: Mapping[int, int],
        *,
        has_more: bool,
        is_sparse: bool,
    ) -> None:
        """Note that a page of the table was handed over.

        Args:
            ranges: That were asked for.
            next_offsets: Up to where it has answered, by partition.
            has_more: It holds more in these ranges.
            is_sparse: It found little in them.
        """
        for partition, offset in next_offsets.items():
            advance(self.cursor, partition, offset)
            if not has_more and offset < ranges[partition][1]:
                self._in_table.discard(partition)  # the table ends there
        if is_sparse:
            self.window *= 2

    def fail_table(self) -> None:
        """Note that the table cannot be read: the log's records have to do."""
        self.is_partial = True

    def pass_by(self, partition: int, offset: int) -> None:
        """Note that a record was handed over, or matches nothing."""
        advance(self.cursor, partition, offset + 1)

    def reach(self, offsets: Mapping[int, int]) -> None:
        """Note that all before these offsets was handed over."""
        for partition, offset in offsets.items():
            advance(self.cursor, partition, offset)

    def loses(self, start: int, end: int, begun_at: int) -> bool:
        """Tell whether records that the log does not hold are lost.

        Args:
            start: The first offset that it does not hold.
            end: The first one after that which it does.
            begun_at: Offset at which reading the log began.
        """
        if end <= begun_at:
            return False
        return start > 0 or not self.begins_anywhere or self.is_partial

    def follow(self, next_offsets: Sequence[int]) -> bool:
        """Tell whether reading has overtaken the router; else go on up to there.

        Args:
            next_offsets: Per partition the first offset that the router has not brought yet.
        """
        if have_reached(self.cursor, next_offsets):
            return True
        self.is_old = False
        self.ends = latest(self.cursor, next_offsets)
        return False


def partition_count(missed: Iterable[Missed]) -> int:
    """Return of how many partitions something may be to be read."""
    return max((max(len(one.cursor), len(one.ends)) for one in missed), default=0)


def log_ranges(missed: Sequence[Missed], partitions: range) -> dict[int, tuple[int, int]]:
    """Return the ranges of the log that all of them are read from together, by partition.

    Each is read for from its own cursor on, and up to the end of all.
    """
    ranges = {}
    for partition in partitions:
        start = min(at(one.cursor, partition) for one in missed)
        end = max(max(at(one.ends, partition), at(one.cursor, partition)) for one in missed)
        if start < end:
            ranges[partition] = (start, end)
    return ranges
