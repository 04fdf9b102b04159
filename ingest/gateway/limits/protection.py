"""Protection of a gateway from overload, step by step.

    1  publishers pay with credits, of which there are fewer the longer it lasts
    2  there are no credits: publishers are read no further
    3  no client is let in
    4  the client that holds most of its memory is disconnected, one a second

Steps 1 and 2 go by the present pressure (`ingest.gateway.load.overload`) and cost publishers time
only.
3 and 4 turn clients away: they need a queue to the log, or a memory, that has been full for
seconds, and 4 the memory, for clients that wait for the log hold none. Nothing that was
acknowledged is lost by any of them
([design: gateway, 120](docs/design/gateway.md)).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from ingest.session.limits.credits import BURST_SECONDS, GRANT, NOTHING_AT, CreditRate, Credits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.base.connections import Connections, Socket
    from ingest.gateway.base.context import Context
    from ingest.gateway.load.overload import OverloadMeter

logger = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.1
"""How often it looks."""
GIVE_SECONDS: Final = BURST_SECONDS
"""How often credits flow while they are not all there."""

MODEST_FOR_SECONDS: Final = 10.0
"""A client that publishes little is looked after for so long, until it asks again."""
FULL_AT: Final = 9.0
"""Pressure of the queue to the log or of the memory that is full; it is until `NOTHING_AT`."""
FULL_SECONDS: Final = 3.0
"""Time of being full after which no client is let in."""
OUT_AT: Final = 9.99
"""Pressure of the memory at which clients are disconnected."""
OUT_SECONDS: Final = 6.0
"""At that for so long: the first is; each further one after another `PAUSE_SECONDS`."""
PAUSE_SECONDS: Final = 1.0
WORD_SECONDS: Final = 60.0
"""Least time between log lines about overload."""
LEAST_BYTES: Final = 1024 * 1024
"""A client that holds less is not disconnected: that would gain nothing."""

_BUSY: Final = ConnackReasonCode.SERVER_BUSY, "the gateway is overloaded"


class Protection:
    """Keeps a gateway at work when clients want more than it can do.

    Args:
        context: Shared by all parts of the gateway.
        meter: Says how much there is to do.
        connections: All sockets.
        now: A clock in seconds; without one that of the loop.

    Attributes:
        step: As above; 0: nothing is wrong.
    """

    def __init__(
        self,
        context: Context,
        meter: OverloadMeter,
        connections: Connections,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._highest = context.settings.overload.highest_step
        self._loop = context.loop
        self._counters = context.counters
        self._meter = meter
        self._connections = connections
        self._now = now or context.loop.time
        self._rate = CreditRate()
        self._credits: Credits[Socket] = Credits(self._rate)
        self._giving: asyncio.TimerHandle | None = None
        self._at = self._now()
        self._published = 0
        self._per_second = 0.0
        self._full_since: float | None = None
        self._out_since: float | None = None
        self._next_end = self._next_word = self._at
        self._refuses = False
        self.step = 0

    @property
    def level(self) -> int:
        """How much there is to do, as balancers read it."""
        return self._meter.level

    @property
    def waiting(self) -> int:
        """How many clients wait for credits."""
        return len(self._credits)

    @property
    def credits_per_second(self) -> float:
        """How many there are for all."""
        return 0.0 if self._rate.is_stopped else self._rate.per_second

    def refusal(self) -> tuple[ConnackReasonCode, str] | None:
        """Return why no client is let in; None when clients are."""
        return _BUSY if self._refuses else None

    def ask(self, socket: Socket, last: float) -> tuple[int, float]:
        """Give credits to a client that has none left, or let it wait.

        Args:
            socket: The client's.
            last: When it was given some before.

        Returns:
            How many, and the time; with 0 its `regain` is called when there are some.
        """
        now = self._now()
        given = self._credits.ask(socket, last, now)
        if not given:
            self._counters.clients_waited_for_credits += 1
        if self._giving is None:
            self._giving = self._loop.call_later(GIVE_SECONDS, self._give)
        return given, now

    def leave(self, socket: Socket) -> None:
        """Forget a client that is gone."""
        self._credits.leave(socket)

    async def run(self) -> None:
        """Look every now and then, until cancelled."""
        at, worked = self._loop.time(), time.thread_time()
        while True:
            await asyncio.sleep(STEP_SECONDS)
            (before, at), (worked_before, worked) = (
                (at, self._loop.time()),
                (worked, time.thread_time()),
            )
            self._meter.note(at - before, at - before - STEP_SECONDS, worked - worked_before)
            self.look()

    def look(self) -> None:
        """Go a step on or back, as things are now."""
        now = self._now()
        seconds, self._at = max(now - self._at, 1e-3), now
        received = self._counters.messages_received
        part = min(1.0, seconds)  # a mean of about a second
        self._per_second += ((received - self._published) / seconds - self._per_second) * part
        self._published = received
        self._meter.per_second = self._per_second
        self._meter.has_modest = now - self._credits.modest_at < MODEST_FOR_SECONDS
        self._rate.step(self._pressure(), self._per_second)
        memory = self._meter.memory_pressure()
        full = max(memory, self._meter.log_pressure())
        self._full_since = _since(self._full_since, full, FULL_AT, NOTHING_AT, now)
        self._out_since = _since(self._out_since, memory, OUT_AT, OUT_AT, now)
        self._refuses = self._highest >= 3 and _lasts(self._full_since, FULL_SECONDS, now)
        is_out = self._highest >= 4 and _lasts(self._out_since, OUT_SECONDS, now)
        if is_out and now >= self._next_end:
            self._next_end = now + PAUSE_SECONDS
            self._disconnect_heaviest()
        self._tell(4 if is_out else 3 if self._refuses else self._step_of_credits())

    def _pressure(self) -> float:
        """Return that by which credits are given."""
        if not self._highest:
            return 0.0
        pressure = self._meter.pressure()
        return min(pressure, NOTHING_AT - 0.1) if self._highest == 1 else pressure

    def _step_of_credits(self) -> int:
        return 2 if self._rate.is_stopped else int(self._rate.is_limited)

    def _tell(self, step: int) -> None:
        if step > 1 and self._now() >= self._next_word:
            self._next_word = self._now() + WORD_SECONDS
            logger.warning("overload", extra={"fields": {"step": step, **self._meter.levels()}})
        self.step = step

    def _give(self) -> None:
        self._giving = None
        now = self._now()
        # Not only ten times a second: a log that stands still fills the queue sooner.
        self._rate.is_stopped = self._pressure() >= NOTHING_AT
        for socket in self._credits.take(now):
            if not socket.is_closing:
                socket.regain(GRANT, now)
        if self._giving is None and not self._credits.is_settled:
            self._giving = self._loop.call_later(GIVE_SECONDS, self._give)

    def _disconnect_heaviest(self) -> None:
        """End the connection of the client for which most is kept, if that is much."""
        heaviest = max(
            (one for one in self._connections if not one.is_closing),
            key=lambda one: one.held_bytes,
            default=None,
        )
        if heaviest is None or heaviest.held_bytes < LEAST_BYTES:
            return
        self._counters.clients_disconnected_for_memory += 1
        reason = (
            f"the gateway is short of memory, and keeps {heaviest.held_bytes >> 20} MiB for this "
            "client, more than for any other"
        )
        heaviest.close(DisconnectReasonCode.QUOTA_EXCEEDED, log_reason=reason)


def _since(
    before: float | None, level: float, begins: float, ends: float, now: float
) -> float | None:
    """Return since when a level has been high: from `begins`, until it is below `ends`."""
    if level >= begins:
        return now if before is None else before
    return before if level >= ends else None


def _lasts(since: float | None, seconds: float, now: float) -> bool:
    return since is not None and now - since >= seconds
