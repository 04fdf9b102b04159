"""From the router's records to the clients of this gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.base.outbound import deliver_copies, note_origin, read_message
from ingest.gateway.log.withheld import Withheld
from ingest.session.groups.share_records import GroupKey
from mqlake.errors import InvalidRecord, LogError
from mqlake.log.growth import MOST_PARTITIONS
from mqlake.records.messages import (
    CONTROL_KEY_PREFIX,
    HEADER_CLIENT_ID,
    HEADER_ORIGIN,
    HEADER_PROPERTIES,
    HEADER_SOURCE,
    NO_MESSAGE,
    QUESTION_KEY_PREFIX,
    LogRecord,
    decode_source,
    delivery_topic,
    groups_of,
    is_retained,
)
from mqlake.records.versions import HEADER_MQTT

if TYPE_CHECKING:
    from ingest.gateway.base.context import Context
    from ingest.gateway.base.tasks import Tasks
    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.load.latency import GatewayLatencies
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.log.ends import Ends
    from ingest.gateway.log.lease import Lease
    from ingest.gateway.retained.retained import Retained
    from ingest.gateway.routing.routes import Routes
    from ingest.gateway.sending.delivery_events import DeliveryEvents
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sharing.share_groups import ShareGroups
    from ingest.gateway.sharing.share_settling import ShareSettler
    from ingest.session.subscriptions import Copy, Subscriptions
    from mqlake.log.contract import LogRangeReader

logger = logging.getLogger(__name__)

READ_AT_ONCE: Final = 500
"""Deliveries read again are in memory together, until it is known that the log has all of them."""

RETRY_SECONDS: Final = 0.5

ControlCallback = Callable[[str, bytes], None]
"""Takes an action and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """Parts of a gateway that its delivery uses.

    Attributes:
        context: Context that all parts of the gateway share.
        delivered: Position up to which the gateway has read its deliveries.
        subscriptions: Subscriptions of the clients.
        share_groups: Choose the members that get messages of a share group.
        settler: Tells which messages share groups were given whose deliveries are gone.
        retained: Retained messages, which deliveries keep up to date.
        routes: Routes of the gateway, which wait for barriers.
        on_control: Takes control records.
        on_question: Takes another gateway's question about retained messages, and the partition
            that it came through.
        told: Events of deliveries that rules want.
        latencies: Measures messages that clients get.
        lease: While it does not hold, or is not sure, messages wait and only control records are
            taken: others may have taken over the sessions that the messages are for.
        limits: Count deliveries of messages that came by other gateways.
        ranges: Reads deliveries again for which there was no room while they waited.
        ends: Say where `mqlake.inbound` begins, when the log has removed deliveries.
        on_gone: Takes per partition of `mqlake.inbound` the first offset that the log has; called
            after the log has removed deliveries, before later ones count.
        tasks: Owns the coroutine that reads deliveries again.
    """

    context: Context
    delivered: Delivered
    subscriptions: Subscriptions[Sender]
    share_groups: ShareGroups
    settler: ShareSettler
    retained: Retained
    routes: Routes
    on_control: ControlCallback
    on_question: Callable[[bytes, int], None]
    told: DeliveryEvents
    latencies: GatewayLatencies
    lease: Lease
    limits: SharedLimits
    ranges: LogRangeReader
    ends: Ends
    on_gone: Callable[[dict[int, int]], None]
    tasks: Tasks


