"""The messages that a site has had, exactly: for each stream a mark, and the gaps below it.

A stream is one partition of the log of one site in one epoch; the number of a message is its offset
there plus one.

    had ──────────┐    ┌───────┐    ┌──── mark
    ──────────────4────7───────11───15────────►  number in the origin's log
                  └ gap ┘       └ gap ┘

A message says from which number on nothing else comes before it on its link (`after`); numbers not
covered by that may come on another path and are a gap. A gap is never forgotten: a message of it
would be taken for a repetition, acknowledged and lost. It is filled, or closed when no neighbour
can bring it any more (`passing`); until then a message that would make one too many is not taken.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from mqlake.errors import InvalidRecord

MOST_GAPS: Final = 10_000
"""Gaps of one stream, for each site that a message has passed: who is further behind is never the
first to hold back, so what closes gaps does not wait behind what makes them."""


class StreamKey(NamedTuple):
    origin: int
    epoch: int
    partition: int


class NumberedStream:
    """The numbers that were had of one stream.

    Args:
        mark: The highest one, 0 for none.
        gaps: Pairs (first, last) of missing numbers below it, ascending, none next to another.
    """

    __slots__ = ("_firsts", "_lasts", "mark")

    def __init__(self, mark: int = 0, gaps: Iterable[tuple[int, int]] = ()) -> None:
        self.mark = mark
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        # Invariant: _firsts[i] <= _lasts[i] < _firsts[i + 1] - 1, and _lasts[-1] < mark.
        for first, last in gaps:
            self._firsts.append(first)
            self._lasts.append(last)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        """Return how many gaps there are."""
        return len(self._firsts)

    def has(self, number: int) -> bool:
        """Tell whether a number was had, or may not come any more."""
        if number > self.mark:
            return False
        index = bisect_left(self._lasts, number)
        return index == len(self._lasts) or number < self._firsts[index]

    def add(self, after: int, number: int) -> None:
        """Note that a number was had, and that nothing comes between `after` and it.

        Args:
            after: Number below `number`: nothing else comes between on this link.
            number: Number of a message.
        """
        if number > self.mark:
            if after > self.mark:
                self._firsts.append(self.mark + 1)
                self._lasts.append(after)
            elif after < self.mark:
                self._close(after + 1, self.mark)
            self.mark = number
        else:
            self._close(after + 1, number)

    def close(self, last: int) -> None:
        """Hear that no number up to this one comes any more."""
        self._close(1, min(last, self.mark))

    def reopen_lowest(self) -> None:
        """Take what was had between the lowest two gaps for missing: they become one gap."""
        del self._firsts[1], self._lasts[0]

    def _close(self, first: int, last: int) -> None:
        """Take a range out of the gaps."""
        index = bisect_left(self._lasts, first)
        while index < len(self._firsts) and self._firsts[index] <= last:
            gap_first, gap_last = self._firsts[index], self._lasts[index]
            left = [(gap_first, first - 1)] if gap_first < first else []
            if gap_last > last:
                left.append((last + 1, gap_last))
            self._firsts[index : index + 1] = [one for one, _ in left]
            self._lasts[index : index + 1] = [one for _, one in left]
            index += len(left)


class Streams:
    """All streams of which a site has had something."""

    def __init__(self) -> None:
        self._known: dict[StreamKey, NumberedStream] = {}

    def __iter__(self) -> Iterator[tuple[StreamKey, NumberedStream]]:
        return iter(self._known.items())

    def __len__(self) -> int:
        return len(self._known)

    @property
    def gaps(self) -> int:
        return sum(len(stream) for stream in self._known.values())

    def get(self, key: StreamKey) -> NumberedStream | None:
        """Return what was had of a stream; None: nothing."""
        return self._known.get(key)

    def has_room(self, key: StreamKey, after: int, most: int) -> bool:
        """Tell whether a message makes no gap, or one that is not too many.

        Args:
            key: Its stream.
            after: As `NumberedStream.add` has it.
            most: Gaps that may be there with it.
        """
        stream = self._known.get(key)
        return stream is None or after <= stream.mark or len(stream) < most

    def has(self, key: StreamKey, number: int) -> bool:
        """Tell whether a message was had."""
        stream = self._known.get(key)
        return stream is not None and stream.has(number)

    def add(self, key: StreamKey, after: int, number: int) -> None:
        """Note that a message was had; see `NumberedStream.add`."""
        stream = self._known.get(key)
        if stream is None:
            stream = self._known[key] = NumberedStream()
        stream.add(after, number)

    def to_json(self) -> list[list[Any]]:
        """Return the state for `from_json`: [origin, epoch, partition, mark, gaps] of each.

        A gap is two small numbers: how far from the last number of the one before it to its first
        number, and from there to its last one.
        """
        return [[*key, stream.mark, _distances(stream.gaps)] for key, stream in self]

    @classmethod
    def from_json(cls, found: Iterable[Any]) -> "Streams":
        """Undo `to_json`.

        Raises:
            InvalidRecord: It is nothing that `to_json` makes.
        """
        streams = cls()
        try:
            for origin, epoch, partition, mark, gaps in found:
                pairs = _pairs(gaps)
                key = StreamKey(int(origin), int(epoch), int(partition))
                streams._known[key] = NumberedStream(int(mark), pairs)
        except (TypeError, ValueError) as exc:
            raise InvalidRecord(f"streams of a federation cannot be read: {exc!r}") from exc
        return streams


def _distances(gaps: Iterable[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    before = 0
    for first, last in gaps:
        found += (first - before, last - first)
        before = last
    return found


def _pairs(gaps: list[Any]) -> list[tuple[int, int]]:
    """Undo `_distances`; an earlier release has written pairs."""
    if gaps and isinstance(gaps[0], list):
        return [(int(first), int(last)) for first, last in gaps]
    found: list[tuple[int, int]] = []
    before = 0
    for distance, length in zip(gaps[::2], gaps[1::2], strict=True):
        before += int(distance)
        found.append((before, before + int(length)))
        before += int(length)
    return found
