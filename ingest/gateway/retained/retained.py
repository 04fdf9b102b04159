"""The retained messages of the shards of which this gateway has a copy.

The router brings retained messages of a shard (`mqlake.records.retained`) in the order of each
topic, in the stream in which live messages come; so a complete copy is as new as this gateway's
deliveries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ingest.gateway.base.outbound import OutboundMessage
from ingest.gateway.store.retained import LogPlace, RetainedRow, RetainedStore
from ingest.protocol.properties import NO_PROPERTIES
from ingest.session.client.newer_retained import NewerMessages
from mqlake.records.messages import HEADER_SOURCE, decode_properties, decode_source
from mqlake.records.retained import RetainedMessage, partitions_of, position_of, rank_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.store.database import Database
    from ingest.protocol.properties import Properties
    from mqlake.clock import Clock
    from mqlake.records.messages import LogRecord

PURGED_AT_ONCE: Final = 100

SAVE_SECONDS: Final = 1.0
"""How often it is stored how far copies are, when no retained message comes."""


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
        self._clock = clock
        self._store = RetainedStore(database, clock)
        self._save_at = 0.0
        # By partition the record that is noted in the store.
        self._noted: dict[int, LogRecord] = {}
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

    def set_aside(self, shard: int) -> None:
        """Use a copy no more for now; what is noted of it still counts."""
        self.flush()
        self._held.discard(shard)
        self._complete.discard(shard)

    def let_go(self, shard: int) -> None:
        """Use a copy no more; `drop` makes room."""
        self.set_aside(shard)
        self._store.forget_places(shard)
        for partition in [one for one in self._noted if one % self.shards == shard]:
            del self._noted[partition]

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
            self.keep(tenant, client_id, message, properties)

    def keep(
        self, tenant: str, client_id: str, message: OutboundMessage, properties: bytes | None
    ) -> None:
        """Take a message of a copy that is held; as `apply`, for one that no client gets now."""
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

    def keep_rows(self, rows: Iterable[RetainedRow]) -> None:
        """Take messages of copies that are held, as the table has them."""
        self._store.load(row if row.shard < self.shards else self._ranked(row) for row in rows)

    def _ranked(self, row: RetainedRow) -> RetainedRow:
        """Return a row of the table, in which is where the message came in, as the store has it."""
        partition, offset = row.shard, row.rank
        rank = rank_of(partition, offset, self.shards)
        return row._replace(shard=partition % self.shards, rank=rank)

    def flush(self) -> None:
        """Store applied messages; several at once cost much less than one by one."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._store.apply_all(pending)

    def save(self, delivered: Delivered) -> None:
        """Store applied messages, and up to where copies are complete.

        The latter goes along, or once a second: the next run reads the log from there on.

        Args:
            delivered: No delivery is half taken.
        """
        now = self._clock.monotonic()
        if not self._pending and now < self._save_at:
            return
        self._save_at = now + SAVE_SECONDS
        with self._database.batch():
            self.flush()
            for shard in self._complete - self.incomplete:
                self._note_places(shard, delivered)

    def _note_places(self, shard: int, delivered: Delivered) -> None:
        places = []
        for partition in partitions_of(shard, self.shards, len(delivered.last)):
            record = delivered.last[partition]
            if record is not None and self._noted.get(partition) is not record:
                source = decode_source(dict(record.headers)[HEADER_SOURCE])
                key = record.key or b""
                places.append(LogPlace(partition, source.offset, source.received_at_ms, key))
                self._noted[partition] = record
        if places:
            self._store.note_places(shard, places)

    def places(self, shard: int) -> dict[int, LogPlace]:
        """Return by partition up to where a copy is complete that an earlier run has left.

        Of a partition that is left out nothing is known to be here. Empty: there is no such copy.
        """
        return self._store.places(shard)

    def stored(self) -> set[int]:
        """Return the shards of which there is anything here."""
        return self._store.shards()

    def count(self, shard: int) -> int:
        """Return how many messages of a shard are here."""
        self.flush()
        return self._store.count(shard)

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
