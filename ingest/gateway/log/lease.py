"""The right of a gateway to act: its heartbeat came back from the log, so others have heard it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from mqlake.clock import Standstill

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.clock import Clock

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 3.0
"""A gateway that has not been heard of for so long owns no shards: others take them over. That
costs it nothing; its sessions stay its own until its lease is over."""

SURE_SECONDS: Final = SILENT_SECONDS - HEARTBEAT_SECONDS
"""When our own heartbeat is missing for so long, others may own our shards before we know it."""

DOUBT_SECONDS: Final = 1.5
"""By so much the log's time may be ahead of what it can be: clocks of brokers differ, too."""


class Lease:
    """Says whether this gateway may act for its sessions and shards: others know that it is there.

    Our clock stands still with the machine, when that is suspended or its hypervisor stops it. So
    what counts is the log's time: of each heartbeat that has come back, and for how long our clock
    must have stood is taken off the lease (`mqlake.clock.Standstill`). Any other record that the
    log shows, or has taken, may tell it earlier, and a calendar that has gone on without our clock
    at once: then there is *doubt*, and nothing goes to clients and nothing is acknowledged until a
    heartbeat has come back that was sent after that.

    Args:
        clock: Its monotonic time counts, and the log's, where that has gone on further.
        seconds: How long a heartbeat that has come back counts, from when it was sent.
        on_lost: Called once when that time is over.

    Attributes:
        clock: Clock of the gateway.
        silences: How often that time was over when a heartbeat came back.
        doubts: How often there was doubt.
        on_doubt: Called when there is doubt: a heartbeat is to be sent.
    """

    def __init__(self, clock: Clock, seconds: float, on_lost: Callable[[], None]) -> None:
        self.clock = clock
        self.seconds = seconds
        self._on_lost = on_lost
        self._until = self._writes_until = clock.monotonic() + seconds
        self._is_confirmed = True
        self._is_sure = True
        self._standstill = Standstill(clock)
        self._calendar_ahead = self._look_at_calendar()
        self._doubted_at: float | None = None
        self.silences = 0
        self.doubts = 0
        self.on_doubt: Callable[[], None] = lambda: None

    def holds(self) -> bool:
        return not self.is_lost() and not self.is_in_doubt

    @property
    def is_in_doubt(self) -> bool:
        """Tell whether our clock seems to have stood still, with no heartbeat back since then."""
        before, self._calendar_ahead = self._calendar_ahead, self._look_at_calendar()
        if self._calendar_ahead - before > DOUBT_SECONDS:
            self._doubt()
        return self._doubted_at is not None

    def _look_at_calendar(self) -> float:
        """Return how many seconds it is ahead of our clock."""
        return self.clock.now_ms() / 1000 - self.clock.monotonic()

    def _doubt(self) -> None:
        if self._doubted_at is None:
            self._doubted_at = self.clock.monotonic()
            self.doubts += 1
            self.on_doubt()

    def is_lost(self) -> bool:
        """Tell whether that time was over, and the acts of others since are not known."""
        if self._is_confirmed and self.clock.monotonic() >= self._until:
            self._is_confirmed = False
            logger.warning(
                "heartbeats of this gateway do not arrive, nothing is delivered",
                extra={"fields": {"lease_seconds": self.seconds}},
            )
            self._on_lost()
        return not self._is_confirmed

    def heard_log(self, timestamp_ms: int) -> None:
        """Take the log's time, of a record that was just read, or that the log has just taken."""
        if self._standstill.beyond(timestamp_ms) > DOUBT_SECONDS:
            self._doubt()

    def may_deliver(self) -> bool:
        """Tell whether no client of this gateway can be another one's by now."""
        return self.is_sure() and self.holds()

    def is_in_time(self) -> bool:
        """Tell whether others hear this gateway now, even after a silence."""
        return self.clock.monotonic() < self._until

    def is_certain(self) -> bool:
        """Tell whether others hear this gateway for long enough to come that a record is written.

        Until then no other takes over its shards.
        """
        is_early = self.clock.monotonic() < self._writes_until - self.seconds + SILENT_SECONDS / 2
        return is_early and not self.is_in_doubt

    def is_sure(self) -> bool:
        """Tell whether this gateway knows of each owner that has come after it.

        Others act for its shards when they have not heard it for a while. So once that may have
        been so, the answer is no until it has read their records (`assure`).
        """
        if self._is_sure and not self.is_heard():
            self._is_sure = False
        return self._is_sure

    def is_heard(self) -> bool:
        """Tell whether others cannot take this gateway for silent."""
        return self.clock.monotonic() < self._until - self.seconds + SURE_SECONDS

    def assure(self) -> None:
        """Note that the records of others from this gateway's silence have been read."""
        self._is_sure = True

    def renew(self, said_at: float, timestamp_ms: int, *, can_write: bool = True) -> None:
        """Note that a heartbeat sent at a time has come back.

        Args:
            said_at: By the clock of the lease.
            timestamp_ms: By the log.
            can_write: It came through the queue through which all else goes.
        """
        stood_seconds = self._standstill.heard(timestamp_ms, said_at)
        if stood_seconds >= HEARTBEAT_SECONDS:
            logger.warning(
                "this machine stood still, or the log's clock was set",
                extra={"fields": {"seconds": round(stood_seconds, 1)}},
            )
        self._until -= stood_seconds
        self._writes_until -= stood_seconds
        self.is_lost()  # that the time was over is not to be missed
        self.is_sure()
        self.silences += not self.is_in_time()
        self._until = max(self._until, said_at + self.seconds)
        if can_write:
            self._writes_until = max(self._writes_until, said_at + self.seconds)
        if self._doubted_at is not None and said_at >= self._doubted_at:
            self._doubted_at = None

    def confirm(self) -> None:
        """Act again: the acts of others meanwhile are known."""
        self._is_confirmed = True
