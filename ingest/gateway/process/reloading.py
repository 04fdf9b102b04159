"""New certificates for new connections, new users, rights and bans for all.

A connected client stays, unless its user is no more or has another password, it may not have its
client identifier any more, or is banned.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ingest.gateway.authentication.tokens import KeysUnusable
from mqlake.bans import BansError
from mqlake.records.audit import AUDIT_EVENT
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.rights.files import RightsError
from mqlake.security.credentials import CredentialsError

if TYPE_CHECKING:
    from pathlib import Path

    from ingest.gateway.authentication.authorizer import Authorizer
    from ingest.gateway.authentication.chain import Chain
    from ingest.gateway.base.connections import Connections
    from ingest.gateway.base.context import Context
    from ingest.gateway.base.tasks import Tasks
    from ingest.gateway.limits.bans import Bans
    from ingest.gateway.listeners.listeners import Listeners
    from mqlake.errors import MqlakeError

logger = logging.getLogger(__name__)


class Reloading:
    """Reloads files of certificates, users, rights and bans; each is reported (`audit_log`).

    Args:
        listeners: Have certificates.
        chain: Knows the users.
        authorizer: Knows their rights.
        bans: Bans of clients.
        connections: Go by that from then on.
        tasks: Owns the reading.
        context: Shared by all parts of the gateway.
    """

    def __init__(
        self,
        listeners: Listeners,
        chain: Chain,
        authorizer: Authorizer,
        bans: Bans,
        connections: Connections,
        tasks: Tasks,
        context: Context,
    ) -> None:
        self._listeners = listeners
        self._chain = chain
        self._authorizer = authorizer
        self._bans = bans
        self._connections = connections
        self._tasks = tasks
        self._settings = context.settings
        self._events = context.events

    def begin(self) -> None:
        """Read them in the background."""
        self._tasks.start(self._read())

    async def _read(self) -> None:
        await self._listeners.reload_certificates()
        await self._read_users()
        await self._read_keys()
        await self._read_rights()
        await self._read_bans()

    async def _read_users(self) -> None:
        path = self._settings.credentials_file
        try:
            users = await self._chain.reload()
        except CredentialsError as exc:
            self._stays("credentials", path, exc)
        else:
            for connection in list(self._connections):
                connection.admission.renew_login()
            self._is_read("credentials", path, users=users)

    async def _read_keys(self) -> None:
        try:
            await self._chain.reload_keys()
        except KeysUnusable as exc:
            self._stays("keys of tokens", None, exc)

    async def _read_rights(self) -> None:
        path = self._settings.rights_file
        try:
            rules = await self._authorizer.reload()
        except RightsError as exc:
            self._stays("rights", path, exc)
            return
        if rules is None:
            return
        if version := self._authorizer.version:
            words = "rights file not used: rights were applied for all gateways"
            logger.warning(words, extra={"fields": {"version": version}})
            self._tell(path, words)
            return
        for connection in list(self._connections):
            connection.admission.renew_rights()
        self._is_read("rights", path, rules=rules)

    async def _read_bans(self) -> None:
        path = self._settings.bans_file
        try:
            bans = await self._bans.reload()
        except BansError as exc:
            self._stays("bans", path, exc)
            return
        if bans is not None:
            self._bans.cut_banned()
            self._is_read("bans", path, bans=bans)

    def _is_read(self, what: str, path: Path | None, **counts: int | None) -> None:
        if path is not None:
            words = f"{what} reloaded"
            logger.info(words, extra={"fields": counts})
            self._tell(path, None, counts)

    def _stays(self, what: str, path: Path | None, error: MqlakeError) -> None:
        words = f"{what} not reloaded, the old ones stay"
        logger.error(words, extra={"fields": {"reason": str(error)}})
        self._tell(path, f"{words}: {error}")

    def _tell(self, path: Path | None, detail: str | None, after: object = None) -> None:
        self._events.add(
            AUDIT_EVENT,
            DEFAULT_TENANT,
            "",
            caller="file",
            credential="file",
            operation="reload",
            target=str(path or ""),
            detail=detail,
            after=after,
        )
