"""A table of PostgreSQL as an authenticator.

A query is asked with the name (`$1`) in a transaction that only reads, and answers with one row at
most: `verifier` (text, as in a credentials file; it is checked here, so that no password goes to
the database) and perhaps `roles` (text[], beside those of `rights_file`) and, where it brings
rights, `rights` and `attributes` (json, jsonb or text that is JSON). Without a row the client is
passed on. After any other answer, or none in time, the client is refused.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from ingest.gateway.authentication.outcomes import (
    NEXT,
    TOO_MANY_CHECKS,
    WRONG_PASSWORD,
    Accepted,
    Next,
    Verdict,
)
from ingest.gateway.authentication.web import BUSY, MAX_REASON, NO_ANSWER, Answering, NoAnswer
from mqlake.postgresql import PostgresPool
from mqlake.rights.grants import Grants, GrantsError, read_grants
from mqlake.security.argon2_verifiers import Argon2Verifier
from mqlake.security.credentials import (
    KEY_BYTES,
    CredentialsError,
    PasswordVerifier,
    Verifier,
    make_verifier,
    read_password_verifier,
)
from mqlake.security.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from ingest.gateway.authentication.outcomes import Attempt
    from ingest.gateway.authentication.passwords import PasswordChecks
    from ingest.gateway.settings.authenticators import PostgresAuthenticatorSettings

MAX_WAITING: Final = 1_000
"""Clients whose query waits to be sent; further ones hear that the server is busy."""


class PostgresAuthenticator:
    """Asks one database.

    Args:
        name: Name in the settings.
        settings: Address of the database, and the query.
        passwords: Checks them.
    """

    def __init__(
        self, name: str, settings: PostgresAuthenticatorSettings, passwords: PasswordChecks
    ) -> None:
        self._settings = settings
        self._passwords = passwords
        self._pool = PostgresPool(settings, settings.timeout_seconds)
        self._answering = Answering(name)
        self._asking = 0
        # Its work is done for unknown users, too, so that they take the same time.
        self._usual: PasswordVerifier = make_verifier(secrets.token_hex())

    async def check(self, attempt: Attempt) -> Verdict | Next:
        """Ask about a client."""
        if attempt.username is None or attempt.password is None:
            return NEXT
        try:
            name = prepare(attempt.username, "user name")
        except UnpreparableText:
            return NEXT  # the name of no user in the table
        try:
            password = prepare(attempt.password.decode(), "password").encode()
        except (UnpreparableText, UnicodeDecodeError):
            password = b""  # of no user either
        if self._asking >= self._settings.max_connections + MAX_WAITING:
            return BUSY
        self._asking += 1
        try:
            found = await self._find(name)
        except NoAnswer as exc:
            self._answering.note_silence(str(exc))
            return NO_ANSWER
        finally:
            self._asking -= 1
        self._answering.note_answer()
        if self._passwords.are_too_many:
            return TOO_MANY_CHECKS
        if found is None:
            await self._accepts(name, password, self._usual)
            return NEXT
        verifier, grants = found
        self._usual = _like(verifier)
        if not await self._accepts(name, password, verifier):
            return WRONG_PASSWORD
        return Accepted(name, grants=grants)

    async def reload(self) -> None:
        """There is no file but that of its own password, which is read at each connection."""

    async def close(self) -> None:
        await self._pool.close()

    async def _accepts(self, name: str, password: bytes, verifier: PasswordVerifier) -> bool:
        if self._passwords.remembers(name, password, verifier):
            return True
        accepted = await self._passwords.run(lambda: verifier.accepts(password))
        if accepted:
            self._passwords.remember(name, password, verifier)
        return accepted

    async def _find(self, name: str) -> tuple[PasswordVerifier, Grants] | None:
        timeout = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(timeout):
                pool = await self._pool.open()
                async with pool.acquire() as connection, connection.transaction(readonly=True):
                    cursor = await connection.cursor(self._settings.query, name)
                    rows = await cursor.fetch(2)
        except TimeoutError as exc:
            raise NoAnswer(f"no answer within {timeout:g} s") from exc
        except (
            OSError,
            UnicodeDecodeError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as exc:
            raise NoAnswer(f"no answer: {exc}"[:MAX_REASON]) from exc
        if len(rows) > 1:
            raise NoAnswer("the query answers with several rows for one user, expected one at most")
        return _read(dict(rows[0]), brings_rights=self._settings.brings_rights) if rows else None


def _read(row: dict[str, Any], *, brings_rights: bool) -> tuple[PasswordVerifier, Grants]:
    text = row.get("verifier")
    if type(text) is not str:
        raise NoAnswer("the query answers without text in a column verifier")
    try:
        verifier = read_password_verifier(text)
        rights = _json(row, "rights") if brings_rights else None
        attributes = _json(row, "attributes") if brings_rights else None
        return verifier, read_grants(row.get("roles"), rights, attributes)
    except (CredentialsError, GrantsError) as exc:
        raise NoAnswer(f"its answer for a user cannot be used: {exc}") from exc


def _json(row: dict[str, Any], column: str) -> Any:
    text = row.get(column)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise NoAnswer(f"the query answers without JSON in its column {column}") from exc


def _like(verifier: PasswordVerifier) -> PasswordVerifier:
    """Return a verifier that costs as much and accepts nothing."""
    nothing = secrets.token_bytes(2 * KEY_BYTES)
    if isinstance(verifier, Argon2Verifier):
        return Argon2Verifier(verifier.work, verifier.salt, nothing[: len(verifier.hash)])
    return Verifier(verifier.salt, verifier.iterations, nothing[:KEY_BYTES], nothing[KEY_BYTES:])
