"""New certificates and users for new connections; who is connected stays."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mqlake.credentials import CredentialsError

if TYPE_CHECKING:
    from ingest.gateway.authentication.authenticator import Authenticator
    from ingest.gateway.listeners.listeners import Listeners
    from ingest.gateway.tasks import Tasks

logger = logging.getLogger(__name__)


class Reloading:
    """Has the files read again that say who may come in.

    Args:
        listeners: Have certificates.
        authenticator: Knows the users.
        tasks: Owns the reading.
    """

    def __init__(self, listeners: Listeners, authenticator: Authenticator, tasks: Tasks) -> None:
        self._listeners = listeners
        self._authenticator = authenticator
        self._tasks = tasks

    def begin(self) -> None:
        """Read them in the background."""
        self._tasks.start(self._read())

    async def _read(self) -> None:
        await self._listeners.reload_certificates()
        try:
            users = await self._authenticator.reload()
        except CredentialsError as exc:
            logger.error(
                "credentials not reloaded, the old ones stay",
                extra={"fields": {"reason": str(exc)}},
            )
        else:
            if users is not None:
                logger.info("credentials reloaded", extra={"fields": {"users": users}})
