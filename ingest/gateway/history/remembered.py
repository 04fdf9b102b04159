"""Records that were read from the log a moment ago, by topic: the next readers look them up.

Sessions of a fleet come back one after the other, with nearly the same gap. It is read once; the
next ones cost what they are given: a topic filter without wildcards is looked up, one with them is
compared with the topics that begin as it does.
"""

from __future__ import annotations

import asyncio
import marshal
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError
from mqlake.records.messages import NO_MESSAGE, LogRecord
from mqlake.topics.matching import TopicFilterTrie, filter_matches
from mqlake.topics.names import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

MAX_BYTES: Final = 96 * 1024 * 1024
"""Memory for records: 150,000 small ones, each with its own topic, or 300,000 with few topics."""

KEPT_SECONDS: Final = 30.0
"""After one such interval without a reader, everything is forgotten."""

NEAR_OFFSETS: Final = 10_000
"""A range that begins at most this far behind what is known is read from the end of that on."""

RECORDS_AT_ONCE: Final = 500
NAMES_AT_ONCE: Final = 2_000

_ENTRY_BYTES: Final = 100
"""Memory that an entry takes beside its record: the object and its place in a list."""

_TOPIC_BYTES: Final = 300
"""Memory that a topic takes: its name, its place in the table, the list of its entries."""

_POSITION: Final = Struct(">QI")
"""Offset and partition: entries in the order of their bytes are in that of each partition."""

Ranges = dict[int, tuple[int, int]]
"""Partition -> first offset, and the one after the last."""


@dataclass(slots=True, eq=False)
class _Span:
    """Offsets of one partition of which all is known, and the last record among them."""

    start: int
    end: int
    last: LogRecord


@dataclass(slots=True)
class Split:
    """Ranges, by how they are read; in this order that of each partition is kept."""

    before: Ranges
    known: Ranges
    after: Ranges
    source: _Known
    """Has what is known, also if it is forgotten meanwhile."""


@dataclass(slots=True, eq=False)
class LogReading:
    """Ranges that are being read, to be remembered when all of it was.

    Attributes:
        ranges: Partition -> offsets that are read.
        lasts: Partition -> last known record, which is read once more: it must be the same.
        goes_on_at: Partition with a known record in front -> offset up to which all was known.
        wanted: Tenant -> topic filters; only messages that may match are handed over.
        room: Bytes that are left for entries.
        found: Partition -> tenant, topic name and entry of each message.
        ends: Partition -> offset up to which there was room, and the last record before that.
        is_full: True once there was no room for an entry.
    """

    ranges: Ranges
    lasts: dict[int, LogRecord]
    goes_on_at: dict[int, int]
    wanted: Mapping[str, Collection[str]]
    room: int
    found: dict[int, list[tuple[str, str, bytes]]] = field(default_factory=dict)
    ends: dict[int, tuple[int, LogRecord]] = field(default_factory=dict)
    is_full: bool = False
    _with_wildcards: set[str] = field(init=False)
    """Tenants of which all messages are handed over, to be matched there."""

    def __post_init__(self) -> None:
        self._with_wildcards = {
            tenant for tenant, filters in self.wanted.items() if any(map(_has_wildcard, filters))
        }

    def take(self, records: list[LogRecord]) -> list[LogRecord]:
        """Note records, in their order; return those that are new and may be wanted.

        Raises:
            LogError: The last one known is another: the log has lost its end since.
        """
        if self.lasts:
            records = self._check(records)
        return [record for record in records if self._note(record)]

    def _check(self, records: list[LogRecord]) -> list[LogRecord]:
        new = []
        for record in records:
            last = self.lasts.pop(record.partition, None)
            if last is None:
                new.append(record)
            elif last != record:
                raise LogError(
                    f"partition {record.partition} has another record at offset {last.offset} than "
                    "a moment ago, the log has lost its end (docs/durability.md)",
                    definite=False,
                )
        return new

    def _note(self, record: LogRecord) -> bool:
        partition, offset, _, key, *_ = record
        tenant = topic_name = ""
        if key is not None and key[:1] != NO_MESSAGE:
            tenant, _, topic_name = key.decode(errors="replace").partition(SEPARATOR)
            if not self.is_full:
                entry = _POSITION.pack(offset, partition) + marshal.dumps(record[2:])
                self.room -= len(entry) + _ENTRY_BYTES
                self.is_full = self.room < 0
                if not self.is_full:
                    self.found.setdefault(partition, []).append((tenant, topic_name, entry))
        if not self.is_full:
            self.ends[partition] = (offset + 1, record)
        return tenant in self._with_wildcards or topic_name in self.wanted.get(tenant, ())


