"""Open messages of a share group, as ranges of offsets by partition.

A group's backlog is mostly dense: with ranges it costs as much as its holes, not as its messages.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Position = tuple[int, int]
"""Partition and offset in `mqlake.inbound`."""


class _Ranges:
    """Offsets of one partition.

    Invariant: ranges `[starts[i], ends[i])` are in ascending order, none empty, none touching.
    """

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Add a range; return how many offsets are new."""
        starts, ends = self.starts, self.ends
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            return end - start
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        known = sum(ends[at] - starts[at] for at in range(first, last))
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        return end - start - known

    def discard(self, offset: int) -> bool:
        """Take an offset out; return whether it was there."""
        at = bisect_right(self.starts, offset) - 1
        if at < 0 or offset >= self.ends[at]:
            return False
        start, end = self.starts[at], self.ends[at]
        pieces = [one for one in ((start, offset), (offset + 1, end)) if one[0] < one[1]]
        self.starts[at : at + 1] = [one[0] for one in pieces]
        self.ends[at : at + 1] = [one[1] for one in pieces]
        return True

    def take_first(self, count: int) -> list[int]:
        """Take the lowest offsets out."""
        taken: list[int] = []
        whole = 0
        for at, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            end_taken = min(end, start + count - len(taken))
            taken.extend(range(start, end_taken))
            if end_taken < end:
                self.starts[at] = end_taken
                break
            whole = at + 1
            if len(taken) == count:
                break
        del self.starts[:whole]
        del self.ends[:whole]
        return taken


class OpenWork:
    """A set of positions. Adding one at the end of its partition costs O(1), else O(ranges)."""

    __slots__ = ("_count", "_partitions")

    def __init__(self, positions: Iterable[Position] = ()) -> None:
        self._partitions: dict[int, _Ranges] = {}
        self._count = 0
        for partition, offset in positions:
            self.add(partition, offset)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Position]:
        for partition, ranges in sorted(self._partitions.items()):
            for start, end in zip(ranges.starts, ranges.ends, strict=True):
                for offset in range(start, end):
                    yield partition, offset

    def __contains__(self, position: Position) -> bool:
        ranges = self._partitions.get(position[0])
        if ranges is None:
            return False
        at = bisect_right(ranges.starts, position[1]) - 1
        return at >= 0 and position[1] < ranges.ends[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenWork) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"OpenWork({list(self)!r})"

    def copy(self) -> OpenWork:
        copy = OpenWork()
        copy.update(self)
        return copy

    def add(self, partition: int, offset: int) -> None:
        self.add_range(partition, offset, offset + 1)

    def add_range(self, partition: int, start: int, end: int) -> None:
        ranges = self._partitions.get(partition)
        if ranges is None:
            ranges = self._partitions[partition] = _Ranges()
        self._count += ranges.add(start, end)

    def update(self, other: OpenWork) -> None:
        """Add all positions of another set."""
        for partition, ranges in other._partitions.items():
            for start, end in zip(ranges.starts, ranges.ends, strict=True):
                self.add_range(partition, start, end)

    def discard(self, partition: int, offset: int) -> None:
        ranges = self._partitions.get(partition)
        if ranges is not None:
            self._count -= ranges.discard(offset)

    def clear(self) -> None:
        self._partitions.clear()
        self._count = 0

    def take_first(self, count: int) -> OpenWork:
        """Take `count` positions out, or all: the lowest of each partition."""
        taken = OpenWork()
        while self._count and len(taken) < count:  # again where some had less than their share
            used = [partition for partition, one in self._partitions.items() if one.starts]
            for left, partition in zip(range(len(used), 0, -1), used, strict=True):
                share = -(-(count - len(taken)) // left)
                offsets = self._partitions[partition].take_first(share) if share > 0 else []
                self._count -= len(offsets)
                for offset in offsets:
                    taken.add(partition, offset)
        return taken

    def encode(self) -> dict[str, str]:
        """Return the ranges by partition, in base64.

        For each its distance to the end of the one before and its length, as varints: 7 bits in a
        byte, the lowest first; the highest bit says that more follow.
        """
        encoded: dict[str, str] = {}
        for partition, ranges in sorted(self._partitions.items()):
            at = 0
            numbers = bytearray()
            for start, end in zip(ranges.starts, ranges.ends, strict=True):
                _append_varint(numbers, start - at)
                _append_varint(numbers, end - start)
                at = end
            if numbers:
                encoded[str(partition)] = b64encode(numbers).decode("ascii")
        return encoded


def decode_work(found: dict[str, str]) -> OpenWork:
    """Undo `OpenWork.encode`.

    Raises:
        InvalidRecord: It is malformed.
    """
    work = OpenWork()
    try:
        for partition, encoded in found.items():
            at = 0
            numbers = _varints(b64decode(encoded, validate=True))
            for distance, length in zip(numbers[::2], numbers[1::2], strict=True):
                start = at + distance
                at = start + length
                if not length:
                    raise InvalidRecord(f"an empty range at offset {start}")
                work.add_range(int(partition), start, at)
    except (ValueError, TypeError, AttributeError) as exc:
        raise InvalidRecord(f"open messages are malformed: {exc}") from exc
    return work


def _append_varint(numbers: bytearray, number: int) -> None:
    while number > 0x7F:
        numbers.append(number & 0x7F | 0x80)
        number >>= 7
    numbers.append(number)


def _varints(data: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("the last number is cut off")
    return numbers
