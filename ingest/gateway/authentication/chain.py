"""The chain of authenticators, asked one after the other: each allows, denies, or passes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from ingest.gateway.authentication.outcomes import (
    ANONYMOUS,
    NEXT,
    WRONG_PASSWORD,
    Accepted,
    Next,
)
from ingest.gateway.settings.authenticators import CREDENTIALS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest.gateway.authentication.authenticator import Authenticator
    from ingest.gateway.authentication.outcomes import Attempt, Verdict
    from mqlake.security.credentials import PasswordVerifier


class AuthenticatorLink(Protocol):
    """Implemented by each kind of authenticator, see `ingest.gateway.authentication.links`."""

    async def check(self, attempt: Attempt) -> Verdict | Next:
        """Allow, deny or pass on; an authenticator that does not answer has not allowed."""
        ...

    async def reload(self) -> None:
        """Read its files again.

        Raises:
            KeysUnusable: One cannot be used; all stays as it was.
        """
        ...

    async def close(self) -> None: ...


class Chain:
    """All authenticators of a gateway.

    Args:
        authenticator: Authenticator of the credentials file.
        links: The others, by their names.
        prefixes: By the same names, prefixes of the names of their users.
        allow_anonymous: A client that no authenticator knows, and that names no user, is let in.
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

        A verdict that costs work comes as a future, when it is the attempt's turn; cancel it when
        no client waits any more.

        Args:
            attempt: Attempt of its CONNECT.
            names: Authenticators, asked in this order; none: the credentials file alone, if any.
        """
        file, who = self._authenticator, (attempt.username, attempt.password)
        ask = partial(self._ask, attempt, names)
        if not names or tuple(names) == (CREDENTIALS,):
            # A client that comes back does not wait for others that guess at its address.
            if (verdict := file.verdict_at_once(*who)) is not None:
                return verdict
            ask = partial(file.check_password, *who)
        judging = file.attempts.judge(attempt.address, ask)
        return asyncio.get_running_loop().create_task(judging)

    def exchanges(self, names: Sequence[str]) -> Authenticator | None:
        """Return the authenticator that opens exchanges (4.12 of 5.0); None: none of these."""
        return self._authenticator if not names or CREDENTIALS in names else None

    def is_current(self, username: str, verifier: PasswordVerifier) -> bool:
        """Tell whether the credentials file still has a user with the verifier of its login."""
        return self._authenticator.is_current(username, verifier)

    async def reload(self) -> int | None:
        """Read the credentials file again; `Authenticator.reload` describes it."""
        return await self._authenticator.reload()

    async def reload_keys(self) -> None:
        """Read the files of the other authenticators again.

        Raises:
            KeysUnusable: One cannot be used; those before it, in the settings, have been read.
        """
        for link in self._links.values():
            await link.reload()

    async def _ask(self, attempt: Attempt, names: Sequence[str]) -> Verdict:
        file, verdict = self._authenticator, cast("Verdict | Next", NEXT)
        is_unknown = False  # to the file, which was not asked to check the password
        for name in names:
            if name != CREDENTIALS:
                verdict = self._named(name, await self._links[name].check(attempt), attempt)
            elif file.knows(attempt.username):
                verdict = await file.check_password(attempt.username, attempt.password)
            else:
                is_unknown = attempt.username is not None
            if not isinstance(verdict, Next):
                break
        if isinstance(verdict, Next):
            if attempt.username is None and attempt.password is None:
                return Accepted(None, is_verified=False) if self._allow_anonymous else ANONYMOUS
            verdict = WRONG_PASSWORD
        if verdict == WRONG_PASSWORD and is_unknown:
            # It takes as long as for a user of the file. Those that are let in need not wait.
            checked = await file.check_password(attempt.username, attempt.password)
            return WRONG_PASSWORD if isinstance(checked, Accepted) else checked
        return verdict

    def _named(self, name: str, verdict: Verdict | Next, attempt: Attempt) -> Verdict | Next:
        """Return an authenticator's verdict, with the name that its user has in its tenant."""
        prefix = self._prefixes[name]
        if not prefix or not isinstance(verdict, Accepted) or verdict.username is None:
            return verdict
        bare = verdict.username.removeprefix(attempt.user_prefix)
        return replace(verdict, username=prefix + bare)

    async def close(self) -> None:
        """Drop checks that are under way, and close all links."""
        self._authenticator.close()
        for link in self._links.values():
            await link.close()
