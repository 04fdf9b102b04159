"""The retained messages of the shards of which this gateway has a copy.

The router brings retained messages of a shard (`mqlake.records.retained`) in the order of each
topic, in the stream in which live messages come; so a complete copy is as new as this gateway's
deliveries.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ingest.gateway.base.outbound import InboundMessage, OutboundMessage
from ingest.gateway.lake.exchange import TableError
from ingest.gateway.store.retained import RetainedRow, RetainedStore
from ingest.protocol.properties import NO_PROPERTIES
from ingest.session.client.newer_retained import NewerMessages
from mqlake.errors import InvalidRecord
from mqlake.records.messages import (
    HEADER_PROPERTIES,
    INBOUND,
    decode_properties,
    is_retained,
)
from mqlake.records.retained import RetainedMessage, position_of, rank_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.store.database import Database
    from ingest.protocol.properties import Properties
    from mqlake.clock import Clock
    from mqlake.log.contract import LogRangeReader
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

PURGED_AT_ONCE: Final = 100

COPIED_AT_ONCE: Final = 250
"""Rows of a copy that are written between two turns of the loop; they take 3 to 10 ms."""


class RetainedPage(NamedTuple):
    """A part of the retained messages that match a filter, in the order of their topic names."""

    messages: list[RetainedMessage]
    position: str | None
    """Beginning of the next page; None after the last. It may come with few or no messages."""


class Retained:
    """The last retained message of each topic [MQTT5-3.3.1-5] [MQTT311-3.3.1-5].

    QoS 0 is kept like any other [MQTT311-3.3.1-7]; no session owns them [MQTT311-3.1.2-7].

    Args:
        database: Store of the copies.
        shards: How many there are.
        clock: For their expiry.

    Attributes:
        shards: Number of shards.
        newer: Positions of those that come, for pages of other gateways that are under way.
        owned: Shards that count as this gateway's; it may have copies of others.
        incomplete: Shards that are to be here, of which something was found nowhere.
    """

    def __init__(self, database: Database, shards: int, clock: Clock) -> None:
        self.newer = NewerMessages()
        self.owned: Collection[int] = ()
        self.incomplete: set[int] = set()
        self.shards = shards
        self._database = database
        self._store = RetainedStore(database, clock)
        self._pending: list[RetainedRow] = []
        self._held: set[int] = set()
        self._complete: set[int] = set()

    def __len__(self) -> int:
        """Return how many messages the shards have that this gateway owns."""
        self.flush()
        return sum(self._store.count(shard) for shard in self.owned)

    def usage(self, tenant: str | None) -> tuple[int, int]:
        """Return how many messages of a tenant the shards have that this gateway owns, and bytes.

        These are the bytes of payloads, topic names and properties. None: of all tenants, and of
        all shards of which there are copies here.
        """
        self.flush()
        return (
            self._store.usage_of_all() if tenant is None else self._store.usage(self.owned, tenant)
        )

    def size(self, shard: int, tenant: str, topic_name: str) -> int | None:
        """Return the size of a topic's message in a copy here, in bytes; None: there is none."""
        self.flush()
        return self._store.size(shard, tenant, topic_name)

    def is_complete(self, shard: int) -> bool:
        """Tell whether the copy of a shard is as new as this gateway's deliveries."""
        return shard in self._complete

    def hold(self, shard: int) -> None:
        """Begin with a copy: messages that come from now on are kept."""
        self._held.add(shard)

    def complete(self, shard: int) -> None:
        """Note that a copy has all retained messages from before it began."""
        if shard in self._held:
            self._complete.add(shard)

    def let_go(self, shard: int) -> None:
        """Use a copy no more; `drop` makes room."""
        self.flush()
        self._held.discard(shard)
        self._complete.discard(shard)

    def drop(self, shard: int) -> bool:
        """Delete some of a copy; False when nothing is left of it."""
        return self._store.drop(shard)

    def apply(
        self, tenant: str, client_id: str, message: OutboundMessage, properties: bytes | None
    ) -> None:
        """Take a message with RETAIN set; an empty one removes that of its topic.

        [MQTT5-3.3.1-6] [MQTT5-3.3.1-7] [MQTT311-3.3.1-10] [MQTT311-3.3.1-11]

        Args:
            tenant: Whose topic.
            client_id: The publisher's.
            message: As the router sent it.
            properties: Its properties as they stand in the record.
        """
        shard = message.partition % self.shards
        rank = rank_of(message.partition, message.offset, self.shards)
        self.newer.note(shard, tenant, message.topic_name, rank)
        if shard in self._held:
            self._keep(tenant, client_id, message, properties)

    def _keep(
        self, tenant: str, client_id: str, message: OutboundMessage, properties: bytes | None
    ) -> None:
        self._pending.append(
            RetainedRow(
                tenant,
                message.topic_name,
                message.payload,
                message.qos,
                properties,
                client_id,
                message.received_at_ms,
                message.expires_at_ms,
                message.partition % self.shards,
                rank_of(message.partition, message.offset, self.shards),
            )
        )

    async def load(
        self, lake: LakeReader | None, reader: LogRangeReader, ends: Mapping[int, int]
    ) -> set[int]:
        """Read retained messages of shards that are held: the table, and the log from there on.

        Messages that come live meanwhile may be applied at any time: the later one counts.

        Args:
            lake: The tables, if they can be read here.
            reader: Reader of the log.
            ends: Partition of `mqlake.inbound` -> the offset from which on live messages are kept.

        Returns:
            Incomplete shards: messages that the table lacks are not in the log either.

        Raises:
            LogError: The log cannot be read.
        """
        offsets = {} if lake is None else await self._load_table(lake, ends.keys())
        ranges = {
            partition: (offsets.get(partition, 0), end)
            for partition, end in ends.items()
            if offsets.get(partition, 0) < end
        }
        incomplete: set[int] = set()
        if ranges:
            for missing in await reader.read_range(INBOUND, ranges, self._catch_up):
                incomplete.add(missing.partition % self.shards)
                gap = {"partition": missing.partition, "from": missing.start, "to": missing.end}
                logger.warning(
                    "retained messages are missing: neither table nor log has them",
                    extra={"fields": gap},
                )
        fields = {
            "messages": sum(self._store.count(one) for one in {one % self.shards for one in ends}),
            "from": {partition: offsets.get(partition, 0) for partition in ends},
            "to": dict(ends),
        }
        logger.info("retained messages loaded", extra={"fields": fields})
        return incomplete

    async def _load_table(self, lake: LakeReader, partitions: Collection[int]) -> dict[int, int]:
        """Read the table; return per partition the first offset that it does not have."""
        try:
            return await lake.retained(partitions, self._load_rows)
        except TableError as error:
            logger.warning(
                "retained messages are read from the log alone",
                extra={"fields": {"reason": str(error)}},
            )
            return {}

    async def _load_rows(self, rows: list[RetainedRow]) -> None:
        for at in range(0, len(rows), COPIED_AT_ONCE):
            some = rows[at : at + COPIED_AT_ONCE]
            self._store.load(row if row.shard < self.shards else self._ranked(row) for row in some)
            await asyncio.sleep(0)  # clients go first

    def _ranked(self, row: RetainedRow) -> RetainedRow:
        """Return a row of the table, in which is where the message came in, as the store has it."""
        partition, offset = row.shard, row.rank
        rank = rank_of(partition, offset, self.shards)
        return row._replace(shard=partition % self.shards, rank=rank)

    async def _catch_up(self, records: list[LogRecord]) -> None:
        for at in range(0, len(records), COPIED_AT_ONCE):
            for record in records[at : at + COPIED_AT_ONCE]:
                self._keep_record(record)
            self.flush()
            await asyncio.sleep(0)  # clients go first

    def _keep_record(self, record: LogRecord) -> None:
        headers = dict(record.headers)
        if not is_retained(headers):
            return
        inbound = InboundMessage(record, headers)
        try:
            message = inbound.read(record.timestamp_ms)
        except InvalidRecord as exc:
            logger.warning("retained message ignored", extra={"fields": {"reason": str(exc)}})
            return
        self._keep(inbound.tenant, inbound.publisher, message, headers.get(HEADER_PROPERTIES))

    def flush(self) -> None:
        """Store applied messages; several at once cost much less than one by one."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._store.apply_all(pending)

    def page(
        self,
        shard: int,
        tenant: str,
        topic_filter: str,
        position: str | None,
        limit: int,
        max_bytes: int,
    ) -> RetainedPage:
        """Return the next matching messages of a shard; None as the position begins."""
        self.flush()
        page = self._store.page(
            shard, tenant, topic_filter, position, limit=limit, max_bytes=max_bytes
        )
        messages = [
            RetainedMessage(
                row.topic_name,
                row.qos,
                row.rank,
                row.received_at_ms,
                row.properties,
                row.payload or b"",
            )
            for row in page.rows
        ]
        return RetainedPage(messages, page.position)

    def purge(self) -> None:
        """Remove some expired messages."""
        self._store.purge(limit=PURGED_AT_ONCE)


def to_outbound(message: RetainedMessage, shard: int, shards: int) -> OutboundMessage:
    """Return a retained message of one of `shards` as it goes to clients.

    Raises:
        InvalidRecord: Its properties cannot be read.
    """
    properties = NO_PROPERTIES
    if message.properties is not None:
        properties = cast("Properties", decode_properties(message.properties))
    return OutboundMessage(
        message.topic_name,
        message.payload,
        message.qos,
        True,
        properties,
        message.received_at_ms,
        *position_of(message.rank, shard, shards),
    )
