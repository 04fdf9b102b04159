"""How long a client's credentials count: its connection ends with its certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.protocol.reason_codes import DisconnectReasonCode

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.base.client import Newcomer
    from mqlake.clock import Clock

LOOK_SECONDS: Final = 60.0
"""How often it is looked at the calendar at least: that may be set, and a machine may sleep."""


class Validity:
    """Ends a connection when the credentials of its client expire.

    Args:
        connection: Closed, without CONNACK while it waits for that; `cancel` when it is over.
        clock: Says when that is.
        loop: Wakes us.
        ends_at: In seconds UTC.
        what: Is over then, for the log and the client.
    """

    __slots__ = ("_clock", "_connection", "_ends_at", "_loop", "_reason", "_timer")

    def __init__(
        self,
        connection: Newcomer,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        ends_at: float,
        what: str,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._loop = loop
        self._ends_at = ends_at
        self._reason = f"{what} is over"
        self._timer = loop.call_soon(self._look)

    def cancel(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._ends_at - self._clock.now_ms() / 1000
        if left > 0:
            self._timer = self._loop.call_later(min(left, LOOK_SECONDS), self._look)
        elif self._connection.protocol.is_connected:
            self._connection.close(DisconnectReasonCode.NOT_AUTHORIZED, log_reason=self._reason)
        else:
            self._connection.cut(self._reason)  # its session may be on its way
