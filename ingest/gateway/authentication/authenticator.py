"""Who may log in: passwords checked off the event loop, exchanges opened, the file read anew."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.failures import FailedLogins
from ingest.gateway.authentication.outcomes import Accepted, Exchange, Refused, Verdict
from ingest.gateway.authentication.scram import ScramServer
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.credentials import Credentials, Verifier, read_credentials
from mqlake.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mqlake.clock import Clock

METHODS: Final[dict[str, Callable[[Credentials], Exchange]]] = {"SCRAM-SHA-256": ScramServer}
"""Authentication methods by the name they have in CONNECT."""

THREADS: Final = max(1, (os.cpu_count() or 2) // 2)
"""That check passwords; the others are the event loop's and its neighbours'."""

MAX_WAITING_CHECKS: Final = 1_000
"""Some seconds of work; further clients are told that the server is busy."""

MAX_REMEMBERED_LOGINS: Final = 10_000

ANONYMOUS: Final = Refused(ConnackReasonCode.NOT_AUTHORIZED, "anonymous clients are not let in")
WRONG_PASSWORD: Final = Refused(
    ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password"
)
TOO_MANY_FAILURES: Final = Refused(
    ConnackReasonCode.CONNECTION_RATE_EXCEEDED, "too many failed logins from its address"
)
TOO_MANY_CHECKS: Final = Refused(ConnackReasonCode.SERVER_BUSY, "too many passwords to check")


class Authenticator:
    """Decides who may log in.

    Args:
        credentials_file: The users; without one a client is whoever it says.
        allow_anonymous: Whether a client needs no user name; None: only without a file.
        failed_logins_per_minute: Of one address; 0: any number.
        clock: For their counting.

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
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
        self._waiting = 0
        # Name -> the verifier that accepted a password, and the password under a key of our own:
        # a client that comes back is not made to wait, and a storm of them does not cost a core.
        self._remembered: dict[str, tuple[Verifier, bytes]] = {}
        self._key = secrets.token_bytes(32)

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
            return Accepted(username) if self._allows_anonymous else ANONYMOUS
        try:
            name = prepare(username, "user name")
            prepared = prepare((password or b"").decode(), "password").encode()
        except (UnpreparableText, UnicodeDecodeError):  # nobody's, whoever is in the file
            name, prepared = "", b""
        verifier = self._credentials.verifier_of(name)
        digest = hmac.digest(self._key, prepared, "sha256")
        known, remembered = self._remembered.get(name, (None, b""))
        if known == verifier and hmac.compare_digest(remembered, digest):
            return Accepted(name)
        if self._failures.are_too_many(address):
            return TOO_MANY_FAILURES
        if not name:
            self._failures.note(address)
            return WRONG_PASSWORD
        if self._waiting >= MAX_WAITING_CHECKS:
            return TOO_MANY_CHECKS
        return self._check(name, prepared, verifier, digest, address)

    def open_exchange(self, method: str, address: str) -> Exchange | Refused:
        """Open an exchange of enhanced authentication; refuse a method there is not."""
        opener = METHODS.get(method)
        if opener is None or self._credentials is None:  # [MQTT5-4.12.0-1]
            return Refused(
                ConnackReasonCode.BAD_AUTHENTICATION_METHOD, "no such authentication method"
            )
        if self._failures.are_too_many(address):
            return TOO_MANY_FAILURES
        return opener(self._credentials)

    def note_failure(self, address: str) -> None:
        """Count an exchange that has failed."""
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
        """Drop what waits to be checked."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check(
        self, name: str, password: bytes, verifier: Verifier, digest: bytes, address: str
    ) -> asyncio.Future[Verdict]:
        def judge() -> Verdict:
            # Others of its address may have failed while this one waited.
            if self._failures.are_too_many(address):
                return TOO_MANY_FAILURES
            if verifier.accepts(password):
                return Accepted(name)
            self._failures.note(address)
            return WRONG_PASSWORD

        def note(checked: asyncio.Future[Verdict]) -> None:
            self._waiting -= 1
            if checked.cancelled() or checked.exception() is not None:
                return
            if isinstance(checked.result(), Accepted):
                self._remember(name, verifier, digest)

        self._waiting += 1
        checking = asyncio.get_running_loop().run_in_executor(self._pool, judge)
        checking.add_done_callback(note)
        return checking

    def _remember(self, name: str, verifier: Verifier, digest: bytes) -> None:
        self._remembered.pop(name, None)
        if len(self._remembered) >= MAX_REMEMBERED_LOGINS:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[name] = (verifier, digest)