class _Known:
    """Messages by topic, and of which offsets these are all; they only become more."""

    def __init__(self) -> None:
        self.spans: dict[int, _Span] = {}
        self.topics: defaultdict[str, dict[str, list[bytes]]] = defaultdict(dict)
        # Of tenants with wildcards: topics in order, never changed in place, and those since then.
        self._names: dict[str, list[str]] = {}
        self._new_names: dict[str, list[str]] = {}
        self.size_bytes = 0

    def add(self, found: Iterable[tuple[str, str, bytes]]) -> None:
        """Take entries; those of a topic stay in their order."""
        topics = self.topics
        unordered: dict[int, list[bytes]] = {}
        for tenant, topic_name, entry in found:
            self.size_bytes += len(entry) + _ENTRY_BYTES
            of_tenant = topics[tenant]
            entries = of_tenant.get(topic_name)
            if entries is None:
                self.size_bytes += _TOPIC_BYTES
                of_tenant[topic_name] = [entry]
                if tenant in self._names:
                    self._new_names.setdefault(tenant, []).append(topic_name)
                continue
            if entry < entries[-1]:
                unordered[id(entries)] = entries
            entries.append(entry)
        for entries in unordered.values():
            entries.sort()

    async def find(
        self, wanted: Mapping[str, Collection[str]], ranges: Ranges
    ) -> AsyncIterator[list[LogRecord]]:
        """Do what `RememberedLog.find` does, of these ranges."""
        if not ranges:
            return
        first = _POSITION.pack(min(start for start, _ in ranges.values()), 0)
        last = _POSITION.pack(max(end for _, end in ranges.values()), 0)
        entries: list[bytes] = []
        for tenant, filters in wanted.items():
            topics = self.topics.get(tenant)
            if topics is None:
                continue
            for topic_name in await self._matching(tenant, topics, filters):
                found = topics[topic_name]
                entries += found[bisect_left(found, first) : bisect_left(found, last)]
        entries.sort()
        for at in range(0, len(entries), RECORDS_AT_ONCE):
            records = []
            for entry in entries[at : at + RECORDS_AT_ONCE]:
                offset, partition = _POSITION.unpack_from(entry)
                start, end = ranges.get(partition, (0, 0))
                if start <= offset < end:
                    rest = marshal.loads(memoryview(entry)[_POSITION.size :])  # noqa: S302 - ours
                    records.append(LogRecord(partition, offset, *rest))
            if records:
                yield records

    async def _matching(
        self, tenant: str, topics: Mapping[str, object], filters: Collection[str]
    ) -> set[str]:
        """Return the topics that some filter matches."""
        found = {one for one in filters if one in topics}
        wild = [one for one in filters if _has_wildcard(one)]
        if not wild:
            return found
        names = self._sorted_names(tenant)
        ranges = [_beginning(names, one) for one in wild]
        matches: list[Callable[[str], object]]
        if sum(map(len, ranges)) > len(names):  # all topics are asked for their filters
            tree: TopicFilterTrie[None] = TopicFilterTrie()
            for one in wild:
                tree.insert(one, None)
            ranges, matches = [range(len(names))], [tree.match]
        else:
            matches = [partial(filter_matches, one) for one in wild]
        looked_at = 0
        for places, is_match in zip(ranges, matches, strict=True):
            for place in places:
                if is_match(names[place]):
                    found.add(names[place])
                looked_at += 1
                if not looked_at % NAMES_AT_ONCE:
                    await asyncio.sleep(0)
        return found

    def comparisons(self, wanted: Mapping[str, Collection[str]]) -> int:
        """Return how many topics are compared with filters that have wildcards."""
        count = 0
        for tenant, filters in wanted.items():
            wild = [one for one in filters if _has_wildcard(one)]
            if wild and tenant in self.topics:
                names = self._sorted_names(tenant)
                count += min(len(names), sum(len(_beginning(names, one)) for one in wild))
        return count

    def _sorted_names(self, tenant: str) -> list[str]:
        names, new = self._names.get(tenant), self._new_names.pop(tenant, [])
        if names is None:
            names, new = [], list(self.topics.get(tenant, ()))
        if new:
            names = sorted(names + new)
        self._names[tenant] = names
        return names


