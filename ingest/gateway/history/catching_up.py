"""Reads missed messages, for all that missed them, from where `session.client.catch_up` says.

Messages that several have missed are read once, for all together, from the log as from the table,
and for those that come soon after them (`ingest.gateway.history.remembered`).
Partitions that the log has got later are read when those before them have been: a topic may have
moved there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from ingest.gateway.base.drops import DropReason, Drops
from ingest.gateway.base.outbound import InboundMessage, deliver_copies
from ingest.gateway.lake.exchange import MAX_PAGE_BYTES, TableError
from ingest.session.client.catch_up import Missed, log_ranges, partition_count
from mqlake.errors import InvalidRecord, LogError
from mqlake.log.growth import generations
from mqlake.records.messages import INBOUND, NO_MESSAGE
from mqlake.records.offsets import at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ingest.gateway.history.remembered import Ranges, RememberedLog
    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.log.partitions import Partitions
    from ingest.session.subscriptions import Copy, Subscriptions
    from mqlake.log.contract import LogRangeReader, Missing
    from mqlake.records.messages import LogRecord

    Take: TypeAlias = Callable[[list[LogRecord]], Awaitable[None]]
    """Hands records over, in their order."""

logger = logging.getLogger(__name__)

MOST_FILTERS: Final = 2_000
"""Topic filters of which the table is asked at once; of one reader they may be more."""


class Pages(NamedTuple):
    """Sizes of a page that is asked of the table."""

    messages: int = 10_000
    max_bytes: int = MAX_PAGE_BYTES
    not_before_ms: int | None = None


class Behind(Protocol):
    """A reader that has missed messages."""

    missed: Missed

    @property
    def tenant(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def pages(self) -> Pages: ...

    @property
    def is_over(self) -> bool:
        """Tell whether it is not wanted any more."""
        ...

    def filters(self) -> list[str]:
        """Return the topic filters, those of shared subscriptions without their prefix."""
        ...


SomeBehind = TypeVar("SomeBehind", bound=Behind)


class CatchingUp:
    """Reads missed messages.

    Args:
        reader: Reads ranges of `mqlake.inbound`.
        lake: Reads the tables; None where there are no tables: the log has all messages.
        next_offsets: Returns per partition the first offset that the router has not brought.
        log_ends: Returns per partition the offset that the next record will get.
        drops: Counts messages that neither the log nor the tables have.
        partitions: Numbers of partitions of the log topics.
        remembered: Has what was read from the log a moment ago; None: each reading asks the log.
    """

    def __init__(
        self,
        reader: LogRangeReader,
        lake: LakeReader | None,
        next_offsets: Callable[[], list[int]],
        log_ends: Callable[[], Awaitable[dict[int, int]]],
        drops: Drops,
        partitions: Partitions,
        remembered: RememberedLog | None = None,
    ) -> None:
        self._reader = reader
        self._lake = lake
        self._next_offsets = next_offsets
        self._log_ends = log_ends
        self._drops = drops
        self._partitions = partitions
        self._remembered = remembered

    async def catch_up(
        self,
        absent: Sequence[SomeBehind],
        taker: Callable[[Sequence[SomeBehind]], Take],
        go_live: Callable[[SomeBehind], None],
        *,
        to_end_of_log: bool = False,
    ) -> None:
        """Read until each has overtaken the router.

        Args:
            absent: Readers that have missed messages.
            taker: Returns a function that hands records over to some of them; asked again for each
                reading, for it counts from their cursors.
            go_live: Called for each; from then on it gets the router's messages from its cursor on.
            to_end_of_log: Reads to the end of the log, also while the router brings nothing.

        Raises:
            LogError: The log cannot be read; the cursors say how far it was.
        """
        behind = list(absent)
        while behind:
            if to_end_of_log:
                ends = await self._log_ends()
                for one in behind:
                    one.missed.aim(ends)
            cut = dict(enumerate(await self._partitions.cut()))
            for one in behind:
                one.missed.aim(cut)
            await self.read(behind, taker)
            next_offsets = self._next_offsets()
            left = []
            for one in behind:
                if one.is_over:
                    continue
                if one.missed.follow(next_offsets):
                    go_live(one)
                else:
                    left.append(one)
            behind = left

    async def read(
        self,
        absent: Sequence[SomeBehind],
        taker: Callable[[Sequence[SomeBehind]], Take],
    ) -> None:
        """Read once up to the ends, or further; arguments and errors as of `catch_up`."""
        count = partition_count(one.missed for one in absent)
        for partitions in generations(self._partitions.retained, count):
            if self._lake is not None:
                for group in _alike([one for one in absent if self.needs_table(one)]):
                    await self._read_table(self._lake, group, partitions, taker(group))
            left = [one for one in absent if not one.is_over]
            if left:
                await self._read_log(left, partitions, taker(left))

    def needs_table(self, absent: Behind) -> bool:
        """Tell whether the table is asked for a reader: it missed much that is not remembered."""
        missed = absent.missed
        if self._lake is None or absent.is_over or not missed.needs_table:
            return False
        if self._remembered is None:
            return True
        ranges = log_ranges([missed], range(partition_count([missed])))
        before, behind = self._remembered.unknown(ranges)
        # What is behind is new, the log has it.
        return before + behind > missed.long_offsets or (missed.is_old and before > 0)

    async def _read_table(
        self, lake: LakeReader, group: Sequence[Behind], partitions: range, take: Take
    ) -> None:
        """Read as much as the table has of these partitions; the log has the rest.

        Args:
            lake: Reads the table.
            group: Readers from `_alike`.
            partitions: Number of partitions of `mqlake.inbound`.
            take: Hands records over to those of the group that have missed them.
        """
        pages, of_each = group[0].pages, [one.missed for one in group]
        # One by itself keeps its window, and tells while a page is handed over how far it is.
        missed = of_each[0] if len(group) == 1 else Missed.together(of_each)
        for it in {missed, *of_each}:
            it.begin_table(partitions)
        while ranges := missed.table_ranges():
            filters = {name for one in group if not one.is_over for name in one.filters()}
            if not filters:
                return
            try:
                page = await lake.messages(
                    group[0].tenant,
                    ranges,
                    filters,
                    limit=pages.messages,
                    not_before_ms=pages.not_before_ms,
                    max_bytes=pages.max_bytes,
                )
            except TableError as error:
                logger.warning(
                    "missed messages are read from the log",
                    extra={"fields": {"reason": str(error)}},
                )
                for one in group:
                    one.missed.fail_table()
                return
            await take(page.records)
            missed.take_page(
                ranges,
                page.next_offsets,
                has_more=page.has_more,
                is_sparse=len(page.records) < pages.messages // 2,
            )
            for one in group:
                one.missed.reach(page.next_offsets)

    async def _read_log(
        self,
        absent: Sequence[Behind],
        partitions: range,
        take: Take,
    ) -> None:
        """Read up to where the last of them goes live; afterwards that is the cursor of all."""
        ranges = log_ranges([one.missed for one in absent], partitions)
        begun_at = [list(one.missed.cursor) for one in absent]
        reached: dict[int, int] = {}

        def note(missing: Missing) -> None:
            self._note_missing(absent, missing, begun_at)

        async def hand_over(records: list[LogRecord]) -> None:
            await take(records)
            for record in records:
                reached[record.partition] = record.offset + 1

        try:
            wanted = _wanted(absent)
            if ranges and wanted:
                if self._remembered is None:
                    await self._read_through(ranges, hand_over, note)
                else:
                    await self._read_rest(self._remembered, ranges, wanted, hand_over, note)
            reached = {partition: end for partition, (_, end) in ranges.items()}
        finally:  # after an error reading goes on where it stopped
            for one in absent:
                one.missed.reach(reached)

    async def _read_rest(
        self,
        remembered: RememberedLog,
        ranges: Ranges,
        wanted: dict[str, set[str]],
        hand_over: Take,
        note: Callable[[Missing], None],
    ) -> None:
        """Read what is not known of these ranges, and remember it."""
        split = remembered.split_for(wanted, ranges)
        await self._read_and_remember(remembered, split.before, wanted, hand_over, note)
        async for records in remembered.find(wanted, split):
            await hand_over(records)
        await self._read_and_remember(remembered, split.after, wanted, hand_over, note)

    async def _read_and_remember(
        self,
        remembered: RememberedLog,
        ranges: Ranges,
        wanted: dict[str, set[str]],
        hand_over: Take,
        note: Callable[[Missing], None],
    ) -> None:
        if not ranges:
            return
        reading = remembered.begin(ranges, wanted)
        incomplete: set[int] = set()

        async def take_on(records: list[LogRecord]) -> None:
            if new := reading.take(records):
                await hand_over(new)

        def note_incomplete(missing: Missing) -> None:
            incomplete.add(missing.partition)
            if missing.end > reading.goes_on_at.get(missing.partition, 0):  # else it was known
                note(missing)

        try:
            await self._read_through(reading.ranges, take_on, note_incomplete)
        except LogError:
            remembered.forget()  # it may not have what it had
            raise
        remembered.complete(reading, incomplete)

    async def _read_through(
        self, ranges: Ranges, take: Take, note: Callable[[Missing], None]
    ) -> None:
        """Read the log, and tell at once what it does not hold.

        Reading that stops at an error does not return what is missing.
        """
        looked_at = {partition: start for partition, (start, _) in ranges.items()}

        async def take_on(records: list[LogRecord]) -> None:
            for partition, hole in _holes(records, looked_at):
                for missing in await self._reader.read_range(INBOUND, {partition: hole}, _discard):
                    note(missing)
            await take(records)

        for missing in await self._reader.read_range(INBOUND, ranges, take_on):
            if missing.start >= looked_at[missing.partition]:
                note(missing)

    def _note_missing(
        self, absent: Sequence[Behind], missing: Missing, begun_at: Sequence[Sequence[int]]
    ) -> None:
        losing = [
            one
            for one, begun in zip(absent, begun_at, strict=True)
            if one.missed.loses(missing.start, missing.end, at(begun, missing.partition))
        ]
        if not losing:
            return
        logger.warning(
            "the log does not hold all messages that were missed",
            extra={
                "fields": {
                    "partition": missing.partition,
                    "from": missing.start,
                    "to": missing.end,
                    "clients": [one.client_id for one in losing[:10]],
                    "count": len(losing),
                }
            },
        )
        for one in losing:
            self._drops.add(DropReason.UNREADABLE, one.tenant, one.client_id, "", 1)


def _wanted(absent: Sequence[Behind]) -> dict[str, set[str]]:
    """Return the topic filters by tenant; nothing for tenants without any."""
    wanted: dict[str, set[str]] = {}
    for one in absent:
        if filters := one.filters():
            wanted.setdefault(one.tenant, set()).update(filters)
    return wanted


def _holes(
    records: Sequence[LogRecord], looked_at: dict[int, int]
) -> list[tuple[int, tuple[int, int]]]:
    """Return offsets without a record, by partition, and note up to where was looked."""
    holes = []
    for record in records:
        partition, offset = record.partition, record.offset
        if offset > looked_at[partition]:
            holes.append((partition, (looked_at[partition], offset)))
        looked_at[partition] = offset + 1
    return holes


async def _discard(_: list[LogRecord]) -> None:
    """Take records of which it is only asked whether they are there."""


def _alike(absent: Sequence[SomeBehind]) -> Iterator[list[SomeBehind]]:
    """Yield those for which the table is asked in groups for which it is asked at once.

    Those of a group have one tenant, and begin so near to each other that none waits for a long
    gap of another.
    """
    behind = sorted(absent, key=lambda one: (one.tenant, -sum(one.missed.cursor)))
    group: list[SomeBehind] = []
    filters = 0
    for one in behind:
        count = len(one.filters())
        if group and (filters + count > MOST_FILTERS or not _is_alike(group[0], one)):
            yield group
            group, filters = [], 0
        group.append(one)
        filters += count
    if group:
        yield group


def _is_alike(first: Behind, other: Behind) -> bool:
    missed = first.missed
    earlier = sum(missed.cursor) - sum(other.missed.cursor)
    return (first.tenant, first.pages) == (other.tenant, other.pages) and (
        earlier <= missed.long_offsets
    )


def match(
    tree: Subscriptions[Any], record: LogRecord
) -> tuple[InboundMessage, list[Copy[Any]]] | None:
    """Return a message and the copies that clients get of it; None when no client gets it."""
    if (record.key or b"")[:1] == NO_MESSAGE:
        return None
    inbound = InboundMessage(record, dict(record.headers))
    copies = tree.copies(
        inbound.tenant, inbound.topic_name, record.partition, record.offset, inbound.publisher
    )
    if copies and (groups := inbound.groups) is not None:
        copies = [one for one in copies if _group_of(one) in groups]
    return (inbound, copies) if copies else None


def _group_of(copy: Copy[Any]) -> str:
    """Return for which share group a copy is; empty: for no one's."""
    return getattr(copy.client, "shared_filter", "")


def give(inbound: InboundMessage, copies: list[Copy[Any]], drops: Drops, now_ms: int) -> None:
    """Give a message to those that have missed it, unless it has expired or cannot be read."""
    try:
        message = inbound.read(now_ms)
    except InvalidRecord as exc:
        logger.warning("missed message cannot be read", extra={"fields": {"reason": str(exc)}})
        return
    deliver_copies(message, copies, inbound.tenant, drops, now_ms)