class Delivery:
    """Takes `mqlake.delivery.<gateway>` apart: once per message and client.

    A message goes to every session that has a matching subscription [MQTT5-4.5.0-1]
    [MQTT311-4.5.0-1], in the order of the log [MQTT5-4.6.0-6].

    The router repeats itself after a restart; a record not above the high-water mark of its source
    partition is a repetition.

    Args:
        parts: Parts of the gateway that its delivery uses.
    """

    def __init__(self, parts: DeliveryContext) -> None:
        self._delivered = parts.delivered
        self._marks = parts.delivered.marks
        self._last = parts.delivered.last
        self._subscriptions = parts.subscriptions
        self._share_groups = parts.share_groups
        self._settler = parts.settler
        self._retained = parts.retained
        self._routes = parts.routes
        self._counters = parts.context.counters
        self._drops = parts.context.drops
        self._clock = parts.context.clock
        self._on_control = parts.on_control
        self._on_question = parts.on_question
        self._told = parts.told
        self._latencies = parts.latencies
        self._sampler = parts.latencies.delivered
        self._lease = parts.lease
        self._limits = parts.limits
        self._origin = parts.context.origin.encode()
        self._site = self._origin.partition(b"/")[0] + b"/"
        self._ranges = parts.ranges
        self._ends = parts.ends
        self._on_gone = parts.on_gone
        self._tasks = parts.tasks
        self._log_topic = delivery_topic(parts.context.me.gateway)
        self._withheld = Withheld()
        self._is_reading_again = False
        self._are_gone = False

    @property
    def withheld_bytes(self) -> int:
        """Bytes in memory that wait until it is known which sessions are this gateway's."""
        return self._withheld.size

    def receive_records(self, records: list[LogRecord]) -> None:
        """Hand a batch to the clients; a record that cannot be read is counted and passed over."""
        if self._withheld.is_empty and not self._are_gone and self._lease.may_deliver():
            self._receive_all(records)
            return
        self._withhold(records)
        self.confirmed()  # one of these may have confirmed it: records behind it wait no more

    def confirmed(self) -> None:
        """Hand over waiting records, once the sessions that are here are this gateway's."""
        if self._is_reading_again or not self._lease.may_deliver():
            return
        if self._withheld.gap is None and not self._are_gone:
            self._receive_all(self._withheld.take())
        else:
            self._is_reading_again = True
            self._tasks.start(self._read_again())

    def gone(self) -> None:
        """Hear that the log has removed deliveries before this gateway was given them."""
        self._note_gone()
        self.confirmed()

    def _note_gone(self) -> None:
        self._are_gone = True
        if self._delivered.gone_at_ms is None:
            self._delivered.gone_at_ms = self._clock.now_ms()

    def _withhold(self, records: list[LogRecord]) -> None:
        for record in records:
            if not _is_control(record):
                self._withheld.add(record)
                continue
            try:
                self._control(record)
            except (InvalidRecord, UnicodeDecodeError) as exc:
                self._refuse(record, exc)

    async def _read_again(self) -> None:
        """Hand over what is in the log alone, then what waits behind it."""
        try:
            while self._lease.may_deliver():
                gap = self._withheld.gap
                try:
                    if self._are_gone:
                        await self._go_on_behind(None if gap is None else gap[1])
                    elif gap is not None:
                        await self._read_portion(gap[0], min(gap[1], gap[0] + READ_AT_ONCE))
                    else:
                        break
                except LogError as error:
                    logger.warning(
                        "deliveries cannot be read", extra={"fields": {"reason": str(error)}}
                    )
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._is_reading_again = False
        self.confirmed()

    async def _read_portion(self, start: int, end: int) -> None:
        records: list[LogRecord] = []

        async def keep(batch: list[LogRecord]) -> None:
            records.extend(batch)

        if await self._ranges.read_range(self._log_topic, {0: (start, end)}, keep):
            self._note_gone()
        elif self._lease.may_deliver():
            # Control records among them have acted when they came.
            self._receive_all([one for one in records if not _is_control(one)])
            self._withheld.passed(end)

    async def _go_on_behind(self, gap_end: int | None) -> None:
        """Have clients get from `mqlake.inbound` what the log has removed of the deliveries.

        It is not known which messages those were: all that are in `mqlake.inbound` by now count as
        not delivered to any client here. Deliveries of them that are left are repetitions then. The
        routes of share groups say which messages the router gave to this gateway.

        Args:
            gap_end: End of the gap, which is not read any more; None: there is none.
        """
        missed = await self._share_groups.missed(self._settler)
        begins = await self._ends.inbound_begins()
        if not self._lease.may_deliver():
            return  # others may have the sessions
        since_ms = self._delivered.gone_at_ms or self._clock.now_ms()
        if not self._share_groups.go_on_behind(missed, since_ms):
            return
        ends = missed.ends
        logger.warning(
            "deliveries are gone: clients get their messages as if they had been away",
            extra={"fields": {"marks": list(self._marks), "log_ends": ends}},
        )
        self._on_gone(begins)
        self._delivered.grow(len(ends))
        for partition, end in enumerate(ends):
            self._marks[partition] = max(self._marks[partition], end - 1)
        if gap_end is not None:
            self._delivered.next = gap_end
            self._withheld.passed(gap_end)
        self._are_gone, self._delivered.gone_at_ms = False, None

    def _receive_all(self, records: list[LogRecord]) -> None:
        self._counters.deliveries_received += len(records)
        now_ms = self._clock.now_ms()
        for record in records:
            try:
                self._receive(record, now_ms)
            except (InvalidRecord, UnicodeDecodeError) as exc:
                self._refuse(record, exc)
        self._retained.save(self._delivered)

    def _refuse(self, record: LogRecord, reason: Exception) -> None:
        self._counters.deliveries_malformed += 1
        logger.warning(
            "delivery cannot be read",
            extra={"fields": {"offset": record.offset, "reason": str(reason)}},
        )

    def _control(self, record: LogRecord) -> None:
        action = (record.key or b"")[len(CONTROL_KEY_PREFIX) :].decode()
        self._on_control(action, record.value or b"")

    def settle(self) -> None:
        """Let subscriptions count without condition whose starts have passed."""
        self._subscriptions.settle(self._marks)

    def _receive(self, record: LogRecord, now_ms: int) -> None:
        self._delivered.next = record.offset + 1
        headers = dict(record.headers)
        key = record.key or b""
        if key.startswith(CONTROL_KEY_PREFIX):
            self._control(record)
            return
        source = decode_source(headers.get(HEADER_SOURCE, b""))
        partition, offset = source.partition, source.offset
        if not 0 <= partition < len(self._marks):
            self._grow(partition)
        if offset <= self._marks[partition]:
            self._counters.deliveries_repeated += 1
            return
        self._marks[partition] = offset
        self._last[partition] = record
        if key[:1] == NO_MESSAGE:
            if key.startswith(QUESTION_KEY_PREFIX):
                self._on_question(record.value or b"", partition)
                return
            self._routes.receive_barrier(key, partition, offset)
            return
        tenant, _, topic_name = key.decode().partition("/")
        publisher = headers.get(HEADER_CLIENT_ID, b"").decode()
        copies: list[Copy[Any]] = self._subscriptions.copies(
            tenant, topic_name, partition, offset, publisher
        )
        if source.shared_filters:
            is_for_all = not groups_of(headers.get(HEADER_MQTT, b""))
            copies = copies.copy() if is_for_all else []
            if is_for_all and self._limits.counts_deliveries:  # else it was counted before
                self._count(headers, tenant, publisher, len(copies), len(source.shared_filters))
            for topic_filter in source.shared_filters:
                group = GroupKey(tenant, topic_filter)
                self._share_groups.add_copy(copies, group, topic_name, publisher, partition, offset)
        elif copies and self._limits.counts_deliveries:
            self._count(headers, tenant, publisher, len(copies), 0)
        retain = is_retained(headers)
        if not copies and not retain:
            return
        message = read_message(topic_name, record.value or b"", headers, source, now_ms)
        message.publisher = publisher
        if self._told.is_wanted:
            note_origin(message, headers)
        if retain:  # and only then [MQTT5-3.3.1-8] [MQTT311-3.3.1-12]
            properties = headers.get(HEADER_PROPERTIES)
            self._retained.apply(tenant, publisher, message, properties)
        deliver_copies(message, copies, tenant, self._drops, now_ms)
        if copies:
            self._sampler.countdown -= 1
            if self._sampler.countdown < 0:
                self._latencies.deliver(source.received_at_ms, record.timestamp_ms)

    def _grow(self, partition: int) -> None:
        """Take a message of a partition that the log has got while this gateway was not heard."""
        if not 0 <= partition < MOST_PARTITIONS:
            raise InvalidRecord(f"source partition {partition}, expected below {MOST_PARTITIONS}")
        self._delivered.grow(partition + 1)

    def _count(
        self, headers: dict[str, bytes], tenant: str, publisher: str, clients: int, groups: int
    ) -> None:
        """Charge the publisher of a message for the clients and share groups that it reaches.

        For clients of this gateway it was charged when the message came in here; only the router
        knows which gateway a group's turn falls to.
        """
        origin = headers.get(HEADER_ORIGIN, b"")
        if origin == self._origin:
            if groups:
                self._limits.charge(tenant, publisher, groups)
        elif origin.startswith(self._site):
            gateway = origin[len(self._site) :].decode()
            self._limits.fan_out.note(gateway, tenant, publisher, clients + groups)


def _is_control(record: LogRecord) -> bool:
    return (record.key or b"").startswith(CONTROL_KEY_PREFIX)
