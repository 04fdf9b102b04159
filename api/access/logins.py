"""Logging in: credentials are checked, and a session is opened."""

import asyncio
from dataclasses import dataclass
from functools import partial

from api.access.callers import Caller, Callers, of_account
from api.access.changes import AccessChanges
from api.access.materialised import MaterialisedAccess
from api.access.passwords import ApiPasswordChecks
from api.access.tokens import SESSION_PREFIX
from api.log.repository import InTheWay
from mqlake.errors import MqlakeError


class WrongCredentials(MqlakeError):  # noqa: N818 - it names the problem
    """The credentials of a login are wrong."""


@dataclass(frozen=True, slots=True)
class Logins:
    """Logs people in."""

    callers: Callers
    view: MaterialisedAccess
    changes: AccessChanges
    passwords: ApiPasswordChecks
    lifetime_seconds: float
    """Lifetime of a session."""

    def by_token(self, token: str) -> Caller:
        """Return the caller of a token or key.

        Raises:
            WrongCredentials: There is none.
            OperationalError: The keys have not been read yet.
        """
        caller = self.callers.by_token(token)
        if caller is None:
            raise WrongCredentials("the token is not one that counts")
        return caller

    async def by_password(self, name: str, password: str) -> Caller:
        """Return the caller of an account, by name and password.

        Raises:
            WrongCredentials: There is none, or it has another password.
            OperationalError: Too many passwords are being checked.
        """
        is_right = await self.passwords.run(partial(self.changes.accepts, name, password))
        account = self.view.account(name) if is_right else None  # it may be deleted this moment
        if account is None:
            raise WrongCredentials("user name or password are wrong")
        return of_account(name, account)

    def by_provider(self, name: str) -> Caller:
        """Return the caller of an account, by a name that the identity provider says.

        Raises:
            WrongCredentials: There is none.
        """
        account = self.view.account(name)
        if account is None:
            raise WrongCredentials(f"there is no account {name[:64]!r}: an administrator makes it")
        return of_account(name, account)

    async def open(self, caller: Caller) -> tuple[str, Caller]:
        """Open a session; return its cookie, and the caller who comes by it.

        Raises:
            InTheWay: There are too many sessions.
            LogError: The log does not answer.
        """
        opening = partial(self.changes.open_session, caller, self.lifetime_seconds)
        secret = await asyncio.to_thread(opening)
        cookie = secret.text(SESSION_PREFIX)
        opened = self.callers.by_session(cookie)
        assert opened is not None
        return cookie, opened


def need_password(caller: Caller) -> None:
    """Accept a caller with a password that he may change.

    Raises:
        InTheWay: He has come by a key or the token.
    """
    if caller.kind != "account":
        raise InTheWay(f"{caller.name} has no password")
