"""Retained messages at work: the log is followed, so that a neighbour's older one is known for it.

The state is kept in `mqlake.federation`, one record for each topic, before the checkpoint that
counts on it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial as bind
from typing import TYPE_CHECKING

from ingest.federation.sites.streams.log_messages import of_record, to_record
from ingest.federation.sites.streams.retained import SiteRetained
from mqlake.errors import LogError, OffsetGone
from mqlake.records.federation import (
    FEDERATION,
    MESSAGE_KEY_PREFIX,
    RETAINED_KEY_PREFIX,
    LinkPosition,
    encode_latest,
)
from mqlake.records.messages import HEADER_CLIENT_ID, HEADER_ID, INBOUND, message_key
from mqlake.topics.matching import TopicFilterTrie

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.federation.prefixes import Prefixes
    from ingest.federation.settings import FederationSettings
    from ingest.federation.sites.recovery import Recovered
    from ingest.federation.sites.streams.retained import Position, Rank
    from mqlake.identifiers import MessageIdentifiers
    from mqlake.log.contract import LogAccess, LogReader
    from mqlake.records.messages import LogRecord

_logger = logging.getLogger(__name__)


class Retaining:
    """The retained messages of one site. Make it inside the event loop.

    Args:
        settings: Settings of the process.
        prefixes: Names of topics in the federation.
        log: Log of the site.
        identifiers: For messages shown again.
        on_failure: Called when the log can be followed no longer, or does not take something.

    Attributes:
        retained: The state; another one when the run has begun.
    """

    def __init__(
        self,
        settings: FederationSettings,
        prefixes: Prefixes,
        log: LogAccess,
        identifiers: MessageIdentifiers,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._log = log
        self._identifiers = identifiers
        self._on_failure = on_failure
        self._prefixes = prefixes
        self._crossing: TopicFilterTrie[None] = TopicFilterTrie()
        self.allow((*settings.filters_in, *settings.filters_out))
        for one in settings.neighbors:
            self.allow((*(one.filters_in or ()), *(one.filters_out or ())))
        self._epoch = 0
        self._reader: LogReader | None = None
        self._saving: dict[str, LogRecord] = {}
        """Latest messages on their way into `mqlake.federation`; those of some seconds at most."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.retained = self._make(LinkPosition({}))

    def allow(self, filters: Iterable[str]) -> None:
        """Hear which topics of the federation may cross, beside those that may already."""
        for one in filters:
            self._crossing.insert(one, None)

    async def start(self, found: Recovered) -> None:
        """Learn the messages in the log, and follow it.

        Args:
            found: State of the run before.

        Raises:
            LogError: The log does not answer.
            InvalidRecord: The state of the run before cannot be read.
        """
        self._epoch = found.epoch
        position = found.retained or LinkPosition(dict(found.ends))
        self.retained = self._make(position)
        self.retained.restore(found.latest)
        ranges = {p: (position.cursor.setdefault(p, 0), end) for p, end in found.ends.items()}

        async def take(records: list[LogRecord]) -> None:
            self.retained.take(records)

        await self._log.ranges.read_range(INBOUND, ranges, take)
        position.cursor.update(found.ends)
        self._reader = self._log.open_reader()
        await self._reader.start(INBOUND, dict(found.ends), self._take, self._lose)
        self._show()

    async def stop(self) -> None:
        """Follow nothing any more."""
        if self._reader is not None:
            await self._reader.close()
        for one in self._tasks:
            one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def save(self) -> bool:
        """Append changes to `mqlake.federation`; return whether there are any.

        Raises:
            LogError: The log takes nothing.
        """
        changes = self.retained.changes()
        append = self._log.writer.append
        for topic, latest in changes.items():
            name = topic.encode()
            value = None if latest is None else encode_latest(latest)
            append(FEDERATION, RETAINED_KEY_PREFIX + name, value, [], self._appended)
            if latest is None:
                append(FEDERATION, MESSAGE_KEY_PREFIX + name, None, [], self._appended)
        messages = self.retained.messages()
        self._saving |= messages
        for topic, record in messages.items():
            append(
                FEDERATION,
                MESSAGE_KEY_PREFIX + topic.encode(),
                record.value or b"",
                record.headers,
                bind(self._saved, topic, record),
                timestamp_ms=record.timestamp_ms,
            )
        return bool(changes)

    async def all(self) -> list[LogRecord]:
        """Return the latest retained messages, for a site that is new; deletions among them.

        Raises:
            LogError: The log does not answer.
        """
        self.save()
        newest = dict(self._saving)  # the log may have them when it is asked
        reader = self._log.open_reader()
        try:
            records = await reader.read_compacted(FEDERATION)
        finally:
            await reader.close()
        tenant = self._settings.tenant
        found = {}
        for key, record in records.items():
            if key.startswith(MESSAGE_KEY_PREFIX):
                topic = key.removeprefix(MESSAGE_KEY_PREFIX).decode()
                found[topic] = record._replace(key=message_key(tenant, topic))
        return list((found | newest).values())

    def _saved(
        self, topic: str, record: LogRecord, _partition: int, _offset: int, error: LogError | None
    ) -> None:
        if error is not None:
            self._on_failure(error)
        elif self._saving.get(topic) is record:
            del self._saving[topic]

    def _make(self, position: LinkPosition) -> SiteRetained:
        settings = self._settings
        return SiteRetained(
            settings.host.id,
            self._epoch,
            settings.tenant,
            self._crosses,
            settings.max_retained,
            position,
        )

    def _crosses(self, topic: str) -> bool:
        return bool(self._crossing.match(self._prefixes.to_federated(topic)))

    def _take(self, records: list[LogRecord]) -> None:
        self.retained.take(records)
        self._show()

    def _lose(self, error: LogError) -> None:
        if isinstance(error, OffsetGone):
            self._on_failure(error)  # the next run begins where the log does
        else:
            fields = {"reason": str(error)}
            _logger.warning("retained messages cannot be followed", extra={"fields": fields})

    # Messages shown again.

    def _show(self) -> None:
        for topic, (position, rank) in self.retained.wrong().items():
            showing = asyncio.create_task(self._show_again(topic, position, rank))
            self._tasks.add(showing)
            showing.add_done_callback(self._note_end)

    async def _show_again(self, topic: str, position: Position, rank: Rank) -> None:
        """Append the latest message of a topic once more, for this site alone."""
        partition, offset = position
        records: list[LogRecord] = []

        async def take(found: list[LogRecord]) -> None:
            records.extend(found)

        await self._log.ranges.read_range(INBOUND, {partition: (offset, offset + 1)}, take)
        settings = self._settings
        site = settings.host.id
        carried = None
        if records:
            carried = of_record(records[0], settings.tenant, site, self._epoch)
        if carried is None:
            fields = {"topic": topic, "partition": partition, "offset": offset}
            _logger.error("the log no longer has messages to be retained", extra={"fields": fields})
            return
        carried.sender = site
        carried.message.stamp = rank.stamp
        own = {HEADER_ID: self._identifiers.next(), HEADER_CLIENT_ID: b"federation-%d" % site}
        carried.headers = [(name, own.get(name, value)) for name, value in carried.headers]
        key, value, headers = to_record(carried, settings.tenant, topic, retain=True)
        self._log.writer.append(INBOUND, key, value, headers, self._appended)
        self.retained.shown_again += 1

    def _note_end(self, showing: asyncio.Task[None]) -> None:
        self._tasks.discard(showing)
        error = None if showing.cancelled() else showing.exception()
        if error is not None:
            self._on_failure(error)

    def _appended(self, _partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            self._on_failure(error)
