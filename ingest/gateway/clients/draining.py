"""A planned end: clients go to other gateways, some each second, and nothing is lost.

    serving ──drain──► draining ──none and nothing left────►  drained
       ▲                  │                                     │
       └──────serve───────┴─────────────────────────────────────┘

A client that is to go is read no further; once the log has answered for all that it has sent, so
that its acknowledgements are true, it gets the reason and its connection is closed. Its session
goes to the log as at any other end of a connection, and waits there for the gateway to which the
client turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.base.connections import Connections, Socket
    from ingest.gateway.base.context import Context

logger = logging.getLogger(__name__)

SERVING: Final = "serving"
DRAINING: Final = "draining"
DRAINED: Final = "drained"

DEFAULT_CONNECTIONS_PER_SECOND: Final = 50.0

STEP_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 5.0
"""How long a client's messages may wait for the log; then it goes without an answer."""

_SHARE_FOR_CLIENTS: Final = 0.8
"""Part of a drain's time in which they go; the log has the rest to take what they left."""

PAUSED_BY_DRAIN: Final = "drain"
_REASON: Final = "the gateway is being drained"


@dataclass(frozen=True, slots=True)
class Drain:
    """A request to drain.

    Attributes:
        connections_per_second: How many clients go.
        server_reference: Server for 5.0 clients to use; empty: that of the settings.
        moved: This gateway will not come back: 0x9D in place of 0x9C.
    """

    connections_per_second: float = DEFAULT_CONNECTIONS_PER_SECOND
    server_reference: str = ""
    moved: bool = False


class Draining:
    """Says whether a gateway takes clients, and which go next.

    Args:
        context: Shared by all parts of the gateway.
        connections: All sockets, also those that were not let in.
        is_idle: Tells whether no client is here and the log has everything of those that were.
    """

    def __init__(
        self,
        context: Context,
        connections: Connections,
        is_idle: Callable[[], bool],
    ) -> None:
        self._context = context
        self._connections = connections
        self._is_idle = is_idle
        self._drain: Drain | None = None
        self._begun = asyncio.Event()
        self._drained = asyncio.Event()
        self._next: list[Socket] = []
        # Those that are read no further, and when they go at the latest.
        self._paused: dict[Socket, float] = {}

    @property
    def state(self) -> str:
        if self._drain is None:
            return SERVING
        return DRAINED if self._drained.is_set() else DRAINING

    @property
    def server_reference(self) -> str:
        """Return the server that clients are sent to."""
        asked = "" if self._drain is None else self._drain.server_reference
        return asked or self._context.settings.server_reference

    def refusal(self) -> tuple[ConnackReasonCode, str] | None:
        """Return why new clients are turned away; None when they are not."""
        if self._drain is None:
            return None
        if self._drain.moved:
            return ConnackReasonCode.SERVER_MOVED, _REASON
        return ConnackReasonCode.USE_ANOTHER_SERVER, _REASON

    def begin(self, drain: Drain) -> None:
        """Let clients go from now on; while it is under way: in another way."""
        logger.info("drain begins", extra={"fields": {"per_second": drain.connections_per_second}})
        self._drain = drain
        self._drained.clear()
        self._begun.set()

    def undo(self) -> None:
        """Take clients again; those that have gone stay gone."""
        if self._drain is None:
            return
        logger.info("drain is undone", extra={"fields": {"state": self.state}})
        self._drain = None
        self._begun.clear()
        self._drained.clear()
        self._next.clear()
        paused, self._paused = self._paused, {}
        for connection in paused:
            connection.resume_reading(PAUSED_BY_DRAIN)

    async def over(self, seconds: float) -> None:
        """Let all clients go over some seconds; return when none is left, or they have passed.

        Few clients go as fast as with any drain: the rate is for the others' sake.
        """
        clients = len(self._connections)
        per_second = clients / (_SHARE_FOR_CLIENTS * seconds)
        self.begin(Drain(max(per_second, DEFAULT_CONNECTIONS_PER_SECOND)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._drained.wait()

    async def run(self) -> None:
        """Let clients go whenever that is asked for, until cancelled."""
        loop = self._context.loop
        while True:
            await self._begun.wait()
            due = 1.0
            at = loop.time()
            while self._drain is not None:
                due -= self._pause(int(due))
                self._close(loop.time())
                self._look_for_the_end()
                await asyncio.sleep(STEP_SECONDS)
                at, before = loop.time(), at
                if self._drain is not None:
                    per_second = self._drain.connections_per_second
                    # Unused turns are not saved up: the rate is the most that others can bear.
                    due = min(due, 1.0) + (at - before) * per_second

    def _pause(self, count: int) -> int:
        """Read no further from `count` clients; return from how many there were."""
        paused = 0
        deadline = self._context.loop.time() + ANSWER_SECONDS
        if not self._next:
            self._next = list(self._connections)
        while paused < count and self._next:
            connection = self._next.pop()
            if connection.session is None or connection.is_closing or connection in self._paused:
                continue
            connection.pause_reading(PAUSED_BY_DRAIN)
            self._paused[connection] = deadline
            paused += 1
        return paused

    def _close(self, now: float) -> None:
        """End the connections of those that have been answered."""
        assert self._drain is not None
        code = DisconnectReasonCode.USE_ANOTHER_SERVER
        if self._drain.moved:
            code = DisconnectReasonCode.SERVER_MOVED
        for connection, deadline in list(self._paused.items()):
            if connection.is_closing:
                del self._paused[connection]
            elif connection.is_answered or now > deadline:
                del self._paused[connection]
                connection.close(code, log_reason=_REASON, lingers=True)

    def _look_for_the_end(self) -> None:
        """Say so when the process may end: no client is here and the log has everything."""
        if not self._drained.is_set() and self._is_idle():
            self._drained.set()
            logger.info("drained")
