"""One MQTT client on a socket: its packets, the handshake, keep alive, the end."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.authentication.certificates import (
    attributes_of_certificate,
    username_of_certificate,
)
from ingest.gateway.authentication.login import Login
from ingest.gateway.authentication.validity import Validity
from ingest.gateway.client_socket import PAUSED_BY_SOCKET, ClientSocket
from ingest.gateway.connecting import connack_properties, denial_of, keep_alive_of, refusal_of
from ingest.gateway.drops import DropReason
from ingest.gateway.limits import ClientLimits
from ingest.gateway.listeners.tenancy import SEPARATOR, TenantUnclear
from ingest.gateway.opening import Opening
from ingest.gateway.receiving import Receiver
from ingest.gateway.subscribing import SubscribeHandler
from ingest.protocol.connection import ServerConnection
from ingest.protocol.decoder import NEED_DATA
from ingest.protocol.encoder import PINGRESP
from ingest.protocol.errors import ProtocolViolation, RemoteProtocolError, UnsupportedProtocol
from ingest.protocol.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from ingest.protocol.properties import NO_PROPERTIES
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.logs import log_often
from mqlake.tenants import qualified

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ingest.gateway.authentication.outcomes import Accepted
    from ingest.gateway.client_session import ClientSession
    from ingest.gateway.connection_context import ConnectionContext
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.gateway.listeners.tenancy import Tenancy
    from ingest.gateway.sending import Sender
    from ingest.protocol.properties import Properties
    from mqlake.credentials import PasswordVerifier
    from mqlake.rights.compiled import ClientRights
    from mqlake.rights.grants import Grants

logger = logging.getLogger(__name__)

PAUSED_BY_OVERLOAD: Final = "overload"
QUEUED_BYTES: Final = 1024
"""Memory of a message that waits for a client, about; payloads are shared with other clients."""

KEEP_ALIVE_FACTOR: Final = 1.5
"""A client may be silent for so many keep alive intervals. [MQTT5-3.1.2-22] [MQTT311-3.1.2-24]"""

_BEFORE_CONNACK: Final = frozenset({Connect, Auth, Disconnect})
"""Packets of a client that has not been let in. [MQTT5-3.1.2-30]"""

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


class ClientConnection(ClientSocket):
    """The protocol object of one TCP connection.

    Reading is paused while a SUBSCRIBE waits for the log, while the log is full, while a 3.x
    client has as many unacknowledged messages as it may and while a client leaves its answers
    unread; bytes that were read already wait in the decoder.

    Attributes:
        protocol: The protocol's state of this connection.
        client_id: Empty before CONNECT.
        tenant: Whose topics the client sees; final when the client has logged in.
        username: With which the client has logged in, or until then wants to; None: with none.
            That of a user of another tenant than the gateway's own begins with the tenant.
        principal: User that it has proved to be; None: no login was asked for, or it has no name.
        rights: Of the client, once it has logged in; None: it may do everything.
        session: From CONNECT to the end of the connection.
        listener: By which it came in.

    Args:
        context: Of all connections.
        listener: Took the socket.
    """

    __slots__ = (
        "_asked_for_expiry",
        "_credited_at",
        "_credits",
        "_grants",
        "_last_received",
        "_limits",
        "_login",
        "_number",
        "_receiver",
        "_sender",
        "_silence_limit",
        "_subscriber",
        "_tenant_is_said",
        "_token_id",
        "_validity",
        "_verifier",
        "_will_bytes",
        "client_id",
        "listener",
        "principal",
        "protocol",
        "rights",
        "session",
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
        self.session: ClientSession | None = None
        self._sender: Sender  # these three from CONNECT on
        self._receiver: Receiver
        self._subscriber: SubscribeHandler
        self._asked_for_expiry = False
        self._tenant_is_said = False
        self._token_id: str | None = None
        self._grants: Grants | None = None  # until the client has logged in
        self._last_received = 0.0
        self._credits = 0
        self._credited_at = 0.0
        self._limits = self._make_limits() if settings.limits.has_rates else None
        self._login: Login | None = None
        self._number = 0
        self._validity: Validity | None = None
        self._will_bytes = 0
        self._verifier: PasswordVerifier | None = None  # of a user of the credentials file
        self._silence_limit = settings.connect_timeout_seconds

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._last_received = self._context.loop.time()
        self._context.deadlines.set(self, self._silence_limit)
        self._number = self._context.connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closing = True
        self._context.deadlines.forget(self)
        self._buffer.clear()
        if self._credits < 0:
            self._context.overload.leave(self)
        if self._grants is not None:
            self._context.shared_limits.left(
                self.tenant, self.principal, self.listener, self._will_bytes
            )
        if self._login is not None:
            self._login.cancel()
        if self._validity is not None:
            self._validity.cancel()
            self._validity = None  # it knows this connection
        if self._limits is not None:
            self._limits.close()
            self._limits = None  # it knows this connection
        if self.session is not None:
            reason = "the client closed it" if exc is None else str(exc)
            self._log("connection lost", reason=reason)
            self._detach(reason)
        else:
            self._detach("")
        self._context.connections.closed(self)

    def data_received(self, data: bytes) -> None:
        if self.is_closing:
            return
        if self.session is not None:  # until then bytes do not extend the time for CONNECT
            self._last_received = self._context.loop.time()
        self._context.counters.bytes_received += len(data)
        if self._limits is not None:
            self._limits.received(len(data))
            if self.is_closing:
                return
        if not self.is_writable:
            self._pause_if_overfull()
        self.protocol.receive_data(data)
        if not self._pauses:
            self._process_packets()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.session is not None:
            self._sender.send_waiting()

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

    @property
    def _address(self) -> str:
        """Of the client, without its port; "" where there is none."""
        return self.peer.rpartition(":")[0]

    @property
    def is_answered(self) -> bool:
        """Whether the log has reported on all that a client that was let in has sent."""
        return self._receiver.is_answered

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
        properties: Properties = {"reason_string": log_reason}
        reference = self._context.draining.server_reference
        if reference and reason_code in _ELSEWHERE:
            properties["server_reference"] = reference
        last_words = self.protocol.close(reason_code, properties)
        self._finish(last_words, log_reason, lingers=lingers)

    def _heard(self) -> None:
        """Take it that the client was not silent while it was not read."""
        self._last_received = self._context.loop.time()

    def deadline_passed(self) -> None:
        """Look whether the client was silent too long, or took too long to close."""
        if self.is_closing:
            self._abort()
            return
        deadlines, limit = self._context.deadlines, self._silence_limit
        silent = self._context.loop.time() - self._last_received
        if self._pauses and PAUSED_BY_SOCKET not in self._pauses:
            deadlines.set(self, limit)  # while we do not read, the client's silence is ours
        elif silent < limit:
            deadlines.set(self, limit - silent)
        elif self.protocol.is_connected:
            reason = f"silent for {silent:.1f} s"
            self.close(DisconnectReasonCode.KEEP_ALIVE_TIMEOUT, log_reason=reason)
        else:
            step = "CONNECT" if self._login is None else "AUTH"
            self._turn_away(b"", f"no {step} in time")

    # Packets in

    def _process_packets(self) -> None:
        try:
            while not self._pauses and not self.is_closing:
                packet = self.protocol.next_packet()
                if packet is NEED_DATA:
                    return
                self._context.counters.packets_received += 1
                if self.session is None and type(packet) not in _BEFORE_CONNACK:
                    raise ProtocolViolation(
                        DisconnectReasonCode.PROTOCOL_ERROR,
                        f"{type(packet).__name__.upper()} before CONNACK",
                        "MQTT5-3.1.2-30",
                    )
                _HANDLERS[type(packet)](self, packet)
        except RemoteProtocolError as error:
            self._process_violation(error)

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

    def refuse(
        self, reason_code: ConnackReasonCode, reason: str, server_reference: str = ""
    ) -> None:
        if reason_code in _DENIED:
            self._context.denials.add(self, "connect", reason)
            if reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD:
                self._context.bans.offences.note_failed_login(self._address)
        properties: Properties = {"reason_string": reason}
        reference = server_reference or self._context.draining.server_reference
        if reference and reason_code in _ELSEWHERE:
            properties["server_reference"] = reference
        self._turn_away(self.protocol.refuse(reason_code, properties), reason)

    def cut(self, reason: str) -> None:
        """Close without CONNACK: its session, or its will, may be there although it is not let in.

        A client that is told no may take it that nothing has come of its CONNECT.
        """
        self._turn_away(b"", reason)

    def _turn_away(self, last_words: bytes, reason: str) -> None:
        """Close before the client was let in; packets behind its CONNECT are not read.

        [MQTT5-3.1.4-6] [MQTT5-3.2.2-7] [MQTT5-4.13.2-1] [MQTT311-3.1.4-5] [MQTT311-3.2.2-5]
        """
        self._context.counters.connections_refused += 1
        self._log("connection refused", reason=reason)
        self._finish(last_words, reason, lingers=True)

    def _process_connect(self, connect: Connect) -> None:
        self.client_id = connect.client_id
        self._context.counters.connects_received += 1
        context = self._context
        unclear = None
        if self.listener.tenancy is not None:
            try:
                connect = self._find_tenant(self.listener.tenancy, connect)
            except TenantUnclear as exc:
                unclear = ConnackReasonCode.NOT_AUTHORIZED, str(exc)
        self.username = connect.username
        refusal = (
            context.draining.refusal()
            or context.overload.refusal()
            or context.connect_limit.refusal(self.listener)
            or self._ban(is_new=True)
            or unclear
            or refusal_of(connect, context.settings, is_full=context.connections.is_full)
        )
        if refusal is not None:
            self.refuse(*refusal)
            return
        identity = None
        listener = self.listener
        if listener.use_identity_as_username and self._transport is not None:
            identity = username_of_certificate(self._transport, listener.identity)
            if identity is None:
                self.username = None
                reason = "no client certificate that names a user"
                self.refuse(ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD, reason)
                return
            if listener.use_identity_as_client_id:
                if connect.client_id not in {"", identity}:
                    reason = "the client identifier is not the name in the certificate"
                    self.refuse(ConnackReasonCode.CLIENT_IDENTIFIER_NOT_VALID, reason)
                    return
                self.client_id = identity
            identity = qualified(self.user_prefix, identity)
            if ends_at := self._transport.get_extra_info("client_certificate_not_after"):
                self._end_at(ends_at, "its certificate")
        names = listener.authenticate_by or context.settings.authenticate_by
        self._login = Login(self, context.chain, names, self._address)
        self._login.begin(connect, identity)

    @property
    def user_prefix(self) -> str:
        """The prefix of the names of its tenant's users."""
        return self._context.tenants.prefix_of(self.tenant)

    def _find_tenant(self, tenancy: Tenancy, connect: Connect) -> Connect:
        """Take the tenant that a connection says; return its CONNECT with the user's full name.

        Raises:
            TenantUnclear: It says two.
        """
        username = connect.username
        said = tenancy.said(self._transport, username)
        self._tenant_is_said = said is not None
        self.tenant = said if said is not None else tenancy.tenant or self.tenant
        if username is None:
            return connect
        prefix = self.user_prefix
        if not prefix and tenancy.in_username:  # it has said the gateway's own
            username = username.removeprefix(self.tenant + SEPARATOR)
        return replace(connect, username=qualified(prefix, username))

    def _settle_tenant(self, accepted: Accepted) -> str:
        """Take the tenant that a token says; return why a login is not for this tenant, or ""."""
        if accepted.tenant is not None:
            if self._tenant_is_said and accepted.tenant != self.tenant:
                return "its token is not for this tenant"
            self.tenant = accepted.tenant or self.tenant
        username, prefix = accepted.username, self.user_prefix
        if username is not None and not prefix and accepted.is_verified:
            is_anothers = self._context.tenants.is_anothers(username)
            return "its user is of another tenant" if is_anothers else ""
        return ""

    def _end_at(self, ends_at: float, what: str) -> None:
        context = self._context
        self._validity = Validity(self, context.clock, context.loop, ends_at, what)

    def accept(
        self, connect: Connect, accepted: Accepted, extra: Properties = NO_PROPERTIES
    ) -> None:
        """Let a client in: it is told by `welcome` once it has its session.

        Args:
            connect: Of the client.
            accepted: The outcome of its login.
            extra: Properties of CONNACK that come from its authentication.
        """
        if reason := self._settle_tenant(accepted):
            self.refuse(ConnackReasonCode.NOT_AUTHORIZED, reason)
            return
        username = accepted.username
        if username is not None:
            username = qualified(self.user_prefix, username)
        self.username = username
        if refusal := self._context.tenants.refusal(self.tenant):
            self.refuse(*refusal)
            return
        if accepted.is_verified:
            self.principal = username
        self._verifier = accepted.verifier
        self._token_id = accepted.token_id
        if reason := self._gone():  # the file was read again meanwhile
            self.refuse(ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD, reason)
            return
        if accepted.ends_at is not None:
            self._end_at(accepted.ends_at, "its login")
        if self._login is not None and self._login.is_over:
            self._login = None  # without a method there is no AUTH [MQTT5-4.12.0-6]
        if not self.client_id:  # [MQTT5-3.1.3-6] [MQTT311-3.1.3-6]
            self.client_id = f"auto-{secrets.token_hex(12)}"  # nobody can guess it [MQTT5-3.2.2-16]
        elif (redirecting := self._context.redirecting) and connect.protocol_level == MQTT_5_0:
            key = (self.tenant, self.client_id)
            if reference := redirecting.elsewhere(key, self.listener.kind):
                reason = "another gateway owns the shard of this session"
                self.refuse(ConnackReasonCode.USE_ANOTHER_SERVER, reason, reference)
                return
        if banned := self._ban(is_let_in=True):
            self.refuse(*banned)
            return
        will = connect.will
        self._will_bytes = 0 if will is None else len(will.topic_name.encode()) + len(will.payload)
        if refusal := self._shared_refusal():
            self.refuse(*refusal)
            return
        self._context.shared_limits.entered(
            self.tenant, self.principal, self.listener, self._will_bytes
        )
        self._context.of_tenants.of(self.tenant).connects += 1
        certified = attributes_of_certificate(self._transport)
        self._grants = grants = accepted.grants.with_attributes(certified)
        self._share_limits()
        self.rights = self._context.authorizer.of(
            self.tenant, self.client_id, self.principal, grants
        )
        if reason := denial_of(connect, self.rights):
            self.refuse(ConnackReasonCode.NOT_AUTHORIZED, reason)
            return
        Opening(self._context.openings, self, connect, username, extra).proceed()

    def adopt(self, session: ClientSession, connect: Connect) -> None:
        """Take the session: from now on its end is to be told when the connection ends."""
        # [MQTT5-3.1.2-29]
        wants_reasons = connect.properties.get("request_problem_information", 1) != 0
        self.session = session
        self._sender = session.sender
        self._sender.rights = self.rights  # others may have been applied meanwhile
        self._receiver = Receiver(
            self._context.receivers, self, session, wants_reasons=wants_reasons
        )
        self._subscriber = SubscribeHandler(self._context.subscribers, self, session)

    def welcome(self, connect: Connect, extra: Properties, *, session_present: bool) -> None:
        """Send CONNACK to a client that has its session: the first packet that it gets.

        [MQTT5-3.2.0-1] [MQTT311-3.2.0-1]
        """
        context, protocol, session = self._context, self.protocol, self.session
        assert session is not None
        self._asked_for_expiry = bool(connect.properties.get("session_expiry_interval"))
        keep_alive = keep_alive_of(connect, context.settings)
        self._last_received = context.loop.time()
        self._silence_limit = keep_alive * KEEP_ALIVE_FACTOR
        if self._silence_limit:
            context.deadlines.set(self, self._silence_limit)
        else:
            context.deadlines.forget(self)
        properties: Properties = {}
        if protocol.protocol_level == MQTT_5_0:
            properties = connack_properties(
                connect, self.client_id, session.expiry_interval, keep_alive, context.settings
            )
            properties.update(extra)
        self._log("client connected", protocol_level=connect.protocol_level)
        accepted = protocol.accept(session_present=session_present, properties=properties)
        if not accepted:
            self.close(
                DisconnectReasonCode.PACKET_TOO_LARGE,
                log_reason="CONNACK would be larger than the client's maximum packet size",
            )
            return
        self.write(accepted)

    def _ban(
        self, *, is_new: bool = False, is_let_in: bool = False
    ) -> tuple[ConnackReasonCode, str] | None:
        """Return why the client is not let in although its CONNECT is well, or None."""
        bans = self._context.bans
        who = self.client_id, self.username, self._address
        reason = bans.of_newcomer(*who) if is_new else bans.of(*who, self._token_id)
        if is_let_in and not reason:
            reason = bans.note_connected(self.tenant, self.client_id, self.username)
        return (ConnackReasonCode.BANNED, reason) if reason else None

    def renew_bans(self) -> None:
        """End the connection of a client that is banned by now."""
        if self.protocol.protocol_level and (banned := self._ban()):
            self._context.denials.add(self, "connect", banned[1])
            self.close(DisconnectReasonCode.ADMINISTRATIVE_ACTION, log_reason=banned[1])

    def renew_tenant(self) -> None:
        """End the connection of a client whose tenant was suspended, or is no more."""
        if self._grants is None:  # it is asked for when the client has logged in
            return
        if refusal := self._context.tenants.refusal(self.tenant):
            self._context.denials.add(self, "connect", refusal[1])
            self.close(DisconnectReasonCode.ADMINISTRATIVE_ACTION, log_reason=refusal[1])
        else:
            self._share_limits()

    def _make_limits(self) -> ClientLimits:
        context = self._context
        settings, loop, counters = context.settings.limits, context.loop, context.counters
        return ClientLimits(settings, self, loop, counters, self._heard)

    def _share_limits(self) -> None:
        """Take from the limits that it now shares with others."""
        shared = self._context.shared_limits.of(self.tenant, self.principal, self.listener)
        if shared and self._limits is None:
            self._limits = self._make_limits()
        if self._limits is not None:
            self._limits.shared = shared
            self._context.shared_limits.clients[self.tenant, self.client_id] = self._limits

    def _shared_refusal(self) -> tuple[ConnackReasonCode, str] | None:
        """Return why its user or its tenant may have no further connection, or None."""
        context = self._context
        is_further = not context.sessions.is_connected(self.tenant, self.client_id)
        return context.shared_limits.refusal(
            *(self.tenant, self.principal, self.listener, self._will_bytes), is_further=is_further
        )

    def _gone(self) -> str:
        """Return why the login of a user of the credentials file counts no more, or ""."""
        verifier, username = self._verifier, self.principal
        if verifier is None or username is None:
            return ""
        is_current = self._context.chain.is_current(username, verifier)
        return "" if is_current else "its user is no more, or has another password"

    def renew_login(self) -> None:
        """End the connection of a client whose login counts no more."""
        if reason := self._gone():
            self._context.denials.add(self, "connect", reason)
            self.close(DisconnectReasonCode.NOT_AUTHORIZED, log_reason=reason)

    def renew_rights(self) -> None:
        """Go by the rights of now; a client that may not have its identifier any more has to go."""
        authorizer = self._context.authorizer
        if self._grants is None:
            return
        if self.rights is None:  # there were no rules when it came
            self.rights = authorizer.of(self.tenant, self.client_id, self.principal, self._grants)
            if self.rights is None:
                return
            if self.session is not None:
                self.session.sender.rights = self.rights
        else:
            authorizer.renew(self.rights)
        if not self.rights.may_connect():
            reason = "it may not have this client identifier any more"
            self._context.denials.add(self, "connect", reason)
            self.close(DisconnectReasonCode.NOT_AUTHORIZED, log_reason=reason)

    def _process_publish(self, publish: Publish) -> None:
        if self._limits is not None:
            self._limits.published()
            if self._limits.counts_deliveries:
                reach = self._context.shared_limits.reach(self.tenant, publish.topic_name)
                self._limits.delivers(1 + reach)
            if self.is_closing:
                topic_name, qos = publish.topic_name, publish.qos
                drops = self._context.drops
                drops.add(DropReason.TOO_FAST, self.tenant, self.client_id, topic_name, qos)
                return
        self._credits -= 1
        if self._credits < 0:
            self._pay()
        self._receiver.process_publish(publish)

    def _pay(self) -> None:
        """Get credits for the message at hand and further ones, or be read no further after it."""
        credits, self._credited_at = self._context.overload.ask(self, self._credited_at)
        self._credits += credits
        if not credits:
            self.pause_reading(PAUSED_BY_OVERLOAD)

    def regain(self, credits: int, now: float) -> None:
        """Go on: there are credits again."""
        self._credits += credits
        self._credited_at = now
        self._heard()
        self.resume_reading(PAUSED_BY_OVERLOAD)

    @property
    def held_bytes(self) -> int:
        """About how much memory messages to and from the client take."""
        waiting = self.protocol.buffered_bytes + self._buffered_bytes
        if self._transport is not None:
            waiting += self._transport.get_write_buffer_size()
        if self.session is not None:
            waiting += self._sender.queued_count * QUEUED_BYTES
        return waiting

    def _process_subscribe(self, subscribe: Subscribe) -> None:
        if self._limits is not None:
            self._limits.named(len(subscribe.subscriptions))
            if self.is_closing:
                return
        self._subscriber.process_subscribe(subscribe)

    def _process_unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        if self._limits is not None:
            self._limits.named(len(unsubscribe.topic_filters))
            if self.is_closing:
                return
        self._subscriber.process_unsubscribe(unsubscribe)

    def _process_pingreq(self, _pingreq: Pingreq) -> None:
        self.write(PINGRESP)  # [MQTT5-3.12.4-1] [MQTT311-3.12.4-1]

    def _process_disconnect(self, disconnect: Disconnect) -> None:
        expiry = disconnect.properties.get("session_expiry_interval")
        if expiry and not self._asked_for_expiry:
            raise ProtocolViolation(
                DisconnectReasonCode.PROTOCOL_ERROR,
                "session expiry interval set on DISCONNECT, CONNECT had none",
                "MQTT5-3.14.2.2.2",
            )
        session = self.session
        if session is None:
            self._turn_away(b"", "the client has given its login up")
            return
        if expiry is not None:
            most = self._context.settings.max_session_expiry_interval
            session.expiry_interval = min(expiry, most)
        if disconnect.reason_code is not DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE:
            # [MQTT5-3.1.2-10] [MQTT5-3.14.4-3] [MQTT311-3.1.2-10] [MQTT311-3.14.4-3]
            session.will = None
        self._log("client disconnected", reason_code=int(disconnect.reason_code))
        self._finish(b"", "the client disconnected")

    def _process_auth(self, auth: Auth) -> None:
        if self._login is None:
            raise ProtocolViolation(
                DisconnectReasonCode.PROTOCOL_ERROR,
                "AUTH without an authentication method in CONNECT",
                "MQTT5-4.12.0-7",
            )
        self._login.process_auth(auth)

    # The end

    def _detach(self, reason: str) -> None:
        """Let the session go on without this connection."""
        session, self.session = self.session, None
        if session is not None:
            self._receiver.close()
            # They know this object: a circle would wait for the collector of garbage.
            del self._sender, self._receiver, self._subscriber
            self._context.sessions.connection_lost(session, reason)
        elif self.client_id:
            self._context.sessions.connection_gone(self)

    def _log(self, event: str, **values: Any) -> None:
        if logger.isEnabledFor(logging.INFO):
            known = {
                "client_id": self.client_id,
                "connection_id": self.connection_id,
                "peer": self.peer,
            }
            log_often(logger, event, known | values)


_HANDLERS: Final[dict[type, Callable[[ClientConnection, Any], None]]] = {
    Connect: ClientConnection._process_connect,
    Publish: ClientConnection._process_publish,
    Puback: lambda connection, packet: connection._sender.process_puback(packet),
    Pubrec: lambda connection, packet: connection._sender.process_pubrec(packet),
    Pubrel: lambda connection, packet: connection._receiver.process_pubrel(packet),
    Pubcomp: lambda connection, packet: connection._sender.process_pubcomp(packet),
    Subscribe: ClientConnection._process_subscribe,
    Unsubscribe: ClientConnection._process_unsubscribe,
    Pingreq: ClientConnection._process_pingreq,
    Disconnect: ClientConnection._process_disconnect,
    Auth: ClientConnection._process_auth,
}
