"""Users of the credentials file: passwords checked off the event loop, exchanges, reloading."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.attempts import LoginAttempts
from ingest.gateway.authentication.outcomes import (
    ANONYMOUS,
    NO_SUCH_METHOD,
    TOO_MANY_CHECKS,
    WRONG_PASSWORD,
    Accepted,
    AuthenticationExchange,
    Refused,
    Verdict,
)
from ingest.gateway.authentication.passwords import PasswordChecks
from ingest.gateway.authentication.scram import ScramServer
from mqlake.security.credentials import Credentials, PasswordVerifier, read_credentials
from mqlake.security.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mqlake.clock import Clock

METHODS: Final[dict[str, Callable[[Credentials, str], AuthenticationExchange]]] = {
    "SCRAM-SHA-256": ScramServer
}
"""Authentication methods by the name they have in CONNECT."""


class Authenticator:
    """Decides which clients may log in.

    Args:
        credentials_file: The users; without one no client can prove a user name.
        allow_anonymous: Whether a client needs no user name; None: only without a file.
        failed_logins_per_minute: Bound for one address; 0: any number.
        clock: Clock for their counting.

    Attributes:
        attempts: To log in, of all authenticators of the gateway.
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
        self.attempts = LoginAttempts(failed_logins_per_minute, clock)
        self.passwords = PasswordChecks()

    def verdict_at_once(self, username: str | None, password: bytes | None) -> Verdict | None:
        """Decide on a client whose password is known, or not asked for; None: it has to be checked.

        Args:
            username: User name of the CONNECT; None without one.
            password: Password of the CONNECT; None without one.
        """
        if self._credentials is None or username is None:
            return Accepted(username, is_verified=False) if self._allows_anonymous else ANONYMOUS
        name, prepared = _prepared(username, password)
        verifier = self._credentials.verifier_of(name)
        if self.passwords.remembers(name, prepared, verifier):
            return Accepted(name, verifier=verifier)
        return None

    async def check_password(self, username: str | None, password: bytes | None) -> Verdict:
        """Decide on the user name and password of a CONNECT, as an attempt that is counted.

        An unknown user takes as long as most known ones.
        """
        verdict = self.verdict_at_once(username, password)
        if verdict is not None:
            return verdict
        assert self._credentials is not None
        assert username is not None
        name, prepared = _prepared(username, password)
        if not name:
            return WRONG_PASSWORD
        if self.passwords.are_too_many:
            return TOO_MANY_CHECKS
        verifier = self._credentials.verifier_of(name)
        if not await self.passwords.run(lambda: verifier.accepts(prepared)):
            return WRONG_PASSWORD
        self.passwords.remember(name, prepared, verifier)
        return Accepted(name, verifier=verifier)

    def open_exchange(self, method: str, prefix: str = "") -> AuthenticationExchange | Refused:
        """Open an exchange of enhanced authentication; refuse a method there is not.

        Args:
            method: Authentication Method of the CONNECT.
            prefix: Prefix of the names of users that may log in.
        """
        opener = METHODS.get(method)
        if opener is None or self._credentials is None:  # [MQTT5-4.12.0-1]
            return NO_SUCH_METHOD
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

    async def reload(self) -> int | None:
        """Read the credentials file again; return how many users there are, None without a file.

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


def _prepared(username: str, password: bytes | None) -> tuple[str, bytes]:
    """Return them in the form of the file; empty ones when they are of no user in any file."""
    try:
        name = prepare(username, "user name")
        return name, prepare((password or b"").decode(), "password").encode()
    except (UnpreparableText, UnicodeDecodeError):
        return "", b""