class RememberedLog:
    """Records of a log topic between two offsets of each partition. Make it in the event loop.

    Args:
        max_bytes: Memory for records; those without room are read from the log each time.

    Invariant: of each partition all messages are known from the start of its span up to the end.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._used = False
        self._timer: asyncio.TimerHandle | None = None
        self._known = _Known()

    @property
    def size_bytes(self) -> int:
        return self._known.size_bytes

    def forget(self) -> None:
        """Remember nothing any more."""
        self._known = _Known()

    def unknown(self, ranges: Ranges) -> tuple[int, int]:
        """Return how many of these offsets are before and behind what is known."""
        split = self.split(ranges)
        return _length(split.before), _length(split.after)

    def split_for(self, wanted: Mapping[str, Collection[str]], ranges: Ranges) -> Split:
        """Return the same as `split`; where reading costs less than looking up, nothing is known.

        Args:
            wanted: Tenant -> topic filters, as `find` takes them.
            ranges: Offsets that readers have missed.
        """
        split = self.split(ranges)
        if split.known and self._known.comparisons(wanted) > _length(split.known):
            return Split(ranges, {}, {}, self._known)
        return split

    def split(self, ranges: Ranges) -> Split:
        """Return which of these offsets are known, and which are to be read before and after."""
        split = Split({}, {}, {}, self._known)
        for partition, (start, end) in ranges.items():
            span = self._known.spans.get(partition)
            if span is None or end <= span.start:
                split.before[partition] = (start, end)
                continue
            if start < span.start:
                split.before[partition] = (start, span.start)
            if start < span.end:
                split.known[partition] = (max(start, span.start), min(end, span.end))
            if end > span.end:
                is_far = start > span.end + NEAR_OFFSETS
                split.after[partition] = (start if is_far else span.end, end)
        return split

    def begin(self, ranges: Ranges, wanted: Mapping[str, Collection[str]]) -> LogReading:
        """Return the reading of a part of a split; its ranges may begin earlier.

        Args:
            ranges: Offsets of that part.
            wanted: Tenant -> topic filters, as `find` takes them.
        """
        self._keep()
        begun, lasts, goes_on_at = dict(ranges), {}, {}
        for partition, (start, end) in ranges.items():
            span = self._known.spans.get(partition)
            if span is not None and span.end == start:
                begun[partition] = (span.last.offset, end)
                lasts[partition], goes_on_at[partition] = span.last, start
        return LogReading(
            begun, lasts, goes_on_at, wanted, self._max_bytes - self._known.size_bytes
        )

    def complete(self, reading: LogReading, missing: Collection[int]) -> None:
        """Remember what was read to the end, where it goes on from what is known.

        Args:
            reading: Reading that `begin` returned, after its end.
            missing: Partitions of which the log did not have all records.
        """
        for partition, (begin, end) in reading.ranges.items():
            start = reading.goes_on_at.get(partition, begin)
            known_up_to, last = reading.ends.get(partition, (start, None))
            if last is None or partition in missing or partition in reading.lasts:
                continue
            if not reading.is_full:
                known_up_to = end
            span = self._known.spans.get(partition)  # another reading may have come first
            if span is None:
                self._known.spans[partition] = _Span(start, known_up_to, last)
            elif start == span.end:
                span.end, span.last = known_up_to, last
            elif known_up_to == span.start:
                span.start = start
            else:
                continue
            self._known.add(reading.found.get(partition, ()))

    def find(
        self, wanted: Mapping[str, Collection[str]], split: Split
    ) -> AsyncIterator[list[LogRecord]]:
        """Yield the messages that match, in the order of each partition, some at a time.

        Args:
            wanted: Tenant -> topic filters, those of shared subscriptions without their prefix.
            split: Split whose known offsets are looked up.
        """
        self._keep()
        return split.source.find(wanted, split.known)

    # Forgetting, when no reader comes

    def _keep(self) -> None:
        self._used = True
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(KEPT_SECONDS, self._forget_unused)

    def _forget_unused(self) -> None:
        self._timer = None
        if self._used:
            self._used = False
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(KEPT_SECONDS, self._forget_unused)
        else:
            self.forget()


def _length(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges.values())


def _has_wildcard(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def _beginning(names: Sequence[str], topic_filter: str) -> range:
    """Return the places of sorted names that begin as a filter does before its first wildcard."""
    literal, _, _ = topic_filter.partition("#")[0].partition("+")
    if not literal:
        return range(len(names))
    # `a/#` matches `a`, too, which stands before all that begin with `a/`.
    if topic_filter.endswith("/#") and literal == topic_filter[:-1]:
        literal = literal[:-1]
    begin = bisect_left(names, literal)
    return range(begin, bisect_left(names, literal + _BEHIND, begin))


_BEHIND: Final = "\U0010ffff"
"""Comes behind every other character; no valid topic holds it."""
