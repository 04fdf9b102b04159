"""The messages that one client publishes: stored in the log, then answered."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from ingest.gateway.base.drops import DropReason
from ingest.gateway.clients.pending_publish import PendingExchange, PendingPublish
from ingest.protocol.encoder import encode_puback, encode_pubcomp, encode_pubrec
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import MQTT_5_0, Puback, Pubcomp, Publish, Pubrec, Pubrel
from ingest.protocol.reason_codes import (
    DisconnectReasonCode,
    PubackReasonCode,
    PubcompReasonCode,
    PubrecReasonCode,
)
from ingest.session.client.checkpoint import SaveQueue
from ingest.session.client.incoming import Arrival
from mqlake.errors import LogError
from mqlake.log.contract import LogFull
from mqlake.records.messages import HEADER_EXCHANGE
from mqlake.topics.names import SYSTEM_LEVEL, has_more_levels, is_system

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.base.client import Client
    from ingest.gateway.clients.receiver_context import ReceiverContext
    from ingest.gateway.history.lookup import Position
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.protocol.properties import Properties
    from mqlake.log.contract import AppendCallback

PAUSED_BY_WINDOW: Final = "window"
PAUSED_BY_LOG: Final = "log"


def is_payload_as_told(properties: Properties, payload: bytes) -> bool:
    """Tell whether a payload that is declared to be text is UTF-8 (5.0: 3.3.2.3.2)."""
    if properties.get("payload_format_indicator") != 1:
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


class Receiver:
    """Takes PUBLISH and PUBREL of one client and gives each QoS its answer.

    [MQTT5-3.3.4-1] [MQTT311-3.3.4-1]

    Args:
        context: Shared by all receivers.
        connection: The client's.
        session: Its session; knows the QoS 2 messages of earlier connections.
        wants_reasons: A 5.0 client may be sent reason strings. [MQTT5-3.1.2-29]
    """

    __slots__ = (
        "_connection",
        "_context",
        "_counters",
        "_deferred",
        "_exchanges",
        "_incoming",
        "_key_prefix",
        "_most_levels",
        "_of_tenant",
        "_protocol",
        "_publisher",
        "_save_queue",
        "_session",
        "_unstored",
        "_wants_reasons",
        "_window",
    )

    def __init__(
        self,
        context: ReceiverContext,
        connection: Client,
        session: ClientSession,
        *,
        wants_reasons: bool,
    ) -> None:
        self._context = context
        self._connection = connection
        self._protocol = connection.protocol
        self._publisher = context.publisher
        self._counters = context.counters
        self._of_tenant = context.of_tenants.of(connection.tenant)
        self._window = context.window
        self._most_levels = context.most_levels
        self._key_prefix = connection.tenant + "/"
        self._session = session
        self._incoming = session.incoming
        # Lists and sets that are mostly empty are made when needed: an idle client has none.
        self._deferred: deque[Publish] | None = None  # wait for room in the log
        # QoS 2 ones that this connection has begun; an empty set would take three times as much.
        self._exchanges: dict[int, None] = {}
        self._save_queue: SaveQueue[Publish] | None = None
        self._unstored = 0  # QoS 1 and 2 messages that the log has not reported on
        self._wants_reasons = wants_reasons

    def process_publish(self, publish: Publish) -> None:
        """Hand a message to the log; the answer waits for it.

        A QoS 1 message is new, with any packet identifier and DUP. [MQTT5-4.3.2-5]

        Raises:
            ProtocolViolation: The client may not publish this.
        """
        protocol = self._protocol
        counters, of_tenant, size = self._counters, self._of_tenant, len(publish.payload)
        counters.messages_received += 1
        counters.payload_bytes_received += size
        of_tenant.messages_received += 1
        of_tenant.payload_received_bytes += size
        qos = publish.qos
        if qos == 2:
            self._counters.messages_received_qos_2 += 1
            arrival = self._incoming.receive_publish(publish.packet_id)
            if arrival is not Arrival.NEW:
                if publish.packet_id in self._exchanges:
                    protocol.unacknowledged -= 1  # repeated on this connection: counted already
                self._exchanges[publish.packet_id] = None
                if arrival is Arrival.STORED:
                    self._connection.write(encode_pubrec(publish.packet_id))
                return
            self._exchanges[publish.packet_id] = None
        elif qos:
            self._counters.messages_received_qos_1 += 1
        if publish.properties and not is_payload_as_told(publish.properties, publish.payload):
            self._refuse_format(publish)
            return
        if publish.topic_name.startswith(SYSTEM_LEVEL) and is_system(publish.topic_name):
            self._refuse_topic(publish, f"topics below {SYSTEM_LEVEL} are the server's")
            return
        rights = self._connection.rights
        if rights is not None and not rights.may_publish(
            publish.topic_name, publish.qos, publish.retain
        ):
            self._refuse_topic(publish, "the client may not publish this")
            return
        if has_more_levels(publish.topic_name, self._most_levels):
            self._refuse_levels(publish)
            return
        if publish.retain and (whose := self._has_no_room_for(publish)):
            self._drop_retained(publish, whose)
            if not self._context.forwards:
                return
            publish.retain = False
        self._take(publish)
        # A 5.0 client knows its window; the others are read no further until it has room. PUBREL
        # needs reading, so a QoS 2 message counts only until it is stored.
        if self._unstored >= self._window and protocol.protocol_level < MQTT_5_0:
            self._connection.pause_reading(PAUSED_BY_WINDOW)

    def process_pubrel(self, pubrel: Pubrel) -> None:
        packet_id = pubrel.packet_id
        if self._incoming.receive_pubrel(packet_id):
            self._forget(packet_id)
            progress = self._session.progress
            if progress is None:
                self._connection.write(encode_pubcomp(packet_id))  # [MQTT5-4.3.3-11]
            else:
                # Not before the log knows that the identifier is free: the next message under it
                # would be taken for a repetition.
                progress.after_saved(partial(self._complete, packet_id))
        elif self._protocol.protocol_level == MQTT_5_0:
            reason_code = PubcompReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self._connection.send(Pubcomp(packet_id, reason_code))
        else:
            self._connection.write(encode_pubcomp(packet_id))  # [MQTT311-4.3.3-2]

    @property
    def is_answered(self) -> bool:
        """Tell whether the log has reported on every message that waits for an answer."""
        return not self._unstored and not self._deferred

    def log_has_room(self) -> None:
        """Go on with the messages that found the log full."""
        deferred, self._deferred = self._deferred or (), None
        for publish in deferred:
            if not self._connection.is_closing:
                self._store(publish)
            elif publish.qos == 2:
                self._incoming.refused(publish.packet_id)
        if not self._deferred:
            self._connection.resume_reading(PAUSED_BY_LOG)

    def stored(
        self, packet_id: int, qos: int, partition: int, offset: int, error: LogError | None
    ) -> None:
        """Answer a QoS 1 or 2 message: the log has it, or could not take it.

        While others may have the session the answer waits; an error of the log is answered at once,
        unless other answers wait. The next message under its packet identifier is looked for behind
        this one only.
        [MQTT5-4.3.2-4] [MQTT5-4.3.3-8] [MQTT311-4.3.2-2]
        """
        answers = self._context.answers
        if answers.is_parking and (error is None or answers.has_parked):
            answers.park(partial(self._stored, packet_id, qos, partition, offset, error))
        else:
            self._stored(packet_id, qos, partition, offset, error)

    def _stored(
        self, packet_id: int, qos: int, partition: int, offset: int, error: LogError | None
    ) -> None:
        self._unstored -= 1
        if error is not None:
            self._refuse(packet_id, qos, str(error))
            return
        acked = self._publisher.acked
        acked[partition] = max(acked[partition], offset)  # later ones may be answered for already
        self._counters.messages_stored += 1
        if qos == 2:
            # Also for a client that has come back since: it waits for this PUBREC.
            self._incoming.stored(packet_id)
            current = self._session.connection
            if current is not None and not current.is_closing:
                current.write(encode_pubrec(packet_id))
            self._session.stored()
        if self._connection.is_closing:
            return
        if qos == 1:
            self._protocol.unacknowledged -= 1
            self._connection.write(encode_puback(packet_id))
        # At half the window, so that reading is not switched with every message.
        if self._unstored <= self._window // 2:
            self._connection.resume_reading(PAUSED_BY_WINDOW)

    def look_for(
        self,
        packet_id: int,
        exchange: bytes,
        starts: list[int],
        on_found: Callable[[Position | None], None],
    ) -> None:
        """Find out whether the log has a message that it has not answered for."""
        self._incoming.look_for(packet_id, starts)
        self._context.lookup.ask(exchange, starts, on_found)

    def _complete(self, packet_id: int) -> None:
        if not self._connection.is_closing:
            self._connection.write(encode_pubcomp(packet_id))

    def _take(self, publish: Publish) -> None:
        """Store a message, in the order of arrival.

        A QoS 2 message of a session that outlives its connection is announced first: after a crash
        the gateway that takes the session over looks for the message in the log.
        """
        progress = self._session.progress if publish.qos == 2 else None
        if progress is None and self._save_queue is None:
            self._store(publish)
            return
        if self._save_queue is None:
            self._save_queue = SaveQueue(self._store)
        self._save_queue.add(publish, progress)

    def close(self) -> None:
        """Deal with messages not stored yet: the client sends them again, all but QoS 0."""
        if self._save_queue is None:
            return
        for publish in self._save_queue.take_all():
            if publish.qos == 0:
                self._store(publish)
            elif publish.qos == 2:
                self._incoming.refused(publish.packet_id)

    def _store(self, publish: Publish) -> None:
        if self._deferred:
            self._deferred.append(publish)
            return
        packet_id, qos = publish.packet_id, publish.qos
        publisher = self._publisher
        if publisher.is_refusing:
            self._refuse(packet_id, qos, publisher.is_refusing)
            return
        headers = self._session.headers
        on_appended: AppendCallback = publisher.count_appended
        if qos == 2 and self._session.progress is not None:
            exchange = self._session.exchange(packet_id)
            headers = [*headers, (HEADER_EXCHANGE, exchange)]
            starts = publisher.next_offsets()
            on_appended = PendingExchange(self, packet_id, exchange, starts)
        elif qos:
            on_appended = PendingPublish(self, packet_id, qos)
        if qos:
            accepted = publisher.latencies.accepted
            accepted.countdown -= 1
            if accepted.countdown < 0:
                on_appended = publisher.latencies.timed(on_appended)
        try:
            publisher.publish(
                self._key_prefix, publish, self._protocol.protocol_level, headers, on_appended
            )
            if qos:
                self._unstored += 1
        except LogFull:
            self._deferred = deque([publish])
            self._connection.pause_reading(PAUSED_BY_LOG)
            self._context.log_room.wait(self.log_has_room)
        except LogError as error:
            self._refuse(packet_id, qos, str(error))

    def _refuse(self, packet_id: int, qos: int, reason: str) -> None:
        """Tell the publisher that its message is not stored, if its version has a code for it.

        3.x has none: the connection is closed, and the client sends the message again.
        [MQTT311-3.3.5-2] [MQTT311-4.8.0-2] A QoS 0 message is lost, as QoS 0 may be.
        """
        self._counters.messages_refused += 1
        connection = self._connection
        if qos == 2:
            self._incoming.refused(packet_id)
            self._session.stored()
        if connection.is_closing or not qos:
            return
        if self._protocol.protocol_level < MQTT_5_0:
            connection.close(DisconnectReasonCode.QUOTA_EXCEEDED, log_reason=reason)
            return
        self._answer_failure(packet_id, qos, PubackReasonCode.QUOTA_EXCEEDED, reason)

    def _refuse_format(self, publish: Publish) -> None:
        """Tell the publisher that its payload is not of the format it names (5.0: 3.3.2.3.2)."""
        self._counters.messages_refused += 1
        reason = "the payload format indicator says UTF-8, the payload is not"
        self._refuse_content(
            publish, PubackReasonCode.PAYLOAD_FORMAT_INVALID, reason, "MQTT5-3.3.2.3.2"
        )

    def _refuse_levels(self, publish: Publish) -> None:
        """Tell the publisher that its topic has too many levels (5.0: 3.4.2.1, 0x90)."""
        self._counters.messages_refused += 1
        reason = f"the topic name has more than {self._most_levels} levels"
        self._refuse_content(publish, PubackReasonCode.TOPIC_NAME_INVALID, reason, "MQTT5-3.4.2.1")

    def _has_no_room_for(self, publish: Publish) -> str:
        """Return whose limit of retained messages is reached; "": it may be retained."""
        quota, tenant = self._context.retained_quota, self._session.tenant
        return quota.take(tenant, publish.topic_name, publish.payload)

    def _drop_retained(self, publish: Publish, whose: str) -> None:
        """Record a message that is not retained; unless others get it, refuse it (0x97).

        A 3.x client gets no answer: it has no code for that, and would only send it again.
        """
        session, context = self._session, self._context
        reason = DropReason.RETAINED_FULL
        context.drops.add(
            reason, session.tenant, session.client_id, publish.topic_name, publish.qos
        )
        if not context.forwards:
            self._counters.messages_refused += 1
            told = f"{whose} has as many retained messages, or bytes of them, as it may"
            self._answer_for_good(publish, PubackReasonCode.QUOTA_EXCEEDED, told)

    def _refuse_content(
        self, publish: Publish, reason_code: PubackReasonCode, reason: str, clause: str
    ) -> None:
        """Answer a message that will not be taken however often it is sent.

        Raises:
            ProtocolViolation: With QoS 0 and in 3.x there is no other answer.
        """
        if publish.qos == 2:
            self._incoming.refused(publish.packet_id)
        if publish.qos == 0 or self._protocol.protocol_level < MQTT_5_0:
            raise ProtocolViolation(DisconnectReasonCode(reason_code), reason, clause)
        self._answer_failure(publish.packet_id, publish.qos, reason_code, reason)

    def _refuse_topic(self, publish: Publish, reason: str) -> None:
        """Take a message that its client may not publish and do nothing with it.

        A topic of the server (5.0: 4.7.2), or one to which it has no right.

        A 3.x client gets no answer: it has no code for that, and would only send it again.
        [MQTT311-3.3.5-2]
        """
        self._counters.messages_refused += 1
        self._context.denials.add(self._connection, "publish", reason, publish.topic_name)
        self._answer_for_good(publish, PubackReasonCode.NOT_AUTHORIZED, reason)

    def _answer_for_good(
        self, publish: Publish, reason_code: PubackReasonCode, reason: str
    ) -> None:
        """Answer a message that goes nowhere, in 3.x as if it were well."""
        packet_id, qos = publish.packet_id, publish.qos
        if self._protocol.protocol_level == MQTT_5_0:
            if qos == 2:
                self._incoming.refused(packet_id)
            if qos:
                self._answer_failure(packet_id, qos, reason_code, reason)
        elif qos == 1:
            self._connection.write(encode_puback(packet_id))
        elif qos == 2:
            self._incoming.stored(packet_id)
            self._connection.write(encode_pubrec(packet_id))

    def _answer_failure(
        self, packet_id: int, qos: int, reason_code: PubackReasonCode, reason: str
    ) -> None:
        """Send PUBACK or PUBREC of a message that is not taken; its exchange is over."""
        answer: Puback | Pubrec
        if qos == 1:
            self._protocol.unacknowledged -= 1
            answer = Puback(packet_id, reason_code)
        else:
            self._forget(packet_id)
            answer = Pubrec(packet_id, PubrecReasonCode(reason_code))
        if self._wants_reasons:  # [MQTT5-3.4.2-2] [MQTT5-3.5.2-2]
            answer.properties = {"reason_string": reason}
        self._connection.send(answer)

    def _forget(self, packet_id: int) -> None:
        """Release a QoS 2 exchange from the client's window."""
        if packet_id in self._exchanges:
            del self._exchanges[packet_id]
            self._protocol.unacknowledged -= 1
