"""Enhanced authentication on one connection: which AUTH may come when (5.0, 4.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.gateway.authentication.outcomes import (
    TOO_MANY_FAILURES,
    AuthenticationExchange,
    Challenge,
    Outcome,
    Refused,
)
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    ConnackReasonCode,
    DisconnectReasonCode,
)
from mqlake.security.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.authentication.authenticator import Authenticator
    from ingest.protocol.packets import Auth
    from ingest.protocol.properties import Properties


class EnhancedAuthentication:
    """The exchanges of a client whose CONNECT names an authentication method.

    Args:
        authenticator: The gateway's.
        method: Method of the CONNECT; all AUTH packets have the same. [MQTT5-4.12.0-5]
        username: User name of the CONNECT, None without one; only that user may log in. From the
            first success on it is the one that has logged in, and stays it.
        address: The peer's, without its port.
        prefix: Prefix of the names of users that may log in.
    """

    __slots__ = (
        "_address",
        "_authenticator",
        "_exchange",
        "_is_authenticated",
        "_prefix",
        "_username",
        "method",
    )

    def __init__(
        self,
        authenticator: Authenticator,
        method: str,
        username: str | None,
        address: str,
        prefix: str = "",
    ) -> None:
        self.method = method
        self._authenticator = authenticator
        self._username = username
        self._address = address
        self._prefix = prefix
        self._exchange: AuthenticationExchange | None = None
        self._is_authenticated = False

    def begin(self, data: bytes | None) -> Outcome:
        """Begin with the authentication data of the CONNECT, or of the AUTH that asks again."""
        opened = self._authenticator.open_exchange(self.method, self._prefix)
        if isinstance(opened, Refused):
            return opened
        self._exchange = opened
        return self._judge(lambda: opened.start(data))

    def process_auth(self, auth: Auth) -> Outcome:
        """Go on with the exchange that runs, or begin another.

        Raises:
            ProtocolViolation: The AUTH names another method, or nothing waits for it.
        """
        method = auth.properties.get("authentication_method")
        if method != self.method:
            raise ProtocolViolation(
                DisconnectReasonCode.BAD_AUTHENTICATION_METHOD,
                f"AUTH names the method {method!r}, CONNECT {self.method!r}",
                "MQTT5-4.12.1-1" if self._is_authenticated else "MQTT5-4.12.0-5",
            )
        data = auth.properties.get("authentication_data")
        is_new = auth.reason_code is AuthReasonCode.RE_AUTHENTICATE
        if is_new and self._is_authenticated and self._exchange is None:
            return self.begin(data)
        if is_new or self._exchange is None:
            raise ProtocolViolation(
                DisconnectReasonCode.PROTOCOL_ERROR,
                f"AUTH {auth.reason_code.name} "
                + ("without an exchange" if self._exchange is None else "in an exchange"),
                "MQTT5-4.12.0-3",
            )
        exchange = self._exchange
        return self._judge(lambda: exchange.step(data or b""))

    def properties(self, data: bytes | None) -> Properties:
        """Return the properties of AUTH and CONNACK [MQTT5-4.12.0-5]."""
        properties: Properties = {"authentication_method": self.method}
        if data is not None:
            properties["authentication_data"] = data
        return properties

    def _judge(self, step: Callable[[], Outcome]) -> Outcome:
        """Take a step of the exchange, each as an attempt that is counted."""
        attempts = self._authenticator.attempts
        if not attempts.take(self._address):
            self._exchange = None
            return TOO_MANY_FAILURES
        outcome = step()
        if not isinstance(outcome, Refused):
            attempts.give_back(self._address)
        if isinstance(outcome, Challenge):
            return outcome
        self._exchange = None
        if isinstance(outcome, Refused):
            return outcome
        if not self._is_user(outcome.username):
            return Refused(ConnackReasonCode.NOT_AUTHORIZED, "logs in as another user")
        self._username = outcome.username
        self._is_authenticated = True
        return outcome

    def _is_user(self, username: str | None) -> bool:
        if self._username is None:
            return not self._is_authenticated
        try:
            return prepare(self._username, "user name") == username
        except UnpreparableText:
            return False
