"""Decides whether a client comes in, and may stay: tenant, login, bans, limits and rights."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ingest.gateway.authentication.certificates import (
    attributes_of_certificate,
    username_of_certificate,
)
from ingest.gateway.authentication.login import Login
from ingest.gateway.authentication.validity import Validity
from ingest.gateway.clients.connecting import denial_of, refusal_of
from ingest.gateway.clients.opening import Entrant, Opening
from ingest.gateway.listeners.tenancy import SEPARATOR, TenantUnclear
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import MQTT_5_0
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.records.tenants import qualified

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.authentication.outcomes import Accepted
    from ingest.gateway.clients.connection_context import ConnectionContext
    from ingest.gateway.listeners.tenancy import Tenancy
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.protocol.packets import Auth, Connect
    from ingest.protocol.properties import Properties
    from mqlake.rights.compiled import ClientRights
    from mqlake.rights.grants import Grants
    from mqlake.security.credentials import PasswordVerifier

_Refusal: TypeAlias = tuple[ConnackReasonCode, str]


class Applicant(Entrant, Protocol):
    """A connection whose client asks to come in.

    Implemented by `ingest.gateway.clients.connection.ClientConnection`, which describes it.
    """

    session: ClientSession | None

    def share_limits(self) -> None: ...
    @property
    def transport(self) -> asyncio.Transport | None: ...
    def give_way(self, reason: str) -> None: ...


class Admission:
    """Checks of one client before it has a session, and again when rules change.

    Tenant, user, principal and rights, which it finds, are attributes of the connection.

    Args:
        context: Shared by all connections.
        connection: Connection of the client; `leave` when it is lost.
    """

    __slots__ = (
        "_connection",
        "_context",
        "_grants",
        "_login",
        "_tenant_is_said",
        "_token_id",
        "_validity",
        "_verifier",
        "_will_bytes",
    )

    def __init__(self, context: ConnectionContext, connection: Applicant) -> None:
        self._context = context
        self._connection = connection
        self._tenant_is_said = False
        self._login: Login | None = None
        self._validity: Validity | None = None
        self._verifier: PasswordVerifier | None = None  # of a user of the credentials file
        self._token_id: str | None = None
        self._will_bytes = 0
        self._grants: Grants | None = None  # until the client has logged in

    # From CONNECT to the session

    def process_connect(self, connect: Connect) -> None:
        """Turn the client away by what is found at once, or begin its login."""
        context, connection = self._context, self._connection
        listener = connection.listener
        connection.client_id = connect.client_id
        context.counters.connects_received += 1
        unclear = None
        if listener.tenancy is not None:
            try:
                connect = self._find_tenant(listener.tenancy, connect)
            except TenantUnclear as exc:
                unclear = ConnackReasonCode.NOT_AUTHORIZED, str(exc)
        connection.username = connect.username
        refusal = (
            context.draining.refusal()
            or context.overload.refusal()
            or context.connect_limit.refusal(listener)
            or self._ban(is_new=True)
            or unclear
            or refusal_of(connect, context.settings, is_full=context.connections.is_full)
        )
        if refusal is not None:
            connection.refuse(*refusal)
            return
        identity = None
        if listener.use_identity_as_username and connection.transport is not None:
            identity = self._identify(connect, connection.transport)
            if identity is None:
                return
        names = listener.authenticate_by or context.settings.authenticate_by
        self._login = Login(connection, context.chain, names, self._user_prefix, self.accept)
        self._login.begin(connect, identity)

    def process_auth(self, auth: Auth) -> None:
        """Go on with the login, or begin it again.

        Raises:
            ProtocolViolation: The AUTH may not come now.
        """
        if self._login is None:
            raise ProtocolViolation(
                DisconnectReasonCode.PROTOCOL_ERROR,
                "AUTH without an authentication method in CONNECT",
                "MQTT5-4.12.0-7",
            )
        self._login.process_auth(auth)

    @property
    def awaited(self) -> str:
        """The packet without which a client does not come in."""
        return "CONNECT" if self._login is None else "AUTH"

    @property
    def _user_prefix(self) -> str:
        """The prefix of the names of its tenant's users."""
        return self._context.tenants.prefix_of(self._connection.tenant)

    def _find_tenant(self, tenancy: Tenancy, connect: Connect) -> Connect:
        """Take the tenant that a connection says; return its CONNECT with the user's full name.

        Raises:
            TenantUnclear: It says two.
        """
        connection, username = self._connection, connect.username
        said = tenancy.said(connection.transport, username)
        self._tenant_is_said = said is not None
        connection.tenant = said if said is not None else tenancy.tenant or connection.tenant
        if username is None:
            return connect
        prefix = self._user_prefix
        if not prefix and tenancy.in_username:  # it has said the gateway's own
            username = username.removeprefix(connection.tenant + SEPARATOR)
        return replace(connect, username=qualified(prefix, username))

    def _identify(self, connect: Connect, transport: asyncio.Transport) -> str | None:
        """Return the user that the client's certificate names; None: it was turned away."""
        connection, listener = self._connection, self._connection.listener
        identity = username_of_certificate(transport, listener.identity)
        if identity is None:
            connection.username = None
            reason = "no client certificate that names a user"
            connection.refuse(ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD, reason)
            return None
        if listener.use_identity_as_client_id:
            if connect.client_id not in {"", identity}:
                reason = "the client identifier is not the name in the certificate"
                connection.refuse(ConnackReasonCode.CLIENT_IDENTIFIER_NOT_VALID, reason)
                return None
            connection.client_id = identity
        if ends_at := transport.get_extra_info("client_certificate_not_after"):
            self._end_at(ends_at, "its certificate")
        return qualified(self._user_prefix, identity)

    def accept(self, connect: Connect, accepted: Accepted, extra: Properties) -> None:
        """Let a client in that has logged in: it is welcome once it has its session.

        Args:
            connect: CONNECT of the client.
            accepted: The outcome of its login.
            extra: Properties of CONNACK that come from its authentication.
        """
        connection = self._connection
        self._context.arrivals.leave(connection)
        if refusal := self._settle_tenant(accepted) or self._settle_user(accepted):
            connection.refuse(*refusal)
            return
        if self._login is not None and self._login.is_over:
            self._login = None  # without a method there is no AUTH [MQTT5-4.12.0-6]
        if not connection.client_id:  # [MQTT5-3.1.3-6] [MQTT311-3.1.3-6]
            # it cannot be guessed [MQTT5-3.2.2-16]
            connection.client_id = f"auto-{secrets.token_hex(12)}"
        elif reference := self._elsewhere(connect):
            reason = "another gateway owns the shard of this session"
            connection.refuse(ConnackReasonCode.USE_ANOTHER_SERVER, reason, reference)
            return
        refusal = (
            self._ban(is_let_in=True) or self._enter(connect) or self._grant(connect, accepted)
        )
        if refusal is not None:
            connection.refuse(*refusal)
            return
        Opening(self._context.openings, connection, connect, extra).proceed()

    def _settle_tenant(self, accepted: Accepted) -> _Refusal | None:
        """Take the tenant that a token says; return why a login is not for this tenant."""
        connection = self._connection
        if accepted.tenant is not None:
            if self._tenant_is_said and accepted.tenant != connection.tenant:
                return ConnackReasonCode.NOT_AUTHORIZED, "its token is not for this tenant"
            connection.tenant = accepted.tenant or connection.tenant
        username = accepted.username
        if username is None or self._user_prefix or not accepted.is_verified:
            return None
        if self._context.tenants.is_anothers(username):
            return ConnackReasonCode.NOT_AUTHORIZED, "its user is of another tenant"
        return None

    def _settle_user(self, accepted: Accepted) -> _Refusal | None:
        """Take the user that has logged in; return why that does not count any more."""
        connection, username = self._connection, accepted.username
        if username is not None:
            username = qualified(self._user_prefix, username)
        connection.username = username
        if refusal := self._context.tenants.refusal(connection.tenant):
            return refusal
        if accepted.is_verified:
            connection.principal = username
        self._verifier = accepted.verifier
        self._token_id = accepted.token_id
        if reason := self._gone():  # the file was read again meanwhile
            return ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD, reason
        if accepted.ends_at is not None:
            self._end_at(accepted.ends_at, "its login")
        return None

    def _elsewhere(self, connect: Connect) -> str:
        """Return the Server Reference of the gateway to which the client is to go, or ""."""
        connection, redirecting = self._connection, self._context.redirecting
        if redirecting is None or connect.protocol_level != MQTT_5_0:
            return ""
        key = (connection.tenant, connection.client_id)
        return redirecting.elsewhere(key, connection.listener.kind)

    def _enter(self, connect: Connect) -> _Refusal | None:
        """Count the connection; return why its user or its tenant may have none further."""
        context, connection = self._context, self._connection
        will = connect.will
        self._will_bytes = 0 if will is None else will.size
        who = connection.tenant, connection.principal, connection.listener, self._will_bytes
        is_further = not context.sessions.is_connected(connection.tenant, connection.client_id)
        if refusal := context.shared_limits.refusal(*who, is_further=is_further):
            return refusal
        context.shared_limits.entered(*who)
        context.of_tenants.of(connection.tenant).connects += 1
        return None

    def _grant(self, connect: Connect, accepted: Accepted) -> _Refusal | None:
        """Take limits and rights of the client; return why it may not come in with these."""
        connection = self._connection
        certified = attributes_of_certificate(connection.transport)
        self._grants = accepted.grants.with_attributes(certified)
        connection.share_limits()
        connection.rights = self._rights(self._grants)
        reason = denial_of(connect, connection.rights)
        return (ConnackReasonCode.NOT_AUTHORIZED, reason) if reason else None

    # From then on

    def renew_bans(self) -> None:
        """End the connection of a client that is banned by now."""
        if self._connection.protocol.protocol_level and (banned := self._ban()):
            self._end(DisconnectReasonCode.ADMINISTRATIVE_ACTION, banned[1])

    def renew_tenant(self) -> None:
        """End the connection of a client whose tenant was suspended, or is no more."""
        if self._grants is None:  # it is asked for when the client has logged in
            return
        if refusal := self._context.tenants.refusal(self._connection.tenant):
            self._end(DisconnectReasonCode.ADMINISTRATIVE_ACTION, refusal[1])
        else:
            self._connection.share_limits()

    def renew_login(self) -> None:
        """End the connection of a client whose login counts no more."""
        if reason := self._gone():
            self._end(DisconnectReasonCode.NOT_AUTHORIZED, reason)

    def renew_rights(self) -> None:
        """Go by the present rights; a client that may not have its identifier has to leave."""
        connection = self._connection
        if self._grants is None:
            return
        if connection.rights is None:  # there were no rules when it came
            connection.rights = self._rights(self._grants)
            if connection.rights is None:
                return
            if connection.session is not None:
                connection.session.sender.rights = connection.rights
        else:
            self._context.authorizer.renew(connection.rights)
        if not connection.rights.may_connect():
            reason = "it may not have this client identifier any more"
            self._end(DisconnectReasonCode.NOT_AUTHORIZED, reason)

    def leave(self) -> None:
        """Forget the connection, which is lost."""
        connection = self._connection
        if self._grants is not None:
            self._context.shared_limits.left(
                connection.tenant, connection.principal, connection.listener, self._will_bytes
            )
        # Both know the connection: a circle would wait for the collector of garbage.
        if self._login is not None:
            self._login.cancel()
            self._login = None
        if self._validity is not None:
            self._validity.cancel()
            self._validity = None

    def _ban(self, *, is_new: bool = False, is_let_in: bool = False) -> _Refusal | None:
        """Return why the client is not let in although its CONNECT is well, or None."""
        bans, connection = self._context.bans, self._connection
        who = connection.client_id, connection.username, connection.address
        reason = bans.of_newcomer(*who) if is_new else bans.of(*who, self._token_id)
        if is_let_in and not reason:
            reason = bans.note_connected(
                connection.tenant, connection.client_id, connection.username
            )
        return (ConnackReasonCode.BANNED, reason) if reason else None

    def _gone(self) -> str:
        """Return why the login of a user of the credentials file counts no more, or ""."""
        verifier, username = self._verifier, self._connection.principal
        if verifier is None or username is None:
            return ""
        is_current = self._context.chain.is_current(username, verifier)
        return "" if is_current else "its user is no more, or has another password"

    def _rights(self, grants: Grants) -> ClientRights | None:
        connection = self._connection
        return self._context.authorizer.of(
            connection.tenant, connection.client_id, connection.principal, grants
        )

    def _end_at(self, ends_at: float, what: str) -> None:
        context = self._context
        self._validity = Validity(self._connection, context.clock, context.loop, ends_at, what)

    def _end(self, reason_code: DisconnectReasonCode, reason: str) -> None:
        self._context.denials.add(self._connection, "connect", reason)
        self._connection.close(reason_code, log_reason=reason)
