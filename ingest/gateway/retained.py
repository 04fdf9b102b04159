"""The retained messages, as the router brings them and as new subscriptions get them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ingest.gateway.lake.exchange import TableError
from ingest.gateway.outbound import InboundMessage, OutboundMessage
from ingest.gateway.store.retained import RetainedRow, RetainedStore
from ingest.protocol.properties import NO_PROPERTIES
from mqlake.errors import InvalidRecord
from mqlake.records import HEADER_PROPERTIES, INBOUND, decode_properties, is_retained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.store.database import Database
    from ingest.protocol.properties import Properties
    from mqlake.clock import Clock
    from mqlake.log.contract import LogRangeReader, LogRecord

logger = logging.getLogger(__name__)

PURGED_AT_ONCE: Final = 100


class RetainedPage(NamedTuple):
    """A part of the retained messages that match a filter, in the order of their topic names."""

    messages: list[OutboundMessage]
    position: str | None
    """Where the next page begins; None after the last. It may come with few or no messages."""


class Retained:
    """The last retained message of each topic [MQTT5-3.3.1-5] [MQTT311-3.3.1-5].

    QoS 0 is kept like any other [MQTT311-3.3.1-7]; no session owns them [MQTT311-3.1.2-7].

    Args:
        database: Where they are kept.
        clock: For their expiry.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._store = RetainedStore(database, clock)
        self._pending: list[RetainedRow] = []

    def __len__(self) -> int:
        self.flush()
        return self._store.count()

    def apply(
        self, tenant: str, client_id: str, message: OutboundMessage, properties: bytes | None
    ) -> None:
        """Take a message with RETAIN set; an empty one removes what its topic has.

        [MQTT5-3.3.1-6] [MQTT5-3.3.1-7] [MQTT311-3.3.1-10] [MQTT311-3.3.1-11]

        Args:
            tenant: Whose topic.
            client_id: The publisher's.
            message: As the router sent it.
            properties: Its properties as they stand in the record.
        """
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
                message.partition,
                message.offset,
            )
        )

    async def load(
        self, lake: LakeReader | None, reader: LogRangeReader, ends: Sequence[int]
    ) -> None:
        """Become what was retained at these offsets: the table, and the log from there on.

        Messages that come live meanwhile may be applied at any time: the later one counts.

        Raises:
            LogError: The log cannot be read.
        """
        offsets: dict[int, int] = {}
        if lake is not None:
            try:
                offsets = await lake.retained(self._load_rows)
            except TableError as error:
                logger.warning(
                    "retained messages are read from the log alone",
                    extra={"fields": {"reason": str(error)}},
                )
        ranges = {
            partition: (offsets.get(partition, 0), end)
            for partition, end in enumerate(ends)
            if offsets.get(partition, 0) < end
        }
        if ranges:
            await reader.read_range(INBOUND, ranges, self._catch_up)
        logger.info(
            "retained messages loaded",
            extra={"fields": {"messages": len(self), "from": offsets, "to": list(ends)}},
        )

    async def _load_rows(self, rows: list[RetainedRow]) -> None:
        self._store.load(rows)

    async def _catch_up(self, records: list[LogRecord]) -> None:
        for record in records:
            headers = dict(record.headers)
            if not is_retained(headers):
                continue
            inbound = InboundMessage(record, headers)
            try:
                message = inbound.read(record.timestamp_ms)
            except InvalidRecord as exc:
                logger.warning("retained message ignored", extra={"fields": {"reason": str(exc)}})
                continue
            properties = headers.get(HEADER_PROPERTIES)
            self.apply(inbound.tenant, inbound.publisher, message, properties)
        self.flush()

    def flush(self) -> None:
        """Store what has been applied; several at once cost much less than one by one."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        with self._database.batch():
            for row in pending:
                self._store.apply(row)

    def page(
        self, tenant: str, topic_filter: str, position: str | None, limit: int
    ) -> RetainedPage:
        """Return the next matching messages; None as the position begins."""
        self.flush()
        page = self._store.page(tenant, topic_filter, position, limit=limit)
        return RetainedPage([_to_message(row) for row in page.rows], page.position)

    def purge(self) -> None:
        """Remove some of what has expired."""
        self._store.purge(limit=PURGED_AT_ONCE)


def _to_message(row: RetainedRow) -> OutboundMessage:
    properties = NO_PROPERTIES
    if row.properties is not None:
        properties = cast("Properties", decode_properties(row.properties))
    return OutboundMessage(
        row.topic_name,
        row.payload or b"",
        row.qos,
        True,
        properties,
        row.received_at_ms,
        row.partition,
        row.offset,
    )
