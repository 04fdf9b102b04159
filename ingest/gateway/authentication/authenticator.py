"""Users of the credentials file: passwords checked off the event loop, exchanges, reloading."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.failures import FailedLogins
from ingest.gateway.authentication.outcomes import (
    Accepted,
    AuthenticationExchange,
    Refused,
    Verdict,
)
from ingest.gateway.authentication.passwords import PasswordChecks
from ingest.gateway.authentication.scram import ScramServer
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.credentials import Credentials, PasswordVerifier, read_credentials
from mqlake.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mqlake.clock import Clock

METHODS: Final[dict[str, Callable[[Credentials, str], AuthenticationExchange]]] = {
    "SCRAM-SHA-256": ScramServer
}
"""Authentication methods by the name they have in CONNECT."""

ANONYMOUS: Final = Refused(ConnackReasonCode.NOT_AUTHORIZED, "anonymous clients are not let in")
WRONG_PASSWORD: Final = Refused(
    ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password"
)
TOO_MANY_FAILURES: Final = Refused(
    ConnackReasonCode.CONNECTION_RATE_EXCEEDED, "too many failed logins from its address"
)
NO_SUCH_METHOD: Final = Refused(
    ConnackReasonCode.BAD_AUTHENTICATION_METHOD, "no such authentication method"
)
TOO_MANY_CHECKS: Final = Refused(ConnackReasonCode.SERVER_BUSY, "too many passwords to check")


class Authenticator:
    """Decides which clients may log in.

    Args:
        credentials_file: The users; without one nobody proves a user name.
        allow_anonymous: Whether a client needs no user name; None: only without a file.
        failed_logins_per_minute: Of one address; 0: any number.
        clock: For their counting.

    Attributes:
        passwords: Threads that check them.

    Raises:
        CredentialsError: The file cannot be used.
    """

    def __init__(
        self,
        credentials_file: Path | None,
        *,
        allow_anonymous: bool | None,
        failed_logins_per_minute: int,
        clock: Clock,
    ) -> None:
        self._path = credentials_file
        self._credentials = None if credentials_file is None else read_credentials(credentials_file)
        self._allows_anonymous = (
            credentials_file is None if allow_anonymous is None else allow_anonymous
        )
        self._failures = FailedLogins(failed_logins_per_minute, clock)
        self.passwords = PasswordChecks()

    def check_password(
        self, username: str | None, password: bytes | None, address: str
    ) -> Verdict | asyncio.Future[Verdict]:
        """Decide on the user name and password of a CONNECT.

        A verdict that costs work comes as a future; cancel it when nobody waits any more.

        Args:
            username: None when the CONNECT has none.
            password: None when it has none.
            address: The peer's, without its port; empty where there is none.
        """
        if self._credentials is None or username is None:
            return Accepted(username, is_verified=False) if self._allows_anonymous else ANONYMOUS
        try:
            name = prepare(username, "user name")
            prepared = prepare((password or b"").decode(), "password").encode()
        except (UnpreparableText, UnicodeDecodeError):  # of no user in the file
            name, prepared = "", b""
        verifier = self._credentials.verifier_of(name)
        if self.passwords.remembers(name, prepared, verifier):
            return Accepted(name, verifier=verifier)
        if self._failures.are_too_many(address):
            return TOO_MANY_FAILURES
        if not name:
            self._failures.note(address)
            return WRONG_PASSWORD
        if self.passwords.are_too_many:
            return TOO_MANY_CHECKS
        return self._check(name, prepared, verifier, address)

    def open_exchange(
        self, method: str, address: str, prefix: str = ""
    ) -> AuthenticationExchange | Refused:
        """Open an exchange of enhanced authentication; refuse a method there is not.

        Args:
            method: Of the CONNECT.
            address: The peer's, without its port.
            prefix: Of the names of users that may log in.
        """
        opener = METHODS.get(method)
        if opener is None or self._credentials is None:  # [MQTT5-4.12.0-1]
            return NO_SUCH_METHOD
        if self._failures.are_too_many(address):
            return TOO_MANY_FAILURES
        return opener(self._credentials, prefix)

    def knows(self, username: str | None) -> bool:
        """Tell whether a user is in the file."""
        if self._credentials is None or username is None:
            return False
        try:
            return prepare(username, "user name") in self._credentials
        except UnpreparableText:
            return False

    def is_current(self, username: str, verifier: PasswordVerifier) -> bool:
        """Tell whether a user, by its prepared name, is in the file with this verifier."""
        return self._credentials is not None and self._credentials.find(username) == verifier

    def has_too_many_failures(self, address: str) -> bool:
        """Tell whether clients of an address have to wait before they log in."""
        return self._failures.are_too_many(address)

    def note_failure(self, address: str) -> None:
        """Count a login that has failed."""
        self._failures.note(address)

    async def reload(self) -> int | None:
        """Read the credentials file anew; return how many users there are, None without a file.

        Raises:
            CredentialsError: It cannot be used; the users stay as they were.
        """
        if self._path is None:
            return None
        self._credentials = await asyncio.to_thread(read_credentials, self._path)
        return len(self._credentials)

    def close(self) -> None:
        """Drop passwords that wait to be checked."""
        self.passwords.close()

    def _check(
        self, name: str, password: bytes, verifier: PasswordVerifier, address: str
    ) -> asyncio.Future[Verdict]:
        def judge() -> Verdict:
            # Others of its address may have failed while this one waited.
            if self._failures.are_too_many(address):
                return TOO_MANY_FAILURES
            if verifier.accepts(password):
                return Accepted(name, verifier=verifier)
            self._failures.note(address)
            return WRONG_PASSWORD

        def note(checked: asyncio.Future[Verdict]) -> None:
            if checked.cancelled() or checked.exception() is not None:
                return
            if isinstance(checked.result(), Accepted):
                self.passwords.remember(name, password, verifier)

        checking = self.passwords.run(judge)
        checking.add_done_callback(note)
        return checking
