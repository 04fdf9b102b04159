"""The login of a client, from CONNECT to CONNACK, and each time it authenticates again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingest.gateway.authentication.exchange import EnhancedAuthentication
from ingest.gateway.authentication.outcomes import (
    NO_SUCH_METHOD,
    Accepted,
    Attempt,
    Challenge,
    Outcome,
    Refused,
)
from ingest.protocol.packets import Auth, Connect
from ingest.protocol.properties import NO_PROPERTIES
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    ConnackReasonCode,
    DisconnectReasonCode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.gateway.authentication.chain import Chain
    from ingest.gateway.authentication.outcomes import Verdict
    from ingest.gateway.base.client import Newcomer
    from ingest.protocol.properties import Properties


class Login:
    """Authenticates a client and lets it in, or not.

    A connection keeps it only while it is of use: until CONNACK, and with an authentication method
    to the end.

    Args:
        connection: Held while a password is checked, not while the client is asked.
        chain: The gateway's.
        names: Authenticators of it that are asked.
        user_prefix: Prefix of the names of its tenant's users.
        accept: Takes the client that has logged in, with properties for its CONNACK.
    """

    __slots__ = (
        "_accept",
        "_chain",
        "_checking",
        "_connect",
        "_connection",
        "_enhanced",
        "_names",
        "_user_prefix",
    )

    def __init__(
        self,
        connection: Newcomer,
        chain: Chain,
        names: Sequence[str],
        user_prefix: str,
        accept: Callable[[Connect, Accepted, Properties], None],
    ) -> None:
        self._connection = connection
        self._chain = chain
        self._names = names
        self._user_prefix = user_prefix
        self._accept = accept
        self._connect: Connect | None = None
        self._checking: asyncio.Future[Verdict] | None = None
        self._enhanced: EnhancedAuthentication | None = None

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more can come of it."""
        return self._connect is None and self._enhanced is None

    def begin(self, connect: Connect, identity: str | None) -> None:
        """Log in the client that has sent a CONNECT.

        Args:
            connect: Waits for its answer.
            identity: User name by a certificate; a client with one needs no password, and no
                other name.
        """
        self._connect = connect
        method = connect.properties.get("authentication_method")
        if method is not None:
            username = connect.username if identity is None else identity
            authenticator = self._chain.exchanges(self._names)
            if authenticator is None:  # [MQTT5-4.12.0-1]
                self._process(NO_SUCH_METHOD)
                return
            self._enhanced = EnhancedAuthentication(
                authenticator, method, username, self._connection.address, self._user_prefix
            )
            data = connect.properties.get("authentication_data")
            self._process(self._enhanced.begin(data))
            return
        if identity is not None:
            self._process(Accepted(identity))
            return
        attempt = Attempt(
            connect.username,
            connect.password,
            self._connection.client_id,
            self._connection.address,
            connect.protocol_level,
            self._user_prefix,
        )
        verdict = self._chain.check(attempt, self._names)
        if isinstance(verdict, asyncio.Future):
            self._checking = verdict
            self._connection.pause_reading("login")
            verdict.add_done_callback(self._process_checked)
        else:
            self._process(verdict)

    def process_auth(self, auth: Auth) -> None:
        """Go on with an exchange, or begin one on a client that is connected.

        Raises:
            ProtocolViolation: The AUTH may not come now.
        """
        # Nothing is read while a password is checked, and then there is no login any more.
        assert self._enhanced is not None
        self._process(self._enhanced.process_auth(auth))

    def cancel(self) -> None:
        """Drop the check of a password: the client has gone."""
        if self._checking is not None:
            self._checking.cancel()

    def _process_checked(self, checked: asyncio.Future[Verdict]) -> None:
        self._checking = None
        if checked.cancelled() or self._connection.is_closing:
            return
        if checked.exception() is not None:
            self._process(Refused(ConnackReasonCode.UNSPECIFIED_ERROR, "internal error"))
            return
        self._process(checked.result())
        self._connection.resume_reading("login")

    def _process(self, outcome: Outcome) -> None:
        connection, enhanced, connect = self._connection, self._enhanced, self._connect
        is_connected = connect is None
        if isinstance(outcome, Refused):
            if is_connected:  # [MQTT5-4.12.1-2]
                reason_code = DisconnectReasonCode(outcome.reason_code)
                connection.close(reason_code, log_reason=outcome.reason)
            else:  # [MQTT5-4.12.0-4]
                connection.refuse(outcome.reason_code, outcome.reason)
            return
        properties = NO_PROPERTIES if enhanced is None else enhanced.properties(outcome.data)
        if isinstance(outcome, Challenge):  # [MQTT5-4.12.0-2]
            connection.send(Auth(AuthReasonCode.CONTINUE_AUTHENTICATION, properties))
        elif connect is None:
            connection.send(Auth(AuthReasonCode.SUCCESS, properties))
        else:
            self._connect = None
            self._accept(connect, outcome, properties)
