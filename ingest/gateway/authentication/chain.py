"""The chain of authenticators, asked one after the other: each allows, denies, or passes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ingest.gateway.authentication.authenticator import (
    ANONYMOUS,
    TOO_MANY_FAILURES,
    WRONG_PASSWORD,
)
from ingest.gateway.authentication.outcomes import NEXT, Accepted, Next
from ingest.gateway.authentication.settings import CREDENTIALS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest.gateway.authentication.authenticator import Authenticator
    from ingest.gateway.authentication.outcomes import Attempt, Verdict
    from mqlake.credentials import PasswordVerifier


class AuthenticatorLink(Protocol):
    """Implemented by each kind of authenticator, see `ingest.gateway.authentication.links`."""

    async def check(self, attempt: Attempt) -> Verdict | Next:
        """Allow, deny or pass on; an authenticator that does not answer has not allowed."""
        ...

    async def reload(self) -> None:
        """Read its files anew.

        Raises:
            KeysUnusable: One cannot be used; all stays as it was.
        """
        ...

    async def close(self) -> None: ...


class Chain:
    """All authenticators of a gateway.

    Args:
        authenticator: Of the credentials file.
        links: The others, by their names.
        prefixes: By the same names, prefixes of the names of their users.
        allow_anonymous: Whether a client that nobody knows, and that names no user, is let in.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        links: Mapping[str, AuthenticatorLink],
        prefixes: Mapping[str, str],
        *,
        allow_anonymous: bool,
    ) -> None:
        self._authenticator = authenticator
        self._links = links
        self._prefixes = prefixes
        self._allow_anonymous = allow_anonymous

    def check(self, attempt: Attempt, names: Sequence[str]) -> Verdict | asyncio.Future[Verdict]:
        """Decide on a client.

        A verdict that costs work comes as a future; cancel it when nobody waits any more.

        Args:
            attempt: Of its CONNECT.
            names: Authenticators, asked in this order; none: the credentials file alone, if any.
        """
        if not names or tuple(names) == (CREDENTIALS,):
            return self._authenticator.check_password(
                attempt.username, attempt.password, attempt.address
            )
        return asyncio.get_running_loop().create_task(self._ask(attempt, names))

    def exchanges(self, names: Sequence[str]) -> Authenticator | None:
        """Return the authenticator that opens exchanges (4.12 of 5.0); None: none of these."""
        return self._authenticator if not names or CREDENTIALS in names else None

    def is_current(self, username: str, verifier: PasswordVerifier) -> bool:
        """Tell whether the credentials file still has a user with the verifier of its login."""
        return self._authenticator.is_current(username, verifier)

    async def reload(self) -> int | None:
        """Read the credentials file anew; `Authenticator.reload` describes it."""
        return await self._authenticator.reload()

    async def reload_keys(self) -> None:
        """Read the files of the other authenticators anew.

        Raises:
            KeysUnusable: One cannot be used; those before it, in the settings, have been read.
        """
        for link in self._links.values():
            await link.reload()

    async def _ask(self, attempt: Attempt, names: Sequence[str]) -> Verdict:
        for name in names:
            # Others of its address may have failed while this one waited.
            if self._authenticator.has_too_many_failures(attempt.address):
                return TOO_MANY_FAILURES
            verdict: Verdict | Next
            if name == CREDENTIALS:
                verdict = await self._ask_credentials(attempt)
            else:
                verdict = self._named(name, await self._links[name].check(attempt), attempt)
                if verdict == WRONG_PASSWORD:
                    self._authenticator.note_failure(attempt.address)
            if not isinstance(verdict, Next):
                return verdict
        if attempt.username is None and attempt.password is None:
            return Accepted(None, is_verified=False) if self._allow_anonymous else ANONYMOUS
        self._authenticator.note_failure(attempt.address)
        return WRONG_PASSWORD

    def _named(self, name: str, verdict: Verdict | Next, attempt: Attempt) -> Verdict | Next:
        """Return an authenticator's verdict, with the name that its user has in its tenant."""
        prefix = self._prefixes[name]
        if not prefix or not isinstance(verdict, Accepted) or verdict.username is None:
            return verdict
        bare = verdict.username.removeprefix(attempt.user_prefix)
        return replace(verdict, username=prefix + bare)

    async def _ask_credentials(self, attempt: Attempt) -> Verdict | Next:
        if not self._authenticator.knows(attempt.username):
            return NEXT
        found = self._authenticator.check_password(
            attempt.username, attempt.password, attempt.address
        )
        return await found if isinstance(found, asyncio.Future) else found

    async def close(self) -> None:
        """Drop checks that are under way, and close all links."""
        self._authenticator.close()
        for link in self._links.values():
            await link.close()
