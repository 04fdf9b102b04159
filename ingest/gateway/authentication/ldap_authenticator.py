"""A directory (LDAP) as an authenticator: a client's entry is looked for, then bound to.

A user is the entry below `base` that has the name as its `user_attribute`; a name without one is
passed on. A password is right when the directory takes it for a bind with that entry's name. Only
results that say the password is wrong, or the account closed, deny; after any other, or none in
time, the client is refused.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.ldap_connection import SUCCESS, LdapConnection
from ingest.gateway.authentication.ldap_messages import LdapMessageError
from ingest.gateway.authentication.outcomes import (
    NEXT,
    WRONG_PASSWORD,
    Accepted,
    Next,
    Verdict,
)
from ingest.gateway.authentication.web import BUSY, MAX_REASON, NO_ANSWER, Answering, NoAnswer
from mqlake.rights.grants import Grants, GrantsError, read_grants
from mqlake.security.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from ingest.gateway.authentication.ldap_messages import LdapEntry
    from ingest.gateway.authentication.outcomes import Attempt
    from ingest.gateway.settings.authenticators import LdapAuthenticatorSettings

MAX_WAITING: Final = 1_000
"""Clients whose request waits to be sent; further ones hear that the server is busy."""

DENIED: Final = frozenset({48, 49, 50, 53})
"""Results of a bind that deny: inappropriateAuthentication, invalidCredentials,
insufficientAccessRights, unwillingToPerform (RFC 4511, 4.1.9)."""
SIZE_LIMIT_EXCEEDED: Final = 4


class LdapAuthenticator:
    """Asks one directory, on a connection for each login.

    Args:
        name: Name in the settings.
        settings: Address of the server, and which of its entries are users.
    """

    def __init__(self, name: str, settings: LdapAuthenticatorSettings) -> None:
        self._settings = settings
        self._answering = Answering(name)
        self._asking = 0
        self._connections = asyncio.Semaphore(settings.max_connections)
        self._roles = {group.casefold(): role for role, group in settings.roles.items()}

    async def check(self, attempt: Attempt) -> Verdict | Next:
        """Ask about a client."""
        if attempt.username is None or attempt.password is None:
            return NEXT
        try:
            name = prepare(attempt.username, "user name")
        except UnpreparableText:
            return NEXT  # the name of no user in the directory
        if not attempt.password:
            return WRONG_PASSWORD  # a directory takes an empty one for no login, which succeeds
        if self._asking >= self._settings.max_connections + MAX_WAITING:
            return BUSY
        self._asking += 1
        timeout = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(timeout), self._connections:
                verdict = await self._ask(name, attempt.password)
        except TimeoutError:
            reason = f"no answer within {timeout:g} s"
        except (NoAnswer, LdapMessageError) as exc:
            reason = str(exc)
        except OSError as exc:
            reason = f"no answer: {exc}"[:MAX_REASON]
        else:
            self._answering.note_answer()
            return verdict
        finally:
            self._asking -= 1
        self._answering.note_silence(reason)
        return NO_ANSWER

    async def reload(self) -> None:
        """There is no file but that of its own password, which is read at each login."""

    async def close(self) -> None:
        """Nothing is kept open."""

    async def _ask(self, name: str, password: bytes) -> Verdict | Next:
        connection = await LdapConnection.open(self._settings)
        try:
            entry = await self._find(connection, name)
            if entry is None:
                # As long as a wrong password takes; no entry has this name.
                nobody = f"cn={secrets.token_hex(8)},{self._settings.base}"
                await connection.bind(nobody.encode(), password)
                return NEXT
            accepted = Accepted(self._name_in(entry, name), grants=self._grants_in(entry))
            code = await connection.bind(entry.name, password)
        finally:
            connection.close()
        if code in DENIED:
            return WRONG_PASSWORD
        if code != SUCCESS:
            raise NoAnswer(f"it answers a user's bind with the result {code}")
        return accepted

    async def _find(self, connection: LdapConnection, name: str) -> LdapEntry | None:
        settings = self._settings
        if settings.bind_name is not None:
            try:
                secret = await asyncio.to_thread(settings.read_password)
            except UnicodeDecodeError as exc:
                raise NoAnswer("the password of bind_name is not UTF-8 text") from exc
            code = await connection.bind(settings.bind_name.encode(), secret.encode())
            if code != SUCCESS:
                raise NoAnswer(f"it answers the bind as bind_name with the result {code}")
        values = [(settings.user_attribute, name.encode())]
        if settings.user_class is not None:
            values.append(("objectClass", settings.user_class.encode()))
        wanted = [settings.user_attribute, *settings.attributes.values()]
        if settings.roles:
            wanted.append(settings.roles_attribute)
        if settings.rights_attribute is not None:
            wanted.append(settings.rights_attribute)
        seconds = math.ceil(settings.timeout_seconds)
        entries, code = await connection.search(settings.base.encode(), values, wanted, seconds)
        if len(entries) > 1 or code == SIZE_LIMIT_EXCEEDED:
            raise NoAnswer("it has several entries for one user")
        if code != SUCCESS:
            raise NoAnswer(f"it answers the search with the result {code}")
        return entries[0] if entries else None

    def _name_in(self, entry: LdapEntry, asked: str) -> str:
        """Return the user's name as the directory writes it: it compares without regard to case."""
        values = entry.attributes.get(self._settings.user_attribute.lower(), ())
        try:
            names = {prepare(value.decode(), "user name") for value in values}
        except (UnpreparableText, UnicodeDecodeError) as exc:
            raise NoAnswer("the name of an entry is no user name") from exc
        if asked in names:
            return asked
        if len(names) != 1:
            raise NoAnswer(f"an entry has {len(names)} names, and another one was asked for")
        return names.pop()

    def _grants_in(self, entry: LdapEntry) -> Grants:
        settings = self._settings
        groups = entry.attributes.get(settings.roles_attribute.lower(), ())
        names = (group.decode(errors="replace").casefold() for group in groups)
        roles = sorted({self._roles[name] for name in names if name in self._roles})
        rights = entry.attributes.get((settings.rights_attribute or "").lower(), ())
        try:
            rules = [json.loads(value) for value in rights]
            attributes = {
                name: value.decode()
                for name, attribute in settings.attributes.items()
                if (value := _only(entry, attribute)) is not None
            }
            return read_grants(roles, rules, attributes)
        except (GrantsError, ValueError, RecursionError) as exc:
            raise NoAnswer(
                "the rights or attributes of an entry are none (docs/rights.md)"
            ) from exc


def _only(entry: LdapEntry, attribute: str) -> bytes | None:
    """Return the value of an attribute; None: it has none."""
    values = entry.attributes.get(attribute.lower(), ())
    if len(values) > 1:  # a rule that denies must not miss one of them
        raise NoAnswer(f"an entry has {len(values)} values of {attribute}, expected one at most")
    return values[0] if values else None
