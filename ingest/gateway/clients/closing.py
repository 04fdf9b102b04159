"""The end of a client's connection from our side: refusals, violations, DISCONNECT."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.clients.client_socket import ClientSocket
from ingest.protocol.connection import ServerConnection
from ingest.protocol.errors import RemoteProtocolError, UnsupportedProtocol
from ingest.protocol.packets import MQTT_3_1_1, MQTT_5_0, Packet
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.logs import log_often

if TYPE_CHECKING:
    from ingest.gateway.clients.connection_context import ConnectionContext
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.protocol.properties import Properties
    from mqlake.rights.compiled import ClientRights

logger = logging.getLogger("ingest.gateway.clients.connection")
"""Of all that a connection is made of."""

_DENIED: Final[frozenset[int]] = frozenset(
    {
        ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ConnackReasonCode.NOT_AUTHORIZED,
        ConnackReasonCode.BANNED,
    }
)
"""Answers to clients that may not connect, or not so."""

_ELSEWHERE: Final[frozenset[int]] = frozenset(
    {DisconnectReasonCode.USE_ANOTHER_SERVER, DisconnectReasonCode.SERVER_MOVED}
)
"""Reasons that come with a Server Reference (5.0: 4.13)."""


class ClosableConnection(ClientSocket):
    """A connection that we may end, as its client's version of the protocol has it.

    Attributes:
        protocol: The protocol's state of this connection.
        client_id: Empty before CONNECT.
        tenant: Whose topics the client sees; final when the client has logged in.
        username: With which the client has logged in, or until then wants to; None: with none.
            That of a user of another tenant than the gateway's own begins with the tenant.
        principal: User that it has proved to be; None: no login was asked for, or it has no name.
        rights: Of the client, once it has logged in; None: it may do everything.
        listener: By which it came in.

    Args:
        context: Of all connections.
        listener: Took the socket.
    """

    __slots__ = (
        "_number",
        "client_id",
        "listener",
        "principal",
        "protocol",
        "rights",
        "tenant",
        "username",
    )

    def __init__(self, context: ConnectionContext, listener: ListenerInfo) -> None:
        super().__init__(context)
        settings = context.settings
        self.protocol = ServerConnection(
            max_packet_bytes=settings.max_packet_bytes,
            receive_maximum=settings.receive_maximum,
            topic_alias_maximum=settings.topic_alias_maximum,
        )
        self.protocol.allowed_levels = listener.protocol_levels
        self.client_id = ""
        self.tenant = settings.tenant
        self.listener = listener
        self.username: str | None = None
        self.principal: str | None = None
        self.rights: ClientRights | None = None
        self._number = 0

    def send(self, packet: Packet) -> None:
        """Send a packet, unless the connection is closing."""
        if self.is_closing:
            return
        data = self.protocol.encode(packet)
        if data:
            self.write(data)
        else:
            name = type(packet).__name__.upper()
            self.close(
                DisconnectReasonCode.PACKET_TOO_LARGE,
                log_reason=f"{name} would be larger than the client's maximum packet size",
            )

    @property
    def connection_id(self) -> str:
        """Its name in logs, unlike those of all others, of other gateways and runs too."""
        return f"{self._context.incarnation:.8}-{self._number}"

    def close(
        self, reason_code: DisconnectReasonCode, *, log_reason: str, lingers: bool = False
    ) -> None:
        """End the connection from our side; a 5.0 client is told why.

        Nothing is sent after that. [MQTT5-3.14.4-1] [MQTT5-3.14.4-2]

        Args:
            reason_code: For the client.
            log_reason: For the log, and the client's reason string.
            lingers: It is probably sending just now.
        """
        if self.is_closing:
            return
        self._log("connection closed", reason=log_reason)
        last_words = self.protocol.close(reason_code, self._told(reason_code, log_reason))
        self._finish(last_words, log_reason, lingers=lingers)

    def refuse(
        self, reason_code: ConnackReasonCode, reason: str, server_reference: str = ""
    ) -> None:
        """Answer CONNECT by a failure.

        Args:
            reason_code: For the client.
            reason: For the log, and the client's reason string.
            server_reference: Where it may go instead; "": where all go that this gateway sends on.
        """
        if reason_code in _DENIED:
            self._context.denials.add(self, "connect", reason)
            if reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD:
                self._context.bans.offences.note_failed_login(self.address)
        properties = self._told(reason_code, reason, server_reference)
        self._turn_away(self.protocol.refuse(reason_code, properties), reason)

    def _told(self, reason_code: int, reason: str, server_reference: str = "") -> Properties:
        properties: Properties = {"reason_string": reason}
        reference = server_reference or self._context.draining.server_reference
        if reference and reason_code in _ELSEWHERE:
            properties["server_reference"] = reference
        return properties

    def cut(self, reason: str) -> None:
        """Close without CONNACK: its session, or its will, may be there although it is not let in.

        A client that is told no may take it that nothing has come of its CONNECT.
        """
        self._turn_away(b"", reason)

    def give_way(self, reason: str) -> None:
        """Cut the connection of a client that has not logged in, to make room for others."""
        self._context.counters.connections_refused += 1
        self._log("connection refused", reason=reason)
        self.is_closing = True
        self._abort()

    def _turn_away(self, last_words: bytes, reason: str) -> None:
        """Close before the client was let in; packets behind its CONNECT are not read.

        [MQTT5-3.1.4-6] [MQTT5-3.2.2-7] [MQTT5-4.13.2-1] [MQTT311-3.1.4-5] [MQTT311-3.2.2-5]
        """
        self._context.counters.connections_refused += 1
        self._log("connection refused", reason=reason)
        self._finish(last_words, reason, lingers=True)

    def _process_violation(self, error: RemoteProtocolError) -> None:
        """End the connection of a client that broke the protocol, as its version has it.

        [MQTT5-4.13.1-1] [MQTT311-4.8.0-1] A CONNECT of another form: 5.0 is told [MQTT5-3.1.4-1],
        3.x is not [MQTT311-3.1.4-1].
        """
        if self.is_closing:
            return
        logger.debug(
            "protocol violation",
            extra={
                "fields": {
                    "client_id": self.client_id,
                    "connection_id": self.connection_id,
                    "peer": self.peer,
                    "clause": error.clause,
                    "reason": str(error),
                }
            },
        )
        if self.protocol.is_connected:
            code = DisconnectReasonCode(error.reason_code)
            self.close(code, log_reason=str(error), lingers=True)
        elif isinstance(error, UnsupportedProtocol):
            level = MQTT_3_1_1 if error.protocol_level < MQTT_5_0 else MQTT_5_0
            self.protocol.protocol_level = level
            self.refuse(ConnackReasonCode.UNSUPPORTED_PROTOCOL_VERSION, str(error))
        elif self.protocol.protocol_level:
            self.refuse(ConnackReasonCode(error.reason_code), str(error))
        else:
            self._turn_away(b"", str(error))

    def _log(self, event: str, **values: Any) -> None:
        if logger.isEnabledFor(logging.INFO):
            known = {
                "client_id": self.client_id,
                "connection_id": self.connection_id,
                "peer": self.peer,
            }
            log_often(logger, event, known | values)
