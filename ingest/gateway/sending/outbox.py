"""Messages to one client that wait or are in flight, and how the log is to have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ingest.gateway.base.outbound import LOCAL
from ingest.session.groups.share_records import MemberRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ingest.gateway.sending.sender_context import OutgoingMessage
    from ingest.gateway.settings.gateway import GatewaySettings
    from ingest.session.client.outgoing import Exchange, OutgoingMessages
    from ingest.session.groups.share_records import MembershipRecord


QUEUED_BYTES: Final = 1024
"""Memory of a message that waits for a client, about; payloads are shared with other clients."""


MOST_WHILE_AWAY: Final = 1_000
"""Messages that are read into memory for a client that comes back, before it is there to take them:
hundreds come at once. The others are read as it takes them."""


class LaterReading(Protocol):
    """Messages in the log that a client does not get as soon as it comes back.

    See `sessions/resuming.py`.
    """

    is_left: bool

    def leave(self, partition: int, offset: int) -> bool:
        """Leave all from this message on in the log; return False when they cannot stay there."""
        ...


class Outbox:
    """Messages that one session has still to get or to acknowledge.

    Attributes:
        messages: The queue and the exchanges.
    """

    __slots__ = ("_giving", "messages")

    def __init__(self, messages: OutgoingMessages[OutgoingMessage]) -> None:
        self.messages = messages
        # Packet identifiers, in their order, of QoS 2 messages of which the shard of their share
        # group need not know yet that they are this client's: the progress does not tell of them.
        # True: the log has the record that tells it, or none does, as the session ends with its
        # connection. Made when first needed: most sessions share nothing.
        self._giving: dict[int, bool] | None = None

    @property
    def inflight_count(self) -> int:
        return self.messages.inflight_count

    @property
    def queued_count(self) -> int:
        return self.messages.queued_count

    @property
    def queued_bytes(self) -> int:
        """About how much memory the messages that wait take."""
        return self.messages.queued_count * QUEUED_BYTES

    def restore(self, exchange: Exchange[OutgoingMessage]) -> None:
        """Take back an exchange from when the session was elsewhere; `attach` sends it."""
        self.messages.restore(exchange)

    @property
    def last_packet_id(self) -> int:
        """The packet identifier that was given last, of those in the progress; 0 before any."""
        for first in self._giving or ():
            return first - 1
        return self.messages.last_packet_id

    def go_on_behind(self, packet_id: int) -> None:
        """Give packet identifiers behind this one; called when exchanges are restored."""
        self.messages.go_on_behind(packet_id)

    @property
    def giving(self) -> Collection[int]:
        """Packet identifiers of messages that are not yet this client's by the log, in order.

        None of these has been sent: they are of share groups and go to others after a crash.
        """
        return self._giving or ()

    def give(self, packet_id: int, *, is_written: bool) -> None:
        """Note a message that a share group is to give to the client with this packet identifier.

        Args:
            packet_id: Packet identifier of the exchange.
            is_written: Tells that no record of the client's membership needs to come before.
        """
        if self._giving is None:
            self._giving = {}
        self._giving[packet_id] = is_written

    def given(self, packet_id: int) -> None:
        """Note that the shard of the group knows whose a message is."""
        assert self._giving is not None
        self._giving.pop(packet_id, None)

    def leave_to_others(self, shared_filter: str, left: MembershipRecord) -> list[int]:
        """Forget what a share group was to give to the client, and others have got.

        Args:
            shared_filter: Shared filter of the group.
            left: The membership that was to give it, as its owner had it leave.

        Returns:
            Packet identifiers of these messages.
        """
        messages = self.messages
        given = [(one, messages.message(one)) for one in self.giving]
        packet_ids = [
            packet_id
            for packet_id, one in given
            if one is not None and one.shared_filter == shared_filter and left.has(*one.position)
        ]
        for packet_id in packet_ids:
            messages.abandon(packet_id)
        return packet_ids

    def member_records(
        self, shared_filters: Iterable[str], known_packet_id: int | None
    ) -> dict[str, MemberRecord]:
        """Return by share group what the client has in flight of it."""
        records = {one: MemberRecord(known_packet_id=known_packet_id) for one in shared_filters}
        for one in self.messages.exchanges():
            record = None if one.message is None else records.get(one.message.shared_filter)
            if record is not None and one.message is not None:
                record.in_flight.append(one.message.position)
                record.packet_ids.append(one.packet_id)
        return records

    def when_member_saved(self, proceed: Callable[[], None] | None) -> Callable[[], None] | None:
        """Return a callback for the time when the log has the client's present member records.

        Args:
            proceed: Called then, too.
        """
        written = tuple(self._giving or ())
        if not written:
            return proceed

        def saved() -> None:
            giving = self._giving or {}
            giving.update((one, True) for one in written if one in giving)
            if proceed is not None:
                proceed()

        return saved

    def exchanges(self) -> Iterator[Exchange[OutgoingMessage]]:
        """Yield messages in flight, in the order of the first sending."""
        return self.messages.exchanges()

    def in_flight_of(self, shared_filter: str) -> set[int]:
        """Return packet identifiers of a share group's messages that the client may not have."""
        return {
            one.packet_id
            for one in self.messages.exchanges()
            if one.message is not None and one.message.shared_filter == shared_filter
        }

    def take_shared(self, *, is_ended: bool, shared_filter: str = "") -> list[OutgoingMessage]:
        """Take out messages that others of the share groups, or of one, can get in its place.

        Sent messages are its own until its session ends; QoS 2 even then. [MQTT5-4.8.2-5]
        """
        giving = self._giving or {}
        shared = self.messages.take_waiting(
            lambda outgoing: (
                outgoing.shared_filter != ""
                and outgoing.shared_filter == (shared_filter or outgoing.shared_filter)
            )
        )
        if is_ended:
            unanswered = [
                one.message
                for one in self.messages.exchanges()
                if (one.qos == 1 or one.packet_id in giving)
                and one.message is not None
                and one.message.shared_filter
            ]
            shared = unanswered + shared
        return shared

    def shared_positions(self, shared_filter: str) -> Iterator[tuple[int, int]]:
        """Yield where in the log the messages of a share group are that the client may not keep.

        With QoS 2 sent messages are its own.
        """
        giving = self._giving or {}
        for outgoing in self.messages.waiting():
            if outgoing.qos and outgoing.shared_filter == shared_filter:
                yield outgoing.message.partition, outgoing.message.offset
        for exchange in self.messages.exchanges():
            sent = exchange.message
            if sent is None or sent.shared_filter != shared_filter:
                continue
            if exchange.qos == 1 or giving.get(exchange.packet_id) is False:
                yield sent.message.partition, sent.message.offset

    def first_waiting(self) -> dict[int, int]:
        """Return per partition the offset of the first message that waits, if one does.

        Waiting messages of a share group are in the record of its membership.
        """
        first: dict[int, int] = {}
        for outgoing in self.messages.waiting():
            if outgoing.message.partition not in first and not outgoing.shared_filter:
                first[outgoing.message.partition] = outgoing.message.offset
        first.pop(LOCAL, None)
        return first


def most_while_away(settings: GatewaySettings) -> int:
    """Return how many messages may wait for a client that is not there."""
    most = settings.max_queued_messages
    return min(most, MOST_WHILE_AWAY) if settings.when_queue_full == "catch_up" else most
