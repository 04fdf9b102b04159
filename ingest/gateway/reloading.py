"""New certificates and users for new connections, new rights and bans for all.

Who is connected stays, unless it may not have its client identifier any more, or is banned.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ingest.gateway.authentication.tokens import KeysUnusable
from mqlake.bans import BansError
from mqlake.credentials import CredentialsError
from mqlake.rights.files import RightsError

if TYPE_CHECKING:
    from ingest.gateway.authentication.authorizer import Authorizer
    from ingest.gateway.authentication.chain import Chain
    from ingest.gateway.bans import Bans
    from ingest.gateway.connections import Connections
    from ingest.gateway.listeners.listeners import Listeners
    from ingest.gateway.tasks import Tasks

logger = logging.getLogger(__name__)


class Reloading:
    """Has the files read again that say who may come in, and do what.

    Args:
        listeners: Have certificates.
        chain: Knows the users.
        authorizer: Knows what they may do.
        bans: Know who is not let in.
        connections: Go by that from then on.
        tasks: Owns the reading.
    """

    def __init__(
        self,
        listeners: Listeners,
        chain: Chain,
        authorizer: Authorizer,
        bans: Bans,
        connections: Connections,
        tasks: Tasks,
    ) -> None:
        self._listeners = listeners
        self._chain = chain
        self._authorizer = authorizer
        self._bans = bans
        self._connections = connections
        self._tasks = tasks

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
        try:
            users = await self._chain.reload()
        except CredentialsError as exc:
            logger.error(
                "credentials not reloaded, the old ones stay",
                extra={"fields": {"reason": str(exc)}},
            )
        else:
            if users is not None:
                logger.info("credentials reloaded", extra={"fields": {"users": users}})

    async def _read_keys(self) -> None:
        try:
            await self._chain.reload_keys()
        except KeysUnusable as exc:
            logger.error(
                "keys of tokens not reloaded, the old ones stay",
                extra={"fields": {"reason": str(exc)}},
            )

    async def _read_rights(self) -> None:
        try:
            rules = await self._authorizer.reload()
        except RightsError as exc:
            logger.error(
                "rights not reloaded, the old ones stay", extra={"fields": {"reason": str(exc)}}
            )
            return
        if rules is None:
            return
        if self._authorizer.version:
            logger.warning(
                "rights file not used: rights were applied for all gateways",
                extra={"fields": {"version": self._authorizer.version}},
            )
            return
        for connection in list(self._connections):
            connection.renew_rights()
        logger.info("rights reloaded", extra={"fields": {"rules": rules}})

    async def _read_bans(self) -> None:
        try:
            bans = await self._bans.reload()
        except BansError as exc:
            logger.error(
                "bans not reloaded, the old ones stay", extra={"fields": {"reason": str(exc)}}
            )
            return
        if bans is None:
            return
        self._bans.cut_banned()
        logger.info("bans reloaded", extra={"fields": {"bans": bans}})
