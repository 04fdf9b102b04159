"""Connections to a database of PostgreSQL, by asyncpg: a pool that is opened when it is wanted."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

from mqlake.settings import PostgresSettings

IDLE_SECONDS: Final = 300.0
CLOSE_SECONDS: Final = 2.0


class PostgresPool:
    """A pool of connections.

    Args:
        settings: Address of the database, and the user that asks it.
        connect_seconds: Longest time for opening one.
        set_up: Called with each that is opened.
    """

    def __init__(
        self,
        settings: PostgresSettings,
        connect_seconds: float,
        set_up: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._settings = settings
        self._connect_seconds = connect_seconds
        self._set_up = set_up
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> asyncpg.Pool:
        """Return the pool; its connections are opened one by one, as they are acquired."""
        async with self._opening:
            if self._pool is None:
                settings = self._settings
                self._pool = await asyncpg.create_pool(
                    host=settings.host,
                    port=settings.port,
                    database=settings.database,
                    user=settings.user,
                    password=self._password,
                    ssl=_tls(settings),
                    min_size=0,
                    max_size=settings.max_connections,
                    timeout=self._connect_seconds,
                    max_inactive_connection_lifetime=IDLE_SECONDS,
                    init=self._set_up,
                    server_settings={"application_name": "mqlake"},
                )
            return self._pool

    async def close(self) -> None:
        """Close open connections; queries under way have a moment."""
        if self._pool is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._pool.close()
            except TimeoutError:
                self._pool.terminate()

    def _password(self) -> str:
        settings = self._settings
        if settings.password_file is not None:
            return settings.password_file.read_text(encoding="utf-8").strip()
        return "" if settings.password is None else settings.password.get_secret_value()


def _tls(settings: PostgresSettings) -> Any:
    if settings.ca_certificates is None:
        return settings.tls
    context = ssl.create_default_context(cafile=settings.ca_certificates)
    context.check_hostname = settings.tls == "verify-full"
    return context
