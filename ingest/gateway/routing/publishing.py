"""From a client's PUBLISH to a record of the log.

The answer to the client waits for the log: `on_appended` runs when every in-sync replica has the
record, and only then PUBACK or PUBREC may go out.
"""

from functools import lru_cache
from typing import Final

from ingest.gateway.base.context import Context
from ingest.gateway.load.latency import GatewayLatencies
from ingest.gateway.routing.routes import Routes
from ingest.protocol.packets import Publish
from mqlake.errors import LogError
from mqlake.identifiers import MessageIdentifiers
from mqlake.log.contract import AppendCallback, LogWriter
from mqlake.records.messages import (
    HEADER_CLIENT_ID,
    HEADER_ID,
    HEADER_ORIGIN,
    HEADER_PEERHOST,
    HEADER_PROPERTIES,
    HEADER_USERNAME,
    INBOUND,
    encode_properties,
    mqtt_header,
)
from mqlake.records.versions import HEADER_MQTT, Headers

# The `mqtt` header by protocol level and the low four bits of a PUBLISH's first byte.
_MQTT_HEADERS: Final = {
    (level, qos, retain, dup): (HEADER_MQTT, mqtt_header(level, qos, retain=retain, dup=dup))
    for level in (3, 4, 5)
    for qos in (0, 1, 2)
    for retain in (False, True)
    for dup in (False, True)
}


def client_headers(
    client_id: str, origin: str, username: str | None, peer_host: str = ""
) -> Headers:
    """Return the headers that are the same for all messages of a connection."""
    headers = [(HEADER_CLIENT_ID, client_id.encode()), _origin_header(origin)]
    if username is not None:
        headers.append((HEADER_USERNAME, username.encode()))
    if peer_host:
        headers.append((HEADER_PEERHOST, peer_host.encode()))
    return headers


@lru_cache(maxsize=1)
def _origin_header(origin: str) -> tuple[str, bytes]:
    # Each session holds its headers; this one is the same for all.
    return HEADER_ORIGIN, origin.encode()


class Publisher:
    """Appends the messages of all clients of a gateway to `mqlake.inbound`.

    Args:
        context: Shared by all parts of the gateway.
        log: Takes the messages.
        routes: Barriers of routes go before messages that came after them.
        identifiers: For the messages.
        partitions: Number of partitions of `mqlake.inbound`.
        latencies: Measures messages that wait for an answer.

    Attributes:
        is_refusing: Why messages are refused at the moment, or "".
        acked: Per partition the last offset the log has confirmed to this gateway.
    """

    def __init__(
        self,
        context: Context,
        log: LogWriter,
        routes: Routes,
        identifiers: MessageIdentifiers,
        partitions: int,
        latencies: GatewayLatencies,
    ) -> None:
        self._log = log
        self._routes = routes
        self._identifiers = identifiers
        self._counters = context.counters
        self._clock = context.clock
        self.acked = [-1] * partitions
        self.latencies = latencies
        self.is_refusing = ""

    def publish(
        self,
        key_prefix: str,
        publish: Publish,
        protocol_level: int,
        headers_of_client: Headers,
        on_appended: AppendCallback,
    ) -> None:
        """Append one message.

        Args:
            key_prefix: The tenant and a slash.
            publish: A valid PUBLISH, its topic alias resolved.
            protocol_level: Protocol level of the client.
            headers_of_client: From `client_headers`.
            on_appended: Gets the outcome in the loop.

        Raises:
            LogFull: The log takes no more at the moment; try again when it has caught up.
            LogError: The log never takes this message.
        """
        if self._routes.is_due:
            self._routes.flush()
        now_ms = self._clock.now_ms()
        headers = [
            _MQTT_HEADERS[protocol_level, publish.qos, publish.retain, publish.dup],
            (HEADER_ID, self._identifiers.next(now_ms)),
            *headers_of_client,
        ]
        if publish.properties:
            properties = encode_properties(dict(publish.properties))
            headers.append((HEADER_PROPERTIES, properties))
        self._log.append(
            INBOUND,
            (key_prefix + publish.topic_name).encode(),
            publish.payload,
            headers,
            on_appended,
            timestamp_ms=now_ms,
        )

    def next_offsets(self) -> list[int]:
        """Return per partition the first offset that the log has not confirmed to this gateway."""
        return [offset + 1 for offset in self.acked]

    def count_appended(self, partition: int, offset: int, error: LogError | None) -> None:
        """Note the outcome of a message without acknowledgement (QoS 0)."""
        if error is None:
            self.acked[partition] = offset
            self._counters.messages_stored += 1
        else:
            self._counters.messages_refused += 1
