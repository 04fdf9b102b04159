"""HAProxy's `agent-check`: a line for each connection that says how many new clients are to come.

For proxies without a control plane, and when that is dead. An agent speaks for itself alone and
does not know whether others have room: one that is overloaded asks for a hundredth of its part, not
for none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from ingest.gateway.clients.draining import SERVING
from ingest.gateway.load.overload import MOST
from mqlake.errors import OperationalError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

WRITE_SECONDS: Final = 2.0


class AgentCheck:
    """Answers.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0: none.
        state: Returns the state of the gateway for clients: `serving`, or another state.
        level: Returns the overload level.
    """

    def __init__(
        self, host: str, port: int, state: Callable[[], str], level: Callable[[], int]
    ) -> None:
        self._host = host
        self._port = port
        self._state = state
        self._level = level
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen.

        Raises:
            OperationalError: It cannot.
        """
        if not self._port:
            return
        try:
            self._server = await asyncio.start_server(self._answer, self._host, self._port)
        except OSError as exc:
            raise OperationalError(f"agent check on port {self._port}: {exc}") from exc

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def line(self) -> str:
        """Return the line for HAProxy: state, and weight in percent of the configured one."""
        if self._state() != SERVING:
            return "maint"  # `drain` would let in clients that stick
        return f"up ready {max(1, 100 - 100 * self._level() // MOST)}%"

    async def _answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(f"{self.line()}\n".encode())
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(WRITE_SECONDS):
                    await writer.drain()
        finally:
            writer.close()
